"""The worked examples, what they need to flip, what is counted, and what random vectors show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probe.by_hand import examples, layers, scaling, textbook
from probe.by_hand.counting import Counted, Tally
from probe.by_hand.in_python import matmul


def rounded(weights: list[float], digits: int = 3) -> list[float]:
    return [round(w, digits) for w in weights]


def test_it_looks_at_cat() -> None:
    assert rounded(examples.weights_of(examples.KEYS)) == [0.503, 0.237, 0.260]
    assert rounded(examples.output_of(examples.KEYS), 2) == [5.03, 2.37, 2.60, 0]


def test_the_query_as_tireds_key_moves_the_weight_without_flipping_it() -> None:
    weights = examples.weights_of(examples.edited())
    assert rounded(weights) == [0.409, 0.380, 0.211]
    assert not examples.flips(weights)


def test_exchanged_keys_flip_the_weights() -> None:
    cat, tired, it = examples.weights_of(examples.KEYS)
    assert examples.weights_of(examples.exchanged()) == pytest.approx([tired, cat, it])


def test_the_length_at_which_weights_flip_is_the_smallest() -> None:
    length = examples.flipping_length()
    assert length == pytest.approx(2.08 / 1.93, abs=1e-12)  # q·cat and q·q, added up by hand
    assert examples.found_flipping_length() == pytest.approx(length, abs=1e-12)
    assert not examples.flips(examples.weights_of(examples.edited(length * (1 - 1e-9))))
    assert examples.flips(examples.weights_of(examples.edited(length * (1 + 1e-9))))


def test_ten_times_the_keys_undivided_give_all_to_cat_unless_tireds_is_the_query() -> None:
    assert examples.weights_of(examples.times(10, examples.KEYS), scale=1)[0] > 0.999
    assert rounded(examples.weights_of(examples.times(10, examples.edited()), scale=1)) == [0.818, 0.182, 0]


# printed figures


def test_a_printed_number_is_right_if_the_computed_one_rounds_to_it() -> None:
    assert textbook.of_numbers("a", (0.24,), (0.2449,), 2).right
    assert not textbook.of_numbers("a", (0.24,), (0.2451,), 2).right
    assert not textbook.of_numbers("a", (0.24, 0.5), (0.24, 0.6), 2).right
    shown = textbook.of_numbers("GPT-3", (175,), (174.604,), 0, " B")
    assert (shown.printed, shown.computed, shown.right) == ("175 B", "174.604 B", True)


def test_three_printed_figures_are_wrong() -> None:
    checks = [*textbook.worked_examples(), *textbook.sizes()]
    wrong = ["0.60 0.16 0.24", "the weight flips to tired", "about 1 % of the parameters"]
    assert [c.printed for c in checks if not c.right] == wrong
    assert len(checks) == 14


# counting


def test_a_matrix_product_is_counted() -> None:
    tally = Tally()
    product = matmul(tally.counted([[1.0, 2.0, 3.0]] * 2), tally.counted([[1.0] * 4] * 3))
    assert product == [[6.0] * 4] * 2
    assert (tally.multiplications, tally.additions) == (24, 24)


def test_plain_numbers_are_counted_when_they_meet_one_that_counts() -> None:
    tally = Tally()
    assert 2.0 * Counted(3.0, tally) + 1.0 == 7.0
    assert (tally.multiplications, tally.additions) == (1, 1)


def test_heads_change_patterns_and_scalings_but_not_multiply_adds() -> None:
    costs = [layers.counted(n, tokens=5, width=8, seed=0) for n in (1, 2, 4, 8)]
    assert {c.multiply_adds for c in costs} == {4 * 5 * 8 * 8 + 2 * 5 * 5 * 8}
    assert [c.scalings for c in costs] == [25, 50, 100, 200]
    assert math.isnan(costs[0].apart)
    assert all(0.05 < c.apart < 1 for c in costs[1:])


# random layers


def test_the_distance_of_the_pages_is_rounding() -> None:
    in_numpy, in_torch = layers.distances(draws=4, seed=1)
    assert (in_numpy.page, in_numpy.numbers, in_torch.page, in_torch.numbers) == (
        *("in_numpy", "float64"),
        *("in_torch", "float32"),
    )
    assert in_numpy.difference <= 1e-12
    assert 1e-12 < in_torch.difference <= 1e-6


def test_order_matters_only_under_a_causal_mask_and_to_the_last_token_only_in_two_layers() -> None:
    changed = {(c.moved, c.layers, c.mask): (c.smallest, c.largest) for c in layers.order_changes(draws=5, seed=0)}
    kept = {case for case, change in changed.items() if change == (0, 0)}
    assert kept == {
        ("keys with their values", 1, "none"),
        ("tokens before the last", 1, "none"),
        ("tokens before the last", 1, "causal"),
        ("tokens before the last", 2, "none"),
    }
    assert {case for case, (smallest, _) in changed.items() if smallest > 0.01} == changed.keys() - kept


# the scale


def test_the_variance_of_a_dot_product_is_the_width() -> None:
    found = scaling.by_width((1, 16, 256), draws=40, seed=0, keys=64)
    assert found.variances.shape == (3, 40)
    assert found.variances.mean(-1) == pytest.approx([1, 16, 256], rel=0.1)


def test_undivided_scores_leave_one_key_where_divided_ones_keep_the_spread_of_width_one() -> None:
    found = scaling.by_width((16, 256), draws=20, seed=0, keys=64)
    divided, undivided = found.divided.mean(-1), found.undivided.mean(-1)
    assert divided[0] == pytest.approx(divided[1], abs=0.05)
    assert (undivided < [2, 0.5]).all()
    assert (divided > 3.5).all()
    assert (np.concatenate([found.divided, found.undivided]) <= math.log(64)).all()


def test_the_curves_run_from_all_alike_to_one_key() -> None:
    curves: dict[str, list[float]] = {}
    for _, curve, entropy in scaling.factor_curves():
        curves.setdefault(curve, []).append(entropy)
    assert len(curves) == 4
    for values in curves.values():
        assert values == sorted(values, reverse=True)
        assert values[0] == pytest.approx(math.log(3), abs=0.01)
        assert values[-1] < 0.01
    halved = {factor: entropy for factor, curve, entropy in scaling.factor_curves() if curve == "original keys, q·k/√d"}
    assert halved[1.0] == pytest.approx(-sum(w * math.log(w) for w in examples.weights_of(examples.KEYS)))
