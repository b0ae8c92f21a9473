"""Sentences that stop before the word that decides what their pronoun stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probe.data.language import HIGH, TIRED


@dataclass(frozen=True)
class Cloze:
    """fits: each candidate -> words that would make the pronoun stand for it. nouns: each candidate -> the same text
    with the candidate in the pronoun's place, where the language allows it.
    """

    text: str
    fits: Mapping[str, tuple[str, ...]]
    nouns: Mapping[str, str]


_ENGLISH = "The cat didn't jump onto the table because {} was too"

ENGLISH = Cloze(
    _ENGLISH.format("it"),
    {
        "the cat": ("tired", "scared", "weak", "lazy", "old", "fat"),
        "the table": ("high", "tall", "far", "slippery", "wet", "hot"),
    },
    {candidate: _ENGLISH.format(candidate) for candidate in ("the cat", "the table")},
)

SYNTHETIC = Cloze(
    "the cat did not reach the shelf because it was too",
    {
        candidate: tuple(phrase.split()[-1] for phrase in phrases)
        for candidate, phrases in (("the cat", TIRED), ("the shelf", HIGH))
    },
    {},
)
