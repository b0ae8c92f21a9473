"""Subject-verb agreement in the synthetic language: the verb takes the number of its subject, not of nearer nouns.

`the king near the nurses often sees the monk .`       the subject is the first noun: `sees`
`the king that the nurses often see is old .`          the subject is the noun after `that`: `see`
`the king near the nurses that the monk with the poets rarely sees is old .`   up to three others before the verb

The nouns before the verb are linked by prepositions or, at most once, by `that`, which opens a clause with a subject of
its own. So one word decides which noun the next verb agrees with, and a minimal pair differs in that word alone. An
adverb stands before the verb: the query, where the verb is to be predicted.

Held out: one in ten combinations of first noun, last noun and verb is never drawn for training; all items have one.
"""

from __future__ import annotations

import random
from itertools import product

from probe.data.language.parts import LONGEST, Made, check_per_frame, collect, dataset, listed, reserved
from probe.data.texts import Dataset

NOUNS = listed(
    "king nurse farmer pilot baker clerk judge guard singer tailor sailor painter miner hunter monk poet doctor driver "
    "teacher lawyer"
)
PLURALS = tuple(f"{noun}s" for noun in NOUNS)
PLURAL_VERBS = listed("see like know want hear find need love fear help draw call pull seek trust admire")
SINGULAR_VERBS = tuple(f"{verb}s" for verb in PLURAL_VERBS)
PREPOSITIONS = ("near", "beside", "behind", "with", "against", "opposite")
ADVERBS = ("often", "never", "always", "still", "sometimes", "rarely", "usually", "seldom")
ADJECTIVES = ("old", "young", "calm", "brave", "rich", "poor", "proud", "kind")
THAT = "that"
WORDS = (
    *(*NOUNS, *PLURALS, *PLURAL_VERBS, *SINGULAR_VERBS, *PREPOSITIONS, *ADVERBS, *ADJECTIVES),
    *(THAT, "the", "is", "are", "."),
)

FRAMES = tuple(f"agreement-{verb}-{others}" for verb, others in product(PLURAL_VERBS, (1, 2, 3)))

_Noun = tuple[int, bool]  # which noun, and whether it is plural


def agreement(seed: int = 0, per_frame: int = 16) -> Dataset:
    """Does the position before a verb look at the verb's subject rather than at the other nouns? Held-out items.

    A frame is a verb with one, two or three nouns beside its subject. The pair's other member has another subject, of
    the other number; further nouns are of random number. In each frame the first noun is the subject in half of the
    items and is plural in half of the pairs.
    Tags: others (number of foils), subject ("first", or which noun after it), number (of the subject).
    seed: draws the words. per_frame: items of each frame, a multiple of 4. Raises DataError otherwise.
    """
    check_per_frame(per_frame, 4, "subject and number")
    rng = random.Random(seed)
    return dataset("agreement", "agreement", collect(FRAMES, per_frame // 2, lambda f, n: _pair(f, n, rng)), seed)


def draw(rng: random.Random) -> str:
    """One or more random sentences to train on."""
    length = rng.randint(0, LONGEST)
    words = _training_sentence(rng)
    while len(words) + len(more := _training_sentence(rng)) <= length:
        words += more
    return " ".join(words)


def _training_sentence(rng: random.Random) -> list[str]:
    picked = rng.sample(range(len(NOUNS)), rng.randint(2, 4))
    verb = rng.randrange(len(PLURAL_VERBS))
    while reserved(NOUNS[picked[0]], NOUNS[picked[-1]], PLURAL_VERBS[verb]):
        verb = rng.randrange(len(PLURAL_VERBS))
    links = [rng.choice(PREPOSITIONS) for _ in picked[1:]]
    if rng.random() < 0.5:
        links[rng.randrange(len(links))] = THAT
    nouns = [(noun, rng.random() < 0.5) for noun in picked]
    return _words(nouns, links, rng.choice(ADVERBS), verb, _object(picked, rng), rng.choice(ADJECTIVES))


def _words(nouns: list[_Noun], links: list[str], adverb: str, verb: int, thing: _Noun, adjective: str) -> list[str]:
    """A whole sentence. The verb is word 3 * len(nouns); noun n is word 1 + 3 * n, and the link after it the next."""
    words = ["the", _noun(nouns[0])]
    for link, noun in zip(links, nouns[1:], strict=True):
        words += [link, "the", _noun(noun)]
    plural = nouns[_subject(links)][1]
    words += [adverb, (PLURAL_VERBS if plural else SINGULAR_VERBS)[verb]]
    if THAT in links:  # the clause is over; the first noun still waits for its verb
        return [*words, "are" if nouns[0][1] else "is", adjective, "."]
    return [*words, "the", _noun(thing), "."]


def _pair(frame: str, n: int, rng: random.Random) -> tuple[Made, Made]:
    _, lemma, others = frame.split("-")
    count, verb = int(others) + 1, PLURAL_VERBS.index(lemma)
    picked = rng.sample(range(len(NOUNS)), count)
    while not reserved(NOUNS[picked[0]], NOUNS[picked[-1]], lemma):
        picked = rng.sample(range(len(NOUNS)), count)
    numbers = [rng.random() < 0.5 for _ in picked]
    numbers[0] = n % 2 == 1
    other = rng.randrange(1, count)
    numbers[other] = not numbers[0]
    nouns = list(zip(picked, numbers, strict=True))
    links = [rng.choice(PREPOSITIONS) for _ in picked[1:]]
    adverb, thing, adjective = rng.choice(ADVERBS), _object(picked, rng), rng.choice(ADJECTIVES)
    made = []
    for subject in (0, other):
        own = [*links]
        if subject:
            own[subject - 1] = THAT
        plural = numbers[subject]
        made.append(
            Made(
                words=tuple(_words(nouns, own, adverb, verb, thing, adjective)),
                query=3 * count - 1,
                target=1 + 3 * subject,
                foils=tuple(1 + 3 * k for k in range(count) if k != subject),
                cue=(3 * other - 1, 3 * other - 1),
                answer=3 * count,
                wrong=((SINGULAR_VERBS if plural else PLURAL_VERBS)[verb],),
                tags={
                    "others": others,
                    "subject": ("first", "second", "third", "fourth")[subject],
                    "number": "plural" if plural else "singular",
                },
            )
        )
    return made[0], made[1]


def _subject(links: list[str]) -> int:
    return links.index(THAT) + 1 if THAT in links else 0


def _noun(noun: _Noun) -> str:
    which, plural = noun
    return (PLURALS if plural else NOUNS)[which]


def _object(taken: list[int], rng: random.Random) -> _Noun:
    """A noun that is not in the sentence yet."""
    return rng.choice([n for n in range(len(NOUNS)) if n not in taken]), rng.random() < 0.5
