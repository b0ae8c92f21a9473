"""The block study: its baseline, its parts and its ablations are what plain arithmetic says."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch

import probe
from probe.data import language
from probe.models.corpora import SyntheticLanguage
from probe.models.tokenizer import word_tokenizer
from probe.runner.findings import Findings
from probe.scores.components import accuracy_without, questions, written
from probe.studies import block as study
from probe.subject import Subject

SMALL = {"steps": 24, "batch_size": 4, "d_model": 16, "seeds": 2, "questions": 12}


@pytest.fixture(scope="module")
def found(tiny: Subject) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.DEPTHS, "quick", (1, 2))
        patch.setitem(study.SIZES, "quick", SMALL)
        return study.block(tiny, profile="quick", seed=0)


def test_every_variant_is_trained_at_both_depths(found: Findings) -> None:
    losses = found.tables["losses"].frame
    assert set(zip(losses["variant"], losses["layers"], strict=True)) == {
        (v, n) for v in study.VARIANTS for n in (1, 2)
    }
    assert losses["held-out loss"].between(3, 7).all()
    assert (losses["lowest"] <= losses["held-out loss"]).all()
    curves = found.tables["curves"].frame
    assert curves["step"].max() == 24
    assert len(curves) == len(study.VARIANTS) * 2 * study.POINTS


def test_the_parts_of_an_answer_add_up_to_it(found: Findings) -> None:
    parts = found.tables["written"].frame
    assert set(parts["task"]) == set(language.tasks())
    for _, task in parts.groupby("task"):
        assert task["share"].sum() == pytest.approx(1, abs=1e-4)
        assert set(task["component"]) == {"embedding", "attention", "mlp", "bias"}
    assert found.tables["written"].frame["residue"].max() <= 1e-4
    by_layer = found.tables["layers"].frame.groupby(["task", "component"])["value"].sum()
    whole = parts.set_index(["task", "component"])["value"]
    for key, value in by_layer.items():
        assert value == pytest.approx(whole[key], abs=1e-6)


def test_the_baseline_is_the_cross_entropy_of_word_frequencies() -> None:
    tokenizer = word_tokenizer(language.WORDS)
    corpus = SyntheticLanguage(tokenizer)
    rows = [r for t in corpus.batch(random.Random(5), 2000) for r in t[:, 1:].tolist()]
    seen = Counter(i for row in rows for i in row if i)
    total = sum(seen.values()) + len(tokenizer) - 1
    held_out = [i for t in corpus.evaluation for row in t[:, 1:].tolist() for i in row if i]
    expected = -sum(math.log((seen[i] + 1) / total) for i in held_out) / len(held_out)
    assert study.frequency_loss(corpus, len(tokenizer), 5) == pytest.approx(expected, abs=1e-9)


def test_without_attention_a_fact_cannot_be_looked_up() -> None:
    planted = probe.load("planted:retrieval")
    units, prompts = questions(planted, language.dataset("facts"), 40)
    table = accuracy_without(planted, units, prompts, seed=0).set_index("ablated")
    assert set(table.index) == {"nothing", "all attention"}
    assert table.loc["nothing", "accuracy"] == 1
    assert table.loc["all attention", "accuracy"] <= 0.5, "a guess among two to eight values"


def test_ablating_nothing_is_the_model_itself(tiny: Subject) -> None:
    units, prompts = questions(tiny, language.dataset("agreement"), 10)
    right, differences = [], []
    for unit, prompt in zip(units, prompts, strict=True):
        ids = torch.tensor([tiny.tokenizer(prompt).input_ids])
        with torch.no_grad():
            last = tiny.model(ids).logits[0, -1]
        assert unit.answer is not None
        rivals = [float(last[w[0]]) for w in unit.answer.wrong]
        right.append(float(last[unit.answer.right[0]]) > max(rivals))
        differences.append(float(last[unit.answer.right[0]]) - rivals[0])
    plain = accuracy_without(tiny, units, prompts, seed=0).iloc[0]
    assert plain["accuracy"] == sum(right) / len(right)
    assert plain["difference"] == pytest.approx(sum(differences) / len(differences), abs=1e-4)


def test_intervals_hold_their_values(tiny: Subject) -> None:
    units, _ = questions(tiny, language.coreference(per_frame=4), 60)
    table = written(tiny, units, seed=0)
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()
