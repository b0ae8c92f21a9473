"""Numbers by index, against plain loops and a model whose retrieval head was written by hand."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe.causal import by_index
from probe.causal.lookups import one_token
from probe.errors import DataError
from probe.scores.measure import measure
from probe.subject import Subject


def table(curves: dict[str, list[float]]) -> pd.DataFrame:
    """List -> correct at each index."""
    rows = [(name, 5, "a", i, c) for name, values in curves.items() for i, c in enumerate(values)]
    return pd.DataFrame(rows, columns=["list", "n", "phrasing", "index", "correct"])


def test_primacy_recency_and_the_u() -> None:
    lists = {f"l{i:02}": [1.0, 0.0, float(i % 2), 0.0, 1.0] for i in range(20)}
    (row,) = by_index.ends(table(lists)).to_dict("records")
    assert row["primacy"] == row["recency"] == row["u"] == pytest.approx(1 - 1 / 6)
    assert row["primacy_low"] < 1 - 1 / 6 < row["primacy_high"]
    assert row["p_holm"] == row["p_u"] < 0.001
    assert row["u_low"] < 1 - 1 / 6 < row["u_high"]
    only_first = {name: [1.0, 0.0, 0.0, 0.0, float(i % 3 == 0)] for i, name in enumerate(lists)}
    (row,) = by_index.ends(table({n: [v[0], 0.4, 0.4, 0.4, v[4]] for n, v in only_first.items()})).to_dict("records")
    assert row["primacy"] == pytest.approx(0.6)
    assert row["u"] == row["recency"] < 0
    assert row["p_u"] > 0.5


def test_the_interval_of_the_u_is_that_of_the_smaller_end_whichever_it_is() -> None:
    """Both ends are above the middle in half of the lists each, never together: either end is clear, the smaller of
    the two is not as far from zero. Against resampling written out.
    """
    lists = {f"l{i:02}": [float(i % 2), 0.0, 0.0, 0.0, float(1 - i % 2)] for i in range(12)}
    (row,) = by_index.ends(table(lists), seed=3).to_dict("records")
    assert row["primacy"] == row["recency"] == row["u"] == 0.5
    rng, least = random.Random(0), []
    for _ in range(4000):
        ones = sum(rng.randrange(12) % 2 for _ in range(12))
        least.append(min(ones, 12 - ones) / 12)
    least.sort()
    assert row["u_low"] == pytest.approx(least[100], abs=0.09)
    assert row["u_high"] == pytest.approx(least[3900], abs=0.09)
    assert row["u_high"] <= 0.5 < row["primacy_high"]


def test_two_indices_have_no_middle() -> None:
    with pytest.raises(DataError, match="a middle takes at least three indices, there are 2"):
        by_index.ends(table({"a": [1.0, 0.0], "b": [0.0, 1.0]}))


def test_answers_are_those_of_a_plain_pass(smollm2: Subject) -> None:
    dataset = probe.data.buried(3, lists=2)
    found = by_index.answers(smollm2, dataset).set_index("item")
    questions = {item.item: item.question for item in dataset.items}
    for unit in smollm2.bind(dataset).units:
        assert unit.answer is not None
        at = unit.answer.read_at
        scores = []
        for candidate in (unit.answer.right, *unit.answer.wrong):
            ids = [*unit.ids[: at + 1], *candidate]
            with torch.no_grad():
                logs = smollm2.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            scores.append(float(sum(logs[at + k, token] for k, token in enumerate(candidate))))
        expected = scores[0] - np.log(np.exp(scores).sum())
        assert found.loc[unit.item, "log_p"] == pytest.approx(expected, abs=1e-3)
        assert found.loc[unit.item, "correct"] == (scores[0] == max(scores))
        texts = questions[unit.item].right, *questions[unit.item].wrong
        assert found.loc[unit.item, "likeliest"] == texts[int(np.argmax(scores))]


def test_the_question_effect_is_the_difference_to_a_name_that_is_not_there(smollm2: Subject) -> None:
    asked, absent = probe.data.buried(3, lists=2), probe.data.buried(3, lists=2, absent=True)
    answers = by_index.answers(smollm2, asked)
    found = by_index.question_effect(smollm2, answers, absent)
    assert np.allclose(found["effect"] + found["bias"], answers["log_p"])
    for _, part in found.groupby("list"):
        assert np.exp(part["bias"]).sum() == pytest.approx(1, abs=1e-6)
    with pytest.raises(DataError, match="list-002 is asked about, but not without its names"):
        by_index.question_effect(smollm2, answers, probe.data.buried(3, lists=1, absent=True))


def test_the_planted_retrieval_head_looks_at_the_value() -> None:
    subject = probe.load("planted:retrieval")
    targets = subject.bind(probe.data.language.facts(per_frame=4))
    mass = measure(subject, targets)["target"]
    assert mass[1, 0].min() == pytest.approx(1, abs=1e-3)
    others = np.delete(mass.reshape(-1, mass.shape[-1]), 4, axis=0)
    assert others.mean(-1).max() < 0.2


def test_changes_are_paired_within_lists() -> None:
    rng = np.random.default_rng(2)
    curves = {f"l{i:02}": list((rng.random(5) < 0.5).astype(float)) for i in range(30)}
    before = table(curves)
    after = table({name: [0.0, *values[1:]] for name, values in curves.items()})
    found = by_index.moved(before, after.iloc[::-1]).set_index("index")
    expected = -np.mean([values[0] for values in curves.values()])
    assert found.loc[0, "change"] == pytest.approx(expected) == found.loc[0, "after"] - found.loc[0, "before"]
    assert found.loc[0, "low"] <= expected <= found.loc[0, "high"] < 0
    assert found.loc[0, "p_holm"] < 0.01
    assert (found.loc[1:, "change"] == 0).all()
    assert (found.loc[1:, "p"] == 1).all()
    with pytest.raises(DataError, match="no question in common"):
        by_index.moved(before, after.assign(n=6))


def test_the_question_effect_of_pairs_is_matched_by_place(smollm2: Subject) -> None:
    fits = one_token(smollm2, '"')
    asked, absent = (
        probe.data.key_values(3, lists=1, indices=(0, 2), fits=fits, absent=nobody) for nobody in (False, True)
    )
    found = by_index.question_effect(smollm2, by_index.answers(smollm2, asked), absent)
    without = by_index.answers(smollm2, absent)
    assert found["bias"].tolist() == pytest.approx(without["log_p"].tolist())
