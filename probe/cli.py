"""The command `probe`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.cli_doctor import doctor
from probe.cli_run import REPORTS, run, write_index_of
from probe.cli_train import train
from probe.cli_verify import compare, verify
from probe.cli_view import view
from probe.data.texts import Span, words
from probe.errors import ProbeError, SpanError, UnknownName, UsageError
from probe.exits import DONE, FAILED, USAGE
from probe.tty import table as _table

if TYPE_CHECKING:
    from torch import Tensor


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which attention heads of a language model do a job, and how sure we are.",
)


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
        write_index_of(folder)
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


app.command()(run)
app.command()(train)
app.command()(view)
app.command()(verify)
app.command()(compare)
app.command()(doctor)


def _hint(text: str, query: str, error: str) -> str:
    """What to try where a word was not found, or found twice."""
    if "which one" in error:
        return ". Give --occurrence."
    alike = [w.text(text) for w in words(text) if w.text(text).lower() == query.lower()]
    return f". Did you mean {alike[0]!r}?" if alike else ""


def main() -> None:
    """Entry point: errors of probe, and of the file system, end in one line on stderr, never in a traceback."""
    if odd := [word for word in sys.argv[1:] if _unreadable(word)]:
        typer.echo(f"error: the argument {odd[0]!r} is not text in UTF-8.", err=True)
        sys.exit(USAGE)
    try:
        app()
    except (UnknownName, UsageError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE)
    except (ProbeError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(FAILED)


def _unreadable(word: str) -> bool:
    """Whether a word holds halves of surrogate pairs, which stand for bytes that are not UTF-8."""
    return any("\ud800" <= char <= "\udfff" for char in word)
