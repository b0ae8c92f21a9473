"""Coreference in the synthetic language, in three families (each sentence frame is one cluster):

gender   `Anna thanked Ben after the long walk because she Anna was late .`   the pronoun's gender decides
number   `the dog chased the cats near the old bridge and they cats slept .`  the pronoun's number decides
cue      `the cat did not reach the shelf because it was too high : shelf .`  a later word decides

As in an annotated corpus, a pronoun is followed by its antecedent (in `cue`, where only later words decide, after the
colon), so a language model of these sentences has to resolve pronouns, and its answers can be checked.

Held out: no training sentence begins, up to its answer, like an item of `coreference()` with the default seed and up
to `LARGEST` items a frame. Items of other seeds are new to a model by chance only, since `coreference` draws them from
all sentences.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from probe.data.language.parts import listed, spans_of
from probe.data.texts import RIVALS, Dataset, Labelled, Question, Span
from probe.errors import DataError

HE = listed("Adam Ben Carl Dan Eric Fred Greg Hugo Ivan Jack Karl Leo Mark Nick Oscar Paul Ralph Sam Tom Victor")
SHE = listed(
    "Anna Beth Clara Diana Emma Fiona Grace Helen Iris Jane Kate Laura Mary Nina Olga Paula Rose Sara Tina Vera"
)
BEASTS = listed("dog cat horse fox bear goat duck wolf mouse lion sheep frog")
HERDS = listed("dogs cats horses foxes bears goats ducks wolves mice lions rams frogs")
THINGS = listed("shelf wall gate table ladder roof branch fence tower bench")

FILLERS = (
    "after the long walk home",
    "near the old bridge in the valley",
    "late in the evening of the first day",
    "before the rain came down at noon",
)

# One sentence frame for each verb; the connectives take turns.
GENDER_VERBS = listed(
    "thanked called met followed helped saw left paid asked warned greeted visited hugged joined praised "
    "blamed found believed reminded invited trusted taught hired forgave"
)
NUMBER_VERBS = listed(
    "chased watched passed met heard followed scared left found saw avoided smelled led copied fed fought "
    "guarded sought ignored woke"
)
CUE_VERBS = listed("reach cross climb pass clear touch mount scale enter leave circle top")
LINKS = listed("because when so and while")
ENDINGS_PERSON = listed("was late|felt well|had time|was glad|needed help", "|")
ENDINGS_BEAST = listed("slept|ran away|made noise|came back|lay down", "|")
TIRED = listed("too tired|too weak|too small|too old|too slow", "|")
HIGH = listed("too high|too steep|too far|too wide|too tall", "|")

LARGEST = 24  # items a frame up to which the items of the default seed are held out

_PHRASES = (*FILLERS, *ENDINGS_PERSON, *ENDINGS_BEAST, *TIRED, *HIGH, "the he she it they did not because was : .")
_NOUNS_AND_VERBS = (*HE, *SHE, *BEASTS, *HERDS, *THINGS, *GENDER_VERBS, *NUMBER_VERBS, *CUE_VERBS, *LINKS)
WORDS = tuple(sorted({*_NOUNS_AND_VERBS, *(w for phrase in _PHRASES for w in phrase.split())}))


@dataclass(frozen=True)
class _Sentence:
    """One sentence as words, with the indices of its labelled words."""

    words: tuple[str, ...]
    query: int
    target: int
    foil: int
    answer_after: int  # the answer follows the first `answer_after` words
    cue: int | None = None


def frames() -> list[str]:
    """The names of all sentence frames; a dataset's clusters."""
    counts = {"gender": len(GENDER_VERBS), "number": len(NUMBER_VERBS), "cue": len(CUE_VERBS)}
    return [f"{family}-{n:02d}" for family, count in counts.items() for n in range(count)]


_FRAMES = tuple(frames())


def sentence(frame: str, first: str, second: str, filler: str, ending: str, *, first_is_right: bool) -> _Sentence:
    """One sentence of `frame` about the candidates `first` and `second`. ending: the predicate (in `cue`: the cue)."""
    family, number = frame.split("-")
    n = int(number)
    right = first if first_is_right else second
    if family == "cue":
        words = f"the {first} did not {CUE_VERBS[n]} the {second} {filler} because it was {ending} : {right} .".split()
        query = len(words) - 4 - len(ending.split()) - 1
        foil = 6 if first_is_right else 1
        return _Sentence(tuple(words), query, 7 - foil, foil, len(words) - 2, cue=query + 3)
    verb = (GENDER_VERBS if family == "gender" else NUMBER_VERBS)[n]
    article = "" if family == "gender" else "the"
    start = f"{article} {first} {verb} {article} {second}".split()
    before = [*start, *filler.split(), LINKS[n % len(LINKS)]]
    words = [*before, _pronoun(right), right, *ending.split(), "."]
    places = (start.index(first), start.index(second))
    target, foil = places if first_is_right else places[::-1]
    return _Sentence(tuple(words), len(before), target, foil, len(before) + 1)


