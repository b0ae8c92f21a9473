"""The written report: its numbers are those of its rows, and the same findings give the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe.compatibility.__main__ import main
from probe.compatibility.check import Finding
from probe.compatibility.configs import Pair, mapped
from probe.compatibility.write import FAMILIES, below, excerpt, read, summary, versions, write

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "reports" / "compatibility"
FINDINGS = [
    Finding(
        Pair("zebra", "causal"), "Zebra", "exact", n_layers=2, head_layers=(0, 1), sites=("pattern",), max_error=3e-7
    ),
    Finding(Pair("ape", "masked"), "Ape", "unsupported", why="it | has\nno heads.", step="dissect"),
    Finding(Pair("ape", "causal"), "Ape", "exact", sites=("pattern",), some=("z",), notes=("run on text alone",)),
]


def test_the_same_findings_give_the_same_bytes(tmp_path: Path) -> None:
    write(FINDINGS, tmp_path / "a")
    write(FINDINGS[::-1], tmp_path / "b")
    for name in ("table.csv", "README.md"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    rows = read(tmp_path / "a")
    assert [(r["task"], r["model_type"]) for r in rows] == [("causal", "ape"), ("causal", "zebra"), ("masked", "ape")]
    assert rows[1]["max_error_below"] == "1e-06"
    text = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert "Of 3 pairs of model type and task, 2 are exact." in text
    assert "it \\| has no heads" in text
    assert "| `ape` | exact |" in text


@pytest.mark.parametrize(
    ("error", "text"), [(None, ""), (0.0, "1e-06"), (3e-7, "1e-06"), (2e-6, "1e-05"), (0.5, "1e+00")]
)
def test_errors_are_told_by_powers_of_ten(error: float | None, text: str) -> None:
    assert below(error) == text


def test_the_committed_report_is_what_its_table_says() -> None:
    rows = read(COMMITTED)
    text = (COMMITTED / "README.md").read_text(encoding="utf-8")
    assert summary(rows) in text
    exact = sum(r["status"] == "exact" for r in rows)
    assert f"Of {len(rows)} pairs of model type and task, {exact} are exact." in text
    listed = re.findall(r"^\| (`.*?) \| (exact|exact output, no pattern|unsupported) \|", text, re.MULTILINE)
    assert sum(types.count("`") // 2 for types, _ in listed) == len(rows)
    assert sum(types.count("`") // 2 for types, status in listed if status == "exact") == exact
    assert all(r["why"] for r in rows if r["status"] != "exact")
    if versions() in text:
        assert {(r["model_type"], r["task"]) for r in rows} == {(p.model_type, p.task) for p in mapped()}


def test_the_excerpt_counts_the_committed_table() -> None:
    text = excerpt(COMMITTED)
    rows = read(COMMITTED)
    assert f"Of the {len(rows)} pairs" in text
    assert str(sum(r["status"] == "exact" for r in rows)) in text
    known = {r["model_type"] for r in rows}
    assert all(set(types) <= known for types in FAMILIES.values())
    assert text.count("\n|") == len(FAMILIES) + 2


def test_the_command_checks_single_types(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["llama", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "llama (causal): exact" in out
    assert "implementations: eager sdpa" in out
    assert list(tmp_path.iterdir()) == []
    assert main(["lama"]) == 2
    assert "Did you mean 'llama'" in capsys.readouterr().err


def test_the_readme_shows_what_the_committed_table_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = readme.split("<!-- compatibility -->")[1].split("<!-- /compatibility -->")[0]
    assert shown.strip() == excerpt(COMMITTED).strip()
