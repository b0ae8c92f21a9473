"""The synthetic language of the tiny GPT: a generator whose every text carries its gold labels.

Texts look like simple English, but words are drawn from closed lists (`WORDS`, one token each) and rules decide
everything, so that what is to be found is known. Its five tasks, each with an example and what it measures:

coreference  `Anna thanked Ben because she Anna was late .`
             from a pronoun to its antecedent (by gender, by number, or by a later cue)
agreement    `the king near the nurses often sees the monk .`  `the king that the nurses often see is old .`
             from the position before a verb to its subject, past nouns of the other number
brackets     `( dog [ fox ] wolf )`  `begin ruby dog begin coal fox end coal wolf end ruby`
             from the position before a closer to the innermost opener still open
repeats      `ruby coal silk tin iron clay wool ruby coal silk`
             from a word to the word after its earlier copy (the phenomenon is called induction)
facts        `Anna has ruby . Ben has coal . Carl has silk . what has Ben : coal .`
             from the end of a question to the value asked for (the phenomenon is called retrieval)

`dataset(task)` gives labelled test items: at least 40 sentence frames (a data set's clusters), in minimal pairs that
are aligned word for word, differ in the cue alone up to the answer, and swap the target and one foil. Candidates that
are nearest or first are right in about half of the items at most.

`draw(rng)` gives a training text: first a task, each equally likely, then a text of that task, at most 62 words long.
Training never holds a test item: one in ten combinations of the words that matter (each task's module says which) is
kept for testing by its hash, whatever the seed; for coreference, the items of the default seed are kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from probe.data.language import agreement as _agreement
from probe.data.language import brackets as _brackets
from probe.data.language import coreference as _coreference
from probe.data.language import facts as _facts
from probe.data.language import repeats as _repeats
from probe.data.language.agreement import agreement
from probe.data.language.brackets import brackets
from probe.data.language.coreference import BEASTS, HE, HERDS, HIGH, SHE, THINGS, TIRED, coreference, frames
from probe.data.language.facts import facts
from probe.data.language.repeats import repeats
from probe.data.texts import Dataset
from probe.errors import DataError, UnknownName


class _Task(NamedTuple):
    items: Callable[[int, int], Dataset]
    draw: Callable[[random.Random], str]
    words: tuple[str, ...]


_TASKS = {
    "coreference": _Task(coreference, _coreference.draw, _coreference.WORDS),
    "agreement": _Task(agreement, _agreement.draw, _agreement.WORDS),
    "brackets": _Task(brackets, _brackets.draw, _brackets.WORDS),
    "repeats": _Task(repeats, _repeats.draw, _repeats.WORDS),
    "facts": _Task(facts, _facts.draw, _facts.WORDS),
}

WORDS = tuple(sorted({word for task in _TASKS.values() for word in task.words}))


def tasks() -> tuple[str, ...]:
    """The names of the tasks."""
    return tuple(_TASKS)


def dataset(task: str, seed: int = 0, per_frame: int = 16) -> Dataset:
    """The test items of a task, the same as those of the function named like it. Raises UnknownName, DataError.

    seed: draws the words. per_frame: items of each sentence frame; a multiple of 4 fits every task.
    """
    return _task(task).items(seed, per_frame)


def draw(rng: random.Random, tasks: Iterable[str] | None = None) -> str:
    """One random text to train on, never a test item.

    tasks: names of the tasks to draw from, each equally likely; None: all of them. Raises UnknownName, and DataError
    if there are none.
    """
    names = tuple(_TASKS) if tasks is None else tuple(tasks)
    if not names:
        raise DataError(f"tasks is empty: name at least one of {', '.join(_TASKS)}.")
    return _task(rng.choice(names)).draw(rng)


def _task(name: str) -> _Task:
    if name not in _TASKS:
        raise UnknownName.of("task of the synthetic language", name, _TASKS)
    return _TASKS[name]


__all__ = [
    "BEASTS",
    "HE",
    "HERDS",
    "HIGH",
    "SHE",
    "THINGS",
    "TIRED",
    "WORDS",
    "agreement",
    "brackets",
    "coreference",
    "dataset",
    "draw",
    "facts",
    "frames",
    "repeats",
    "tasks",
]