def draw(rng: random.Random) -> str:
    """One random sentence to train on, never the beginning of a held-out item."""
    while True:
        frame = rng.choice(_FRAMES)
        first, second, endings = _cast(frame.split("-")[0], rng)
        right = rng.random() < 0.5
        filler = rng.choice((*FILLERS, "", "", ""))
        ending = rng.choice(endings[0] if right else endings[1])
        made = sentence(frame, first, second, filler, ending, first_is_right=right)
        if " ".join(made.words[: made.answer_after]) not in _held_out():
            return " ".join(made.words)


@lru_cache(maxsize=1)
def _held_out() -> frozenset[str]:
    """What precedes the answer in every item of the default seed."""
    items = [i for n in range(4, LARGEST + 1, 4) for i in coreference(per_frame=n).items]
    return frozenset(i.text[: i.question.read_at] for i in items if isinstance(i, Labelled) and i.question)


def coreference(seed: int = 0, per_frame: int = 16) -> Dataset:
    """Balanced coreference items of the synthetic language, in minimal pairs.

    In every frame, half of the items have the first candidate right and half are long (a filler stands between the
    candidates and the pronoun); pairs differ in the pronoun (or cue) alone, up to the answer.
    seed: draws names, nouns and endings. per_frame: items of each frame, a multiple of 4. Raises DataError otherwise.
    """
    if per_frame < 4 or per_frame % 4:
        raise DataError(
            f"per_frame={per_frame} cannot be balanced over side and distance: it must be a positive multiple of 4; "
            f"the nearest is {max(4, round(per_frame / 4) * 4)}."
        )
    rng = random.Random(seed)
    items: list[Labelled] = []
    for frame in frames():
        for n, distance in product(range(per_frame // 4), ("near", "far")):
            items.extend(_pair(frame, f"{frame}-{distance}-{n}", distance, rng))
    return Dataset(
        "synthetic-coreference",
        "coreference",
        "accuracy",
        RIVALS,
        tuple(items),
        f"generated by probe.data.language (seed {seed})",
        "Apache-2.0",
    )


def _pair(frame: str, name: str, distance: str, rng: random.Random) -> Iterator[Labelled]:
    family = frame.split("-")[0]
    first, second, endings = _cast(family, rng)
    filler = rng.choice(FILLERS) if distance == "far" else ""
    pick = rng.randrange(len(endings[0]))  # the same ending in both, where it does not decide
    for right in (True, False):
        ending = (endings[0] if right else endings[1])[pick]
        made = sentence(frame, first, second, filler, ending, first_is_right=right)
        side, other = ("first", "second") if right else ("second", "first")
        spans = spans_of(made.words)
        yield Labelled(
            item=f"{name}-{side}",
            cluster=frame,
            text=" ".join(made.words),
            query=spans[made.query],
            target=spans[made.target],
            foils=(spans[made.foil],),
            cue=None if made.cue is None else spans[made.cue],
            pair=f"{name}-{other}",
            question=_question(made, first if not right else second, spans),
            tags={"family": family, "right": side, "distance": distance, "pronoun": made.words[made.query]},
        )


def _cast(family: str, rng: random.Random) -> tuple[str, str, tuple[list[str], list[str]]]:
    """Two candidates, and the endings that fit when the first or the second is right."""
    if family == "gender":
        pair = [rng.choice(HE), rng.choice(SHE)]
        endings = list(ENDINGS_PERSON), list(ENDINGS_PERSON)
    elif family == "number":
        one = rng.randrange(len(BEASTS))
        pair = [BEASTS[one], HERDS[(one + rng.randrange(1, len(HERDS))) % len(HERDS)]]
        endings = list(ENDINGS_BEAST), list(ENDINGS_BEAST)
    else:
        return rng.choice(BEASTS), rng.choice(THINGS), (list(TIRED), list(HIGH))
    rng.shuffle(pair)
    return pair[0], pair[1], endings


def _pronoun(word: str) -> str:
    if word in HE:
        return "he"
    if word in SHE:
        return "she"
    return "it" if word in BEASTS else "they"


def _question(made: _Sentence, wrong: str, spans: list[Span]) -> Question:
    return Question(spans[made.answer_after - 1].end, made.words[made.answer_after], (wrong,))
