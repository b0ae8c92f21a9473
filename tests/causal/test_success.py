"""Mass that goes with right answers: areas by hand, uniform null p-values, and what position alone can do apart."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats
from sklearn.metrics import roc_auc_score

from probe.causal.success import among, follows, sorted_out, success, told
from probe.errors import DataError

LISTS = [f"list-{i:02}" for i in range(40)]


def lists(rng: np.random.Generator, n: int = 40, places: int = 5) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Answers, indices and lists: some lists are easy, and the first index is."""
    easy = rng.normal(0, 1, n)[:, None] + np.linspace(1, -1, places)
    correct = (rng.normal(0, 1, (n, places)) + easy > 0).astype(float)
    return correct.ravel(), np.tile(np.arange(places), n), list(np.repeat(LISTS[:n], places))


def test_auc_within_an_index_is_blind_to_position() -> None:
    """Mass that rises with the index, as success does, and is random within it, says nothing; one that follows success
    within an index says everything.
    """
    rng = np.random.default_rng(0)
    index, names = np.repeat([0, 1, 2], 400), list(np.tile(np.arange(400), 3).astype(str))
    correct = (rng.random(1200) < np.array([0.2, 0.5, 0.8])[index]).astype(float)
    position, success = index + 0.01 * rng.random(1200), correct + rng.random(1200) * 0.5
    found = follows(np.stack([[position, success]]), list(correct), list(index), names, resamples=99)
    assert found["auc"].tolist() == [pytest.approx(0.5, abs=0.04), pytest.approx(1)]
    nothing = follows(np.ones((1, 1, 8)), [1.0] * 8, [0] * 8, list("abcdefgh"))
    assert nothing["auc"].isna().all()


def test_the_area_is_sklearns_mean_over_indices() -> None:
    rng = np.random.default_rng(3)
    correct, index, names = lists(rng)
    mass = rng.random((2, 3, 200)).round(1)  # with ties
    found = follows(mass, list(correct), list(index), names, resamples=99)
    for row in found.to_dict("records"):
        mine = mass[row["layer"], row["head"]]
        areas = [roc_auc_score(correct[index == i], mine[index == i]) for i in range(5)]
        assert row["auc"] == pytest.approx(np.mean(areas))
        assert row["low"] < row["auc"] < row["high"]


def test_null_p_values_are_uniform_though_lists_and_places_differ_in_difficulty() -> None:
    """A list's mass at its indices is alike, and so is its success: answers of whole lists are exchanged, so the p of
    masses that have nothing to do with answers stay uniform; those of exchanging single answers would not.
    """
    rng, p = np.random.default_rng(7), []
    for _ in range(60):
        correct, index, names = lists(rng)
        alike = np.repeat(rng.normal(0, 1, (1, 10, 40)), 5, axis=-1)  # (layer, head, question)
        mass = alike + 0.2 * rng.normal(0, 1, alike.shape) - 0.5 * index
        p += follows(mass, list(correct), list(index), names, resamples=199)["p"].tolist()
    assert scipy_stats.kstest(p, "uniform").statistic < 0.06  # of 600
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.025)


def test_intervals_cover_the_area_that_the_data_were_drawn_with() -> None:
    """Two normal masses whose means differ by 1: the area is Phi(1 / sqrt 2)."""
    true, rng, covered = scipy_stats.norm.cdf(1 / np.sqrt(2)), np.random.default_rng(11), []
    for _ in range(25):
        correct, index, names = lists(rng)
        mass = correct + rng.normal(0, 1, (1, 8, 200))
        found = follows(mass, list(correct), list(index), names, resamples=9)
        covered += ((found["low"] <= true) & (true <= found["high"])).tolist()
    assert np.mean(covered) == pytest.approx(0.95, abs=0.05)


def test_a_head_that_runs_against_accuracy_is_told_from_one_that_goes_with_it() -> None:
    rng = np.random.default_rng(8)
    correct, index, names = lists(rng)
    noise = rng.normal(0, 0.4, (3, 200))
    found = follows(np.stack([[correct, -correct, 0 * correct]]) + noise, list(correct), list(index), names)
    assert (found["p_holm"] < 0.05).tolist() == [True, True, False]
    assert (found["auc"] > 0.5).tolist()[:2] == [True, False]
    said = told(found, "mass on gold")
    assert said.startswith(
        "Heads whose mass on gold was shown to go with right answers at the same index: 1 of 3; with "
    )
    assert " with wrong answers: 1 (Holm-corrected over all heads, 40 lists). " in said
    assert said.endswith(", of 0.0.")


