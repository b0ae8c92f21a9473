"""Properties of a place in a text that a linear probe may read off what a model holds there.

position        of a word among random words: a number, and which eighth of the text
previous word   which of a few words stands before this one, among random words
antecedent      at a pronoun: whether its antecedent is the first or the second candidate
its name        at he or she: which name the antecedent has
number          before a verb: whether its subject is singular or plural, past nouns of the other number
depth           at a word between brackets: how many are still open

In each of them the word at the place says nothing, by the way its texts are made (of a name, he and she tell which half
it is from); what is read off has come from other positions. Places come in groups (a prompt, a template), for tests on
groups that were not trained on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from probe.data import attractors, coreference, language
from probe.data.language.brackets import BEGIN, END, INSIDE, KINDS
from probe.data.language.parts import spans_of
from probe.data.texts import Dataset, Labelled, Span
from probe.errors import DataError, OutOfRange, SpanError
from probe.scores import placement
from probe.subject import Subject
from probe.targets import Positions

WORDS = 16  # different words of the random texts
BINS = 8


@dataclass(frozen=True)
class Property:
    """What is to be read off, and where. name: what it is. prompts: token ids. places: (prompt, position). labels: one
    for each place, a class's name, or a number for a regression. groups: of each place; a group is trained on or tested
    as a whole. words: the word at each place, its type for control labels.

    Raises DataError for no places, or other than one label, group and word for each; OutOfRange for a place that is not
    in its prompt.
    """

    name: str
    prompts: tuple[Positions, ...]
    places: tuple[tuple[int, int], ...]
    labels: tuple[str, ...] | tuple[float, ...]
    groups: tuple[str, ...]
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.places:
            raise DataError(f"{self.name} has 0 places: a property needs at least one.")
        for what, given in (("labels", self.labels), ("groups", self.groups), ("words", self.words)):
            if len(given) != len(self.places):
                raise DataError(
                    f"{self.name} has {len(given)} {what} for {len(self.places)} places: give one for each."
                )
        for prompt, position in self.places:
            if not 0 <= prompt < len(self.prompts):
                raise OutOfRange.of(f"prompt of {self.name}", prompt, len(self.prompts))
            if not 0 <= position < len(self.prompts[prompt]):
                raise OutOfRange.of(f"position of {self.name} in prompt {prompt}:", position, len(self.prompts[prompt]))

    def __repr__(self) -> str:
        """What it is, not its thousands of places."""
        return f"Property({self.name}: {len(self.places)} places in {len(self.prompts)} prompts)"

    @property
    def is_number(self) -> bool:
        """Whether labels are numbers, to be regressed on."""
        return isinstance(self.labels[0], float)


@dataclass(frozen=True)
class Place:
    """One labelled word of a text."""

    text: str
    span: Span
    label: str | float
    group: str


def properties(subject: Subject, *, items: int = 8, places: int = 1500, seed: int = 0) -> list[Property]:
    """Every property above, in that order, position first as a number and then in eighths.

    items: of each template, 4 or 8. places: at most so many of each property. seed: draws the random
    texts, and the synthetic language's. Raises DataError, OutOfRange.
    """
    words = random_words(subject, n=max(10, places // 40), seed=seed)
    synthetic = subject.language == "synthetic"
    pronouns = language.coreference(seed, items) if synthetic else coreference(items)
    people = language.coreference(seed, 4 * items) if synthetic else coreference(2 * items)
    verbs = language.agreement(seed, items) if synthetic else attractors(items)
    made = (
        ("position", positions_of(words)),
        ("position, eighths", [_binned(place) for place in positions_of(words)]),
        ("previous word", previous_words(words)),
        ("antecedent", labelled(subject, pronouns, "right")),
        ("antecedent, name", names(subject, people)),
        ("number", labelled(subject, verbs, "number")),
        ("depth", depths(language.brackets(seed, 4))),
    )
    return [placed(subject, name, found, at_most=places, seed=seed) for name, found in made]


def placed(subject: Subject, name: str, found: Iterable[Place], *, at_most: int, seed: int = 0) -> Property:
    """A property on a subject's tokens. A place is the last token of its word; one whose word has no tokens of its own
    is left out. What follows the last place of a text is cut off where the model cannot look ahead.

    at_most: places kept, those of texts drawn at random where there are more. Raises DataError if none is left,
    OutOfRange for `at_most` below 1.
    """
    if at_most < 1:
        raise OutOfRange(f"at most {at_most} places of {name} were asked for: allowed are 1 or more; the nearest is 1.")
    by_text: dict[str, list[Place]] = {}
    for place in found:
        by_text.setdefault(place.text, []).append(place)
    prompts: list[Positions] = []
    made: list[tuple[tuple[int, int], Place]] = []
    for text in random.Random(seed).sample(list(by_text), len(by_text)):
        those = by_text[text][: at_most - len(made)]
        if not those:
            break
        encoded = subject.encode(text)
        own = [(at[-1], place) for place in those if (at := _tokens(encoded.positions, place.span)) is not None]
        if own:
            made += [((len(prompts), at), place) for at, place in own]
            last = max(at for at, _ in own) + 1 if subject.is_causal else len(encoded)
            prompts.append(encoded.ids[:last])
    if not made:
        raise DataError(f"no place of {name} has tokens of its own for {subject.name}.")
    return Property(
        name,
        tuple(prompts),
        tuple(at for at, _ in made),
        tuple(place.label for _, place in made),  # type: ignore[arg-type]
        tuple(place.group for _, place in made),
        tuple(place.span.text(place.text) for _, place in made),
    )


def random_words(subject: Subject, *, n: int, words: int = 40, seed: int = 0) -> list[str]:
    """n texts of so many words, each drawn anew from the same `WORDS` words, which are one token each."""
    rng = random.Random(f"probes {seed}")
    pool = rng.sample(placement.pool(subject, seed), WORDS)
    return [" ".join(rng.choice(pool) for _ in range(words)) for _ in range(n)]


def positions_of(texts: Sequence[str]) -> list[Place]:
    """Every word but the first, labelled with its number in the text, from 0."""
    return [
        Place(text, span, float(number), text)
        for text in texts
        for number, span in enumerate(spans_of(text.split()))
        if number
    ]


def previous_words(texts: Sequence[str]) -> list[Place]:
    """Every word but the first, labelled with the word before it."""
    return [
        Place(text, span, before, text)
        for text in texts
        for before, span in zip(text.split(), spans_of(text.split())[1:], strict=False)
    ]


def labelled(subject: Subject, dataset: Dataset, tag: str) -> list[Place]:
    """The query of every item that this subject can be measured on, labelled with one of its tags. A text that asks
    something stops before its answer, which an encoder would see.
    """
    able = {unit.item for unit in subject.bind(dataset).units}
    return [
        Place(_asked(item), item.query, item.tags[tag], item.cluster)
        for item in dataset.items
        if isinstance(item, Labelled) and item.item in able
    ]


def names(subject: Subject, dataset: Dataset) -> list[Place]:
    """The pronoun of every item about a man and a woman, labelled with its antecedent's name."""
    able = {unit.item for unit in subject.bind(dataset).units}
    return [
        Place(_asked(item), item.query, item.target.text(item.text), item.cluster)
        for item in dataset.items
        if isinstance(item, Labelled) and item.item in able and item.tags["family"] == "gender"
    ]


def depths(dataset: Dataset) -> list[Place]:
    """Every word of a nesting that is no bracket and no name of a block, labelled with how many are open there."""
    found = []
    for item in dataset.items:
        words, depth = item.text.split(), 0
        for word, span in zip(words, spans_of(words), strict=True):
            if word in KINDS or word == BEGIN:
                depth += 1
            elif word in KINDS.values() or word == END:
                depth -= 1
            elif word in INSIDE:
                found.append(Place(item.text, span, str(depth), item.cluster))
    return found


def _asked(item: Labelled) -> str:
    return item.text if item.question is None else item.text[: item.question.read_at]


def _binned(place: Place) -> Place:
    """Which eighth of the text the place lies in."""
    n = len(place.text.split())
    return Place(place.text, place.span, f"eighth {1 + int(BINS * float(place.label) / n)}", place.group)


def _tokens(positions: Callable[[Span], Positions], span: Span) -> Positions | None:
    try:
        return positions(span)
    except SpanError:
        return None
