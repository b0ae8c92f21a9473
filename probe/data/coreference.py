"""English sentences with a pronoun and two candidate antecedents, written for this project.

`coreference()` has every item, `coreference(items_per_template=8)` a balanced part of each template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from probe.data.coreference_templates import CUE, FEMALE, GENDER, MALE, NUMBER, Cue, Number
from probe.data.texts import RIVALS, Dataset, Labelled, Span
from probe.errors import DataError

PAIRS_PER_TEMPLATE = 12
ITEMS_PER_TEMPLATE = 2 * PAIRS_PER_TEMPLATE

_FILLER = re.compile(r"\[(.*?)\]")


def coreference(items_per_template: int | None = None) -> Dataset:
    """The question: does a pronoun attend to its antecedent rather than to the other candidate?

    Three families of templates; a template is one cluster of 24 items:
    - gender: a man's and a woman's name, and he or she (him, her, his) decides;
    - number: one thing or person and several others, and it (he, she) or they decides;
    - cue: the pronoun fits both candidates, and one word after it, the item's `cue`, decides. A causal model
      has not read that word when it reads the pronoun.

    Balance: items come in minimal pairs that differ in the deciding word alone and swap target and foil, so
    within each template either candidate is right in half of the items, whatever its place, length, gender or
    number. Also halved within each template, and independent of that: distance ("near", or "far" with 6 to 10
    more words before the pronoun) and, where sense allows it (gender and number), which kind of candidate is
    mentioned first.
    Tags: family, right ("first" or "second" candidate), order, distance, and gender or number of the pronoun.

    items_per_template: how many items of each template to keep, an even number from 2 to 24; None keeps all.
    What is kept is whole minimal pairs, spread over order, distance and wording. Which candidate is right is
    always halved; order and distance are at multiples of 4, and at other numbers to within one pair.
    Raises DataError for any other number. Nothing here is random: the same call gives the same items.

    Licence: Apache-2.0. Source: written for this project.
    """
    kept = PAIRS_PER_TEMPLATE if items_per_template is None else _pairs_kept(items_per_template)
    return Dataset(
        name="coreference-sentences",
        phenomenon="coreference",
        statistic="accuracy",
        rivals=RIVALS,
        items=tuple(_items(kept)),
        source="written for this project",
        licence="Apache-2.0",
    )


class _Wording(NamedTuple):
    """One way to fill a frame: all of a minimal pair but the deciding word.

    right: which candidate each of the two deciding words makes right.
    kind: the tag that describes the pronoun, and its value for each of the two deciding words.
    pronoun: the pronoun where another word decides, else "".
    """

    frame: str
    first: str
    second: str
    order: str
    distance: str
    right: tuple[str, str]
    kind: tuple[str, str, str]
    pronoun: str = ""


def _pairs_kept(items: int) -> int:
    if items % 2 == 0 and 2 <= items <= ITEMS_PER_TEMPLATE:
        return items // 2
    if items < 2:
        nearest = "the nearest is 2"
    elif items > ITEMS_PER_TEMPLATE:
        nearest = f"the nearest is {ITEMS_PER_TEMPLATE}, which is all of them"
    else:
        nearest = f"the nearest are {items - 1} and {items + 1}"
    raise DataError(
        f"items_per_template={items}: a template has whole minimal pairs only, so it must be an even number "
        f"from 2 to {ITEMS_PER_TEMPLATE}; {nearest}."
    )


def _items(kept: int) -> Iterator[Labelled]:
    families = {
        "gender": [_gender(frame, number) for number, frame in enumerate(GENDER)],
        "number": [_number(template) for template in NUMBER],
        "cue": [_cue(template) for template in CUE],
    }
    for family, templates in families.items():
        for number, wordings in enumerate(templates):
            for pair, wording in enumerate(wordings):
                # Pairs 2k and 2k + 1 are opposites in order and distance, and each four hold every
                # combination. XOR keeps such groups whole but lets each template start elsewhere in them, so
                # even one pair per template is balanced over the templates.
                if pair ^ (number % 4) < kept:
                    yield from _minimal_pair(family, f"{family}-{number + 1:02}", 2 * pair + 1, wording)


def _gender(frame: str, number: int) -> Iterator[_Wording]:
    for pair in range(PAIRS_PER_TEMPLATE):
        name = 3 * number + pair % 3
        male = MALE[name % len(MALE)]
        partner = name + name // len(FEMALE)  # each time round, the names meet other partners
        female = FEMALE[partner % len(FEMALE)]
        male_first, distance = _order_and_distance(pair)
        yield _Wording(
            frame,
            first=male if male_first else female,
            second=female if male_first else male,
            order="male first" if male_first else "female first",
            distance=distance,
            right=("first", "second") if male_first else ("second", "first"),
            kind=("gender", "masculine", "feminine"),
        )


def _number(template: Number) -> Iterator[_Wording]:
    nouns = [pair.split("/") for pair in template.nouns.split()]
    for pair in range(PAIRS_PER_TEMPLATE):
        first, second = nouns[pair % len(nouns)]
        singular_first, distance = _order_and_distance(pair)
        yield _Wording(
            template.frame,
            first=first if singular_first else first + "s",
            second=second + "s" if singular_first else second,
            order="singular first" if singular_first else "plural first",
            distance=distance,
            right=("first", "second") if singular_first else ("second", "first"),
            kind=("number", "singular", "plural"),
        )


def _cue(template: Cue) -> Iterator[_Wording]:
    nouns = [pair.split("/") for pair in template.nouns.split()]
    variants = [(*pair, pronoun) for pronoun in template.pronouns.split() for pair in nouns]
    kinds = {"it": ("number", "singular"), "he": ("gender", "masculine"), "she": ("gender", "feminine")}
    for pair in range(PAIRS_PER_TEMPLATE):
        far = pair % 2
        shift = 4 * far  # so that neighbours share no noun, and each variant is near once and far once
        first, second, pronoun = variants[(pair // 2 + shift) % len(variants)]
        tag, value = kinds[pronoun]
        yield _Wording(
            template.frame,
            first=first,
            second=second,
            order="fixed",
            distance="far" if far else "near",
            right=("first", "second"),
            kind=(tag, value, value),
            pronoun=pronoun,
        )


def _order_and_distance(pair: int) -> tuple[bool, str]:
    return pair % 2 == 0, ("near", "far", "far", "near")[pair % 4]


def _minimal_pair(family: str, cluster: str, number: int, wording: _Wording) -> Iterator[Labelled]:
    frame = _FILLER.sub(r"\1" if wording.distance == "far" else "", wording.frame)
    filled = frame.format(a=wording.first, b=wording.second, pronoun=wording.pronoun)
    before, rest = filled.split("<")
    deciding, after = rest.split(">")
    names = [f"{cluster}-{number + member:03}" for member in (0, 1)]
    tag, *values = wording.kind
    for member, word in enumerate(deciding.split("|")):
        text = before + word + after
        decides = Span(len(before), len(before) + len(word))
        first, second = Span.of(text, wording.first), Span.of(text, wording.second)
        right = wording.right[member]
        yield Labelled(
            item=names[member],
            cluster=cluster,
            text=text,
            query=Span.of(text, wording.pronoun) if wording.pronoun else decides,
            target=first if right == "first" else second,
            foils=(second if right == "first" else first,),
            cue=decides if wording.pronoun else None,
            pair=names[1 - member],
            tags={
                "family": family,
                "right": right,
                "order": wording.order,
                "distance": wording.distance,
                tag: values[member],
            },
        )