def test_heads_chosen_elsewhere_are_a_family_of_their_own() -> None:
    rng = np.random.default_rng(9)
    correct, index, names = lists(rng)
    noise = rng.normal(0, 1, (3, 8, 200))
    found = follows(noise + 0.8 * correct * (np.arange(8) == 5)[:, None], list(correct), list(index), names)
    table = found.set_index(["layer", "head"])
    chosen = [(2, 5), (0, 1), (1, 5)]
    mine = among(found, chosen)
    assert list(zip(mine["layer"], mine["head"], strict=True)) == chosen
    p = sorted(table.loc[at, "p"] for at in chosen)
    expected = dict(zip(p, np.minimum(1, np.maximum.accumulate(np.array(p) * [3, 2, 1])), strict=True))
    assert mine["p_holm"].tolist() == [expected[q] for q in mine["p"]]
    assert sorted_out(mine) == "2.5, 1.5 do; 0.1 was not shown to"
    assert sorted_out(mine.iloc[[1]]) == "0.1 was not shown to"
    assert sorted_out(mine.iloc[[0]].assign(p_holm=0.01)) == "2.5 does"


def test_lists_that_lack_an_index_are_left_out() -> None:
    rng = np.random.default_rng(6)
    correct, index, names = lists(rng)
    mass = rng.random((1, 1, 200))
    kept = np.arange(200) > 0
    some = follows(
        mass[..., kept], list(correct[kept]), list(index[kept]), [n for n, k in zip(names, kept, strict=True) if k]
    )
    rest = np.arange(200) >= 5
    whole = follows(
        mass[..., rest], list(correct[rest]), list(index[rest]), [n for n, k in zip(names, rest, strict=True) if k]
    )
    assert some.equals(whole)
    assert some["lists"].tolist() == [39]


def test_success_is_told_by_mass_within_and_pooled_or_by_position_alone() -> None:
    rng = np.random.default_rng(1)
    index = np.tile([0, 1, 2], 600)
    correct = (rng.random(1800) < np.array([0.1, 0.5, 0.9])[index]).astype(float)
    held = np.arange(1800) >= 900
    mass = np.stack([[index + 0.01 * rng.random(1800), correct + 0.1 * rng.random(1800), rng.random(1800)]])
    found = success(mass, list(correct), list(index), list(np.repeat(np.arange(600), 3).astype(str)), held)
    assert found.within["auc"].tolist() == pytest.approx([0.5, 1, 0.5], abs=0.06)
    assert (found.within["p_holm"] < 0.05).tolist() == [False, True, False]
    assert found.position == pytest.approx(found.pooled[0, 0], abs=0.03)
    assert found.position > 0.8
    assert found.pooled[0, 1] == 1
    nothing = success(mass[..., :8], [1.0] * 8, [0] * 8, list("abcdefgh"), np.arange(8) > 3)
    assert np.isnan(nothing.position)
    assert np.isnan(nothing.pooled).all()
    assert nothing.within["auc"].isna().all()
    assert told(nothing.within, "mass") == "At no index are there enough right and wrong answers to compare."


def test_masses_that_are_no_numbers_and_lists_asked_twice_are_refused() -> None:
    correct, index, names = lists(np.random.default_rng(1))
    mass = np.random.default_rng(2).random((1, 2, 200))
    with pytest.raises(DataError, match="some of the masses are not numbers"):
        follows(np.where(mass > 0.99, np.nan, mass), list(correct), list(index), names)
    with pytest.raises(DataError, match="list-00 is asked about twice at index 0"):
        follows(mass, list(correct), [0, 0, *index[2:]], names)
    with pytest.raises(DataError, match="every question is held"):
        success(mass, list(correct), list(index), names, np.ones(200, dtype=bool))


def test_an_index_with_too_few_of_either_answer_says_nothing() -> None:
    """Four wrong answers at the second index are too few, five at the third enough; p is never zero."""
    rng, names = np.random.default_rng(4), list(np.repeat(LISTS, 3))
    index = np.tile(np.arange(3), 40)
    correct = np.ones(120)
    correct[1:12:3], correct[2:15:3] = 0, 0
    mass = np.where(index == 1, -correct, correct) + 0.01 * rng.random((1, 1, 120))
    found = follows(mass, list(correct), list(index), names, resamples=19)
    assert found["auc"].item() == pytest.approx(1)
    assert found["p"].tolist() == [1 / 20]
