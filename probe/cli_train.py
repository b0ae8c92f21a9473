"""The command `probe train`: a tiny GPT on a text file, or by a recipe that has a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from probe.errors import ProbeError, UnknownName
from probe.exits import INTERRUPTED

if TYPE_CHECKING:
    from probe.models.train import Trained

TOKENIZERS = ("char", "bpe")

Text = Annotated[Path | None, typer.Argument(help="A UTF-8 text file to train on.")]
Named = Annotated[str | None, typer.Option(help="A recipe by name, instead of a text; tiny makes the shipped model.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the model; default models/NAME, of the text or recipe.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint; repeat the other options.")]
Tokens = Annotated[str | None, typer.Option("--tokenizer", help="char (default): characters; bpe: byte pairs.")]
Vocabulary = Annotated[int | None, typer.Option(help="Tokens of bpe, 259 at least; default 1024.")]
Steps = Annotated[int | None, typer.Option(help="Updates; default 2000.")]
Batch = Annotated[int | None, typer.Option(help="Windows of the text in each step; default 64.")]
Rate = Annotated[float | None, typer.Option(help="Highest learning rate; default 0.001.")]
Every = Annotated[int | None, typer.Option(help="Steps between two evaluations and checkpoints; default 250.")]
Seed = Annotated[int | None, typer.Option(help="Of the first weights and the order of the data; default 0.")]
Layers = Annotated[int | None, typer.Option(help="Blocks; default 4.")]
Heads = Annotated[int | None, typer.Option(help="Query heads; default 4.")]
Width = Annotated[int | None, typer.Option(help="Width of the residual stream; default 128.")]
Positions = Annotated[int | None, typer.Option(help="Longest prompt, in tokens; default 128.")]
Position = Annotated[str | None, typer.Option(help="none, sinusoidal, learned (default), rope or alibi.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other part of the model or training, as name=value (norm=rms); repeat for more."),
]


def train(
    text: Text = None,
    recipe: Named = None,
    out: Out = None,
    resume: Resume = False,
    tokenizer: Tokens = None,
    vocab_size: Vocabulary = None,
    steps: Steps = None,
    batch_size: Batch = None,
    learning_rate: Rate = None,
    every: Every = None,
    seed: Seed = None,
    layers: Layers = None,
    heads: Heads = None,
    d_model: Width = None,
    positions: Positions = None,
    position: Position = None,
    set_: Sets = None,
) -> None:
    """Train a tiny GPT. The folder is a model afterwards: `probe run coreference --model FOLDER`."""
    model = {"n_layers": layers, "n_heads": heads, "d_model": d_model, "max_positions": positions, "position": position}
    training = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "every": every, "seed": seed}
    words = {"tokenizer": tokenizer, "vocab_size": vocab_size}
    given = {name: value for name, value in {**words, **training, **model}.items() if value is not None}
    if (text is None) == (recipe is None):
        raise ProbeError("train on one thing: a text file, or a --recipe by name (tiny).")
    if recipe is not None and (given or set_):
        raise ProbeError(f"a recipe fixes everything; {next(iter(given), '--set')} cannot be given with --recipe.")
    folder = out or Path("models") / (str(recipe) if text is None else text.stem)
    try:
        if text is None:
            from probe.models.recipes import make

            trained = make(str(recipe), folder, resume=resume)
        else:
            trained = _on_text(text, folder, given, set_ or (), resume=resume)
        _draw(folder)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {_kept(folder)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    step, loss = trained.evaluations[-1]
    first = trained.evaluations[0][1]
    typer.echo(f"{folder}: loss on held-out data {first:.3f} -> {loss:.3f} nats per token in {step:,} steps")
    for task, row in trained.record.get("accuracy", {}).items():
        typer.echo(f"    {task}: {row['accuracy']:.1%} of {row['n']} held-out questions")


def _on_text(path: Path, folder: Path, given: dict[str, Any], sets: Sequence[str], *, resume: bool) -> Trained:
    """A model of one text: what was given goes to the tokenizer, the training and the model that it is a field of."""
    from dataclasses import fields

    from probe.models.config import Config
    from probe.models.corpora import TextFile, read_text, split
    from probe.models.tokenizer import byte_pair_tokenizer, character_tokenizer
    from probe.models.train import Recipe, train

    given = dict(given)
    kind, size = given.pop("tokenizer", "char"), given.pop("vocab_size", None)
    if kind not in TOKENIZERS:
        raise UnknownName.of("tokenizer", kind, TOKENIZERS)
    if kind == "char" and size is not None:
        raise ProbeError("--vocab-size is of byte pairs: give --tokenizer bpe as well; characters are as many as are.")
    own = {"vocab_size", "attention", "steps", "batch_size", "learning_rate", "every", "seed"}
    own |= {"n_layers", "n_heads", "d_model", "max_positions", "position"}
    hints = {name: hint for part in (Config, Recipe) for name, hint in get_type_hints(part).items() if name not in own}
    given |= dict(_setting(words, hints) for words in sets)
    in_training = {f.name for f in fields(Recipe)}
    given.setdefault("gradients", "by_hand")
    recipe = Recipe(**{name: value for name, value in given.items() if name in in_training})
    text = read_text(path)
    made = character_tokenizer(text) if kind == "char" else byte_pair_tokenizer(split(text)[0], size or 1024)
    config = Config(len(made), **{name: value for name, value in given.items() if name not in in_training})
    corpus = TextFile(text, made, positions=config.max_positions, name=path.name)
    return train(config, recipe, corpus, tokenizer=made, folder=folder, resume=resume)


def _setting(words: str, hints: dict[str, Any]) -> tuple[str, Any]:
    """Name and value of one --set, read as the type its field has."""
    from pydantic import TypeAdapter, ValidationError

    name, equals, value = words.partition("=")
    if not (name and equals and value):
        raise ProbeError(f"--set {words!r} is not of the form name=value.")
    if name not in hints:
        raise UnknownName.of("setting of a training", name, hints)
    try:
        return name, TypeAdapter(hints[name]).validate_strings(value)
    except ValidationError as error:
        raise ProbeError(f"--set {words!r}: {error.errors()[0]['msg']}.") from error


def _draw(folder: Path) -> None:
    """Beside the model, the figure of its losses."""
    import pandas as pd

    from probe.models import store
    from probe.models.checkpoints import LOSSES
    from probe.report.losses import loss_figure

    store.write((folder / LOSSES).with_suffix(".png"), loss_figure(pd.read_csv(folder / LOSSES), folder.name))


def _kept(folder: Path) -> str:
    """What an interrupted training leaves."""
    from probe.models.checkpoints import steps_kept

    if done := steps_kept(folder):
        return f"the checkpoint after step {done:,} is kept: the same command with --resume goes on from there."
    return "there was no checkpoint yet (--every sets how often one is kept), so nothing is."
