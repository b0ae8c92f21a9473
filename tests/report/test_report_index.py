"""The list of reports over a root folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from probe.errors import ResultsError
from probe.report import write_index, write_report
from probe.report.index import PARTS
from probe.runner.findings import Findings, Section, Table
from probe.runner.registry import all_studies
from tests.report.test_report_causal import GATE, table, with_leg

Make = Callable[..., Path]


def test_every_run_is_listed_with_its_answer(make_folder: Make, tmp_path: Path) -> None:
    write_report(make_folder(tmp_path / "coreference" / "a b", 4, 4, 1))

    def ask(manifest: dict[str, Any]) -> None:
        manifest["question"] = "<b>Why?</b>"

    make_folder(tmp_path / "coreference" / "unwritten", 4, 4, 1, change=ask)
    (tmp_path / "notes").mkdir()
    make_folder(tmp_path / "coreference" / ".new-run", 4, 4, 1)
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert "2 runs" in text
    assert "coreference: attention leg passed by 3 of 5 heads tested; causal leg not measured." in text
    assert "picks the antecedent in 91.3 % of prompts" in text
    assert "2026-01-02" in text
    assert 'href="coreference/a%20b/report.html"' in text
    assert 'src="coreference/a%20b/figures/score_map.png"' in text
    assert "has not been written yet" in text
    assert "&lt;b&gt;Why?&lt;/b&gt;" in text
    assert "supported" not in text.lower()


def test_the_index_is_byte_identical(make_folder: Make, tmp_path: Path) -> None:
    make_folder(tmp_path / "s" / "r", 4, 4, 1)
    assert write_index(tmp_path).read_bytes() == write_index(tmp_path).read_bytes()


def test_a_broken_result_is_named_and_hides_no_other(make_folder: Make, tmp_path: Path) -> None:
    make_folder(tmp_path / "coreference" / "good", 4, 4, 1)
    (tmp_path / "aaa" / "bad").mkdir(parents=True)
    (tmp_path / "aaa" / "bad" / "manifest.json").write_text("{}")
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert "1 run." in text
    assert "Not shown" in text
    assert "aaa/bad/manifest.json is not a manifest of probe" in text


def test_an_empty_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"no results below .*: expected .*manifest\.json"):
        write_index(tmp_path)


def test_runs_of_a_study_stand_together_in_an_order_worth_reading_in(make_folder: Make, tmp_path: Path) -> None:
    def of(study: str) -> Callable[[dict[str, Any]], None]:
        return lambda manifest: manifest.update(study=study, question=f"What of {study}?")

    for study in ("zebra", "cache", "position", "coreference", "atlas", "by_hand"):
        make_folder(tmp_path / study / "smollm2", 4, 4, 1, change=of(study))
    make_folder(
        tmp_path / "coreference" / "smollm2+seed=1",
        4,
        4,
        1,
        change=lambda m: m.update(seed=1, question="What of coreference?"),
    )
    text = write_index(tmp_path).read_text(encoding="utf-8")
    asked = re.findall(r"<h3>(.*?)</h3>", text)
    assert asked == [
        "What of atlas?", "What of coreference?", "What of position?", "What of zebra?", "What of by_hand?",
        "What of cache?",
    ]  # fmt: skip
    assert text.index("Heads and their jobs") < text.index("Other studies") < text.index("How a transformer computes")
    assert "SmolLM2-135M-Instruct, seed 1, n_templates 40" in text


def test_verdicts_of_both_legs_are_counted(make_folder: Make, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "coreference" / "smollm2", 4, 4, 1)
    with_leg(folder, table(), {"coreference": GATE})
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert "coreference: 1 supported, 1 attention only; attention leg passed by 3 of 5 heads tested." in text


def test_verdicts_of_findings_are_counted(make_findings: Make, tmp_path: Path) -> None:
    heads = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1]})
    heads["kind"] = ["supported", "described", "supported", "attention only"]
    found = Findings("Two do. The rest does not.", (Section("Map", (), (Table("map", heads, ""),)),))
    make_findings(tmp_path / "atlas" / "run", found)
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert "2 supported, 0 causal only, 1 attention only, of 4 heads." in text
    assert "<p>Two do.</p>" in text


def test_every_study_that_ships_has_its_place() -> None:
    assert {study for _, studies in PARTS for study in studies} == set(all_studies())
