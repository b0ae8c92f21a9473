"""Planted heads that find what was there before: the same token, and the token after it."""

from __future__ import annotations

from probe.models.planted.circuit import (
    COPY,
    NOT_ITSELF,
    PREVIOUS,
    REST,
    SAME_TOKEN,
    TOKENS,
    Circuit,
    Head,
    Match,
    Move,
)

# 0.0: the query's token meets the same token at the keys, in equal parts where it was there several times; its own
# position is kept out. The answer is the token again where it is a repetition, and <bos> where it is new.
DUPLICATE_TOKEN = Circuit(
    "every token looks at its earlier copies, and answers with them",
    (Head("duplicate_token", 0, 0, (SAME_TOKEN, NOT_ITSELF, REST), (COPY,)),),
)

# The two-layer circuit of Elhage et al. (2021) and Olsson et al. (2022). 0.0 notes at every token which one stood
# before it. 1.0 then meets with its own token not the keys' tokens but these notes, so it looks at what followed the
# earlier copies of its token, and answers with that: after "A B ... A", B.
# Neither works alone: without the notes of 0.0 there is nothing for 1.0 to find.
INDUCTION = Circuit(
    "a previous-token head and an induction head: after A B ... A, it answers B",
    (
        Head("previous_token", 0, 0, (PREVIOUS, REST), (Move("token", "before"),)),
        Head("induction", 1, 0, (Match("token", "before", 2.0), REST), (COPY,)),
    ),
    parts={"before": TOKENS},
)
