"""Half of the lists choose heads, the other half shows what they do: from masses that are known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import probe
from probe.causal import by_index
from probe.causal.halves import Halves, halves
from probe.causal.lookups import facts
from probe.data.texts import Dataset
from probe.errors import DataError
from probe.subject import Subject

LISTS, INDICES = 4, 3


@pytest.fixture(scope="module")
def asked(smollm2: Subject) -> Dataset:
    return facts(smollm2, INDICES, lists=LISTS)


@pytest.fixture(scope="module")
def half(smollm2: Subject, asked: Dataset) -> Halves:
    return halves(smollm2, asked, by_index.answers(smollm2, asked), 3)


def test_every_second_list_chooses_and_no_other(half: Halves) -> None:
    lists = sorted(set(half.answers["list"]))
    assert list(half.answers["list"][half.held].drop_duplicates()) == lists[1::2]
    chosen = half.mass[..., ~half.held].mean(-1)
    best = sorted(((m, at) for at, m in np.ndenumerate(chosen)), reverse=True)[:3]
    assert half.chosen == [at for _, at in best]
    assert list(half.shown["list"].drop_duplicates()) == lists[1::2]


def test_masses_are_the_models_own_attention(smollm2: Subject, half: Halves, asked: Dataset) -> None:
    eager = probe.load("smollm2", attention="eager").model
    unit = smollm2.bind(asked).units[5]
    row = unit.rows[0]
    import torch

    with torch.no_grad():
        attentions = eager(torch.tensor([unit.ids]), output_attentions=True).attentions
    for layer, head in half.chosen:
        expected = attentions[layer][0, head, list(row.query)][:, list(row.target)].sum(-1).mean()
        assert half.mass[layer, head, 5] == pytest.approx(float(expected), abs=1e-4)


def test_curves_are_means_over_the_lists_that_are_shown(half: Halves) -> None:
    table = half.curves(2)
    assert list(dict.fromkeys(table["head"])) == [f"{layer}.{head}" for layer, head in half.chosen[:2]]
    for (layer, head), (_, mine) in zip(half.chosen[:2], table.groupby("head", sort=False), strict=True):
        for index, value in zip(mine["index"], mine["value"], strict=True):
            at = half.held & (half.answers["index"] == index).to_numpy()
            assert value == pytest.approx(half.mass[layer, head, at].mean())
    assert table["lists"].tolist() == [LISTS // 2] * 2 * INDICES


def test_the_first_items_are_those_of_lists_that_are_shown(half: Halves) -> None:
    assert half.first(1) == list(half.shown["item"][:INDICES])
    assert half.first(9) == list(half.shown["item"])


def test_one_list_has_no_interval_and_no_head_no_curve(half: Halves) -> None:
    one = half.shown[half.shown["list"] == half.shown["list"].iloc[0]]
    table = by_index.curves(one, {"0.0": np.full(len(one), 0.25)})
    assert table["value"].tolist() == [0.25] * INDICES
    assert table[["low", "high"]].isna().all(axis=None)
    with pytest.raises(DataError, match="no head"):
        by_index.curves(one, {})


def test_curves_of_several_measures_keep_their_names() -> None:
    asked = pd.DataFrame({"list": ["a", "a", "b", "b"], "n": 2, "phrasing": "p", "index": [0, 1, 0, 1]})
    table = by_index.curves(asked, {"1.0": np.array([0.0, 1.0, 0.5, 1.0]), "0.1": np.array([0.2, 0.2, 0.4, 0.2])})
    assert table[["head", "index", "value"]].to_numpy().tolist() == [
        ["1.0", 0, 0.25], ["1.0", 1, 1.0], ["0.1", 0, pytest.approx(0.3)], ["0.1", 1, pytest.approx(0.2)],
    ]  # fmt: skip
