"""The rules a head has to beat: what a reader who understands nothing would answer; scored on accuracy, never mass."""

from __future__ import annotations

from collections.abc import Callable

from probe.errors import UnknownName
from probe.targets import Positions, Row, Unit


def _nearest(row: Row, candidate: Positions) -> float:
    """Distance in tokens from the candidate's end to the query's start (or, after it, from query to candidate)."""
    before = row.query[0] - candidate[-1]
    return -before if before > 0 else -(candidate[0] - row.query[-1])


RULES: dict[str, tuple[str, Callable[[Row, Positions], float]]] = {
    "nearest": ("the candidate fewest tokens away from the query", _nearest),
    "first": ("the candidate mentioned first", lambda row, candidate: -candidate[0]),
    "longer": (
        "the candidate with more tokens; what uniform attention over visible keys would choose",
        lambda row, candidate: len(candidate),
    ),
    "chance": ("a fair guess among the candidates", lambda row, candidate: 0.0),
}


def rival_accuracy(name: str, unit: Unit) -> float:
    """How often rule `name` picks the target of a unit, over its rows: 0 to 1, a tie among n counting 1/n."""
    if name not in RULES:
        raise UnknownName.of("rival", name, RULES)
    rule = RULES[name][1]
    total = 0.0
    for row in unit.rows:
        right = rule(row, row.target)
        others = [rule(row, f) for f in row.foils]
        total += 0.0 if any(o > right for o in others) else 1 / (1 + others.count(right))
    return total / len(unit.rows)
