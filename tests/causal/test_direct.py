"""Direct and total effects: equal where nothing reads a head further up, apart where something does."""

from __future__ import annotations

from dataclasses import replace

import pytest

import probe
from probe.causal.direct import OPEN, OTHER, SAME, _signs, direct_and_total, direct_effects
from probe.causal.sweep import sweep
from probe.causal.written import one_pair_each, written_answers
from probe.data import language
from probe.errors import OutOfRange, ProbeError
from probe.models import planted
from probe.subject import Subject


@pytest.mark.parametrize(("kind", "task"), [("induction", "repeats"), ("retrieval", "facts")])
def test_a_planted_head_that_answers_works_directly_and_those_that_note_through_it(kind: str, task: str) -> None:
    subject = probe.load(f"planted:{kind}")
    units = one_pair_each(subject, language.dataset(task, per_frame=4), 12)
    found = direct_and_total(subject, units, quiet=True).set_index(["layer", "head"])
    answers = found.loc[planted.HEADS[kind][kind][0]]
    assert answers["direct"] == pytest.approx(answers["total"], rel=1e-3)
    assert answers["direct"] > 30, "from 20 nats for it to 20 nats against it"
    assert answers["signs"] == "same sign"
    for name, places in planted.HEADS[kind].items():
        for at in places:
            if name != kind:
                assert found.loc[at, "direct"] == pytest.approx(0, abs=1e-6)
                assert found.loc[at, "signs"] == "open"
    assert set(found["chosen"]) == {"all"}
    assert found["n_units"].iloc[0] == len(units) / 2


@pytest.mark.parametrize(
    ("direct", "total", "signs"),
    [
        ((1, 2), (3, 4), SAME),
        ((-2, -1), (-4, -3), SAME),
        ((-2, -1), (3, 4), OTHER),
        ((1, 2), (-4, -3), OTHER),
        ((-1, 2), (3, 4), OPEN),
        ((1, 2), (-3, 4), OPEN),
        ((0, 2), (3, 4), OPEN),
    ],
)
def test_signs_are_told_where_neither_interval_holds_zero(
    direct: tuple[float, float], total: tuple[float, float], signs: str
) -> None:
    ends = {"direct_low": direct[0], "direct_high": direct[1], "total_low": total[0], "total_high": total[1]}
    assert _signs(ends) == signs


def test_heads_are_chosen_on_some_clusters_and_measured_on_others(tiny: Subject) -> None:
    units = one_pair_each(tiny, language.coreference(per_frame=4), 8)
    found = direct_and_total(tiny, units, most=2, quiet=True)
    assert 2 <= len(found) <= 4
    assert set(found["chosen"]) <= {"writes", "needed", "both"}
    held = [u for u in units if u.cluster in sorted({u.cluster for u in units})[1::2]]
    direct, total = direct_effects(tiny, held), sweep(tiny, held, ("patch",), quiet=True).values["patch"]
    for row in found.to_dict("records"):
        at = row["layer"], row["head"]
        assert row["direct"] == pytest.approx(direct[at].mean(), abs=1e-5)
        assert row["total"] == pytest.approx(total[at].mean(), abs=1e-4)
        assert row["direct_low"] <= row["direct"] <= row["direct_high"]


def test_answers_are_taken_apart_task_by_task(tiny: Subject) -> None:
    tasks = {name: language.dataset(name, 0, 4) for name in ("coreference", "facts")}
    found = written_answers(tiny, tasks, items=12, clusters=8, heads=2)
    assert set(found.lens["task"]) == set(found.parts["task"]) == set(found.signs["task"]) == set(tasks)
    assert found.prompts["facts"].endswith(":")
    for task, parts in found.parts.groupby("task"):
        assert parts["share"].sum() == pytest.approx(1, abs=1e-4)
        last = found.lens[found.lens["task"] == task].iloc[-1]
        assert parts["value"].sum() == pytest.approx(last["difference"], abs=1e-4)
        assert parts["value"].abs().is_monotonic_decreasing
    assert "head 3.1" in set(found.parts["part"])


def test_too_few_clusters_are_refused(tiny: Subject) -> None:
    units = one_pair_each(tiny, language.agreement(per_frame=4), 3)
    with pytest.raises(ProbeError, match="3 clusters have aligned minimal pairs"):
        direct_and_total(tiny, units)


def test_counts_below_one_and_units_without_a_pair_are_refused(tiny: Subject) -> None:
    dataset = language.dataset("agreement", 0, 4)
    units = one_pair_each(tiny, dataset, 6)
    with pytest.raises(OutOfRange, match="most=0 was given: allowed is 1 or more; the nearest is 1"):
        direct_and_total(tiny, units, most=0, quiet=True)
    with pytest.raises(ProbeError, match="1 of 2 units have an aligned minimal pair; all need one"):
        direct_effects(tiny, [units[0], replace(units[1], swapped=None)])
    with pytest.raises(ProbeError, match="0 of 0 units"):
        direct_effects(tiny, [])
    with pytest.raises(OutOfRange, match="at_most=0 was given"):
        written_answers(tiny, {"agreement": dataset}, items=0, clusters=6, heads=1)
