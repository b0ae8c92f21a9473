"""Prompts behind a section's numbers, group by group: right or wrong, and where heads look in the first of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.causal.prompts import answered, looks, words_of
from probe.causal.sweep import Head
from probe.data.texts import Dataset
from probe.errors import DataError
from probe.runner.parts import Asked, Part, Prompts, Table
from probe.scores.components import questions
from probe.sites import head_names
from probe.subject import Subject
from probe.targets import Unit


@dataclass(frozen=True)
class Group:
    """Prompts that are shown together. name: of the group. texts: item -> its text. correct: (unit,), 1 right, 0 wrong,
    a share where it is a tie; NaN where nothing was asked, and the unit is left out. facts: column -> (unit,), printed
    beside each prompt.
    """

    name: str
    texts: Mapping[str, str]
    units: Sequence[Unit]
    correct: npt.NDArray[np.float64]
    facts: Mapping[str, Sequence[object] | npt.NDArray[np.float64]]


def grouped(
    subject: Subject, by: str, groups: Sequence[Group], heads: Sequence[Head], *, caption: str, most: int = 3
) -> tuple[Part, ...]:
    """The tables `asked` (every prompt) and `asked_tokens` (of some), and the `probe.Asked` over them.

    by: what the groups are called, a column. heads: whose attention is shown, from the query of each unit's first row.
    most: prompts of a group that are shown, each of another cluster. Raises DataError where no prompt is left, or two
    have one name.
    """
    asked, tokens = [], []
    for group in groups:
        names = [f"{group.name}: {unit.item}" for unit in group.units]
        rows = pd.DataFrame({by: group.name, "prompt": names, "correct": group.correct, **group.facts})
        asked.append(rows.dropna(subset="correct"))
        first: dict[str, Unit] = {}  # of each cluster
        for unit, correct in zip(group.units, group.correct, strict=True):
            if not np.isnan(correct):
                first.setdefault(unit.cluster, unit)
        if shown := list(first.values())[:most]:
            seen = looks(subject, shown, heads, words_of(subject, group.texts, shown))
            tokens.append(seen.assign(prompt=f"{group.name}: " + seen["prompt"]))
    if not tokens:
        raise DataError(f"there is no prompt to show of {', '.join(group.name for group in groups)}.")
    every = pd.concat(asked, ignore_index=True)
    if (twice := every["prompt"][every["prompt"].duplicated()]).size:
        raise DataError(f"{twice.iloc[0]!r} names more than one prompt.")
    return (
        Table("asked", every, "Every prompt.", digits=2, shown=False),
        Table("asked_tokens", pd.concat(tokens, ignore_index=True), "Tokens of some.", shown=False),
        Asked("asked_prompts", Prompts("asked", "asked_tokens", caption), by),
    )


def at_the_answer(unit: Unit) -> Unit:
    """A unit up to where its answer follows, read from there: what the model has before it when it answers."""
    if unit.answer is None:
        raise DataError(f"{unit.item} asks nothing.")
    at, row = unit.answer.read_at, unit.rows[0]
    return replace(unit, ids=unit.ids[: at + 1], rows=(replace(row, query=(at,)),), swapped=None)


def answers(
    subject: Subject, by: str, tasks: Mapping[str, Dataset], heads: Mapping[str, Head], *, items: int
) -> tuple[Part, ...]:
    """`grouped` for what a model is asked, seen from where its answers follow: of each task at most so many questions,
    spread evenly over it. heads: task -> whose attention is shown. Raises as `probe.scores.components.questions`.
    """
    groups = []
    for task, dataset in tasks.items():
        units, _ = questions(subject, dataset, items)
        found = answered(subject, dataset, units).drop(columns="prompt")
        correct = found.pop("correct").to_numpy(dtype=np.float64)
        facts = {str(name): list(values) for name, values in found.items()}
        facts["head"] = head_names([heads[task]] * len(units))
        groups.append(Group(task, dataset.texts, [at_the_answer(unit) for unit in units], correct, facts))
    caption = "The first ones, seen from where the answer follows. Right: of the answers to choose from, the right one "
    return grouped(subject, by, groups, list(heads.values()), caption=f"{caption}is the likeliest.")
