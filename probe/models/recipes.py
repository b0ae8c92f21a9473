"""Trainings that have a name. `make("tiny", folder)` makes the weights that ship with the package again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.data import language
from probe.errors import UnknownName
from probe.models import store
from probe.models.accuracy import task_accuracy
from probe.models.config import Config
from probe.models.corpora import Stage, SyntheticLanguage
from probe.models.tokenizer import word_tokenizer
from probe.models.train import Recipe, Trained, train
from probe.threads import limited


@dataclass(frozen=True)
class Named:
    """A training on the synthetic language. config: whatever of `Config` is not its default; the vocabulary is the
    language's. tasks, first: as in `SyntheticLanguage`.
    """

    what: str
    recipe: Recipe
    config: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, float] | None = None
    first: tuple[Stage, ...] = ()


RECIPES = {
    "tiny": Named(
        "the shipped model: 4 layers, 4 heads, width 128, on every task of the synthetic language",
        Recipe(steps=5000, batch_size=32, learning_rate=2e-3, warmup=100, every=500, beta2=0.98),
        # Induction heads come first, on repeats alone: what the facts need is built on them. They form in a few hundred
        # steps with rotary positions, an unembedding of its own and large first weights, and hardly without.
        {"max_positions": 64, "position": "rope", "norm": "rms", "ffn": "swiglu", "tied": False, "init_scale": 0.07},
        {"coreference": 1.0, "agreement": 1.0, "brackets": 2.0, "repeats": 1.0, "facts": 1.5},
        first=(Stage(650, {"repeats": 1.0}),),
    ),
}


def make(name: str, folder: Path, *, resume: bool = False, quiet: bool = False) -> Trained:
    """Train by a recipe of `RECIPES` and write the model into `folder`; its record has the accuracy by task as well.

    On one thread, so that the losses do not hang on how many there are. Raises UnknownName, and what `train` raises.
    """
    if name not in RECIPES:
        raise UnknownName.of("recipe", name, RECIPES)
    named = RECIPES[name]
    tokenizer = word_tokenizer(language.WORDS)
    with limited(1):
        trained = train(
            Config(vocab_size=len(tokenizer), **named.config),
            named.recipe,
            SyntheticLanguage(tokenizer, named.tasks, first=named.first),
            tokenizer=tokenizer,
            folder=folder,
            resume=resume,
            quiet=quiet,
        )
    reached = task_accuracy(trained.model, tokenizer)
    record = {"recipe": name, **trained.record, "accuracy": reached.set_index("task").to_dict("index")}
    store.write_json(folder / "recipe.json", record)
    return trained._replace(record=record)
