"""Intervals, tests and corrections on data whose answer is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from probe import stats


def test_grouping_sums_each_clusters_units() -> None:
    grouped = stats.by_cluster(np.array([[1.0, 2, 3, 4], [0, 0, 1, 1]]), ["b", "a", "b", "a"])
    assert grouped.sums.tolist() == [[6, 4], [1, 1]]
    assert grouped.counts.tolist() == [2, 2]
    assert grouped.overall.tolist() == [2.5, 0.5]


def test_the_interval_covers_the_truth_nine_times_in_ten_or_more() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(100):
        level = rng.beta(3, 2, size=30)  # each cluster's own accuracy, mean 0.6
        units = (rng.random((30, 4)) < level[:, None]).astype(float)
        names = np.repeat([f"{i:02d}" for i in range(30)], 4).tolist()
        low, high = stats.interval(stats.by_cluster(units.reshape(1, -1), names), seed=trial, resamples=500)
        covered += bool(low[0] <= 0.6 <= high[0])
    assert 88 <= covered <= 100


def test_alike_nats_give_the_point_at_zero_too() -> None:
    zeros = stats.by_cluster(np.zeros((1, 20)), [f"c{i}" for i in range(20)])
    low, high = stats.interval(zeros, seed=0, shares=False)
    assert (low.item(), high.item()) == (0, 0)


def test_alike_clusters_give_the_point_or_an_exact_binomial_interval() -> None:
    names = [str(i) for i in range(20)]
    low, high = stats.interval(stats.by_cluster(np.stack([np.full(20, 0.5), np.ones(20), np.zeros(20)]), names), seed=0)
    exact = scipy_stats.binomtest(20, 20).proportion_ci(0.95, method="exact")
    assert (low[0], high[0]) == (0.5, 0.5)
    assert (low[1], high[1]) == pytest.approx((exact.low, 1.0))
    assert (low[2], high[2]) == pytest.approx((0.0, 1 - exact.low))


def test_sign_flip_is_exact_for_few_clusters() -> None:
    differences = np.array([0.3, 0.1, -0.05, 0.2, 0.4])
    flips = [np.mean(np.array(signs) * differences) for signs in product((1, -1), repeat=5)]
    expected = np.mean(np.array(flips) >= differences.mean() - 1e-12)
    assert stats.sign_flip(differences, seed=0) == pytest.approx(expected)


def test_sign_flip_p_values_are_uniform_where_there_is_no_effect() -> None:
    differences = np.random.default_rng(0).normal(size=(400, 25))
    p = stats.sign_flip(differences, seed=1, resamples=999)
    assert scipy_stats.kstest(p, "uniform").pvalue > 0.01
    assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.03)


def test_holm_by_hand() -> None:
    assert stats.holm(np.array([0.01, 0.04, 0.03, 0.005])).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm(np.array([0.5, 0.9])).tolist() == [1.0, 1.0]


def test_t_test_of_alike_differences_needs_no_spread() -> None:
    p = stats.t_test(np.stack([np.full(8, 0.5), np.zeros(8), np.array([0.1, 0.2] * 4)]))
    assert p[0] == 0.5**8
    assert p[1] == 1.0
    assert p[2] == pytest.approx(scipy_stats.ttest_1samp([0.1, 0.2] * 4, 0, alternative="greater").pvalue)
