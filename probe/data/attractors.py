"""English subjects with a noun in between: `The key to the cabinets usually is`. The verb agrees with the first noun.

The noun next to the verb, the attractor, has the other number in half of the sentences, so the nearest noun's number is
right half of the time (Linzen et al. 2016).
"""

from __future__ import annotations

from probe.data.texts import RIVALS, Dataset, Labelled, Question, Span
from probe.errors import DataError

# One phrase is one cluster: subject, preposition, attractor, each noun with a plural in -s.
PHRASES = (
    "key to the cabinet",
    "label on the bottle",
    "picture of the farmer",
    "road to the village",
    "letter from the lawyer",
    "window above the door",
    "book about the king",
    "teacher of the student",
    "friend of the singer",
    "garden behind the house",
    "report about the crime",
    "song about the river",
    "neighbour of the doctor",
    "cup beside the plate",
    "bird near the tree",
    "guard beside the prisoner",
    "answer to the question",
    "tower above the town",
    "brother of the painter",
    "lamp on the table",
    "boat near the island",
    "manager of the hotel",
    "tale about the soldier",
    "mirror behind the chair",
    "path through the field",
    "driver of the truck",
    "poem about the mountain",
    "coat on the hook",
    "ticket for the concert",
    "owner of the horse",
    "map of the region",
    "nurse beside the patient",
)
ADVERBS = ("usually", "always", "often", "never", "still", "probably", "certainly", "sometimes")
ITEMS_PER_PHRASE = 8


def attractors(items_per_phrase: int = ITEMS_PER_PHRASE) -> Dataset:
    """Does the position before a verb hold its subject's number, whatever the number of the noun in between?

    Every phrase has both numbers of its subject with both of its attractor, so neither tells the other; the adverb
    after them is the query. Question: is or are. Pairs differ in the subject's number alone. Tags: number (of the
    subject), attractor (its number). items_per_phrase: 4 or 8. Raises DataError otherwise.
    """
    if items_per_phrase not in (4, 8):
        raise DataError(f"items_per_phrase={items_per_phrase}: numbers are balanced at 4 and 8 alone.")
    return Dataset(
        name="attractors",
        phenomenon="agreement, English",
        statistic="accuracy",
        rivals=RIVALS,
        items=tuple(
            _item(number, phrase, at) for number, phrase in enumerate(PHRASES) for at in range(items_per_phrase)
        ),
        source="written for this project",
        licence="Apache-2.0",
    )


def _item(number: int, phrase: str, at: int) -> Labelled:
    """at: bit 0 is the subject's number, bit 1 the attractor's; the rest, with the phrase, says which adverb."""
    subject, preposition, _, noun = phrase.split()
    plural, other = bool(at & 1), bool(at & 2)
    adverb = ADVERBS[(number + 3 * (at >> 1)) % len(ADVERBS)]
    first, second = subject + "s" * plural, noun + "s" * other
    start = f"The {first} {preposition} the {second} {adverb}"
    verbs = ("are", "is") if plural else ("is", "are")
    names = [f"attractors-{number + 1:02}-{n + 1}" for n in (at, at ^ 1)]
    return Labelled(
        item=names[0],
        cluster=f"attractors-{number + 1:02}",
        text=f"{start} {verbs[0]}",
        query=Span(len(start) - len(adverb), len(start)),
        target=Span.of(start, first),
        foils=(Span.of(start, second),),
        cue=Span.of(start, first),
        pair=names[1],
        question=Question(len(start), verbs[0], (verbs[1],)),
        tags={"number": "plural" if plural else "singular", "attractor": "plural" if other else "singular"},
    )
