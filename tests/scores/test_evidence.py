"""The attention leg on readings made up for the purpose: what may pass, what may not, and which half has a say."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from probe import stats
from probe.errors import DataError
from probe.runner.attention import answer
from probe.scores import evidence
from probe.scores.measure import Measured
from probe.scores.rivals import rival_accuracy
from probe.scores.rows import Reading
from probe.targets import Row, Targets, Unit

SUBJECT = SimpleNamespace(name="made up", n_layers=1, n_heads=12, random_copy=lambda seed: SUBJECT)


def targets(sizes: list[int], nearest_is_right: float = 0.5) -> Targets:
    """Prompts in clusters of the given sizes; the nearest candidate is right in that share of each cluster."""
    units = []
    for cluster, size in enumerate(sizes):
        for n in range(size):
            near = n < nearest_is_right * size
            row = Row((9,), (6,), ((2,),)) if near else Row((9,), (2,), ((6,),))
            units.append(Unit(f"{cluster}-{n}", f"{cluster:03d}", tuple(range(10)), (row,), ((2,), (6,), (9,))))
    return Targets("coreference", "made up", "accuracy", ("nearest", "first", "longer"), tuple(units))


def found(
    made: Targets, right: np.ndarray, monkeypatch: pytest.MonkeyPatch, *, random: float = 0.5, seed: int = 0
) -> pd.DataFrame:
    """The table for heads that are right as told: right (head, unit). Random copies' heads all reach `random`."""
    calls = []

    def measure(_: object, given: Targets, **__: object) -> Measured:
        values = right if not calls else np.full((12, len(given.units)), random)
        calls.append(given)
        readings = {name: np.full((1, 12, len(given.units)), 0.1) for name in Reading.FIELDS}
        return Measured(given, {**readings, "correct": values[None].astype(float)})

    monkeypatch.setattr(evidence, "measure", measure)
    return evidence.evidence(SUBJECT, made, seed=seed).heads


def halves(made: Targets, seed: int = 0) -> np.ndarray:
    return evidence.measurement_half(made, seed)


def coin(made: Targets) -> np.ndarray:
    """Heads that are right on exactly half of each cluster."""
    return np.array([[(n + head) % 2 for n in range(len(made.units))] for head in range(12)], dtype=float)


def test_a_head_that_is_right_on_both_halves_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = targets([4] * 40)
    right = coin(made)
    right[3] = np.random.default_rng(1).random(len(made.units)) < 0.9
    table = found(made, right, monkeypatch)
    assert table[table["passed"]]["head"].tolist() == [3]
    assert table["value"][3] == right[3][halves(made)].mean()
    assert table["selection_value"][3] == right[3][~halves(made)].mean()


def test_the_measurement_half_has_no_say_in_what_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that is right on the measurement half alone is not picked; one of the other half alone is, and fails."""
    made = targets([4] * 40)
    test, right = halves(made), np.zeros((12, 160))
    right[5] = test
    right[7] = ~test
    table = found(made, right, monkeypatch)
    assert table[table["picked"]]["head"].tolist() == [7]
    assert not table["passed"].any()
    assert (table["value"][5], table["selection_value"][5]) == (1.0, 0.0)


def test_every_rival_has_to_be_beaten_not_just_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest candidate is right in three prompts of four; a head with .7 beats `first` and `longer` alone."""
    made = targets([4] * 60, nearest_is_right=0.75)
    assert rival_accuracy("nearest", made.units[:1]) == 1.0
    right = np.zeros((12, 240))
    right[2] = 1  # picked: above nearest on the selection half
    right[2][halves(made)] = np.random.default_rng(1).random(int(halves(made).sum())) < 0.7
    table = found(made, right, monkeypatch)
    assert table["picked"][2]
    assert table["best_rival"][2] == "nearest"
    assert table["best_rival_value"][2] == 0.75
    assert table["p"][2] > 0.5
    assert not table["passed"].any()


def test_p_is_corrected_for_every_head_that_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    made = targets([4] * 40)
    right = (np.random.default_rng(3).random((12, 160)) < 0.62).astype(float)
    table = found(made, right, monkeypatch)
    picked = table[table["picked"]]
    assert len(picked) > 3
    assert picked["p_holm"].tolist() == pytest.approx(stats.holm(picked["p"].to_numpy()).tolist())
    assert (picked["p_holm"] > picked["p"]).any()
    assert (table["passed"] == (table["p_holm"] < 0.05)).all()


def test_a_head_no_better_than_an_untrained_one_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made = targets([4] * 40)
    right = coin(made)
    right[3] = np.random.default_rng(1).random(160) < 0.8
    table = found(made, right, monkeypatch, random=0.95)
    assert table["p_holm"][3] < 0.05
    assert table["random_max"][3] == 0.95
    assert not table["passed"].any()


def test_what_passes_has_a_higher_value_than_every_rival_however_unequal_the_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One page holds 200 prompts, on which the head is wrong; on 39 small pages it is right."""
    made = targets([200, *[4] * 39])
    right = coin(made)
    right[3] = [u.cluster != "000" for u in made.units]
    for seed in range(8):
        table = found(made, right, monkeypatch, random=0.1, seed=seed)
        passed = table[table["passed"]]
        assert (passed["value"] > passed["best_rival_value"]).all(), seed


def test_intervals_weigh_clusters_by_their_prompts() -> None:
    """The interval is of the mean over prompts: a page of 100 wrong prompts pulls it down."""
    names = ["big"] * 100 + [f"{i}" for i in range(30) for _ in range(2)]
    values = np.array([[0.0] * 100 + [1.0, 0.0] * 30])
    grouped = stats.by_cluster(values, names)
    assert grouped.overall[0] == pytest.approx(30 / 160)
    assert grouped.weighted.mean() == pytest.approx(30 / 160)
    low, high = stats.interval(grouped, seed=0)
    assert low[0] < 30 / 160 < high[0] <= 0.5


def test_the_headline_names_the_best_of_the_half_that_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = targets([4] * 40)
    test = halves(made)
    right = coin(made)
    rng = np.random.default_rng(5)
    for head, selection, measurement in ((2, 0.98, 0.85), (4, 0.85, 0.98)):
        right[head] = np.where(test, rng.random(160) < measurement, rng.random(160) < selection)
    table = found(made, right, monkeypatch)
    assert {2, 4} <= set(table[table["passed"]]["head"])
    assert table["value"][4] > table["value"][2]
    whole = SimpleNamespace(heads=table, measured=SimpleNamespace(targets=made))
    assert "layer 0 head 2, the best on the half of the data that picks" in answer(whole, SUBJECT)


def test_too_few_clusters_to_pass_are_known_beforehand() -> None:
    assert stats.smallest_p(4, 10) == pytest.approx(10 / 16)
    assert stats.smallest_p(20, 10) == pytest.approx(10 / 10000)
    assert stats.smallest_p(2, 10) == 1.0


def test_scores_of_something_unbound_say_what_to_do() -> None:
    with pytest.raises(DataError, match=r"a str is not bound yet: scores take subject\.bind"):
        evidence.heads(SUBJECT, ["coreference"])
    with pytest.raises(DataError, match="no targets were given"):
        evidence.heads(SUBJECT, [])
