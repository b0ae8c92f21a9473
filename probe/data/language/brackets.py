"""Nesting in the synthetic language: what closes must match the innermost opener that is still open.

brackets  `( dog [ fox ] wolf )`                               four kinds of brackets, words between them
blocks    `begin ruby dog begin coal fox end coal wolf end ruby`   indentation in words: `end` repeats the name

In a minimal pair, the two innermost openers are followed by either the closer of the inner one or a word (in blocks,
two words): so one of them or the other is what has to be closed next. The words in between mean nothing.

Held out: one in ten combinations of an opener and the word after it is never drawn for training; in every item, the
two openers that its pair is about have one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Literal

from probe.data.language.agreement import NOUNS, PLURALS
from probe.data.language.coreference import BEASTS, HERDS, THINGS
from probe.data.language.objects import OBJECTS
from probe.data.language.parts import LONGEST, Made, check_per_frame, collect, dataset, reserved
from probe.data.texts import Dataset

KINDS = {"(": ")", "[": "]", "{": "}", "<": ">"}
BEGIN, END = "begin", "end"
INSIDE = (*BEASTS, *HERDS, *THINGS, *NOUNS, *PLURALS)
DEEPEST = 4
WORDS = (*KINDS, *KINDS.values(), BEGIN, END, *INSIDE, *OBJECTS)

_PLACES = ("none", "before", "between", "inside", "after", "around")  # of the groups that are opened and closed again
FRAMES = tuple(
    f"{family}-{depth}-{place}-{runs}"
    for family, depth, place, runs in product(("brackets", "blocks"), (2, 3), _PLACES, ("short", "long"))
)


def brackets(seed: int = 0, per_frame: int = 16) -> Dataset:
    """Does the position before a closer look at the opener it has to match? Held-out items.

    A frame is a shape: brackets or blocks, how many openers are open, where other groups were opened and closed, and
    short or long runs of words. Query: the word before a closing bracket; in blocks, `end`. Target: the innermost
    opener still open (in blocks, its name); foils: all others before the query, open or closed. In half of a frame's
    items the innermost of two openers has been closed.
    Tags: family, depth (openers still open at the query), place (of the closed groups), innermost ("open" or "closed").
    seed: draws kinds, names and words. per_frame: items of each frame, an even number. Raises DataError otherwise.
    """
    check_per_frame(per_frame, 2, "which opener is to be closed")
    rng = random.Random(seed)
    return dataset("brackets", "brackets", collect(FRAMES, per_frame // 2, lambda f, _: _pair(f, rng)), seed)


def draw(rng: random.Random) -> str:
    """A random nesting to train on, of brackets or of blocks; all that is opened is closed.

    How deep it may go, and how often words stand in between, is drawn for each text: one to `DEEPEST`, 0.2 to 0.6.
    """
    nest = _Nest(rng.random() < 0.5)
    deepest, share = rng.randint(1, DEEPEST), rng.uniform(0.2, 0.6)
    names = rng.sample(OBJECTS, len(OBJECTS))
    while len(nest.words) + nest.left <= LONGEST - 5:
        if rng.random() < share:
            nest.play(_word(rng))
        elif not nest.open or (len(nest.open) < deepest and rng.random() < 0.5):
            name = names.pop() if nest.blocks else rng.choice(list(KINDS))
            nest.play(("open", name, rng.choice(_after(name, held_out=False))))
        else:
            nest.play(_CLOSE)
    while nest.open:
        nest.play(_CLOSE)
    return " ".join(nest.words)


_Step = tuple[Literal["open", "word", "close"], str, str]  # what to do; an opener or word; the word after an opener
_CLOSE: _Step = ("close", "", "")


@dataclass
class _Nest:
    """A nesting as it is written. found: index of every opener (in blocks, of its name). open: those not yet closed."""

    blocks: bool
    words: list[str] = field(default_factory=list)
    found: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many words it takes to close all that is open."""
        return len(self.open) * (2 if self.blocks else 1)

    def play(self, step: _Step) -> None:
        what, word, after = step
        if what == "open":
            self.words += [BEGIN, word] if self.blocks else [word]
            self.found.append(len(self.words) - 1)
            self.open.append(len(self.words) - 1)
            self.words.append(after)
        elif what == "word":
            self.words.append(word)
        else:
            name = self.words[self.open.pop()]
            self.words += [END, name] if self.blocks else [KINDS[name]]


