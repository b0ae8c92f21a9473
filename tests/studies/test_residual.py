"""The residual study: its tables say the same as its answer, and a model without logits gets what it can have."""

from __future__ import annotations

import pandas as pd
import pytest

from probe.causal.written import Written
from probe.data import language
from probe.runner.findings import Findings
from probe.studies import residual as study
from probe.subject import Subject

SMALL = {"items": 4, "places": 80, "depths": 2, "words": 6, "texts": 3}
TASKS = ("agreement", "facts")
ASKED = {"items": 6, "clusters": 6, "heads": 1}


def run(subject: Subject) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.SIZES, "quick", SMALL)
        patch.setitem(study.ASKED, "quick", ASKED)
        patch.setattr(study, "tasks", lambda _, seed: {task: language.dataset(task, seed, 4) for task in TASKS})
        return study.residual(subject, profile="quick", seed=0)


@pytest.fixture(scope="module")
def found(tiny: Subject) -> Findings:
    return run(tiny)


def test_every_property_is_probed_at_each_depth(found: Findings, tiny: Subject) -> None:
    probes = found.tables["probes"].frame
    assert set(probes["blocks"]) == {-1, 0, 1, tiny.n_layers}
    assert set(found.tables["readable"].frame["property"]) == set(probes["property"])
    assert len(probes) == 7 * 2 * 4


def test_parts_add_up_and_signs_are_counted(found: Findings) -> None:
    parts, signs = found.tables["parts"].frame, found.tables["signs"].frame
    assert set(parts["task"]) == set(TASKS)
    assert parts.groupby("task")["share"].sum().tolist() == pytest.approx([1] * 2, abs=1e-4)
    whole = parts.groupby("task", sort=False)["value"].sum()
    assert found.tables["kinds"].frame.set_index("task").sum(axis=1).to_dict() == pytest.approx(
        whole.to_dict(), abs=0.005
    )
    clear = signs[signs["signs"] != "open"]
    same = (clear["signs"] == "same sign").sum()
    assert f"Of {len(clear)} heads and tasks with both effects clear of zero, {same} write" in found.answer
    for _, same_task in parts.groupby("task"):
        most = same_task.loc[same_task["value"].idxmax()]
        assert f"{most['part']} for {most['task']} ({most['share']:.0%})" in found.answer


def test_prompts_are_seen_by_the_head_that_writes_most_of_each_answer(found: Findings) -> None:
    asked, tokens = found.tables["asked"].frame, found.tables["asked_tokens"].frame
    assert asked.groupby("task").size().to_dict() == dict.fromkeys(TASKS, ASKED["items"])
    heads = found.tables["head_parts"].frame
    most = heads.loc[heads.groupby("task")["value"].idxmax()]
    said = asked.groupby("task")["head"].first()
    assert said.to_dict() == {r["task"]: f"{r['layer']}.{r['head']}" for _, r in most.iterrows()}
    assert set(tokens.columns[3:]) == {f"{a}.{b}" for a, b in zip(most["layer"], most["head"], strict=True)}


def test_a_head_that_writes_most_against_an_answer_is_not_the_one_shown(
    tiny: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("mlp", 3, -1, 5.0), ("head", 3, 0, -4.0), ("head", 2, 1, 3.0), ("head", 1, 1, 1.0)]
    parts = pd.DataFrame(rows, columns=["component", "layer", "head", "value"]).assign(task="agreement")
    wrote = Written(pd.DataFrame(), parts, pd.DataFrame(), {})
    monkeypatch.setitem(study.ASKED, "quick", ASKED)
    section = study.asked_section(tiny, wrote, {"agreement": language.dataset("agreement", 0, 4)}, "quick")
    assert set(section.parts[0].frame["head"]) == {"2.1"}


def test_the_answer_says_on_only_of_what_stays(tiny: Subject) -> None:
    columns = ["property", "best", "low", "high", "at", "above", "depths", "from"]
    rows = [("place", 0.9, 0.8, 1.0, 3, 2, 4, 2.0), ("name", 0.6, 0.5, 0.7, 1, 1, 4, float("nan"))]
    rows += [("number", 0.5, 0.4, 0.6, 1, 0, 4, float("nan"))]
    text = study.answer(tiny, pd.DataFrame(rows, columns=columns), None)
    assert "place from 2 on (best 0.90 [0.80, 1.00] after 3)" in text
    assert "name at 1 of 4 depths (best 0.60" in text
    assert "number at no depth (best 0.50" in text


def test_a_task_without_aligned_pairs_and_bent_logits_are_told() -> None:
    parts = pd.DataFrame(
        [("facts", "mlp", "mlp 0", 0, -1, 1.0, 0.9, 1.1, 0.5, 4.2)],
        columns=["task", "component", "part", "layer", "head", "value", "low", "high", "share", "residue"],
    )
    signs = pd.DataFrame([(0, 1, "facts", "open")], columns=["layer", "head", "task", "signs"])
    signs = signs.assign(**dict.fromkeys(("direct", "direct_low", "direct_high", "chosen"), 0.0))
    signs = signs.assign(**dict.fromkeys(("total", "total_low", "total_high"), 0.0))
    wrote = Written(pd.DataFrame(), parts, signs, {}, ("agreement",))
    assert "agreement has too few minimal pairs" in " ".join(study.signs_section(wrote).text)
    assert "up to 4.20 nats" in " ".join(study.parts_section(wrote).text)


def test_without_logits_there_are_probes_and_geometry(minilm: Subject) -> None:
    found = run(minilm)
    assert [s.title for s in found.sections] == [
        "What can be read, and from where on",
        "Position as a number",
        "Norms and geometry",
    ]
    assert found.answer.endswith(").")
    assert len(found.method) == 2
