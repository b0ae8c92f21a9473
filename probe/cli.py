"""The command `probe`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli_train import train
from probe.cli_view import view
from probe.data.texts import Span, words
from probe.errors import ProbeError, SpanError, UnknownName

if TYPE_CHECKING:
    from torch import Tensor

    from probe.runner.registry import Study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which attention heads of a language model do a job, and how sure we are.",
)

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
REPORTS = Path("reports")

Models = Annotated[list[str] | None, typer.Option("--model", "-m", help="Name, folder or hub id; repeat for more.")]
Out = Annotated[Path | None, typer.Option(help="Folder for results; default reports/quick, or reports if full.")]
Data = Annotated[Path | None, typer.Option(help="A data file of yours, where the study reads one.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="A study's parameter, as name=value; repeat for more.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Seed of the split; repeat for more.")]


@app.command("list")
def list_studies() -> None:
    """List the studies and the question each asks."""
    from probe.runner.registry import all_studies

    rows = [(s.name, s.question, ", ".join(s.models) or "none needed") for s in all_studies().values()]
    _table(("study", "question", "models by default"), rows)


@app.command()
def models() -> None:
    """List the models that have a name; folders and hub ids work as well."""
    from probe.models.fetch import WEIGHTS, cache_dir
    from probe.models.loading import NAMES

    rows = []
    for name, what in NAMES.items():
        state = "ships with probe" if name not in WEIGHTS else "not fetched yet"
        if (cache_dir() / name / "config.json").is_file():
            state = f"in {cache_dir() / name}"
        rows.append((name, what, state))
    _table(("name", "model", "weights"), rows)


@app.command()
def fetch(names: Annotated[list[str], typer.Argument(help="smollm2, minilm")]) -> None:
    """Download pretrained weights once, check them, and keep them in the user's cache."""
    from probe.models.fetch import fetch as fetch_weights

    for name in names:
        typer.echo(f"{name}: {fetch_weights(name)}")


@app.command()
def run(
    studies: Annotated[list[str], typer.Argument(help="Names of studies; `probe list` shows them.")],
    model: Models = None,
    profile: Annotated[str, typer.Option(help="quick: a sample of the data; full: all of it.")] = "quick",
    seed: Seeds = None,
    data: Data = None,
    out: Out = None,
    set_: Sets = None,
) -> None:
    """Run studies, keep their results, and write their reports. What is already there is not computed again."""
    from probe.runner.registry import find_study

    params = dict(_parameter(s) for s in set_ or ())
    chosen = [find_study(name) for name in dict.fromkeys(studies)]
    subjects = [study.runs_on(model) for study in chosen]
    seeds = list(dict.fromkeys(seed or [0]))
    for study in chosen:
        for number in seeds:
            study.check(profile=profile, seed=number, data=data, params=params)
    out = out or (REPORTS if profile == "full" else REPORTS / "quick")
    failures = 0
    try:
        for study, names in zip(chosen, subjects, strict=True):
            for name in names:
                for number in seeds:
                    failures += not _run_one(study, name, out, profile, number, data, params)
    except KeyboardInterrupt:
        typer.echo("interrupted; what was finished is kept, and the same command goes on from there.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _index(out)
    raise typer.Exit(FAILED if failures else DONE)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A results folder, or a folder of them.")] = REPORTS,
) -> None:
    """Write the pages of results that are there, and the index over them, without running anything."""
    from probe.errors import ResultsError
    from probe.report.page import write_report
    from probe.runner.manifest import finished

    cells = [folder] if (folder / "manifest.json").is_file() else finished(folder)
    if not cells:
        raise ResultsError(
            f"{folder} holds no finished results (<study>/<model>/manifest.json). Quick runs write to "
            f"{REPORTS / 'quick'}: probe run coreference"
        )
    broken = 0
    for cell in cells:
        try:
            typer.echo(write_report(cell))
        except ResultsError as error:
            typer.echo(f"error: {error}", err=True)
            broken += 1
    if folder not in cells:
        _index(folder)
    raise typer.Exit(FAILED if broken else DONE)