@cache
def _after(opener: str, *, held_out: bool) -> tuple[str, ...]:
    """The words that may follow an opener, in held-out items or in training texts."""
    return tuple(w for w in INSIDE if reserved(opener, w) == held_out)


def _word(rng: random.Random) -> _Step:
    return "word", rng.choice(INSIDE), ""


def _pair(frame: str, rng: random.Random) -> tuple[Made, Made]:
    family, depth, place, runs = frame.split("-")
    blocks = family == "blocks"
    openers = _openers(blocks, int(depth), rng)
    before, after = _plan(openers, int(depth), place, runs, rng)
    size = 2 if blocks else 1  # words of a closer
    words, rest = ([_word(rng) for _ in range(size)] for _ in range(2))
    tags = {"family": family, "place": place}
    return (
        _member(blocks, (before, [_CLOSE], after, rest), {**tags, "innermost": "closed"}),
        _member(blocks, (before, words, after, []), {**tags, "innermost": "open"}),
    )


def _member(blocks: bool, parts: tuple[list[_Step], ...], tags: dict[str, str]) -> Made:
    """parts: what comes before the deciding words, they, what comes after them, and what follows the last closer."""
    before, deciding, after, rest = parts
    nest = _Nest(blocks)
    for step in before:
        nest.play(step)
    inner = nest.open[-2:]
    first = len(nest.words)
    for step in deciding:
        nest.play(step)
    cue = (first, len(nest.words) - 1)
    for step in after:
        nest.play(step)
    answer = len(nest.words) + (1 if blocks else 0)
    target, depth = nest.open[-1], len(nest.open)
    foils = [f for f in nest.found if f != target]
    (other,) = (i for i in inner if i != target)
    answers = [nest.words[f] for f in (other, *foils)] if blocks else [KINDS[nest.words[other]], *KINDS.values()]
    while nest.open:
        nest.play(_CLOSE)
    for step in rest:
        nest.play(step)
    right = nest.words[answer]
    return Made(
        words=tuple(nest.words),
        query=answer - 1,
        target=target,
        foils=tuple(foils),
        cue=cue,
        answer=answer,
        wrong=tuple(w for w in dict.fromkeys(answers) if w != right),
        tags={**tags, "depth": str(depth)},
    )


def _openers(blocks: bool, depth: int, rng: random.Random) -> list[str]:
    """`depth` openers, the two innermost unlike each other, and two more for the groups that are closed again."""
    if blocks:
        return rng.sample(OBJECTS, depth + 2)
    inner = rng.sample(list(KINDS), 2)
    others = [rng.choice(list(KINDS)) for _ in range(depth)]
    return [*others[: depth - 2], *inner, *others[depth - 2 :]]


def _plan(openers: list[str], depth: int, place: str, runs: str, rng: random.Random) -> tuple[list[_Step], list[_Step]]:
    """What is written before and after the deciding words."""

    def run(least: int) -> list[_Step]:
        n = least + (rng.randint(1, 2) if runs == "long" else 0)
        return [_word(rng) for _ in range(n)]

    def opened(name: str, held_out: bool) -> list[_Step]:
        return [("open", name, rng.choice(_after(name, held_out=held_out))), *run(0)]

    def group(n: int) -> list[_Step]:
        return [*opened(openers[depth + n], False), _CLOSE, *run(0)]

    before: list[_Step] = group(0) if place in ("before", "around") else []
    for level in range(depth):
        if place == "between" and level == depth - 1:
            before += group(0)
        before += opened(openers[level], level >= depth - 2)
    if place == "inside":
        before += group(0)
    after = [*(group(1) if place in ("after", "around") else []), *run(1)]
    return before, after
