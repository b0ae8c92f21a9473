"""Repeats in the synthetic language: strings that mean nothing, until a part of them comes again.

`ruby coal silk salt tin iron clay wool ruby coal silk salt`   after `ruby coal silk`, `salt` follows, as before

What goes on like its earlier copy is predicted by an induction head (Olsson et al. 2022), which looks from a word to
the word after its earlier copy. Gaps between the copies are random, so no fixed distance finds it.

Held out: one in ten runs of three words never occurs in training; in every item, the string has such a run where the
word asked for ends it.
"""

from __future__ import annotations

import random
from itertools import cycle, islice, product

from probe.data.language.objects import OBJECTS
from probe.data.language.parts import LONGEST, Made, check_per_frame, collect, dataset, reserved
from probe.data.texts import Dataset

WORDS = OBJECTS

_GAPS = {"a": (0, 1), "b": (0, 3), "c": (2, 4), "d": (3, 5)}  # least and most words of each gap
FRAMES = tuple(f"repeats-{shown}-{chunks}-{gap}" for shown, chunks, gap in product((1, 2, 3, 4), (2, 3, 4), _GAPS))


def repeats(seed: int = 0, per_frame: int = 16) -> Dataset:
    """Does a word that comes again look at the word that followed it before? Held-out items.

    A frame says how many words of a chunk come again, how many chunks the string has, and how wide its gaps are. The
    pair's other member repeats another chunk. Query: the last word shown. Target: the word after its earlier copy.
    Foils: the earlier copy itself (a duplicate-token head looks there), the other member's copy and target, and the
    last word of every other chunk.
    Tags: shown, chunks, gap, chunk (which one comes again, from 0).
    seed: draws words, gaps and chunks. per_frame: items of each frame, an even number. Raises DataError otherwise.
    """
    check_per_frame(per_frame, 2, "which chunk comes again")
    rng = random.Random(seed)
    return dataset("repeats", "induction", collect(FRAMES, per_frame // 2, lambda f, _: _pair(f, rng)), seed)


def draw(rng: random.Random) -> str:
    """A random string to train on: one chunk of words again and again, with gaps between that no fixed distance fits.

    The chunk has 8 to 18 words, each gap up to 12 others. (Texts of short chunks, often without gaps, are learned by
    other means, and items then fail.)
    """
    pool = rng.sample(OBJECTS, len(OBJECTS))
    chunk = _chunk(pool, rng.randint(8, 18))
    others = cycle(pool)
    words: list[str] = []
    while len(words) < LONGEST:
        for word in islice(others, rng.randint(0, 12)):
            words += [word] if _may_follow(words, [word]) else []
        words += chunk if _may_follow(words, chunk) else []
    return " ".join(words[:LONGEST])


def _chunk(pool: list[str], size: int) -> list[str]:
    """Up to `size` words, taken out of the pool, that may follow one another in training."""
    chunk: list[str] = []
    while len(chunk) < size and (word := next((w for w in pool if _may_follow(chunk, [w])), None)):
        pool.remove(word)
        chunk.append(word)
    return chunk


def _may_follow(words: list[str], some: list[str]) -> bool:
    """Whether some words may follow others in training."""
    run = [*words[-2:], *some]
    return not any(reserved(*run[n : n + 3]) for n in range(len(run) - 2))


def _pair(frame: str, rng: random.Random) -> tuple[Made, Made]:
    _, *sizes, gap = frame.split("-")
    shown, count = (int(s) for s in sizes)
    asked = sorted(rng.sample(range(count), 2))
    words, ends = _string(shown, count, gap, asked, rng)
    while not ends:
        words, ends = _string(shown, count, gap, asked, rng)
    made = []
    for own, other in (asked, asked[::-1]):
        foils = {ends[own] - 1, ends[other] - 1, *ends} - {ends[own]}
        others = [other, *(n for n in range(count) if n not in asked)]
        made.append(
            Made(
                words=(*words, *words[ends[own] - shown : ends[own] + 1]),
                query=len(words) + shown - 1,
                target=ends[own],
                foils=tuple(sorted(foils)),
                cue=(len(words), len(words) + shown - 1),
                answer=len(words) + shown,
                wrong=tuple(words[ends[n]] for n in others),
                tags={"shown": str(shown), "chunks": str(count), "gap": gap, "chunk": str(own)},
            )
        )
    return made[0], made[1]


def _string(shown: int, count: int, gap: str, asked: list[int], rng: random.Random) -> tuple[list[str], list[int]]:
    """A string of different words, and where each of its chunks ends; no ends if no held-out run could be made.

    The chunks that are asked for end in a run that is never drawn for training.
    """
    pool = rng.sample(OBJECTS, len(OBJECTS))
    words = [pool.pop()]
    ends: list[int] = []
    for n in range(count):
        words += [pool.pop() for _ in range(rng.randint(*_GAPS[gap]) + shown)]
        fits = [w for w in pool if reserved(*words[-2:], w)] if n in asked else pool
        if not fits:
            return words, []
        words.append(pool.pop(pool.index(fits[0])))
        ends.append(len(words) - 1)
    return [*words, *(pool.pop() for _ in range(rng.randint(*_GAPS[gap])))], ends
