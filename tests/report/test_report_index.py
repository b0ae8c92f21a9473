"""The list of reports over a root folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.errors import ResultsError
from probe.report import write_index, write_report

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
    assert "coreference: 3 of 5 tested heads" in text
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
