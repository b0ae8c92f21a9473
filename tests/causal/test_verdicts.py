"""Verdicts: right for every written head of the planted models, and none where labels were drawn at random."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import probe
from probe.causal import behaviour, causal, leg, screen, verdicts
from probe.causal.controls import knock_out_group, matched, output_norms
from probe.causal.leg import MOST_LOSS
from probe.data import language
from probe.errors import DataError
from probe.models import planted
from probe.subject import Subject
from probe.targets import Answer, Targets, Unit

TASKS = {"coreference": "coreference", "agreement": "agreement", "retrieval": "facts", "induction": "repeats"}


def thinned(targets: Targets) -> Targets:
    """One minimal pair of each cluster, so that testing is quick."""
    kept: dict[str, list[Unit]] = {}
    for unit in targets.units:
        if unit.swapped is not None and len(kept.setdefault(unit.cluster, [])) < 2:
            kept[unit.cluster].append(unit)
    return replace(targets, units=tuple(u for units in kept.values() for u in units))


def verdict_of(table: pd.DataFrame, head: tuple[int, int]) -> str:
    (found,) = table[(table["layer"] == head[0]) & (table["head"] == head[1])]["verdict"]
    return str(found)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", TASKS)
def test_planted_heads_get_the_right_verdict(kind: str, seed: int) -> None:
    """The head that gives the answer by looking at the target is supported. The one that makes notes for it looks
    elsewhere: the answer may depend on it, but it is never supported. Idle heads get nothing.
    """
    subject = probe.load(f"planted:{kind}")
    targets = thinned(subject.bind(language.dataset(TASKS[kind], seed=seed, per_frame=4)))
    table = verdicts(subject, targets, seed=seed, quiet=True).heads
    written = planted.HEADS[kind]
    ((layer, head),) = written[kind]
    assert verdict_of(table, (layer, head)) == "supported"
    notes = [h for does, heads in written.items() if does != kind for h in heads]
    for note in notes:
        assert verdict_of(table, note) in ("causal only", "not supported")
    idle = [h for h in zip(table["layer"], table["head"], strict=True) if h not in (*notes, (layer, head))]
    assert idle
    assert {verdict_of(table, h) for h in idle} == {"not supported"}


def test_who_makes_notes_for_the_answer_is_causal_only() -> None:
    """Its effect is all of the answer, though attribution sees none of it: the reader's attention is saturated."""
    subject = probe.load("planted:retrieval")
    targets = thinned(subject.bind(language.facts(per_frame=4)))
    found = verdicts(subject, targets, quiet=True)
    notes = [h for does, heads in planted.HEADS["retrieval"].items() if does != "retrieval" for h in heads]
    effects = found.heads.set_index(["layer", "head"])
    assert any(verdict_of(found.heads, h) == "causal only" for h in notes)
    assert max(effects.loc[h, "patch"] for h in notes) > 30
    assert np.abs(screen(subject, targets.units[:16])[notes[0]]).max() < 1e-3


@pytest.fixture(scope="module")
def agreement(tiny: Subject) -> Targets:
    return thinned(tiny.bind(language.agreement(per_frame=4)))


def test_the_gate_counts_what_the_model_answers(tiny: Subject, agreement: Targets) -> None:
    """Accuracy and paired difference by a plain pass over each prompt."""
    some = replace(agreement, units=agreement.units[::8])
    found = behaviour(tiny, some)
    for i, unit in enumerate(some.units):
        assert unit.answer is not None
        at = unit.answer.read_at
        differences = []
        for ids in (unit.ids, unit.swapped):
            assert ids is not None
            for _, seen in tiny.captured([ids[: at + 1]], ["logits"]):
                last = seen["logits"][0, -1]
            differences.append([float(last[unit.answer.right[0]] - last[w[0]]) for w in unit.answer.wrong])
        assert found.correct[i] == (min(differences[0]) > 0)
        assert found.difference[i] == pytest.approx(differences[0][0] - differences[1][0], abs=1e-4)
    assert found.accuracy == pytest.approx(np.mean(found.correct))
    assert found.chance == 0.5


