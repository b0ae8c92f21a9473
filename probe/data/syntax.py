"""Sentences whose grammatical relations are known, for heads that are known to attend along one (Clark et al. 2019).

`The old farmer quietly sold his two black horses near the quiet village.`
"""

from __future__ import annotations

from probe.data.language.parts import listed
from probe.data.texts import Dataset, Labelled, Span
from probe.errors import UnknownName

SUBJECTS = listed("farmer nurse pilot teacher baker lawyer sailor painter")
OBJECTS = listed("horses letters baskets paintings bottles ladders carpets lanterns")
PLACES = listed("village bridge harbour station garden market castle library")
VERBS = listed("sold carried found counted washed painted moved dropped lifted forgot stacked admired")
ADVERBS = ("", "quietly", "never", "often", "slowly once")
ADJECTIVES = ("", "old", "young black", "quiet", "large brown wooden", "")
POSSESSIVES = listed("his her their my our")
PREPOSITIONS = listed("near behind beside inside outside")

# Relation -> from which word to which: a dependent to its head.
RELATIONS = {
    "det": ("determiner", "object of the preposition"),
    "nsubj": ("subject", "verb"),
    "dobj": ("object", "verb"),
    "poss": ("possessive", "object"),
    "pobj": ("object of the preposition", "preposition"),
}
CONTENT = ("subject", "verb", "object", "preposition", "object of the preposition")
ITEMS = 120


def syntax(relation: str) -> Dataset:
    """The question: does a word look at the word it depends on, rather than at the other content words?

    relation: a key of `RELATIONS`. Words between, and their number, change from item to item, so that no fixed offset
    is always right. A cluster is all sentences with one verb. Every head is described: there is no answer to depend on.
    Raises UnknownName. Nothing here is random.

    Licence: Apache-2.0. Source: written for this project.
    """
    if relation not in RELATIONS:
        raise UnknownName.of("relation", relation, RELATIONS)
    return Dataset(
        name=f"syntax-{relation}",
        phenomenon=f"syntax: {relation}",
        statistic="accuracy",
        rivals=(),
        items=tuple(_item(number, *RELATIONS[relation]) for number in range(ITEMS)),
        source="written for this project",
        licence="Apache-2.0",
    )


def _item(number: int, dependent: str, head: str) -> Labelled:
    words, places = _sentence(number)
    text = " ".join(words) + "."
    starts = [sum(len(w) + 1 for w in words[:n]) for n in range(len(words))]
    spans = {role: Span(starts[at], starts[at] + len(words[at])) for role, at in places.items()}
    return Labelled(
        item=f"syntax-{number + 1:03}",
        cluster=words[places["verb"]],
        text=text,
        query=spans[dependent],
        target=spans[head],
        foils=tuple(spans[role] for role in CONTENT if role not in (dependent, head)),
    )


def _sentence(number: int) -> tuple[list[str], dict[str, int]]:
    """The words of a sentence, and where each role stands. Steps that share no factor mix all choices."""
    words: list[str] = []
    places: dict[str, int] = {}

    def add(some: str, role: str | None = None) -> None:
        words.extend(some.split())
        if role is not None:
            places[role] = len(words) - 1

    add("The")
    add(ADJECTIVES[(5 * number + number // 6) % len(ADJECTIVES)])
    add(SUBJECTS[(3 * number + number // 8) % len(SUBJECTS)], "subject")
    add(ADVERBS[(2 * number + number // 5) % len(ADVERBS)])
    add(VERBS[number % len(VERBS)], "verb")
    add(POSSESSIVES[(number + number // 5) % len(POSSESSIVES)], "possessive")
    add(ADJECTIVES[(number + number // 12) % len(ADJECTIVES)])
    add(OBJECTS[(5 * number + number // 8) % len(OBJECTS)], "object")
    add(PREPOSITIONS[(3 * number + number // 5) % len(PREPOSITIONS)], "preposition")
    add("the", "determiner")
    add(ADJECTIVES[(number + number // 6) % len(ADJECTIVES)])
    add(PLACES[(7 * number + number // 8) % len(PLACES)], "object of the preposition")
    return words, places
