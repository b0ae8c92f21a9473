"""The atlas on a model whose heads were written by hand: it says of each what is known of it, and no more."""

from __future__ import annotations

import pandas as pd
import pytest

import probe
from probe.data import language
from probe.models import planted
from probe.runner.findings import Findings
from probe.studies import atlas as study
from probe.subject import Subject


@pytest.fixture(scope="module")
def found() -> Findings:
    return study.atlas(probe.load("planted:agreement"), profile="quick", seed=0)


def test_the_written_head_has_its_job_and_no_other_head_one_by_both_legs(found: Findings) -> None:
    table = found.tables["map"].frame
    ((layer, head),) = planted.HEADS["agreement"]["agreement"]
    supported = table[table["kind"] == "supported"]
    assert list(zip(supported["layer"], supported["head"], strict=True)) == [(layer, head)]
    assert supported["supported"].item() == "agreement"
    assert supported["of"].item() == "agreement"
    assert len(table) == 8
    assert (table["attention_only"] == "").all() or not table["attention_only"].str.contains("agreement").any()


def test_tasks_that_the_model_does_not_do_are_untestable_and_say_why(found: Findings) -> None:
    tasks = found.tables["tasks"].frame.set_index("task")
    assert len(tasks) == len(language.tasks())
    assert tasks.loc["agreement", "accuracy"] == 1
    assert tasks.loc["agreement", "supported"] == 1
    (section,) = (s for s in found.sections if s.title == "Task by task")
    untestable = [t for t in section.text if "untestable here" in t]
    assert untestable
    assert not any(t.startswith("agreement:") for t in untestable)
    names = tasks.index[tasks[["supported", "causal only"]].sum(axis=1) > 0]
    assert not set(names) & {t.split(":")[0] for t in untestable}


def test_descriptions_count_what_they_list(found: Findings) -> None:
    described = found.tables["described"].frame.set_index("attends to")
    every = found.tables["described_heads"].frame
    for name, row in described.iterrows():
        values = every[every["phenomenon"] == name]["value"]
        assert row["heads"] == (values >= row["from"]).sum()
        assert row["its attention"] == values.max()
    assert set(described.index) >= {"first token", "previous token", "own token", "offset -2", "delimiter"}
    assert "next token" not in described.index, "a decoder cannot look there"


def test_the_answer_counts_every_head_once(found: Findings) -> None:
    assert found.answer.startswith("Of 8 heads in planted:agreement, 1 were shown to do a job by both legs")
    assert len(found.tables["map"].frame.drop_duplicates(["layer", "head"])) == 8


def test_prompts_of_each_task_show_where_its_head_looks(found: Findings) -> None:
    tasks = found.tables["tasks"].frame.set_index("task")
    asked, tokens = found.tables["asked"].frame, found.tables["asked_tokens"].frame
    share = asked.groupby("task")["correct"].mean()
    assert share.to_dict() == pytest.approx(tasks["accuracy"].to_dict())
    ((layer, head),) = planted.HEADS["agreement"]["agreement"]
    mine = asked[asked["task"] == "agreement"]
    assert set(mine["head"]) == {f"{layer}.{head}"}
    assert mine["on the target"].min() > 0.99
    shown = tokens[tokens["prompt"].str.startswith("agreement: ")]
    assert shown["prompt"].nunique() == study.PROMPTS
    assert (shown[shown["role"] == "target"].groupby("prompt")[f"{layer}.{head}"].sum() > 0.99).all()
    assert (tokens.groupby("prompt")["role"].value_counts().unstack()["query"] >= 1).all()


def test_a_supported_head_is_shown_before_one_that_carries_more_and_that_before_one_that_looks() -> None:
    def heads(verdicts: list[str], patch: list[float], picks: list[float]) -> pd.DataFrame:
        carries = [v in ("supported", "causal only") for v in verdicts]
        columns = {"verdict": verdicts, "causal_passed": carries, "patch": patch, "selection_value": picks}
        return pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], **columns})

    nan = float("nan")
    no, only = "not supported", "causal only"
    assert study.best_of(heads([only, "supported", "supported"], [9.0, 0.5, 0.7], [0.9, 0.2, 0.1])) == (1, 0)
    assert study.best_of(heads([no, only, only], [9.0, 0.5, 0.7], [0.9, 0.2, 0.1])) == (1, 0)
    assert study.best_of(heads([no, no, no], [9.0, nan, 0.7], [0.2, 0.9, 0.3])) == (0, 1)


def test_a_model_that_cannot_be_asked_is_right_where_its_head_is(
    minilm: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = study.tasks
    monkeypatch.setattr(study, "tasks", lambda *given: (t for t in every(*given) if t[0].phenomenon == "agreement"))
    found = study.atlas(minilm, profile="quick", seed=0)
    asked, verdicts = found.tables["asked"].frame, found.tables["verdicts"].frame
    best = verdicts.sort_values("selection_value", ascending=False, kind="stable").iloc[0]
    assert set(asked["head"]) == {f"{best['layer']}.{best['head']}"}
    assert set(asked["correct"]) <= {0.0, 0.5, 1.0}
    measured = asked["correct"].mean()  # of both halves, the one that picked (its value is the better) among them
    assert min(best["value"], best["selection_value"]) <= measured <= max(best["value"], best["selection_value"])
    (section,) = (s for s in found.sections if s.title == "What was asked")
    (part,) = (p for p in section.parts if isinstance(p, probe.Asked))
    assert part.prompts.caption.endswith("any other candidate.")
