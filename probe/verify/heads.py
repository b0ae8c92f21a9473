"""The heads that two results judge or score differently."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pandas as pd

from probe.errors import ResultsError
from probe.runner.results import CAUSAL, FILES
from probe.verify.differences import Tolerance
from probe.verify.recorded import Recorded

HEADS = FILES[0]


@dataclass(frozen=True)
class Head:
    """A head in two results. verdicts: of both legs where there is a causal leg, else of the attention leg."""

    phenomenon: str
    label: str
    values: tuple[float, float]
    verdicts: tuple[str, str]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table, as text."""
        a, b = self.values
        return (self.phenomenon, self.label, f"{a:.4f}", f"{b:.4f}", f"{b - a:+.4f}", *self.verdicts)


@dataclass(frozen=True)
class Heads:
    """rows: heads that differ; another verdict first, then the largest difference. note: why heads were not matched."""

    rows: tuple[Head, ...] = ()
    note: str = ""


def differing(a: Recorded, b: Recorded, tolerance: Tolerance) -> Heads:
    """The heads of two results that differ in verdict, or in value by more than the tolerance.

    Heads are matched by phenomenon, layer and head, where both models have as many of each. Raises ResultsError for a
    table that cannot be read.
    """
    x, y = _table(a), _table(b)
    if x is None or y is None:
        return Heads()
    grids = [(int(t["layer"].max()) + 1, int(t["head"].max()) + 1) for t in (x, y)]
    if grids[0] != grids[1]:
        (la, ha), (lb, hb) = grids
        return Heads(note=f"A has {la} layers of {ha} heads, B {lb} of {hb}: their heads are not the same ones.")
    both = x.merge(y, on=["phenomenon", "layer", "head"], suffixes=("_a", "_b"))
    agree = tolerance.agree("value", both["value_a"].to_numpy(float), both["value_b"].to_numpy(float))
    both["judged"] = both["verdict_a"] != both["verdict_b"]
    both["gap"] = (both["value_b"] - both["value_a"]).abs()
    chosen = both[both["judged"] | ~agree].sort_values(["judged", "gap"], ascending=False, kind="stable")
    rows = [
        Head(
            str(row["phenomenon"]),
            f"{row['layer']}.{row['head']}",
            (float(row["value_a"]), float(row["value_b"])),
            (str(row["verdict_a"]), str(row["verdict_b"])),
        )
        for row in chosen.to_dict("records")
    ]
    return Heads(tuple(rows))


def _table(recorded: Recorded) -> pd.DataFrame | None:
    """Phenomenon, layer, head, value and verdict; None for a result without scores of heads."""
    if HEADS not in recorded.files:
        return None
    try:
        table = pd.read_parquet(io.BytesIO(recorded.files[HEADS]))
        table = table[["phenomenon", "layer", "head", "value", "picked", "passed"]].copy()
        table["verdict"] = [
            "pass" if passed else "fail" if picked else "not tested"
            for passed, picked in zip(table["passed"], table["picked"], strict=True)
        ]
        if CAUSAL in recorded.files:
            leg = pd.read_parquet(io.BytesIO(recorded.files[CAUSAL]))[["phenomenon", "layer", "head", "verdict"]]
            table = table.merge(leg, on=["phenomenon", "layer", "head"], how="left", suffixes=("_attention", ""))
            table["verdict"] = table["verdict"].fillna(table["verdict_attention"])
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise ResultsError(f"{recorded.place}: {HEADS} cannot be read: {error}") from error
    return table[["phenomenon", "layer", "head", "value", "verdict"]]
