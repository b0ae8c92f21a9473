"""Facts in the synthetic language, to be retrieved from a list.

`Anna has ruby . Ben has coal . Carl has silk . what has Ben : coal .`

Two to eight facts in any order, no name and no thing in two; a sentence that says nothing of them may stand between.
Training texts go on with several questions, and with facts said again (`Ben has coal .`); items ask one question.

Held out: one in ten facts is never drawn for training; in every item, the fact that is asked for, in it or in its pair,
is one. (Names and things meet in training all the same, with other verbs: what is held out is nothing to be learned.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import product

from probe.data.language.coreference import HE, SHE
from probe.data.language.objects import OBJECTS
from probe.data.language.parts import LONGEST, Made, check_per_frame, collect, dataset, reserved
from probe.data.texts import Dataset

NAMES = (*HE, *SHE)
VERBS = ("has", "holds", "hides", "sells", "buys", "keeps")
ASIDES = ("the rain came down .", "the day was long .", "the bridge was old .", "it was late .")
WHAT, COLON = "what", ":"
WORDS = (*NAMES, *OBJECTS, *VERBS, *(w for aside in ASIDES for w in aside.split()), WHAT, COLON, ".")

FEWEST, MOST = 2, 8
FRAMES = tuple(f"facts-{verb}-{n}" for verb, n in product(VERBS, range(FEWEST, MOST + 1)))


def facts(seed: int = 0, per_frame: int = 16) -> Dataset:
    """Does the position that answers a question look at the value that is asked for? Held-out items.

    A frame is a verb with a number of facts, two to eight. The pair's other member asks for another of its facts.
    Query: the colon, after which the answer follows. Target: the value in the fact asked for; foils: the other values.
    Which fact is asked for is uniform; in half of the pairs, one or two sentences without a fact stand in between.
    Tags: n (number of facts), index (of the one asked for, from 0), asides ("yes" or "no").
    seed: draws names, values and their order. per_frame: items of each frame, a multiple of 4. Raises DataError
    otherwise.
    """
    check_per_frame(per_frame, 4, "asides and the fact asked for")
    rng = random.Random(seed)
    asked = {n: _take_turns(n, rng) for n in range(FEWEST, MOST + 1)}

    def pair(frame: str, number: int) -> tuple[Made, Made]:
        _, verb, n = frame.split("-")
        return _pair(verb, int(n), next(asked[int(n)]), rng.randint(1, 2) * (number % 2), rng)

    return dataset("facts", "retrieval", collect(FRAMES, per_frame // 2, pair), seed)


def draw(rng: random.Random) -> str:
    """A random list of facts to train on; then questions about them, and facts said again, while there is room."""
    verb = rng.choice(VERBS)
    known = []
    values = rng.sample(OBJECTS, len(OBJECTS))
    for name in rng.sample(NAMES, rng.randint(FEWEST, MOST)):
        known.append((name, values.pop(next(i for i, v in enumerate(values) if not reserved(name, verb, v)))))
    words, _ = _list(verb, known, rng.choice((0, 0, 1, 2)), rng)
    more: list[str] = []
    while len(words) + len(more) <= LONGEST:
        words += more
        name, value = rng.choice(known)
        more = [WHAT, verb, name, COLON, value, "."] if rng.random() < 0.6 else [name, verb, value, "."]
    return " ".join(words)


def _list(verb: str, known: list[tuple[str, str]], asides: int, rng: random.Random) -> tuple[list[str], list[int]]:
    """The facts as words, and where each value is. asides: how many sentences without a fact stand among them."""
    said = rng.choices(range(len(known)), k=asides)
    words: list[str] = []
    places = []
    for n, (name, value) in enumerate(known):
        for _ in range(said.count(n)):
            words += rng.choice(ASIDES).split()
        words += [name, verb, value, "."]
        places.append(len(words) - 2)
    return words, places


def _take_turns(n: int, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Pairs of different indices below n, without end, in which every index is there equally often."""
    waiting: list[int] = []
    while True:
        while len(waiting) < 2 or waiting[0] == waiting[1]:
            waiting = [*waiting[:1], *rng.sample(range(n), n)] if len(waiting) < 2 else waiting
            if waiting[0] == waiting[1]:
                waiting = [waiting[0], *waiting[2:], waiting[1]]
        yield waiting[0], waiting[1]
        waiting = waiting[2:]


@cache
def _held_out(verb: str) -> tuple[tuple[str, str], ...]:
    """The names and values whose fact is never drawn for training."""
    return tuple((name, value) for name, value in product(NAMES, OBJECTS) if reserved(name, verb, value))


def _pair(verb: str, n: int, asked: tuple[int, int], asides: int, rng: random.Random) -> tuple[Made, Made]:
    facts = rng.sample(_held_out(verb), 2)
    while facts[0][0] == facts[1][0] or facts[0][1] == facts[1][1]:
        facts = rng.sample(_held_out(verb), 2)
    taken = {w for fact in facts for w in fact}
    names = [w for w in rng.sample(NAMES, len(NAMES)) if w not in taken]
    values = [w for w in rng.sample(OBJECTS, len(OBJECTS)) if w not in taken]
    known = [facts[asked.index(k)] if k in asked else (names.pop(), values.pop()) for k in range(n)]
    words, places = _list(verb, known, asides, rng)
    made = []
    for own, other in (asked, asked[::-1]):
        name, value = known[own]
        rest = [other, *(k for k in range(n) if k not in asked)]
        made.append(
            Made(
                words=(*words, WHAT, verb, name, COLON, value, "."),
                query=len(words) + 3,
                target=places[own],
                foils=tuple(places[k] for k in range(n) if k != own),
                cue=(len(words) + 2, len(words) + 2),
                answer=len(words) + 4,
                wrong=tuple(known[k][1] for k in rest),
                tags={"n": str(n), "index": str(own), "asides": "yes" if asides else "no"},
            )
        )
    return made[0], made[1]
