"""Tokens of prompts, their roles and where heads look, against the model's own eager attention and the data's spans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe.causal.lookups import facts
from probe.causal.prompts import answered, first_of, looks, tokens, words_of
from probe.data.texts import Dataset
from probe.errors import DataError, UnknownName, UnsupportedModel
from probe.scores.measure import measure
from probe.subject import Subject

HEADS = [(11, 3), (4, 8), (11, 0)]


@pytest.fixture(scope="module")
def asked(smollm2: Subject) -> Dataset:
    return facts(smollm2, 3, lists=2)


@pytest.fixture(scope="module")
def table(smollm2: Subject, asked: Dataset) -> pd.DataFrame:
    return tokens(smollm2, asked, [item.item for item in asked.items], HEADS)


def test_tokens_are_the_prompt_up_to_the_answer(table: pd.DataFrame, asked: Dataset) -> None:
    assert list(table) == ["prompt", "token", "role", "11.3", "4.8", "11.0"]
    for item in asked.items:
        mine = table[table["prompt"] == item.item]
        text = "".join(mine["token"])
        assert item.text == f"{text} {item.question.right}"
        assert list(mine["role"])[-1] == "query"
        for role, span in [("target", item.target), *((f"foil {k}", f) for k, f in enumerate(item.foils, 1))]:
            assert "".join(mine["token"][mine["role"] == role]).strip() == span.text(item.text)
        assert set(mine["role"]) == {"", "query", "target", "foil 1", "foil 2"}


def test_attention_is_the_models_own_from_the_last_token(table: pd.DataFrame, asked: Dataset, smollm2: Subject) -> None:
    """Of a fresh eager copy, prompt by prompt."""
    eager = probe.load("smollm2", attention="eager").model
    for name, mine in table.groupby("prompt"):
        ids = smollm2.tokenizer("".join(mine["token"]), return_tensors="pt").input_ids
        with torch.no_grad():
            attentions = eager(ids, output_attentions=True).attentions
        for layer, head in HEADS:
            expected = attentions[layer][0, head, -1].numpy()
            np.testing.assert_allclose(mine[f"{layer}.{head}"], expected, atol=1e-4, err_msg=str(name))


def test_attention_on_the_target_is_the_mass_that_scores_are_made_of(
    table: pd.DataFrame, asked: Dataset, smollm2: Subject
) -> None:
    targets = smollm2.bind(asked)
    mass = measure(smollm2, targets)["target"]
    for number, unit in enumerate(targets.units):
        mine = table[(table["prompt"] == unit.item) & (table["role"] == "target")]
        for layer, head in HEADS:
            assert mine[f"{layer}.{head}"].sum() == pytest.approx(mass[layer, head, number], abs=1e-4)


def test_only_the_prompts_asked_for_are_read_in_their_order(smollm2: Subject, asked: Dataset) -> None:
    names = [asked.items[4].item, asked.items[1].item]
    assert list(dict.fromkeys(tokens(smollm2, asked, names, [(0, 0)])["prompt"])) == names
    with pytest.raises(UnknownName, match=r"no item of buried-3-market that can be measured, named 'list-009-00'"):
        tokens(smollm2, asked, ["list-009-00"], HEADS)


def test_a_model_that_sees_later_tokens_is_refused(minilm: Subject) -> None:
    with pytest.raises(UnsupportedModel, match="sees later tokens"):
        tokens(minilm, probe.data.coreference(), [], HEADS)


@pytest.fixture(scope="module")
def sentences() -> Dataset:
    return probe.data.coreference()


def test_words_that_are_measured_look_as_the_models_own_attention_does(minilm: Subject, sentences: Dataset) -> None:
    """An encoder's, from the mean over the pieces of each query, beside a fresh eager copy."""
    eager = probe.load("minilm", attention="eager").model
    whole, other = minilm.bind(sentences).units[:2]
    row = whole.rows[0]
    units = [replace(whole, rows=(replace(row, query=(row.query[0], row.query[0] + 1)),)), other]  # one of two pieces
    heads = [(3, 7), (0, 2)]
    table = looks(minilm, units, heads, words_of(minilm, sentences.texts, units))
    assert list(table) == ["prompt", "token", "role", "3.7", "0.2"]
    for unit in units:
        with torch.no_grad():
            attentions = eager(torch.tensor([unit.ids]), output_attentions=True).attentions
        mine, row = table[table["prompt"] == unit.item], unit.rows[0]
        for layer, head in heads:
            expected = attentions[layer][0, head, list(row.query)].mean(0)
            np.testing.assert_allclose(mine[f"{layer}.{head}"], expected, atol=1e-5)
        text = next(item.text for item in sentences.items if item.item == unit.item)
        assert "".join(mine["token"][1:-1]) == text
        assert [p for p, role in enumerate(mine["role"]) if role == "target"] == list(row.target)
        assert [p for p, role in enumerate(mine["role"]) if role == "query"] == list(row.query)
        assert set(mine["role"]) == {"", "query", "target", *(f"foil {k + 1}" for k in range(len(row.foils)))}


def test_words_of_another_prompt_are_refused(minilm: Subject, sentences: Dataset) -> None:
    (unit, *_) = minilm.bind(sentences).units
    with pytest.raises(DataError, match=rf"{unit.item} has {len(unit.ids)} tokens, and 1 words for them"):
        looks(minilm, [unit], [(0, 0)], {unit.item: ["one"]})


def test_nothing_to_show_is_said(minilm: Subject, smollm2: Subject, sentences: Dataset, asked: Dataset) -> None:
    (unit, *_) = minilm.bind(sentences).units
    with pytest.raises(DataError, match="no prompt to show"):
        looks(minilm, [], [(0, 0)], {})
    with pytest.raises(DataError, match="no head to show"):
        looks(minilm, [unit], [], {})
    with pytest.raises(DataError, match="no prompt to show"):
        tokens(smollm2, asked, [], HEADS)


def test_what_is_answered_is_what_the_models_own_logits_say(smollm2: Subject, asked: Dataset) -> None:
    table = answered(smollm2, asked).set_index("prompt")
    assert list(table.index) == [item.item for item in asked.items]
    for item in asked.items[:3]:
        ids = smollm2.tokenizer(item.text[: item.question.read_at].rstrip(), return_tensors="pt").input_ids
        with torch.no_grad():
            logits = smollm2.model(ids).logits[0, -1].double()
        words = (item.question.right, *item.question.wrong)
        found = logits[[smollm2.tokenizer(f" {word}").input_ids[0] for word in words]]
        row = table.loc[item.item]
        assert row["its probability"] == pytest.approx(float(found.softmax(0)[0]), abs=1e-4)
        assert row["likeliest"] == words[int(found.argmax())]
        assert row["correct"] == float(row["likeliest"] == row["asked for"] == words[0])


def test_the_first_of_each_kind_are_taken_in_order() -> None:
    table = pd.DataFrame({"prompt": list("abcdef"), "kind": ["x", "y", "y", "x", "y", "x"]})
    assert first_of(table, "kind", 2) == ["a", "b", "c", "d"]
    assert first_of(table, "kind", 9) == list("abcdef")
