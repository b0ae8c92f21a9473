"""Averaged attention is the mean of the model's own, and it is scored as a head is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import probe
from probe.data import language
from probe.errors import DataError
from probe.scores.averaged import ALL, averaged, beside_the_best_head
from probe.scores.evidence import evidence
from probe.subject import Subject
from probe.targets import Row, Unit


def some(subject: Subject) -> probe.Targets:
    """Prompts of different lengths, with queries of one and of two tokens and with one and two foils."""
    bound = subject.bind(probe.data.coreference(2))
    units = list(bound.units[::11][:6])

    def wider(unit: Unit) -> Unit:
        (row,) = unit.rows
        more = Row((row.query[0] - 1, row.query[0]), row.target, (*row.foils, (row.query[0] - 2,)))
        return replace(unit, rows=(more,))

    units[3:5] = map(wider, units[3:5])
    return replace(bound, units=tuple(units))


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_it_is_the_mean_of_the_models_own_attentions(name: str, request: pytest.FixtureRequest) -> None:
    subject: Subject = request.getfixturevalue(name)
    targets = some(subject)
    found = averaged(subject, targets)
    oracle = probe.load(name, attention="eager", check=False).model
    for i, unit in enumerate(targets.units):
        with torch.no_grad():
            attentions = torch.stack(oracle(torch.tensor([unit.ids]), output_attentions=True).attentions)[:, 0]
        (row,) = unit.rows
        by_layer = attentions.mean(1)[:, list(row.query)].mean(1).numpy()  # (layer, key)
        for at, weights in enumerate([*by_layer, by_layer.mean(0)]):
            mass, foils = weights[list(row.target)].sum(), [weights[list(f)].sum() for f in row.foils]
            assert found["target"][at, 0, i] == pytest.approx(mass, abs=1e-5)
            assert found["foil"][at, 0, i] == pytest.approx(max(foils), abs=1e-5)
            if abs(mass - max(foils)) > 1e-5:
                assert found["correct"][at, 0, i] == (mass > max(foils))


def test_the_best_head_stands_beside_every_average() -> None:
    subject = probe.load("planted:coreference")
    tested = evidence(subject, subject.bind(language.coreference(per_frame=4)), quiet=True)
    table = beside_the_best_head(subject, tested).set_index("attention")
    assert list(table.index) == ["head 0.0", "layer 0", ALL]
    best = tested.heads.iloc[0]
    assert table.loc["head 0.0", "accuracy"] == pytest.approx(best["value"])
    assert (table["low"] <= table["accuracy"]).all()
    assert table.loc["head 0.0", "less"] == 0
    assert table.loc["layer 0", "less"] == pytest.approx(
        table.loc["head 0.0", "accuracy"] - table.loc["layer 0", "accuracy"]
    )
    assert table.loc["layer 0", "accuracy"] == table.loc[ALL, "accuracy"], "the model has one layer"
    assert (table["n_units"] == tested.measurement.sum()).all()


def test_the_head_is_chosen_on_the_other_half(tiny: Subject) -> None:
    tested = evidence(tiny, tiny.bind(language.coreference(per_frame=4)), quiet=True)
    table = beside_the_best_head(tiny, tested)
    chosen = tested.heads.sort_values("selection_value", ascending=False, kind="stable").iloc[0]
    assert table["attention"][0] == f"head {chosen['layer']}.{chosen['head']}"
    test = tested.measurement
    assert table["accuracy"][0] == tested.measured["correct"][chosen["layer"], chosen["head"]][test].mean()
    assert np.isfinite(table[["accuracy", "low", "high", "less_low", "less_high"]]).all().all()


def test_heads_that_are_described_have_no_accuracy_to_compare(minilm: Subject) -> None:
    described = evidence(minilm, minilm.bind(probe.data.previous_token(probe.data.coreference(2).items)), quiet=True)
    with pytest.raises(DataError, match=r"previous token in .* has no accuracy"):
        beside_the_best_head(minilm, described)
