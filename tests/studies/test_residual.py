"""The residual study: its tables say the same as its answer, and a model without logits gets what it can have."""

from __future__ import annotations

import pytest

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
    assert f"of {len(clear)} heads and tasks with both effects clear of zero, {same} write" in found.answer
    first = parts.iloc[0]
    assert f"written by {first['part']} ({first['value']:+.2f} nats" in found.answer


def test_without_logits_there_are_probes_and_geometry(minilm: Subject) -> None:
    found = run(minilm)
    assert [s.title for s in found.sections] == [
        "What can be read, and from where on",
        "Position as a number",
        "Norms and geometry",
    ]
    assert found.answer.endswith(").")
    assert len(found.method) == 2
