"""A needle in running text: one fact among sentences that have nothing to do with it, at given lengths and depths.

A needle that no other fact competes with is found anywhere (`probe.data.buried` has facts that do); with `rivals`,
other facts of its kind lie in the text at even distances.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from probe.data.buried import NAMES, PHRASINGS, THINGS
from probe.data.running import sentences, sentences_of
from probe.data.texts import RIVALS, Dataset, Labelled, Question, Span
from probe.errors import DataError, UnknownName

CANDIDATES = 10  # things of the forced choice


class Hidden(NamedTuple):
    """One text's facts, whatever its length. facts: (name, thing), the needle first. things: the candidates, those of
    the facts first. absent: a name that is in none.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    things: tuple[str, ...]
    absent: str


def needle(
    lengths: Sequence[int] = (500,),
    depths: Sequence[float] = (0.0, 0.5, 1.0),
    *,
    texts: int = 12,
    phrasing: str = "market",
    path: str | Path | None = None,
    count: Callable[[str], int] = lambda text: len(text.split()),
    fits: Callable[[str], bool] = lambda word: True,
    chat: tuple[str, str] = ("", " "),
    rivals: int = 0,
    absent: bool = False,
    seed: int = 0,
) -> Dataset:
    """Questions about one fact in running text. Query: where the answer's thing follows; target: the thing; foils: the
    things of rival facts. The forced choice is among ten things. Cluster: the text, which has the same needle at every
    length and depth. Tags: n (the length), index (the depth in percent), phrasing.

    lengths: at most so many words, or whatever `count` counts, such as a model's tokens. depths: which share of the
    text's sentences stands before the needle. texts: how many. phrasing: a key of `PHRASINGS`. path: a text file to
    take sentences from, each text from another place in it; default sentences of our own (`probe.data.running`). fits:
    which names and things may be used. chat: what stands before the text, and between the question and the answer.
    rivals: other facts in the text, at most nine. absent: whether the question is about a name that is not in it.
    Raises UnknownName for a phrasing, DataError for lengths, depths and numbers that cannot be had.
    """
    if phrasing not in PHRASINGS:
        raise UnknownName.of("phrasing", phrasing, PHRASINGS)
    names, things = [w for w in NAMES if fits(w)], [w for w in THINGS if fits(w)]
    if not 0 <= rivals < CANDIDATES or len(things) < CANDIDATES or len(names) < rivals + 2:
        raise DataError(
            f"rivals={rivals}: 0 to {CANDIDATES - 1} can be had, and {len(names)} names and {len(things)} things fit."
        )
    if not lengths or not depths or not all(0 <= d <= 1 for d in depths):
        raise DataError(f"lengths={tuple(lengths)}, depths={tuple(depths)}: give some of each, depths from 0 to 1.")
    rng = random.Random(f"{seed} {phrasing} {rivals}")
    items = []
    for number in range(texts):
        drawn = rng.sample(names, rivals + 2)
        chosen = tuple(rng.sample(things, CANDIDATES))
        facts = tuple(zip(drawn, chosen, strict=False))[: rivals + 1]
        hidden = Hidden(f"text-{number + 1:03}", facts, chosen, drawn[-1])
        banned, start = {*chosen, *drawn}, rng.random()
        for length in lengths:
            around = _filler(path, length, count, banned, start, f"{seed} {number}")
            items += [_item(hidden, around, length, depth, phrasing, chat, absent) for depth in depths]
    return Dataset(
        name=f"needle-{phrasing}{f'-{rivals}-rivals' * bool(rivals)}{'-absent' * absent}",
        phenomenon="retrieval",
        statistic="accuracy",
        rivals=RIVALS if rivals else (),
        items=tuple(items),
        source=f"{Path(path).name if path else 'generated'}, by probe.data.needle (seed {seed})",
        licence="as the file's" if path else "Apache-2.0",
    )


def _filler(
    path: str | Path | None, length: int, count: Callable[[str], int], banned: set[str], start: float, seed: str
) -> list[str]:
    """Sentences of at most `length` together, none of which has a banned word."""
    if path is None:
        source: Iterator[str] = sentences(seed)
    else:
        held = sentences_of(path)
        source = itertools.islice(itertools.cycle(held), int(start * len(held)), int(start * len(held)) + len(held))
    found: list[str] = []
    used = 0
    for sentence in source:
        if banned & {w.strip(".,;:!?'\"") for w in sentence.split()}:
            continue
        size = count(f" {sentence}")
        if used + size > length:
            break
        found.append(sentence)
        used += size
    else:
        raise DataError(f"{path}: its sentences are {used} long together, a text of {length} was asked for.")
    if not found:
        raise DataError(f"length={length}: no sentence is as short.")
    return found


def _item(
    hidden: Hidden,
    around: Sequence[str],
    length: int,
    depth: float,
    phrasing: str,
    chat: tuple[str, str],
    absent: bool,
) -> Labelled:
    frames = PHRASINGS[phrasing]
    rivals = len(hidden.facts) - 1
    depths = [depth, *((k + 0.5) / rivals for k in range(rivals))]
    places = [round(d * len(around)) for d in depths]  # before which sentence each fact stands
    text = chat[0]
    spans: dict[int, Span] = {}
    for at in range(len(around) + 1):
        for number in sorted((k for k, p in enumerate(places) if p == at), key=lambda k: depths[k]):
            name, thing = hidden.facts[number]
            fact = frames.fact.format(name=name, thing=thing)
            start = len(text) + fact.index(f" {thing} ") + 1
            spans[number] = Span(start, start + len(thing))
            text += fact + " "
        text += f"{around[at]} " if at < len(around) else ""
    asked = hidden.absent if absent else hidden.facts[0][0]
    start_of = text + frames.question.format(name=asked) + chat[1] + frames.answer.format(name=asked)
    percent = round(100 * depth)
    return Labelled(
        item=f"{hidden.name}-{length}-{percent:03}{'-absent' * absent}",
        cluster=hidden.name,
        text=f"{start_of} {hidden.things[0]}",
        query=Span(len(start_of) - 1, len(start_of)),
        target=spans[0],
        foils=tuple(spans[k] for k in range(1, len(hidden.facts))),
        question=Question(len(start_of), hidden.things[0], hidden.things[1:]),
        tags={"n": str(length), "index": str(percent), "phrasing": phrasing},
    )
