"""Verdicts: right for every written head of the planted models, and none where labels were drawn at random."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers as tf

import probe
from probe import stats
from probe.causal import behaviour, causal, leg, screen, verdicts
from probe.causal.controls import MASK_EVERY, knock_out_group, losses_without, matched, output_norms
from probe.causal.leg import MOST_LOSS
from probe.causal.sweep import Effects, sweep
from probe.data import language
from probe.errors import DataError, ProbeError
from probe.models import planted
from probe.runner.legs import outcome
from probe.subject import Subject
from probe.targets import Answer, Targets, Unit
from tests.scores.stand_ins import word_pieces

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


@pytest.mark.parametrize("kind", ["mean", "resample"])
def test_a_head_without_which_the_answer_is_better_does_not_pass(
    kind: str, tiny: Subject, agreement: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As measured, but with the sign of one ablation turned: what passed before fails, and says on what."""
    before = causal(tiny, agreement, quiet=True).heads

    def turned(*args: Any, **kwargs: Any) -> Effects:
        found = sweep(*args, **kwargs)
        return replace(found, values={k: -v if k == kind else v for k, v in found.values.items()})

    monkeypatch.setattr(leg, "sweep", turned)
    after = causal(tiny, agreement, quiet=True).heads
    helped = before["passed"] & (before[f"p_{kind}"] < 0.01)
    assert helped.sum() >= 2, "heads without which the answer is clearly worse"
    assert not after["passed"][helped].any()
    assert set(after["why"][helped]) == {f"without it the answer is better ({kind})"}
    others = before[~helped & (before["passed"] != after["passed"])]
    assert others["against"].str.contains(kind).all(), "others change where the ablation had spoken against them"


