"""The rules a head has to beat: what a reader who understands nothing would answer; scored on accuracy, never mass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from probe.errors import UnknownName
from probe.targets import Positions, Row, Unit

Array = npt.NDArray[np.float64]
Rule = Callable[[Unit, Row, Positions], float]  # how much it is for a candidate


def _nearest(_: Unit, row: Row, candidate: Positions) -> float:
    """Distance in tokens from the candidate's end to the query's start (or, after it, from query to candidate)."""
    before = row.query[0] - candidate[-1]
    return -before if before > 0 else -(candidate[0] - row.query[-1])


def _same_word(unit: Unit, row: Row, candidate: Positions) -> float:
    return float(bool({unit.ids[p] for p in row.query} & {unit.ids[p] for p in candidate}))


OFFSET = "offset"
RULES: dict[str, tuple[str, Rule]] = {
    "nearest": ("the candidate fewest tokens away from the query", _nearest),
    "first": ("the candidate mentioned first", lambda _, row, candidate: -candidate[0]),
    "longer": (
        "the candidate with more tokens; what uniform attention over visible keys would choose",
        lambda _, row, candidate: len(candidate),
    ),
    "same word": ("the candidate that shares a token with the query", _same_word),
    "chance": ("a fair guess among the candidates", lambda *_: 0.0),
}
DESCRIBED = {name: words for name, (words, _) in RULES.items()} | {
    OFFSET: "the candidate at one fixed distance from the query, the one of all distances that is right most often",
}
"""Name -> the rule in words, of those that answer row by row and of `OFFSET`."""


def rival_accuracy(name: str, units: Sequence[Unit]) -> Array:
    """(unit,): how often rule `name` picks each unit's target, over its rows: 0 to 1, a tie among n counting 1/n.

    "offset" is the best of all fixed distances on these units together, chosen after the fact: the hardest to beat.
    Raises UnknownName.
    """
    if name == OFFSET:
        return _best_offset(units)
    if name not in RULES:
        raise UnknownName.of("rival", name, DESCRIBED)
    rule = RULES[name][1]
    return np.array([np.mean([_right(rule, unit, row) for row in unit.rows]) for unit in units])


def _right(rule: Rule, unit: Unit, row: Row) -> float:
    right = rule(unit, row, row.target)
    others = [rule(unit, row, f) for f in row.foils]
    return 0.0 if any(o > right for o in others) else 1 / (1 + others.count(right))


def _best_offset(units: Sequence[Unit]) -> Array:
    """A fair guess, but for the rows in which some candidate holds the token that far from the query's first."""
    guess = np.array([np.mean([1 / (1 + len(row.foils)) for row in unit.rows]) for unit in units])
    # distance -> unit -> how much more than the guess
    more: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for number, unit in enumerate(units):
        for row in unit.rows:
            fair = 1 / (1 + len(row.foils))
            for distance in _distances(row, [row.target]):
                more[distance][number] += (1 - fair) / len(unit.rows)
            for distance in _distances(row, row.foils):
                more[distance][number] -= fair / len(unit.rows)
    best = max(sorted(more), key=lambda distance: sum(more[distance].values()), default=0)
    for number, gain in more[best].items():
        guess[number] += gain
    return guess


def _distances(row: Row, candidates: Iterable[Positions]) -> set[int]:
    return {position - row.query[0] for candidate in candidates for position in candidate}
