"""Planted heads that look at a place, whatever stands there: the previous token, and the first."""

from __future__ import annotations

from probe.models.planted.circuit import COPY, PREVIOUS, REST, Circuit, Head

# 0.0: position q of the query meets position q - 1 of the keys. The model's answer is the token it finds there: after
# "the dog", "the".
PREVIOUS_TOKEN = Circuit(
    "every token looks at the one before, and answers with it",
    (Head("previous_token", 0, 0, (PREVIOUS, REST), (COPY,)),),
)

# 0.0: all tokens look at position 0, the attention sink (Xiao et al. 2023). Other than a trained model's, this sink is
# read: the answer is the token at position 0.
FIRST_TOKEN = Circuit(
    "every token looks at position 0, and answers with what stands there",
    (Head("first_token", 0, 0, (REST,), (COPY,)),),
)
