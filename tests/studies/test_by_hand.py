"""The study on attention worked out by hand: its tables hold the recomputed figures, and its answer counts them."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from probe.runner.findings import Findings, Listing
from probe.studies.by_hand import by_hand


@pytest.fixture(scope="module")
def found() -> Findings:
    return by_hand()


@pytest.fixture(scope="module")
def tables(found: Findings) -> dict[str, pd.DataFrame]:
    return {name: table.frame for name, table in found.tables.items()}


def test_the_answer_counts_what_the_tables_hold(found: Findings, tables: dict[str, pd.DataFrame]) -> None:
    verdicts = pd.concat([tables["worked_examples"], tables["sizes"]])["right?"]
    assert verdicts.value_counts().to_dict() == {"yes": 11, "no": 3}
    assert "Of 14 printed figures and statements checked, 11 are right and 3 wrong" in found.answer
    for figure in ("0.498 of its attention, not 0.60", "0.380 and cat still more (0.409)", "0.06 %"):
        assert figure in found.answer


def test_printed_figures_stand_beside_the_right_ones(tables: dict[str, pd.DataFrame]) -> None:
    rows = pd.concat([tables["worked_examples"], tables["sizes"]]).set_index("printed")[["computed", "right?"]]
    assert {printed: tuple(row) for printed, row in rows.iterrows()} == {
        "0.60 0.16 0.24": ("0.498 0.235 0.267", "no"),
        "0.503 0.237 0.260": ("0.503 0.237 0.260", "yes"),
        "5.03 2.37 2.60 0.00": ("5.033 2.366 2.601 0.000", "yes"),
        "the weight flips to tired": ("0.409 0.380 0.211", "no"),
        "all-or-nothing": ("0.999998 0.000000 0.000002", "yes"),
        "1 0 0": ("1.000 0.000 0.000", "yes"),
        "spreads over all three": ("0.248 0.248 0.503", "yes"),
        "cost the same as one head of full width": ("as many multiply-adds with 1, 2, 4 and 8 heads", "yes"),
        "175 B": ("174.604 B", "yes"),
        "about 1 % of the parameters": ("0.06 %", "no"),
        "0.5 MiB": ("0.500 MiB", "yes"),
        "2 GiB": ("2.000 GiB", "yes"),
        "hundreds of times as many": ("624,750 / 1,499 = 417 times", "yes"),
        "10⁶, 10⁸, 10¹⁰": ("1,000,000, 100,000,000, 10,000,000,000", "yes"),
    }


def test_what_flips_the_weights(tables: dict[str, pd.DataFrame]) -> None:
    flipping = tables["flipping"].set_index("change of the keys")
    assert flipping["flips?"].to_dict() == {
        "none": "no",
        "tired's is the query": "no",
        "tired's is 1.0777 times the query": "no",
        "tired's is 1.1 times the query": "yes",
        "cat's and tired's exchanged": "yes",
        "all × 10, scores undivided": "no",
        "tired's is the query, all × 10, scores undivided": "no",
    }
    level = flipping.loc["tired's is 1.0777 times the query"]
    assert level["cat"] == pytest.approx(level["tired"], abs=1e-12)
    last = flipping.loc["tired's is the query, all × 10, scores undivided", ["cat", "tired", "it"]]
    assert [round(float(w), 3) for w in last] == [0.818, 0.182, 0]


def test_the_intervals_hold_the_width_as_variance(tables: dict[str, pd.DataFrame]) -> None:
    variances = tables["variances"]
    assert list(variances["d"]) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert (variances["low"] < variances["high"]).all()
    assert (variances["low"].le(variances["d"]) & variances["high"].ge(variances["d"])).sum() >= 7
    assert variances["variance of q·k/√d"].between(0.9, 1.1).all()


def test_only_undivided_scores_lose_entropy_with_the_width(tables: dict[str, pd.DataFrame]) -> None:
    by_scores = {name: list(part["entropy"]) for name, part in tables["entropy_over_width"].groupby("scores")}
    assert max(by_scores["divided by √d"]) - min(by_scores["divided by √d"]) < 0.3
    assert by_scores["undivided"] == sorted(by_scores["undivided"], reverse=True)
    assert by_scores["undivided"][-1] < 0.3 < 3 < by_scores["undivided"][0] < math.log(64)


def test_the_causal_example_is_shown_whole(found: Findings, tables: dict[str, pd.DataFrame]) -> None:
    weights = tables["causal_cells"].pivot(index="query", columns="key", values="weight").to_numpy().round(3).tolist()
    assert weights == [[1, 0, 0], [0.33, 0.67, 0], [0.248, 0.248, 0.503]]
    listed = [part.text for section in found.sections for part in section.parts if isinstance(part, Listing)]
    assert len(listed) == 1
    assert all(f"def {name}(" in listed[0] for name in ("dot", "matmul", "softmax", "attention"))


def test_the_three_pages_agree(tables: dict[str, pd.DataFrame]) -> None:
    assert list(tables["pages"]["allowed"]) == ["1e-12", "1e-6"]
    assert list(tables["pages"]["within?"]) == ["yes", "yes"]


def test_heads_cost_alike_and_look_differently(tables: dict[str, pd.DataFrame]) -> None:
    heads = tables["heads"]
    assert set(heads["multiply-adds counted"]) == set(heads["by formula"]) == {7296}
    assert list(heads["exponentials"]) == [36, 72, 144, 288]
    assert heads["heads' difference"].isna().tolist() == [True, False, False, False]


def test_order_changes_nothing_without_a_mask(tables: dict[str, pd.DataFrame]) -> None:
    order = tables["order"]
    assert (order.loc[order["mask"] == "none", "largest change"] == 0).all()
    changed = order[order["smallest change"] > 0]
    assert list(zip(changed["mask"], changed["layers"], changed["read at"], strict=True)) == [
        ("causal", 1, "every query"),
        ("causal", 2, "the last token"),
    ]


def test_the_ledger_adds_up(tables: dict[str, pd.DataFrame]) -> None:
    parts = tables["parameters"].set_index("part")
    assert parts.drop("total").sum().to_numpy() == pytest.approx(parts.loc["total"].to_numpy())
    assert parts.loc["total"].round(1).to_dict() == {"GPT-3": 174604.3, "Llama 7B": 6738.4, "SmolLM2-135M": 134.5}
    caches = tables["caches"].set_index("model")
    assert caches["KiB a token"].to_dict() == {"GPT-3": 4608, "Llama 7B": 512, "SmolLM2-135M": 22.5}
    fed = tables["fed"].set_index(["cache", "tokens generated"])["tokens computed"]
    assert (fed["without a cache", 500], fed["with a cache", 500]) == (624_750, 1_499)


def test_another_seed_changes_the_draws_and_not_the_arithmetic(tables: dict[str, pd.DataFrame]) -> None:
    again = {name: table.frame for name, table in by_hand(seed=1).tables.items()}
    for name in ("worked_examples", "flipping", "causal_example", "sizes", "parameters"):
        pd.testing.assert_frame_equal(again[name], tables[name])
    assert not again["variances"].equals(tables["variances"])
    pd.testing.assert_frame_equal(by_hand(seed=1).tables["variances"].frame, again["variances"])
