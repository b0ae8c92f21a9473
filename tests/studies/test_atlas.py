"""The atlas on a model whose heads were written by hand: it says of each what is known of it, and no more."""

from __future__ import annotations

import pytest

import probe
from probe.data import language
from probe.models import planted
from probe.runner.findings import Findings
from probe.studies import atlas as study


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
