"""The position study: its counts are those of its own tables, and a planted head comes first."""

from __future__ import annotations

import pytest

import probe
from probe.runner.findings import Findings
from probe.scores import placement
from probe.studies import position as study
from probe.subject import Subject


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


def test_right_is_where_the_whole_pattern_has_its_largest_weight(tiny: Subject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.PROMPTS, "quick", 6)
        found = study.position(tiny, profile="quick", seed=1)
    asked, heads = found.tables["asked"].frame, found.tables["heads"].frame
    rights = []
    for kind, rows in asked.groupby("text", sort=False):
        best = heads[heads["text"] == kind].sort_values("previous", ascending=False).iloc[0]
        layer, head = int(best["layer"]), int(best["head"])
        assert set(rows["head"]) == {f"{layer}.{head}"}
        for text, (_, row) in zip(placement.texts(tiny, kind, n=6, seed=1), rows.iterrows(), strict=True):
            pattern = tiny.run(text, ["pattern"], layers=[layer])["pattern", layer][0, head]
            at = len(tiny.encode(text).ids) // 2
            assert row["correct"] == float(pattern[at].argmax() == at - 1)
            assert row["on the previous token"] == pytest.approx(float(pattern[at, at - 1]), abs=1e-5)
            rights.append(row["correct"])
    assert 0 < sum(rights) < len(rights), "some are wrong, so that being right says something"
    sinks = heads.loc[heads.groupby("text", sort=False)["first"].idxmax()]
    shown = set(found.tables["asked_tokens"].frame.columns[3:])
    assert shown == set(asked["head"]) | {f"{a}.{b}" for a, b in zip(sinks["layer"], sinks["head"], strict=True)}
