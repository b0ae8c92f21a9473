"""Planted heads that read sentences of the synthetic language: coreference, agreement, and the retrieval of facts."""

from __future__ import annotations

from probe.data.language.agreement import ADVERBS, NOUNS, PLURAL_VERBS, PLURALS, SINGULAR_VERBS, THAT
from probe.data.language.coreference import BEASTS, HE, HERDS, SHE, THINGS
from probe.data.language.facts import NAMES
from probe.data.language.objects import OBJECTS
from probe.models.planted.circuit import (
    BEGIN,
    PREVIOUS,
    REST,
    SAY_NOTHING,
    TWO_BEFORE,
    Circuit,
    Head,
    Match,
    Move,
    copy_of,
    place,
)

# `Anna thanked Ben because she Anna was late .` 0.0: a pronoun asks for a kind (a man, a woman, one animal or thing,
# several) and meets the nouns of that kind; the answer is the noun. Where only a later word decides, which a causal
# model has not read yet, it looks at both candidates.
COREFERENCE = Circuit(
    "pronouns look at nouns of their gender and number, and answer with them",
    (
        Head(
            "coreference",
            0,
            0,
            (Match("pronoun", "kind", 2.0), REST),
            (copy_of((*HE, *SHE, *BEASTS, *THINGS, *HERDS)), SAY_NOTHING),
        ),
    ),
    features={
        "pronoun": [("he",), ("she",), ("it",), ("they",)],
        "kind": [HE, SHE, (*BEASTS, *THINGS), HERDS],
    },
)

# `the king near the nurses often sees the monk .`   `the king that the nurses often see is old .`
# 0.0 notes at every word what stands two words before: at the first noun <bos>, at the subject of a clause `that`, at
# an attractor a preposition, which is not kept. 1.0: the adverb before the verb looks at nouns, rather at one after
# <bos>, and most at one after `that`. It copies the noun's number, which stands for all verbs of that number. In a text
# of more than one sentence, it takes the first noun of all.
AGREEMENT = Circuit(
    "adverbs look past attractors at the next verb's subject, and answer with verbs of its number",
    (
        Head("two_before", 0, 0, (TWO_BEFORE, REST), (Move("opens", "opened_by"),)),
        Head(
            "agreement",
            1,
            0,
            (
                Match("adverb", "number", 2.0, ((0, 0), (0, 1))),
                Match("adverb", "opened_by", 2.0, ((0, 0),)),
                Match("adverb", "opened_by", 4.0, ((0, 1),)),
                REST,
            ),
            (
                Move(
                    "number",
                    "answer",
                    tuple((n, place(verb)) for n, verbs in enumerate((SINGULAR_VERBS, PLURAL_VERBS)) for verb in verbs),
                ),
                SAY_NOTHING,
            ),
        ),
    ),
    features={"adverb": [ADVERBS], "number": [NOUNS, PLURALS], "opens": [(BEGIN,), (THAT,)]},
    parts={"opened_by": 2},
)

# `Anna has ruby . Ben has coal . what has Ben : coal .` A key and its value stand two words apart, the question's key
# and its end one. 0.0 notes at every word the name before it, 0.1 the name two words before. 1.0 meets the first note,
# at the colon the name asked for, with the second, at a value the name it belongs to; the answer is the value.
RETRIEVAL = Circuit(
    "the end of a question looks at the value of the name asked for, and answers with it",
    (
        Head("previous_token", 0, 0, (PREVIOUS, REST), (Move("name", "name_before"),)),
        Head("two_before", 0, 1, (TWO_BEFORE, REST), (Move("name", "name_two_before"),)),
        Head(
            "retrieval",
            1,
            0,
            (Match("name_before", "name_two_before", 2.0), REST),
            (copy_of(OBJECTS), SAY_NOTHING),
        ),
    ),
    features={"name": [(name,) for name in NAMES]},
    parts={"name_before": len(NAMES), "name_two_before": len(NAMES)},
)
