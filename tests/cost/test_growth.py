"""Exponents are those of the times given, on times that are made up and on a clock turned by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.cost.growth import attention_runs, exponent, repeated


@pytest.mark.parametrize("power", [1.0, 1.7, 2.0])
def test_a_power_law_gives_its_exponent_and_no_width(power: float) -> None:
    lengths = [128, 256, 512, 1024]
    found = exponent(lengths, [3e-6 * n**power for n in lengths])
    assert found == pytest.approx((power, power, power), abs=1e-6)


def test_the_interval_is_students_t_around_the_least_squares_slope() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.1, 3.8, 6.3, 7.7, 10.4, 11.6]
    mean_x, mean_y = sum(x) / 6, sum(y) / 6
    squares = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / squares
    left = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    half = 2.7764451 * math.sqrt(left / 4 / squares)  # t of 4 degrees of freedom at 97.5 %
    found = exponent([math.e**a for a in x], [math.e**b for b in y])  # type: ignore[misc]
    assert found == pytest.approx((slope, slope - half, slope + half), rel=1e-6)


def test_the_first_run_is_not_counted() -> None:
    now, takes = [0.0], iter([100.0, 3.0, 1.0, 2.0])

    def run() -> None:
        now[0] += next(takes)

    assert repeated(run, 3, clock=lambda: now[0]) == (2.0, 1.0, 3.0)


def test_attention_alone_is_attention() -> None:
    runs = attention_runs(5, n_heads=6, n_kv_heads=2, d_head=4, seed=1)
    scores, (z, pattern), (fused, _) = (np.asarray(0) if r is None else r for r in (run() for run in runs.values()))
    assert list(runs) == ["scores", "scores, softmax, values", "fused kernel"]
    assert scores.shape == pattern.shape == (1, 6, 5, 5)
    weights = np.exp(scores.numpy())
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(pattern.numpy(), weights, rtol=1e-5)
    np.testing.assert_allclose(fused.numpy(), z.numpy(), atol=1e-6)


def test_query_heads_that_share_a_key_differ_only_by_their_queries() -> None:
    runs = attention_runs(3, n_heads=4, n_kv_heads=2, d_head=2, seed=0)
    _, query, key, _ = (None, *runs["scores"].args)  # type: ignore[attr-defined]
    scores = runs["scores"]()
    for head in range(4):
        expected = query[0, head].numpy() @ key[0, head // 2].numpy().T * 2**-0.5
        np.testing.assert_allclose(scores[0, head].numpy(), expected, rtol=1e-5)  # type: ignore[index]