@app.command()
def attend(
    model: Annotated[str, typer.Argument(help="Name, folder or hub id.")],
    text: Annotated[str, typer.Argument(help="The sentence.")],
    query: Annotated[str, typer.Option(help="The word whose attention is shown.")],
    occurrence: Annotated[
        int | None, typer.Option(help="Which one, from 0, if the word is there more than once.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Words shown in each row.")] = 5,
) -> None:
    """Show the words that one word looks at most."""
    try:
        if text.strip():
            Span.of(text, query, occurrence)  # told before a model is loaded
    except SpanError as error:
        raise SpanError(f"{error}{_hint(text, query, str(error))}") from error
    from probe.scores.words import word_attention
    from probe.subject import load

    subject = load(model)
    found = word_attention(subject, text, query, occurrence=occurrence)
    if not found.words:
        typer.echo(f"{query!r} has no other word to look at in {model}.")
        return
    # The first token collects attention that has nowhere to go (a sink); hardest means hardest at any other word.
    ranked = found.mass[..., found.first_word :] if found.mass.shape[-1] > found.first_word else found.mass
    hardest = [divmod(int(i), subject.n_heads) for i in ranked.amax(-1).flatten().argsort(descending=True)[:8]]
    parts = (found.mass, found.special, found.itself)  # (layer, head, word), (layer, head), (layer, head)
    last = subject.n_layers - 1
    views: list[tuple[str, list[Tensor]]] = [
        ("mean of all heads", [part.mean((0, 1)) for part in parts]),
        (f"mean of last layer ({last})", [part[-1].mean(0) for part in parts]),
        *((f"head {layer}.{head}", [part[layer, head] for part in parts]) for layer, head in hardest),
    ]
    rows: list[tuple[str, ...]] = []
    for name, (mass, special, itself) in views:
        order = mass.argsort(descending=True)[:top]
        listed = "  ".join(f"{found.words[i]} {mass[i]:.2f}" for i in order)
        rows.append((name, listed, f"{special:.2f}", f"{itself:.2f}"))
    typer.echo(f"{subject.name}, from {query!r} in: {text}")
    if found.first_word:
        typer.echo(f"{found.words[0]!r} holds the first token, where idle heads rest: heads are ranked by other words.")
    _table(("layer.head", "most attended words", "special tokens", "itself"), rows)
    if subject.is_causal:
        typer.echo(f"A causal model: {query!r} sees only the words before it.")


app.command()(train)
app.command()(view)


def _hint(text: str, query: str, error: str) -> str:
    """What to try where a word was not found, or found twice."""
    if "which one" in error:
        return ". Give --occurrence."
    alike = [w.text(text) for w in words(text) if w.text(text).lower() == query.lower()]
    return f". Did you mean {alike[0]!r}?" if alike else ""


def _run_one(
    study: Study, model: str | None, out: Path, profile: str, seed: int, data: Path | None, params: dict[str, str]
) -> bool:
    """One cell and its report; False, and the reason on stderr, if it failed."""
    from probe.report.page import write_report
    from probe.runner.cells import run_cell
    from probe.subject import load

    def say(line: str) -> None:
        typer.echo(line, err=True)

    try:
        cell = run_cell(
            study,
            None if model is None else load(model),
            out=out,
            model=model,
            profile=profile,
            seed=seed,
            data=data,
            params=params,
            say=say,
        )
        page = write_report(cell.folder)
    except ProbeError as error:
        say(f"error: {study.name}{f' on {model}' if model else ''}: {error}")
        return False
    typer.echo(f"{page} ({'already there' if cell.reused else str(cell.manifest.times['seconds']) + ' s'})")
    typer.echo(f"    {cell.answer}")
    return True


def _index(out: Path) -> None:
    from probe.report.index import write_index
    from probe.runner.manifest import finished

    if finished(out):
        typer.echo(f"{write_index(out)} (open this in a browser)")


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ProbeError(f"--set {text!r} is not of the form name=value.")
    return name, value


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console()
    # A pipe has no width: give it room, so that lines are not wrapped for a terminal that is not there.
    console.print(table) if console.is_terminal else Console(width=200).print(table)


def main() -> None:
    """Entry point: errors of probe end in one line on stderr, never in a traceback."""
    try:
        app()
    except UnknownName as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE)
    except ProbeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
