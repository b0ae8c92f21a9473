"""The causal leg as the page shows it: what the model answers, and the heads that were changed, with their verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.errors import ResultsError
from probe.report.html import head_link
from probe.report.numbers import NONE, count, fixed, interval, p_value

NUMBERS = (
    "screen", "patch", "pattern", "mean", "resample", "edge", "low", "high", "share", "limit", "norm",
    "unrelated_loss", "p", "p_holm",
)  # fmt: skip
OPTIONAL = ("n_peers", "p_pattern", "p_mean", "p_resample", "p_edge")  # numbers that runs kept only later
LOOKS = ("pattern", "edge")
ALPHA, ENOUGH = 0.05, 20  # heads to be compared with
Floats = npt.NDArray[np.float64]
COLUMNS = ("phenomenon", "verdict", "layer", "head", "picked", "tested", "passed", "n_units", "n_clusters", *NUMBERS)
SHOWN = (
    "patched, nats", "95 % interval", "share", "matched heads, 95th pct", "Holm p", "pattern only",
    "edge cut", "its look matters", "mean-ablated", "resampled", "unrelated text",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One head that was tested. kind: "pass", "fail" or "" for the mark. why: what it fails on, or ""."""

    label: str
    link: str
    verdict: str
    kind: str
    why: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Leg:
    """The causal leg of one phenomenon. summary: of the verdict table. gate: what the model answers, a sentence.
    group: the heads knocked out together, a sentence, or "". numbers, verdicts, whys (what each fails on, "" where
    nothing or not said), tested, passes: over heads, layer by layer. paired: nats that the answer moves when the cue is
    swapped. most_loss: nats a token that unrelated text may lose, where the run says.
    """

    phenomenon: str
    reason: str | None
    passed: bool
    summary: str
    gate: str
    group: str
    rows: tuple[Row, ...]
    sample: str
    numbers: dict[str, Floats]
    verdicts: tuple[str, ...]
    whys: tuple[str, ...]
    tested: npt.NDArray[np.bool_]
    passes: npt.NDArray[np.bool_]
    paired: float
    most_loss: float | None

    def outcome(self, index: int) -> str:
        """What came of a head: "pass", "fail" or "not tested"."""
        return "not tested" if not self.tested[index] else "pass" if self.passes[index] else "fail"


def legs(table: pd.DataFrame, gates: dict[str, Any], path: Path) -> dict[str, Leg]:
    """Phenomenon -> its leg. table: causal.parquet."""
    found = {}
    for name in dict.fromkeys(str(p) for p in table["phenomenon"]):
        if not isinstance(gates.get(name), dict):
            raise ResultsError(f"{path} has rows of {name!r}, which result.json has no gate for.")
        found[name] = _leg(name, table[table["phenomenon"] == name], gates[name])
    return found


def _leg(name: str, table: pd.DataFrame, gate: dict[str, Any]) -> Leg:
    reason, paired = gate.get("reason"), gate.get("paired")
    table = table.reindex(columns=[*table.columns, *(c for c in OPTIONAL if c not in table)])
    table = table if "why" in table else table.assign(why="")
    grid = table.sort_values(["layer", "head"])
    tested = table[table["tested"]].sort_values(["passed", "patch"], ascending=False, kind="stable")
    counts = {v: int((tested["verdict"] == v).sum()) for v in ("supported", "causal only", "attention only")}
    n_passed = int(tested["passed"].sum())
    return Leg(
        phenomenon=name,
        reason=None if reason is None else str(reason),
        passed=n_passed > 0,
        summary=", ".join(f"{n} {v}" for v, n in counts.items() if n) or "none supported",
        gate=_gate(gate),
        group=_together(gate.get("group")),
        rows=tuple(_row(name, r) for r in tested.to_dict("records")),
        sample=f"{count(int(table['n_units'].max()), 'prompt')}, {count(int(table['n_clusters'].max()), 'cluster')}",
        numbers={c: grid[c].to_numpy(dtype=np.float64, na_value=np.nan) for c in (*NUMBERS, *OPTIONAL)},
        verdicts=tuple(map(str, grid["verdict"])),
        whys=tuple(map(str, grid["why"])),
        tested=grid["tested"].to_numpy(dtype=np.bool_),
        passes=grid["passed"].to_numpy(dtype=np.bool_),
        paired=float("nan") if paired is None else float(paired),
        most_loss=gate.get("most_loss"),
    )


def _row(name: str, row: dict[Any, Any]) -> Row:
    label = f"{row['layer']}.{row['head']}"
    cells = (
        fixed(row["patch"], 2),
        interval(row["low"], row["high"]),
        fixed(row["share"], 2),
        limit(row["limit"], row["n_peers"]),
        p_value(row["p_holm"]),
        *(fixed(row[kind], 2) for kind in LOOKS),
        matters(row),
        *(fixed(row[kind], 2) for kind in ("mean", "resample")),
        fixed(row["unrelated_loss"]),
    )
    kind = "pass" if row["passed"] else "fail"
    return Row(label, head_link(label, name), str(row["verdict"]), kind, str(row["why"]), cells)


def limit(value: float, n_peers: float) -> str:
    """The 95th percentile of the heads that write as much, with their number where fewer than 20 do."""
    if n_peers == 0:
        return "no such head"
    few = n_peers < ENOUGH  # not where the number is not known
    return f"{fixed(value, 2)} (of {n_peers:.0f} only)" if few else fixed(value, 2)


def matters(row: dict[Any, Any]) -> str:
    """Which changes of where the head looks, and of nothing else, cost the answer nats (p below 0.05, uncorrected)."""
    if all(np.isnan(row[f"p_{kind}"]) for kind in LOOKS):
        return NONE
    return ", ".join(kind for kind in LOOKS if row[f"p_{kind}"] < ALPHA) or "not shown"


def _gate(gate: dict[str, Any]) -> str:
    if gate.get("accuracy") is None:
        return ""
    said = (
        f"The model’s accuracy is {fixed(gate['accuracy'], 2)} {interval(gate['accuracy_low'], gate['accuracy_high'])} "
        f"on {count(gate['n_units'], 'question')} (chance {fixed(gate['chance'], 2)})"
    )
    if gate.get("paired") is None:
        return f"{said}; no item has an aligned minimal pair."
    return (
        f"{said}; swapping the cue moves its answer by {fixed(gate['paired'], 2)} nats "
        f"{interval(gate['paired_low'], gate['paired_high'])} ({count(gate['n_pairs'], 'prompt')} with an aligned "
        "minimal pair)."
    )


def _together(group: dict[str, Any] | None) -> str:
    if not group:
        return ""
    return (
        f"Mean-ablated together, the heads {', '.join(group['heads'])} cost the answer {fixed(group['lost'], 2)} nats; "
        f"singly, they cost {fixed(group['singly'], 2)} nats in sum. Of {group['n_random']} random groups matched on "
        f"the length of what they write, the 95th percentile is {fixed(group['limit'], 2)} nats."
    )
