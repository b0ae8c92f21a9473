"""Metrics are exact, within tolerance or changed, and the value that differs most is the one that is shown."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pandas as pd
import pytest

from probe.verify.differences import Metric, Tolerance, compare_files, same_words

TOLERANCE = Tolerance(1e-4, 1e-3)


def parquet(**columns: object) -> bytes:
    made = io.BytesIO()
    pd.DataFrame(columns).to_parquet(made, index=False)
    return made.getvalue()


def npz(**arrays: object) -> bytes:
    made = io.BytesIO()
    np.savez_compressed(made, **arrays)
    return made.getvalue()


def compared(name: str, a: bytes, b: bytes) -> dict[str, Metric]:
    return {metric.name: metric for metric in compare_files({name: a}, {name: b}, TOLERANCE)}


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (1.0, "exact"),
        (1.0 + 1e-12, "within tolerance"),
        (1.00109, "within tolerance"),
        (1.00111, "changed"),
        (math.nan, "changed"),
        (math.inf, "changed"),
    ],
)
def test_a_number_agrees_within_the_absolute_and_the_relative_tolerance(now: float, outcome: str) -> None:
    assert compared("t.parquet", parquet(x=[1.0, 2.0]), parquet(x=[now, 2.0]))["x"].outcome == outcome


@pytest.mark.parametrize("name", ["p", "p_edge", "causal_p", "AUC p"])
def test_a_p_value_may_be_off_by_the_error_of_its_flips(name: str) -> None:
    """Two standard errors of .05 from 9,999 flips are .0044; next to them .0001 + .1 %."""
    for now, outcome in ((0.0543, "within tolerance"), (0.0546, "changed"), (0.0457, "within"), (0.0454, "changed")):
        found = compared("t.parquet", parquet(**{name: [0.05, 1.0]}), parquet(**{name: [now, 1.0]}))[name]
        assert found.outcome.startswith(outcome), now
    surely = compared("t.parquet", parquet(**{name: [0.0001]}), parquet(**{name: [0.0006]}))[name]
    assert surely.outcome == "changed", "of the smallest, five flips are more than chance makes of rounding"


@pytest.mark.parametrize("name", ["p_holm", "causal_p_holm", "q"])
def test_a_corrected_p_value_may_be_off_by_as_many_times_that_as_there_were_tests(name: str) -> None:
    """Of 25 tests, .05 is 25 times .002, of which two errors are .00089."""
    rest = [math.nan, *[1.0] * 24]
    for now, outcome in ((0.0722, "within tolerance"), (0.0726, "changed")):
        found = compared("t.parquet", parquet(**{name: [0.05, *rest]}), parquet(**{name: [now, *rest]}))[name]
        assert found.outcome == outcome, now


@pytest.mark.parametrize(("p", "effect"), [("p_edge", "edge"), ("p", "patch"), ("p_holm", "patch")])
def test_the_p_value_of_an_effect_that_is_nothing_may_be_anything(p: str, effect: str) -> None:
    """Below 1e-4 nats it is a p-value of rounding."""
    some, nothing = [0.0002, 0.3], [2e-8, 0.3]
    for effects, again, outcome in ((nothing, nothing, "within tolerance"), (some, some, "changed")):
        a = parquet(**{effect: effects, p: [0.4, 0.01]})
        b = parquet(**{effect: again, p: [0.1, 0.01]})
        assert compared("t.parquet", a, b)[p].outcome == outcome
    both = parquet(**{effect: nothing, p: [0.4, 0.4]}), parquet(**{effect: nothing, p: [0.4, 0.01]})
    assert compared("t.parquet", *both)[p].outcome == "changed", "that of the other row is not"
    one = parquet(**{effect: nothing, p: [0.4, 0.4]}), parquet(**{effect: [0.2, 0.3], p: [0.1, 0.4]})
    assert compared("t.parquet", *one)[p].outcome == "changed", "it is nothing in one of them only"


def test_in_a_table_of_both_legs_the_effect_is_that_of_the_causal_one() -> None:
    a = parquet(patch=[1e-9], p=[0.4], causal_p=[0.4], causal_p_holm=[0.8])
    b = parquet(patch=[1e-9], p=[0.1], causal_p=[0.1], causal_p_holm=[0.2])
    found = compared("t.parquet", a, b)
    outcomes = {name: found[name].outcome for name in ("p", "causal_p", "causal_p_holm")}
    assert outcomes == {"p": "changed", "causal_p": "within tolerance", "causal_p_holm": "within tolerance"}


@pytest.mark.parametrize("name", ["passed", "n_peers", "value", "accuracy_pro", "picked", "patch", "P", "prompt"])
def test_other_numbers_have_no_such_error(name: str) -> None:
    assert compared("t.parquet", parquet(**{name: [0.05]}), parquet(**{name: [0.051]}))[name].outcome == "changed"


def test_missing_numbers_agree_with_missing_numbers_only() -> None:
    nothing = parquet(x=[math.nan, 1.0])
    assert compared("t.parquet", nothing, nothing)["x"].outcome == "exact"
    found = compared("t.parquet", nothing, parquet(x=[0.0, 1.0]))["x"]
    assert (found.outcome, found.different, found.n, found.where) == ("changed", 1, 2, "row 0")


def test_the_largest_difference_is_shown_with_its_row() -> None:
    a = parquet(layer=[0, 0, 1], head=[0, 1, 0], value=[0.1, 0.2, 0.3])
    b = parquet(layer=[1, 0, 0], head=[0, 1, 0], value=[0.3, 0.9, 0.15])  # in another order
    found = compared("heads.parquet", a, b)
    assert [found[name].outcome for name in ("layer", "head")] == ["exact", "exact"]
    value = found["value"]
    assert (value.outcome, value.different, value.where) == ("changed", 2, "head 0.1")
    assert (value.was, value.now) == ("0.2", "0.9")
    assert value.largest == pytest.approx(0.7)


def test_rows_of_only_one_table_are_counted_and_the_others_compared() -> None:
    a = parquet(phenomenon=["x", "x", "y", "y"], layer=[0] * 4, head=[0, 1, 0, 1], value=[0.1, 0.2, 0.3, 0.4])
    b = parquet(phenomenon=["x", "x"], layer=[0, 0], head=[0, 1], value=[0.1, 0.2])
    found = compared("heads.parquet", a, b)
    assert found["value"].outcome == "exact"
    assert (found["rows"].outcome, found["rows"].was, found["rows"].now) == ("changed", "4", "2, 2 of them in both")


def test_heads_of_models_of_other_sizes_are_not_taken_for_each_other() -> None:
    a = parquet(layer=[0, 0, 1, 1], head=[0, 1, 0, 1], value=[0.1, 0.2, 0.3, 0.4])
    b = parquet(layer=[0, 0, 0], head=[0, 1, 2], value=[0.1, 0.2, 0.3])
    (found,) = compared("heads.parquet", a, b).values()
    assert (found.name, found.outcome, found.was, found.now) == ("heads", "changed", "2 layers of 2", "1 layers of 3")


def test_a_column_that_only_one_has_is_changed() -> None:
    found = compared("t.parquet", parquet(x=[1]), parquet(x=[1], y=[2]))["y"]
    assert (found.outcome, found.was, found.now) == ("changed", "not there", "there")


def test_verdicts_and_flags_are_compared_as_they_are() -> None:
    a = parquet(passed=[True, False], verdict=["supported", None])
    b = parquet(passed=[True, True], verdict=["supported", "not supported"])
    found = compared("t.parquet", a, b)
    assert (found["passed"].outcome, found["passed"].was, found["passed"].now) == ("changed", "False", "True")
    assert (found["verdict"].was, found["verdict"].now) == ("none", "not supported")


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        ("the same", "the same", "exact"),
        ("Accuracy .71 [0.60 to 0.80]", "Accuracy .71 [0.61 to 0.80]", "within tolerance"),
        ("Accuracy 0.71", "Accuracy 0.73", "changed"),
        ("3 heads pass", "4 heads pass", "changed"),
        ("1,344 prompts", "1,345 prompts", "changed"),
        ("p is 1.2e-05", "p is 1.3e-05", "within tolerance"),
        ("head 1.1 passes", "head 1.1 fails", "changed"),
        ("0.5", "0.50", "changed"),
        ("", "0.5", "changed"),
    ],
)
def test_texts_agree_if_only_a_last_printed_digit_differs(a: str, b: str, outcome: str) -> None:
    assert same_words(a, b, Tolerance(0, 0)) == outcome
    assert same_words(b, a, Tolerance(0, 0)) == outcome


def test_each_part_of_a_document_is_a_metric() -> None:
    a = {"answer": "It is 0.50.", "gates": {"x": {"accuracy": 0.5, "n": 3}}, "notes": []}
    b = {"answer": "It is 0.51.", "gates": {"x": {"accuracy": 0.6, "n": 3}}, "notes": ["new"]}
    found = compared("result.json", json.dumps(a).encode(), json.dumps(b).encode())
    assert {name: m.outcome for name, m in found.items()} == {
        "answer": "within tolerance", "gates": "changed", "notes": "changed",
    }  # fmt: skip
    assert (found["gates"].where, found["gates"].was, found["gates"].now) == ("x.accuracy", "0.5", "0.6")


def test_times_are_not_compared() -> None:
    def findings(seconds: str) -> bytes:
        parts = [{"part": "table", "name": "timing_all"}]
        timed = {"title": "Times", "text": [f"It took {seconds} s."], "parts": parts}
        plain = {"title": "Sizes", "text": ["It has 3."], "parts": [{"part": "listing", "text": "x"}]}
        return json.dumps({"answer": "Yes.", "sections": [plain, timed]}).encode()

    a = {"findings.json": findings("1"), "table-timing_all.parquet": parquet(seconds=[1.0])}
    b = {"findings.json": findings("99"), "table-timing_all.parquet": parquet(seconds=[99.0])}
    outcomes = {(m.file, m.name): m.outcome for m in compare_files(a, b, TOLERANCE)}
    assert outcomes == {
        ("findings.json", "answer"): "exact",
        ("findings.json", "sections"): "exact",
        ("table-timing_all.parquet", "times"): "not compared",
    }


def test_attention_rows_are_compared_number_by_number() -> None:
    rows = np.random.default_rng(0).random((2, 3, 4)).astype(np.float32)
    other = rows.copy()
    other[1, 2, 3] += 0.5
    found = compared("examples.npz", npz(rows=rows), npz(rows=other))["rows"]
    assert (found.outcome, found.different, found.n) == ("changed", 1, 24)
    assert compared("examples.npz", npz(rows=rows), npz(rows=rows[:1]))["rows"].now == "(1, 3, 4)"


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.json"])
@pytest.mark.parametrize("garbage", [b"", b"garbage", b"PAR1PAR1", b"[" * 5000, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_changed(name: str, garbage: bytes) -> None:
    good = {"t.parquet": parquet(x=[1]), "t.npz": npz(x=[1.0]), "t.json": b"{}"}[name]
    (found,) = compare_files({name: good}, {name: garbage}, TOLERANCE)
    assert found.outcome == "changed"
    assert found.now.startswith("cannot be read: ")


def test_a_file_that_only_one_has_is_changed() -> None:
    (found,) = compare_files({"causal.parquet": parquet(x=[1])}, {}, TOLERANCE)
    assert (found.outcome, found.was, found.now) == ("changed", "there", "not there")
