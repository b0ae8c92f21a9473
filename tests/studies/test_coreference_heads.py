"""Heads that look beside heads that matter: the kinds are right, and each model is asked in the way it can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import probe
from probe.causal.linear_readout import Readout
from probe.data.coreference_templates import MALE
from probe.runner.findings import Findings
from probe.studies import coreference_heads as study
from probe.subject import Subject


def test_each_head_is_of_the_kind_that_its_numbers_say() -> None:
    at = {"layer": [0, 0, 1, 1, 1], "head": [0, 1, 0, 1, 2]}
    looks = pd.DataFrame(
        {**at, "value": [0.8, 0.6, 0.7, 0.5, 0.4], "low": 0.3, "high": 0.9, "passed": [True, *[False] * 4],
         "selection_value": [0.9, 0.5, 0.8, 0.4, 0.3]}
    )  # fmt: skip
    depends = pd.DataFrame(
        {**at, "lost": [0.5, 0.9, 0.0, 0.1, 0.0], "low": 0.0, "high": 1.0,
         "p_holm": [0.01, 0.01, 0.9, 0.5, float("nan")], "passed": [True, True, False, False, False],
         "limit": 0.2, "n_peers": 20, "why": ["", "", "dear", "dear", ""]}
    )  # fmt: skip
    table = study.side_by_side(looks, depends, [(0, 0), (1, 0)])
    assert table["name"].tolist() == ["0.1", "0.0", "1.1", "1.0"], "sorted by what is lost; 1.2 was not tested"
    assert table["kind"].tolist() == [
        "the answer depends on it", "both", "neither", "among the best on GAP",
    ]  # fmt: skip
    assert table["rank"].tolist() == [3, 1, 4, 2]
    assert table["low_lost"].tolist() == [0.0] * 4


@pytest.fixture(scope="module")
def snippets(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of GAP."""
    lines = (shared_data / "gap" / "gap-validation.tsv").read_text(encoding="utf-8").split("\n")
    path = tmp_path_factory.mktemp("gap") / "gap-short.tsv"
    path.write_text("\n".join(lines[:151]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def found(minilm: Subject, snippets: Path) -> Findings:
    return study.coreference_heads(minilm, data=snippets, profile="quick", seed=0)


def test_a_model_that_says_nothing_is_read_linearly(found: Findings) -> None:
    assert "sides" in found.tables or "cannot be read from the hidden states" in found.answer
    assert all(isinstance(paragraph, str) for section in found.sections for paragraph in section.text)
    readout = found.tables["readout"].frame.set_index("what")
    assert 0 < readout.loc["linear readout", "accuracy"] < 1
    assert readout.loc["readout minus rule, paired", "accuracy"] == pytest.approx(
        readout["accuracy"].iloc[0] - readout["accuracy"].iloc[1]
    )


def test_snippets_stand_under_what_was_read(minilm: Subject, snippets: Path) -> None:
    """Whatever a readout says: here that the first candidate is the one, but for the last, on which it says nothing."""
    dataset = probe.data.gap(snippets)
    units = tuple(u for u in minilm.bind(dataset).units if len(u.rows) == 1 and len(u.rows[0].foils) == 1)[:24]
    first = {item.item: item.tags["right"] == "first" for item in dataset.items}
    odds = np.array([1.5 if first[u.item] else -1.5 for u in units[:-1]] + [0.0])
    nothing = dict.fromkeys(("accuracy", "low", "high", "rival_accuracy", "more", "more_low", "more_high"), 0.0)
    readout = Readout(units, 5, odds, odds, odds, rival="nearest", reason=None, **nothing)
    parts = study.read_section(minilm, dataset, readout, [(2, 1), (0, 3)]).parts
    prompts, tokens = parts[0].frame, parts[1].frame
    right = prompts.set_index("prompt")["correct"].to_dict()
    assert right.pop(units[-1].item) == 0.5
    assert right == {u.item: float(first[u.item]) for u in units[:-1]}
    assert set(prompts["antecedent"]) == {"the first name", "the second name"}
    shown = dict.fromkeys(tokens["prompt"])
    assert len(shown) == 2 * study.PROMPTS
    assert list(tokens.columns[3:]) == ["2.1", "0.3"]
    texts = {item.item: item for item in dataset.items}
    for name in shown:
        mine = tokens[tokens["prompt"] == name]
        item = texts[name]
        assert "".join(mine["token"][mine["role"] == "target"]).strip() == item.target.text(item.text)
        assert "".join(mine["token"][mine["role"] == "query"]).strip() == item.query.text(item.text)


def test_what_was_asked_stands_under_the_nats(smollm2: Subject) -> None:
    asked = probe.data.asked_names(2)
    asked = replace(asked, items=asked.items[:8])
    table = pd.DataFrame({"layer": [25, 3], "head": [1, 0], "kind": [study.KINDS[1], study.KINDS[3]]})
    section = study.asked_section(smollm2, asked, table, [(9, 4), (11, 3), (0, 0)])
    prompts, tokens = section.parts[0].frame, section.parts[1].frame
    answers = {i.item: (i.question.right, i.question.wrong[0]) for i in asked.items}
    share = {}
    for row in prompts.to_dict("records"):
        right, wrong = answers[row["prompt"]]
        assert row["pronoun"] == ("he" if right in MALE else "she")
        assert row["likeliest"] == (right if row["correct"] else wrong)
        assert (row["its probability"] > 0.5) == (row["correct"] == 1)
        share.setdefault(row["pronoun"], []).append(row["correct"])
    he, she = (sum(share[p]) / len(share[p]) for p in ("he", "she"))
    assert f"({he:.2f} after `he`, {she:.2f} after `she`)" in section.text[0]
    assert list(tokens.columns[3:]) == ["25.1", "9.4", "11.3"]
    assert tokens.groupby("prompt").ngroups == 2 * study.PROMPTS


def test_the_heads_shown_carry_or_look(found: Findings) -> None:
    kinds = [study.KINDS[1], study.KINDS[0], study.KINDS[3], study.KINDS[2]]
    table = pd.DataFrame({"layer": [3, 0, 1, 2], "head": [1, 0, 1, 2], "kind": kinds})
    assert study.shown_heads(table, [(0, 0), (2, 2), (5, 5)]) == [(3, 1), (0, 0), (2, 2)]


def test_averages_stand_beside_one_head(found: Findings, minilm: Subject) -> None:
    table = found.tables["averaged"].frame
    assert len(table) == 2 + minilm.n_layers
    section = found.sections[-1]
    assert section.title == "Does averaging hide the head?"
    assert table["attention"].iloc[0].capitalize() in section.text[0]
    assert f"{table['accuracy'].iloc[0]:.2f}" in section.text[0]