@pytest.mark.parametrize(("nats", "speaks"), [(-1e-6, False), (-5e-5, False), (-2e-4, True), (2e-4, False)])
def test_what_rounding_leaves_speaks_against_no_head(
    nats: float, speaks: bool, tiny: Subject, agreement: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for every prompt, so that the interval is the point."""

    def constant(*args: Any, **kwargs: Any) -> Effects:
        found = sweep(*args, **kwargs)
        return replace(found, values={k: np.full_like(v, nats) if k == "mean" else v for k, v in found.values.items()})

    monkeypatch.setattr(leg, "sweep", constant)
    table = causal(tiny, agreement, quiet=True).heads
    tested = table[table["tested"]]
    assert len(tested) >= 5
    assert set(tested["against"].str.contains("mean")) == {speaks}


def test_a_verdict_rests_on_the_ablations_whatever_else_is_measured(tiny: Subject, agreement: Targets) -> None:
    whole, few = (causal(tiny, agreement, kinds=kinds, quiet=True).heads for kinds in (leg.MEASURED, ()))
    assert (whole["against"] != "").any(), "some head is one without which the answer is better"
    assert list(whole["passed"]) == list(few["passed"])
    assert list(whole["why"]) == list(few["why"])


def test_each_kind_of_change_has_its_own_p(tiny: Subject, agreement: Targets) -> None:
    """Sign flips of its own effects, cluster by cluster."""
    found = causal(tiny, agreement, quiet=True)
    assert found.effects is not None
    row = found.heads[found.heads["tested"]].sort_values("p_edge", ascending=False).iloc[0]
    assert row["p_edge"] > 0.1 > row["p"]
    clusters = [agreement.units[n].cluster for n in found.units]
    for kind in leg.MEASURED[1:]:
        grouped = stats.by_cluster(found.effects[kind][row["layer"], row["head"]][None], clusters)
        assert row[f"p_{kind}"] == pytest.approx(float(stats.sign_flip(grouped.weighted, seed=0)[0]), abs=2e-3)


def test_why_no_head_passes_is_counted(tiny: Subject, agreement: Targets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "MOST_LOSS", -1.0)
    found = verdicts(tiny, agreement, quiet=True)
    fails = found.heads.loc[found.heads["tested"], "why"].value_counts()
    assert fails["unrelated text needs it too"] >= 2
    said = outcome(found, tiny)
    assert said.endswith("none passes (" + "; ".join(f"{n} for: {why}" for why, n in fails.items()) + ").")
    assert fails.sum() == found.heads["tested"].sum()


def test_for_how_many_supported_heads_the_look_matters_is_said(tiny: Subject, agreement: Targets) -> None:
    found = verdicts(tiny, agreement, quiet=True)
    mine = found.heads[found.heads["verdict"] == "supported"]
    n = int(((mine["p_pattern"] < 0.05) | (mine["p_edge"] < 0.05)).sum())
    assert f"Of the {len(mine)} supported, changing only where they look costs the answer nats for {n} (" in outcome(
        found, tiny
    )


def test_texts_without_a_token_to_predict_are_refused(tiny: Subject) -> None:
    with pytest.raises(ProbeError, match="too short to predict anything in: 1 tokens"):
        losses_without(tiny, [(0, 0)], [(0,)])


def test_what_a_head_fails_on_is_said(tiny: Subject, agreement: Targets) -> None:
    table = causal(tiny, agreement, quiet=True).heads
    tested = table[table["tested"]]
    assert (tested["passed"] == (tested["why"] == "")).all()
    assert (table["why"][~table["tested"]] == "").all()
    dear = tested[tested["why"] == "unrelated text needs it too"]
    assert len(dear) >= 1
    assert (dear["unrelated_loss"] > MOST_LOSS).all()
    assert (dear["patch"] > dear["limit"]).all()
    cheap = tested[tested["why"] == "patching it was not shown to cost the answer nats"]
    assert (cheap["p_holm"] >= 0.05).all()


def test_heads_are_compared_with_as_many_as_are_left(tiny: Subject, agreement: Targets) -> None:
    table = causal(tiny, agreement, quiet=True).heads
    tested = table[table["tested"]]
    assert set(tested["n_peers"]) == {min(20, len(table) - len(tested))}
    every = [(layer, head) for layer in range(tiny.n_layers) for head in range(tiny.n_heads)]
    alone = causal(tiny, agreement, also=every, kinds=(), quiet=True).heads
    assert alone["tested"].all()
    assert set(alone["n_peers"]) == {0}
    assert alone["limit"].isna().all()
    assert alone["passed"].any(), "no head to compare with limits nothing"


def test_where_not_all_are_measured_controls_are_those_that_write_most_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "CONTROLS", 24)
    norms = np.concatenate([np.linspace(1, 2, 60), np.linspace(50, 60, 60)]).reshape(12, 10)
    heads = [(layer, head) for layer in range(12) for head in range(10)]
    tested = [(0, 0), (11, 9)]
    chosen = leg._most_like(norms, tested, [h for h in heads if h not in tested])
    assert chosen == [(0, n) for n in range(1, 10)] + [(1, n) for n in range(3)] + [
        (layer, n) for layer, n in heads if layer * 10 + n >= 107 and (layer, n) != (11, 9)
    ]
    assert leg._most_like(norms, tested, [(3, 3)]) == [(3, 3)]


def test_a_masked_model_loses_on_the_tokens_that_are_masked() -> None:
    """Against plain passes in which a hook gives one head its mean."""
    torch.manual_seed(0)
    tokenizer = word_pieces([f"w{n}" for n in range(30)], wrapped=True)
    config = tf.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16,
        initializer_range=0.5,
    )  # fmt: skip
    subject = Subject(tf.BertForMaskedLM(config).eval(), tokenizer, "masked")
    words = [" ".join(f"w{(7 * k + n) % 30}" for n in range(length)) for k, length in enumerate((20, 9, 16))]
    texts = [subject.encode(text).ids for text in words]
    mask, every = tokenizer.mask_token_id, range(MASK_EVERY, 40, MASK_EVERY)
    given = [[mask if i in every and i < len(t) - 1 else token for i, token in enumerate(t)] for t in texts]
    attention = subject.model.bert.encoder.layer[1].attention.self
    seen: list[torch.Tensor] = []
    mean: torch.Tensor | None = None

    def watch(module: object, args: object, output: Any) -> Any:
        z = output[0].clone()
        seen.append(z[0, :, 8:12])
        if mean is not None:
            z[..., 8:12] = mean
        return (z, *output[1:])

    def loss() -> float:
        total, n = 0.0, 0
        for ids, right in zip(given, texts, strict=True):
            with torch.no_grad():
                logs = subject.model(torch.tensor([ids])).logits[0].log_softmax(-1)
            for i in (i for i in every if i < len(right) - 1):
                total, n = total - float(logs[i, right[i]]), n + 1
        assert n == 5
        return total / n

    hook = attention.register_forward_hook(watch)
    plain = loss()
    mean = torch.cat(seen).mean(0)
    without = loss()
    hook.remove()
    found = losses_without(subject, [(1, 2)], texts)
    assert found[1, 2] == pytest.approx(without - plain, abs=1e-5)
    assert abs(found[1, 2]) > 1e-3
