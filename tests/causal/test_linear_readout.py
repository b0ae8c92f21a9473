"""The linear readout: what can be read is read, what cannot is said so, and a head's effect is that of a plain edit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import probe
from probe import edits
from probe.causal.linear_readout import FOLDS, Readout, heads_behind, read_out
from probe.causal.sweep import mean_z
from probe.errors import DataError
from probe.subject import Subject
from probe.targets import Targets, Unit


@pytest.fixture(scope="module")
def gendered(minilm: Subject) -> Targets:
    """Sentences whose pronoun is decided by the gender of a name: easy to read."""
    bound = minilm.bind(probe.data.coreference(8))
    return replace(bound, units=tuple(u for u in bound.units if u.cluster.startswith("gender")))


@pytest.fixture(scope="module")
def readout(minilm: Subject, gendered: Targets) -> Readout:
    return read_out(minilm, gendered)


def test_what_is_there_is_read_by_one_that_never_saw_the_cluster(readout: Readout, gendered: Targets) -> None:
    assert readout.reason is None
    assert readout.accuracy > 0.75
    assert readout.low > 0.5 == readout.rival_accuracy
    assert readout.more == pytest.approx(readout.accuracy - readout.rival_accuracy)
    by_cluster: dict[str, set[int]] = {}
    for unit, fold in zip(readout.units, readout.fold, strict=True):
        by_cluster.setdefault(unit.cluster, set()).add(int(fold))
    assert all(len(folds) == 1 for folds in by_cluster.values())
    assert {fold for folds in by_cluster.values() for fold in folds} == set(range(FOLDS))
    assert len(readout.units) == len(gendered.units)


def test_log_odds_are_the_weights_on_the_states(minilm: Subject, readout: Readout) -> None:
    for n in (0, 41, 100):
        unit = readout.units[n]
        clean = log_odds(minilm, readout, n, [])
        assert clean == pytest.approx(float(readout.log_odds[n]), abs=1e-3)
        assert unit.rows[0].foils


def log_odds(subject: Subject, readout: Readout, n: int, change: list[edits.Edit]) -> float:
    """Of one unit by a plain pass, features written out."""
    unit = readout.units[n]
    for _, seen in subject.captured([unit.ids], ["resid_post"], layers=[readout.layer], edits=change):
        states = seen["resid_post", readout.layer][0].double().numpy()
    (row,) = unit.rows
    pronoun, right, wrong = (states[list(p)].mean(0) for p in (row.query, row.target, row.foils[0]))
    right, wrong = (np.concatenate([pronoun * c, np.abs(pronoun - c), c]) for c in (right, wrong))
    return float((right - wrong) @ readout.weights[readout.fold[n]])


def test_a_heads_effect_is_that_of_a_plain_edit(minilm: Subject, readout: Readout) -> None:
    table = heads_behind(minilm, readout, units=9, quiet=True).set_index(["layer", "head"])
    kept = np.unique(np.linspace(0, len(readout.units) - 1, 9).round().astype(int))
    mean = mean_z(minilm, [readout.units[n].ids for n in kept])
    for layer, head in ((0, 3), (3, 7), (5, 11)):
        lost = []
        for n in kept:
            change = edits.replace("z", layer, mean[layer, head], heads=head)
            lost.append(log_odds(minilm, readout, n, []) - log_odds(minilm, readout, n, [change]))
        assert table.loc[(layer, head), "lost"] == pytest.approx(np.mean(lost), abs=1e-3)
        assert table.loc[(layer, head), "low"] <= np.mean(lost) + 1e-6
    assert table["n_units"].unique().tolist() == [9]
    assert len(table) == 72
    assert (table.loc[table["passed"], "lost"] > table.loc[table["passed"], "limit"]).all()


def test_what_is_not_there_is_not_read(minilm: Subject, gendered: Targets) -> None:
    """Target and foil change places in half of the clusters: which is right is then a coin toss."""
    rng = np.random.default_rng(0)
    turned = {c: rng.random() < 0.5 for c in sorted({u.cluster for u in gendered.units})}

    def turn(unit: Unit) -> Unit:
        (row,) = unit.rows
        other = replace(row, target=row.foils[0], foils=(row.target,))
        return replace(unit, rows=(other if turned[unit.cluster] else row,))

    found = read_out(minilm, replace(gendered, units=tuple(map(turn, gendered.units))))
    assert found.reason is not None
    assert found.reason.startswith("the antecedent cannot be read from the hidden states: accuracy")
    with pytest.raises(DataError, match="heads cannot be asked: the antecedent cannot be read"):
        heads_behind(minilm, found)


def test_few_clusters_are_refused(minilm: Subject, gendered: Targets) -> None:
    few = sorted({u.cluster for u in gendered.units})[:9]
    with pytest.raises(DataError, match="has 9 clusters; a readout takes 10 at least"):
        read_out(minilm, replace(gendered, units=tuple(u for u in gendered.units if u.cluster in few)))
