"""The map of heads: the strongest thing shown comes first, and nothing is claimed that no table says."""

from __future__ import annotations

import numpy as np
import pandas as pd

from probe.causal.jobs import jobs


def judged(verdicts: list[str], passed: list[bool], patch: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "verdict": verdicts, "causal_passed": passed, "patch": patch}
    )


def described(name: str, values: list[float], low: float | None = None) -> pd.DataFrame:
    lows = values if low is None else [low] * 4
    return pd.DataFrame(
        {"phenomenon": name, "layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "value": values, "low": lows, "chance": 0.1}
    )


def test_every_head_stands_under_the_strongest_thing_shown() -> None:
    nan = float("nan")
    table = jobs(
        {
            "agreement": judged(
                ["supported", "attention only", "not supported", "not supported"], [True, False, False, False],
                [0.5, 0.1, nan, nan],
            ),
            "induction": judged(
                ["causal only", "not supported", "not supported", "untestable here: why"], [True, False, False, False],
                [2.0, nan, nan, nan],
            ),
        },
        [described("first token", [0.9, 0.9, 0.31, 0.29]), described("previous token", [0.0, 0.0, 0.0, 0.49])],
    )  # fmt: skip
    assert list(table["kind"]) == ["supported", "attention only", "described", "no known job"]
    first = table.iloc[0]
    assert (first["supported"], first["causal_only"], first["described"]) == ("agreement", "induction", "first token")
    assert (first["strongest"], first["of"]) == (2.0, "induction")
    assert np.isnan(table.iloc[2]["strongest"])


def test_a_description_needs_more_than_chance() -> None:
    table = jobs({}, [described("delimiter", [0.6] * 4, low=0.05)])
    assert set(table["kind"]) == {"no known job"}
