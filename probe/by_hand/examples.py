"""Where "it" looks in "The cat didn't jump onto the table because it was too tired", in vectors of four numbers.

weights_of(KEYS)  # [0.503, 0.237, 0.260]: half on cat
weights_of(edited(1.1))  # tired's key is now the query itself, 1.1 times as long: most on tired
"""

from __future__ import annotations

from probe.by_hand.in_python import Row, Rows, attention, dot

WORDS = ("cat", "tired", "it")
CAT, TIRED, IT = range(3)
QUERY: Row = [1.0, 0.5, 0.2, 0.8]  # of "it"
KEYS: Rows = [[1.1, 0.4, 0.3, 0.9], [0.1, 0.9, 0.1, 0.0], [0.3, 0.2, 0.6, 0.3]]
VALUES: Rows = [[10.0, 0.0, 0.0, 0.0], [0.0, 10.0, 0.0, 0.0], [0.0, 0.0, 10.0, 0.0]]
ROOT = 2.0  # √d
SCORES: Row = [8.0, 2.0, 3.0]  # a second example, of "it" over the same words with d = 64, whose √d is 8
SCORES_ROOT = 8.0
THREE_TOKENS: Rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]  # queries, keys and values of the causal example


def weights_of(keys: Rows, *, scale: float = 1 / ROOT) -> Row:
    """What "it" gives to cat, tired and it."""
    return attention([QUERY], keys, VALUES, scale=scale)[1][0]


def output_of(keys: Rows) -> Row:
    """What "it" takes over from the values."""
    return attention([QUERY], keys, VALUES)[0][0]


def edited(length: float = 1.0) -> Rows:
    """The keys with tired's replaced by the query itself, `length` times as long."""
    return [KEYS[CAT], [length * number for number in QUERY], KEYS[IT]]


def exchanged() -> Rows:
    """The keys with cat's and tired's exchanged."""
    return [KEYS[TIRED], KEYS[CAT], KEYS[IT]]


def times(factor: float, keys: Rows) -> Rows:
    """Every key `factor` times as long."""
    return [[factor * number for number in key] for key in keys]


def flips(weights: Row) -> bool:
    """Whether tired has more than cat."""
    return weights[TIRED] > weights[CAT]


def flipping_length() -> float:
    """How long tired's key, pointing along the query, must be for tired to have as much as cat: (q·cat) / (q·q)."""
    return dot(QUERY, KEYS[CAT]) / dot(QUERY, QUERY)


def found_flipping_length(low: float = 0.0, high: float = 10.0) -> float:
    """The same without algebra: halve the interval in which the weights flip, until it is a float wide."""
    for _ in range(60):
        middle = (low + high) / 2
        if flips(weights_of(edited(middle))):
            high = middle
        else:
            low = middle
    return high
