"""The position study: its counts are those of its own tables, and a planted head comes first."""

from __future__ import annotations

import pytest

import probe
from probe.runner.findings import Findings
from probe.scores import placement
from probe.studies import position as study


@pytest.fixture(scope="module")
def found() -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.PROMPTS, "quick", 3)
        return study.position(probe.load("planted:previous_token"), profile="quick", seed=0)


def test_counts_are_those_of_the_tables(found: Findings) -> None:
    every, counts = found.tables["heads"].frame, found.tables["counts"].frame.set_index("text")
    assert tuple(counts.index) == placement.KINDS
    for kind, table in every.groupby("text"):
        assert counts.loc[kind, "previous"] == (table["previous"] >= 0.5).sum() == 1
        assert counts.loc[kind, "sink"] == (table["first"] >= 0.3).sum()
        assert counts.loc[kind, "positional"] == (table["share"] >= 0.9).sum() == 1
        assert counts.loc[kind, "heads"] == len(table) == 4


def test_the_planted_head_is_the_best_of_each_text(found: Findings) -> None:
    best = found.tables["best"].frame
    first = best[best["looks at"] == "previous"].groupby("text").first()
    assert set(first["head"]) == {"0.0"}
    assert set(first["usual offset"]) == {-1}


def test_lengths_end_where_the_context_does(found: Findings) -> None:
    assert found.tables["sinks"].frame["tokens"].max() == 128, "as many as this model reads"
    assert "1 on random words, 1 on repeated words, 1 on natural text" in found.answer


def test_prompts_show_the_planted_head_looking_one_back(found: Findings) -> None:
    asked, tokens = found.tables["asked"].frame, found.tables["asked_tokens"].frame
    assert set(asked["head"]) == {"0.0"}
    assert asked.groupby("text", sort=False).size().to_dict() == dict.fromkeys(placement.KINDS, 3)
    assert (asked["correct"] == 1).all()
    assert asked["on the previous token"].min() > 0.99
    for _, rows in tokens.groupby("prompt"):
        roles = list(rows["role"])
        assert roles[0] == "foil 1"
        assert roles.index("query") == roles.index("target") + 1 == len(rows) // 2
        assert rows["0.0"].iloc[roles.index("target")] > 0.99
    assert tokens["prompt"].nunique() == study.SHOWN * len(placement.KINDS)
