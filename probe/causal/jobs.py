"""What each head of a model does: jobs it was shown to do, what it merely attends for, what describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from probe.causal.verdict import ATTENTION, CAUSAL, SUPPORTED

# Phenomenon -> the mean attention from which on a head is described by it, and whose threshold that is.
DESCRIBED = {
    "first token": (0.3, "Gu et al. 2024"),
    "previous token": (0.5, "Clark et al. 2019"),
    "next token": (0.5, "Clark et al. 2019"),
    "own token": (0.5, "as for the next"),
    "delimiter": (0.5, "Clark et al. 2019: more than half"),
    "duplicate token": (0.5, "as for the next"),
    "after duplicate": (0.5, "as for the next"),
}
OFFSET = 0.5  # the same for any other fixed distance
KINDS = (SUPPORTED, CAUSAL, ATTENTION, "described", "no known job")


def jobs(judged: Mapping[str, pd.DataFrame], described: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One row a head: layer, head, kind (the first of `KINDS` that fits), supported, causal_only, attention_only,
    described (names, joined by commas; "" for none), strongest (nats: its largest effect on any answer) and of (the
    phenomenon it is on).

    judged: phenomenon -> `Verdicts.heads`. described: tables of `probe.scores.heads` for phenomena without rivals.
    """
    first = next(iter(judged.values()), None)
    first = described[0] if first is None else first
    heads = [(int(a), int(b)) for a, b in zip(first["layer"], first["head"], strict=True)]
    rows = []
    for layer, head in sorted(heads):
        found: dict[str, list[str]] = {SUPPORTED: [], CAUSAL: [], ATTENTION: []}
        strongest, of = float("nan"), ""
        for name, table in judged.items():
            row = _at(table, layer, head)
            if row["verdict"] in found:
                found[row["verdict"]].append(name)
            if row["causal_passed"] and not row["patch"] <= strongest:
                strongest, of = float(row["patch"]), name
        by_form = [str(t["phenomenon"].iloc[0]) for t in described if _is(t, layer, head)]
        kind = next((k for k, names in found.items() if names), "described" if by_form else KINDS[-1])
        rows.append((layer, head, kind, *map(", ".join, (*found.values(), by_form)), strongest, of))
    columns = ["layer", "head", "kind", "supported", "causal_only", "attention_only", "described", "strongest", "of"]
    return pd.DataFrame(rows, columns=columns)


def _at(table: pd.DataFrame, layer: int, head: int) -> pd.Series:
    return table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]


def _is(table: pd.DataFrame, layer: int, head: int) -> bool:
    """Whether the head puts as much attention there as the description asks for, and more than chance."""
    row = _at(table, layer, head)
    least = DESCRIBED.get(str(row["phenomenon"]), (OFFSET, ""))[0]
    return bool(row["value"] >= least and row["low"] > row["chance"])
