"""Where the answer was drawn by lot there is nothing to depend on: about as few heads pass as the correction promises.

Which member of a minimal pair is called right is a coin toss for each cluster, so a head's effect is as likely to be
positive as negative. (Pairs that are no pairs would be no null: patching from any other prompt costs a head that
matters its answer.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest

import probe
from probe import stats
from probe.causal import leg
from probe.causal.sweep import Effects, Heads, sweep
from probe.data import language
from probe.subject import Subject
from probe.targets import Answer, Targets, Unit

SEEDS = range(20)
# With 5 % of families having a false pass, four or more of 20 do in one case of 60.
MOST = 3
EVERY = 6  # prompts of each cluster to draw from


def turned(targets: Targets, seed: int) -> tuple[Targets, dict[str, float]]:
    """One minimal pair of each cluster, drawn at random; right and wrong change places in a random half of the
    clusters; and the sign of each item's effects then.
    """
    rng = random.Random(seed)
    pairs: dict[str, list[tuple[Unit, Unit]]] = {}
    for one, other in zip(targets.units[::2], targets.units[1::2], strict=True):
        assert one.cluster == other.cluster
        pairs.setdefault(one.cluster, []).append((one, other))
    targets = replace(targets, units=tuple(u for every in pairs.values() for u in rng.choice(every)))
    signs = {c: rng.choice((1.0, -1.0)) for c in sorted({u.cluster for u in targets.units})}

    def turn(unit: Unit) -> Unit:
        assert unit.answer is not None
        answer = Answer(unit.answer.read_at, unit.answer.wrong[0], (unit.answer.right,))
        return replace(unit, answer=answer) if signs[unit.cluster] < 0 else unit

    return replace(targets, units=tuple(map(turn, targets.units))), {u.item: signs[u.cluster] for u in targets.units}


class Null:
    """One subject's exact effects, measured once: turning an answer turns their sign and nothing else."""

    def __init__(self, subject: Subject, targets: Targets) -> None:
        kept: dict[str, list[Unit]] = {}
        for unit in targets.units:
            if unit.swapped is not None and unit.answer is not None and len(kept.setdefault(unit.cluster, [])) < EVERY:
                answer = Answer(unit.answer.read_at, unit.answer.right, unit.answer.wrong[:1])
                kept[unit.cluster].append(replace(unit, answer=answer))
        self.subject = subject
        self.targets = replace(targets, units=tuple(u for units in kept.values() for u in units))
        self.patch = sweep(subject, self.targets.units, ("patch",), quiet=True).values["patch"]
        self.places = {u.item: n for n, u in enumerate(self.targets.units)}

    def sweep(self, signs: dict[str, float]) -> Callable[..., Effects]:
        """In place of `probe.causal.sweep.sweep`, on turned targets."""

        def known(_: Subject, units: Sequence[Unit], *__: object, heads: Heads | None = None, **___: object) -> Effects:
            values = self.patch[..., [self.places[u.item] for u in units]] * [signs[u.item] for u in units]
            if heads is not None:
                asked = np.zeros(values.shape[:2], dtype=bool)
                asked[tuple(zip(*heads, strict=True))] = True
                values = np.where(asked[..., None], values, np.nan)
            nothing = np.full(len(units), np.nan)
            return Effects(nothing, nothing, {"patch": values})

        return known


@pytest.fixture(scope="module", params=["tiny", "planted:coreference"])
def null(request: pytest.FixtureRequest) -> Null:
    subject = probe.load(request.param)
    data = language.agreement(per_frame=8) if request.param == "tiny" else language.coreference(per_frame=8)
    return Null(subject, subject.bind(data))


def test_turning_an_answer_turns_the_sign_of_its_effects(null: Null) -> None:
    targets, signs = turned(null.targets, 0)
    some = targets.units[:20:2]
    afresh = sweep(null.subject, some, ("patch",), quiet=True).values["patch"]
    known = null.sweep(signs)(null.subject, some).values["patch"]
    assert {signs[u.item] for u in some} == {1.0, -1.0}
    assert np.abs(afresh - known).max() <= 1e-3


def test_with_answers_drawn_by_lot_hardly_any_family_has_a_pass(null: Null, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate, which would stay shut, and the guard of unrelated text are left out: the test alone."""
    gate, norms = leg.behaviour(null.subject, null.targets), leg.output_norms(null.subject, null.targets.units)
    monkeypatch.setattr(leg, "output_norms", lambda *_: norms)
    monkeypatch.setattr(leg, "losses_without", lambda *_: {})

    def passes(targets: Targets, signs: dict[str, float], seed: int) -> pd.DataFrame:
        chosen = [null.places[u.item] for u in targets.units]
        difference = gate.difference[chosen] * [signs[u.item] for u in targets.units]
        shown = replace(gate, reason=None, difference=difference)
        monkeypatch.setattr(leg, "behaviour", lambda *_, **__: shown)
        monkeypatch.setattr(leg, "sweep", null.sweep(signs))
        table = leg.causal(null.subject, targets, kinds=(), seed=seed, quiet=True).heads
        return table[table["passed"]]

    as_they_are = dict.fromkeys(null.places, 1.0)
    assert len(passes(null.targets, as_they_are, 0)) >= 1, "with the real answers there is something to be found"
    families = sum(len(passes(*turned(null.targets, seed), seed)) > 0 for seed in SEEDS)
    assert families <= MOST


def test_p_is_uniform_where_answers_are_drawn_by_lot(null: Null) -> None:
    """Of each head whose effects differ from prompt to prompt, over 60 draws."""
    heads = null.patch.reshape(-1, null.patch.shape[-1])
    heads = heads[np.abs(heads).max(-1) > 1e-3]
    p = np.empty((60, len(heads)))
    for seed in range(len(p)):
        targets, signs = turned(null.targets, 1000 + seed)
        chosen = [null.places[u.item] for u in targets.units]
        mine = heads[:, chosen] * [signs[u.item] for u in targets.units]
        grouped = stats.by_cluster(mine, [u.cluster for u in targets.units])
        p[seed] = stats.sign_flip(grouped.weighted, seed=seed, resamples=999)
    fits = [kstest(column, "uniform").pvalue for column in p.T]
    assert min(fits) > 0.01 / len(fits)
    assert abs(p.mean() - 0.5) < 0.1
