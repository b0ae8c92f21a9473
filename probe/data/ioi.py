"""Indirect objects (Wang et al. 2023): `After Mary and John came to the harbour, John handed a map to` Mary."""

from __future__ import annotations

from probe.data.coreference_templates import FEMALE, MALE
from probe.data.language.parts import listed
from probe.data.texts import Dataset, Labelled, Question, Span, words
from probe.errors import UnknownName

FRAMES = (
    "After {a} and {b} came to the {place}, {s} handed a {thing} to",
    "When {a} and {b} met at the {place}, {s} showed a {thing} to",
    "While {a} and {b} were waiting at the {place}, {s} passed a {thing} to",
    "Once {a} and {b} had left the {place}, {s} returned a {thing} to",
    "Because {a} and {b} worked in the {place}, {s} lent a {thing} to",
    "Before {a} and {b} walked to the {place}, {s} offered a {thing} to",
    "As {a} and {b} stood outside the {place}, {s} threw a {thing} to",
    "Last week {a} and {b} visited the {place}, and {s} sold a {thing} to",
    "Yesterday {a} and {b} had lunch near the {place}, and {s} gave a {thing} to",
    "In the evening {a} and {b} found the {place}, and {s} brought a {thing} to",
)
PLACES = listed("harbour museum bakery station library market office garden")
# Of one to four words, so that no fixed distance leads to the name before them.
THINGS = ("map", "silver ring", "very old book", "key", "cold drink", "long and sad letter")
NAMES = tuple(name for pair in zip(MALE, FEMALE, strict=True) for name in pair)
ITEMS_PER_FRAME = 8

# What a head of the circuit does -> from where to where it looks; the other places are foils.
ROLES = {
    "name mover": ("end", "indirect object"),
    "S-inhibition": ("end", "subject again"),
    "duplicate token": ("subject again", "subject"),
    "induction": ("subject again", "after the subject"),
}
CANDIDATES = ("indirect object", "subject", "after the subject", "subject again")


def ioi(role: str = "name mover") -> Dataset:
    """The question: from the end of the sentence, does a head look at the name that has not been said twice?

    role: a key of `ROLES`: which heads of the circuit are looked for, and so where from and where to. What is asked is
    the same for all: after `to`, the indirect object or the subject? Which of the two stands first is halved in each
    frame; a frame is a cluster. Every head is described, as published: by attention on its target.
    Raises UnknownName. Nothing here is random.

    Licence: Apache-2.0. Source: written for this project after Wang et al. 2023, "Interpretability in the Wild".
    """
    if role not in ROLES:
        raise UnknownName.of("role", role, ROLES)
    items = (_item(n, frame, k, *ROLES[role]) for n, frame in enumerate(FRAMES) for k in range(ITEMS_PER_FRAME))
    return Dataset(
        name=f"ioi-{role.lower().replace(' ', '-')}",
        phenomenon=f"indirect object: {role}",
        statistic="mass",
        rivals=(),
        items=tuple(items),
        source="written for this project",
        licence="Apache-2.0",
    )


def _item(number: int, frame: str, k: int, query: str, target: str) -> Labelled:
    at = ITEMS_PER_FRAME * number + k
    subject, indirect = NAMES[at % len(NAMES)], NAMES[(3 * at + 7 + at // len(NAMES)) % len(NAMES)]
    if subject == indirect:
        indirect = NAMES[(at + 1) % len(NAMES)]
    first, second = (subject, indirect) if k % 2 else (indirect, subject)
    asked = frame.format(
        a=first, b=second, s=subject, place=PLACES[at % len(PLACES)], thing=THINGS[(at + number) % len(THINGS)]
    )
    spans = words(asked)
    said = [n for n, span in enumerate(spans) if span.text(asked) == subject]
    places: dict[str, Span] = {
        "subject": spans[said[0]],
        "after the subject": spans[said[0] + 1],
        "subject again": spans[said[1]],
        "indirect object": Span.of(asked, indirect),
        "end": spans[-1],
    }
    return Labelled(
        item=f"ioi-{number + 1:02}-{k + 1}",
        cluster=f"ioi-{number + 1:02}",
        text=f"{asked} {indirect}",
        query=places[query],
        target=places[target],
        foils=tuple(places[role] for role in CANDIDATES if role not in (query, target)),
        question=Question(len(asked), indirect, (subject,)),
        tags={"first": "subject" if first == subject else "indirect object"},
    )
