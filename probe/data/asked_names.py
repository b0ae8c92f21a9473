"""Who is he, who is she? Sentences with a man and a woman, and an ending that makes a causal model name one of them.

`Once John met Mary at the station. Then she, whose name was Mary`

Asked outright ("who is she?"), small models give one name whatever the pronoun; with this ending the answer moves with
the pronoun, by several nats, even where it stays the same. So what is asked is the paired difference (`probe.causal`).
"""

from __future__ import annotations

from collections.abc import Iterator

from probe.data.coreference_templates import FEMALE, MALE
from probe.data.texts import RIVALS, Dataset, Labelled, Question, Span
from probe.errors import DataError

# One frame is one cluster. No candidate is the first word, where idle heads rest their attention.
FRAMES = (
    "Once {a} met {b} at the station.",
    "One day {a} wrote to {b}.",
    "Yesterday {a} had lunch with {b}.",
    "Last week {a} called {b} about the house.",
    "In the end {a} agreed with {b}.",
    "At the party {a} was talking to {b}.",
    "That morning {a} drove {b} to work.",
    "In the kitchen {a} was helping {b}.",
    "Last year {a} sold {b} a car.",
    "On Monday {a} sat next to {b} on the train.",
    "After school {a} played chess with {b}.",
    "In the garden {a} was waiting for {b}.",
    "For years {a} had worked with {b}.",
    "Near the river {a} saw {b} again.",
    "At noon {a} found {b} in the library.",
    "Before dinner {a} showed {b} the letter.",
    "In June {a} went to Paris with {b}.",
    "Late at night {a} heard {b} on the stairs.",
    "At last {a} found a present for {b}.",
    "In court {a} spoke against {b}.",
    "On the beach {a} lay beside {b}.",
    "Last night {a} danced with {b}.",
    "At first {a} did not trust {b}.",
    "In the shop {a} stood behind {b}.",
    "All summer {a} wrote songs with {b}.",
    "By chance {a} met {b} in the park.",
    "Every day {a} ran against {b}.",
    "At the bank {a} borrowed money from {b}.",
    "In the meeting {a} argued with {b}.",
    "On the phone {a} told {b} the news.",
    "In the hospital {a} looked after {b}.",
    "Long ago {a} lived next door to {b}.",
    "During the match {a} shouted at {b}.",
    "In the morning {a} made breakfast for {b}.",
    "At the airport {a} said goodbye to {b}.",
    "In the theatre {a} sat in front of {b}.",
    "On the bus {a} gave {b} an apple.",
    "After the storm {a} searched for {b}.",
    "In the village {a} asked {b} the way.",
    "Last winter {a} taught {b} to ski.",
    "On Sunday {a} sang with {b} in the choir.",
    "In the picture {a} stands beside {b}.",
)
ENDING = " Then {pronoun}, whose name was"
PAIRS_PER_FRAME = 6


def asked_names(items_per_frame: int = 8) -> Dataset:
    """Which name does the pronoun bring up? The question for heads: does the pronoun attend to its antecedent?

    Minimal pairs differ in the pronoun alone (`he`, `she`) and swap target and foil; the woman comes first in half of
    the pairs, within a frame where it has more than one. Names are one token each for BERT and SmolLM2.
    items_per_frame: 2, 4, 8 or 12. Raises DataError otherwise. Nothing here is random.
    """
    if items_per_frame not in (2, 4, 8, 12):
        raise DataError(f"items_per_frame={items_per_frame}: the order of names is balanced at 2, 4, 8 and 12 alone.")
    items = (item for n, frame in enumerate(FRAMES) for item in _items(n, frame, items_per_frame // 2))
    return Dataset(
        name="asked-names",
        phenomenon="coreference, asked",
        statistic="accuracy",
        rivals=RIVALS,
        items=tuple(items),
        source="written for this project",
        licence="Apache-2.0",
    )


def _items(number: int, frame: str, pairs: int) -> Iterator[Labelled]:
    for pair in range(pairs):
        at = PAIRS_PER_FRAME * number + pair
        man, woman = MALE[at % len(MALE)], FEMALE[(at + at // len(FEMALE)) % len(FEMALE)]
        first, second = (man, woman) if (pair + number) % 2 == 0 else (woman, man)
        start = frame.format(a=first, b=second)
        names = [f"names-{number + 1:02}-{2 * pair + member + 1:02}" for member in (0, 1)]
        for member, (pronoun, right, wrong) in enumerate((("he", man, woman), ("she", woman, man))):
            asked = start + ENDING.format(pronoun=pronoun)
            yield Labelled(
                item=names[member],
                cluster=f"names-{number + 1:02}",
                text=f"{asked} {right}",
                query=Span(len(start) + 6, len(start) + 6 + len(pronoun)),
                target=Span.of(start, right),
                foils=(Span.of(start, wrong),),
                pair=names[1 - member],
                question=Question(len(asked), right, (wrong,)),
                tags={
                    "right": "first" if right == first else "second",
                    "order": "male first" if first == man else "female first",
                    "gender": "masculine" if pronoun == "he" else "feminine",
                },
            )
