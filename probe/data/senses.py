"""The same word in different senses, in contexts that decide the sense before the word is read.

A causal model holds at a word nothing of what comes after it, so the deciding words come first and the word is last.
Each word has two contexts for either sense, and another word that fits into one context of either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from probe.data.language import HIGH, TIRED

SAME_SENSE = "same word, same sense"
OTHER_SENSE = "same word, other sense"
OTHER_WORD = "other word, same context"


@dataclass(frozen=True)
class Use:
    """A word in a text, in which it stands once."""

    text: str
    word: str


@dataclass(frozen=True)
class Comparison:
    """Two uses to compare. word: what both are about; comparisons of one word resemble each other."""

    kind: str
    word: str
    one: Use
    other: Use


@dataclass(frozen=True)
class Senses:
    """first, second: two contexts of each sense, without the word. others: the word to put into the first context of
    each sense instead.
    """

    word: str
    first: tuple[str, str]
    second: tuple[str, str]
    others: tuple[str, str]

    def comparisons(self) -> tuple[Comparison, ...]:
        """Two of the same sense, four of different senses, two with the other word."""
        sides = self.first, self.second
        uses = [tuple(Use(f"{context} {self.word}", self.word) for context in side) for side in sides]
        same = [Comparison(SAME_SENSE, self.word, *side) for side in uses]
        different = [Comparison(OTHER_SENSE, self.word, one, other) for one in uses[0] for other in uses[1]]
        swapped = [
            Comparison(OTHER_WORD, self.word, side[0], Use(f"{context[0]} {word}", word))
            for side, context, word in zip(uses, sides, self.others, strict=True)
        ]
        return (*same, *different, *swapped)


ENGLISH = (
    Senses(
        "apple",
        ("Google and Microsoft compete with", "The new phone and laptop were designed by"),
        ("She peeled the ripe red", "From the tree he picked a sweet green"),
        ("amazon", "pear"),
    ),
    Senses(
        "bank",
        ("He deposited all of the cash at the", "She asked for a loan at the"),
        ("They fished from the muddy river", "The canoe drifted to the grassy"),
        ("office", "shore"),
    ),
    Senses(
        "bat",
        ("The player swung the wooden", "He hit the ball hard with a"),
        ("At night in the cave we saw a", "Hanging upside down there slept a"),
        ("club", "bird"),
    ),
    Senses(
        "spring",
        ("After the long cold winter came", "Flowers bloom and birds return in"),
        ("The mattress has a broken metal", "The old clock is driven by a coiled"),
        ("summer", "wire"),
    ),
    Senses(
        "seal",
        ("On the ice near the penguins lay a", "The shark chased the swimming"),
        ("The letter was closed with a wax", "The king signed it and pressed his"),
        ("bear", "stamp"),
    ),
    Senses(
        "pitch",
        ("The singer could not hold the", "The piano was tuned to the right"),
        ("The footballers ran onto the muddy", "The referee sent him off the"),
        ("note", "field"),
    ),
    Senses(
        "crane",
        ("The builders lifted the steel with a", "At the harbour the container hung from a"),
        ("In the marsh among herons stood a", "From its nest flew a white"),
        ("machine", "duck"),
    ),
    Senses(
        "bark",
        ("I was woken by the dog and its loud", "The puppy answered with a sharp"),
        ("The old oak tree has thick rough", "The beetles live under the tree and its"),
        ("voice", "skin"),
    ),
)


def english() -> tuple[Comparison, ...]:
    """Comparisons of eight English words, each with two senses."""
    return tuple(comparison for senses in ENGLISH for comparison in senses.comparisons())


def neighbours() -> tuple[Comparison, ...]:
    """Pairs whose deciding word comes after the word, which a causal model has not read then; and another word."""
    pie = Use("the apple pie", "apple")
    return (
        Comparison("apple keynote, apple pie", "apple", Use("the apple keynote", "apple"), pie),
        Comparison("Apple keynote, apple pie", "apple", Use("the Apple keynote", "Apple"), pie),
        Comparison("apple pie, pear pie", "apple", pie, Use("the pear pie", "pear")),
    )


def synthetic() -> tuple[Comparison, ...]:
    """Comparisons for the tiny GPT: the colon after which it has to name the antecedent, the animal or the thing."""
    scenes = (
        ("cat", "reach", "shelf"),
        ("dog", "cross", "ladder"),
        ("horse", "climb", "wall"),
        ("fox", "pass", "gate"),
        ("bear", "clear", "fence"),
        ("goat", "touch", "roof"),
        ("wolf", "enter", "tower"),
        ("sheep", "leave", "bench"),
    )
    return tuple(_synthetic(scenes))


def _synthetic(scenes: Iterable[tuple[str, str, str]]) -> Iterable[Comparison]:
    for number, (beast, verb, thing) in enumerate(scenes):
        tired, weak = (TIRED[(number + n) % len(TIRED)] for n in range(2))
        high, steep = (HIGH[(number + n) % len(HIGH)] for n in range(2))
        start = f"the {beast} did not {verb} the {thing} because it was"
        sides = (f"{start} {tired}", f"{start} {weak}"), (f"{start} {high}", f"{start} {steep}")
        for comparison in Senses(":", *sides, (".", ".")).comparisons():
            yield replace(comparison, word=f"{beast}, {thing}")