def test_a_model_that_cannot_do_the_task_is_untestable_and_keeps_its_attention_leg(tiny: Subject) -> None:
    guessing = tiny.random_copy(0)
    targets = guessing.bind(language.coreference(per_frame=4))
    found = verdicts(guessing, targets, quiet=True)
    assert found.causal.reason is not None
    assert found.causal.reason.startswith("the model does not do the task: accuracy")
    assert set(found.heads["verdict"]) == {f"untestable here: {found.causal.reason}"}
    assert found.heads["value"].notna().all()


def test_models_without_a_head_for_words_say_so(minilm: Subject) -> None:
    targets = minilm.bind(probe.data.coreference(2))
    gate = behaviour(minilm, targets)
    assert gate.reason == "the model has no language-model head"
    assert np.isnan(gate.accuracy)


def test_described_phenomena_get_no_verdict(tiny: Subject) -> None:
    texts = list(language.agreement(per_frame=4).items)
    with pytest.raises(DataError, match="described, never judged"):
        verdicts(tiny, tiny.bind(probe.data.previous_token(texts)))


def with_random_labels(targets: Targets, seed: int) -> Targets:
    """Right and wrong change places in a random half of the clusters."""
    rng = random.Random(seed)
    turned = {c for c in sorted({u.cluster for u in targets.units}) if rng.random() < 0.5}

    def shuffled(unit: Unit) -> Unit:
        if unit.cluster not in turned:
            return unit
        assert unit.answer is not None
        right, wrong = unit.answer.right, unit.answer.wrong
        return replace(unit, answer=Answer(unit.answer.read_at, wrong[0], (right, *wrong[1:])))

    return replace(targets, units=tuple(map(shuffled, targets.units)))


def test_with_labels_at_random_the_gate_stays_shut(tiny: Subject, agreement: Targets) -> None:
    """In 20 draws; with intervals of 95 %, about one would open on accuracy or difference by chance, two at most."""
    opened = sum(behaviour(tiny, with_random_labels(agreement, seed)).passed for seed in range(20))
    assert opened <= 3


def test_a_group_costs_what_its_heads_cost_where_nothing_else_can_step_in() -> None:
    subject = probe.load("planted:coreference")
    targets = subject.bind(language.coreference(per_frame=4))
    units = [u for u in targets.units if u.swapped is not None][:24]
    ((head,),) = (planted.HEADS["coreference"]["coreference"],)
    norms = output_norms(subject, units)
    assert norms[head] > 0.5
    found = knock_out_group(subject, units, [head], norms, groups=5)
    assert found.lost == pytest.approx(found.singly, abs=1e-3)
    assert found.lost > 10
    assert np.abs(found.random).max() < 1e-3
    assert found.limit < found.lost


def test_heads_are_matched_by_the_ratio_of_what_they_write() -> None:
    norms = np.array([[1.0, 2.0, 4.0], [9.0, 0.0, 1.1]])
    others = [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert matched(norms, (0, 0), others, 3) == [(1, 2), (0, 1), (0, 2)]
    assert matched(norms, (0, 0), others, 9)[-1] == (1, 1)


def test_a_head_that_everything_needs_fails_on_unrelated_text(
    tiny: Subject, agreement: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit decides: heads that pass fail once the limit lies below what they cost elsewhere, and no others."""
    table = causal(tiny, agreement, quiet=True).heads
    passed = table[table["passed"]]
    assert len(passed) >= 2
    assert (passed["p_holm"] < 0.05).all()
    assert (passed["patch"] > passed["limit"]).all()
    assert (passed["unrelated_loss"] <= MOST_LOSS).all()
    least = float(passed["unrelated_loss"].min())
    monkeypatch.setattr(leg, "MOST_LOSS", least)
    again = causal(tiny, agreement, quiet=True).heads
    assert list(again["passed"]) == list(table["passed"] & (table["unrelated_loss"] <= least))
    assert again["passed"].sum() < len(passed)
