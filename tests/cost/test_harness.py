"""A plan becomes a table; the table becomes a page that says what was and what was not measured."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from probe.cost import harness
from probe.cost.contenders import CONTENDERS, PLAIN
from probe.cost.harness import (
    COLUMNS,
    PLANS,
    SCORING_COLUMNS,
    TINY_COLUMNS,
    WHERE_COLUMNS,
    Case,
    ask_worker,
    machine,
    measure,
)
from probe.cost.write import (
    QUESTION,
    SCORING_TITLE,
    TINY_TITLE,
    WHERE_TITLE,
    answer,
    markdown,
    readme,
    tiny_answer,
    write,
)
from probe.errors import ProbeError, ResultsError
from probe.runner.registry import all_studies
from probe.studies.cost import main

NAMES = (PLAIN, "probe-sites", "output-attentions", "nnsight-sites")
PLAN = (Case("tiny", 64, 2, NAMES), Case("smollm2", 256, 2, NAMES))
PEAKS = {PLAIN: 1000.0, "probe-sites": 1200.0, "nnsight-sites": 950.0}
TINY = pd.DataFrame(
    [("training", 2, 4096, 1.5, 1.25, 1.75, 0.5, 0.25), ("decoding", 2, 112, 4.0, 3.5, 4.5, 1.0, 0.25)],
    columns=list(TINY_COLUMNS),
)
SCORING = pd.DataFrame(
    [("sweep", "smollm2", 2, 0.55, 0.5, 0.6, 40.0, 22.0), ("nine", "smollm2", 2, 1.4, 1.3, 1.5, 27.0, 37.8)],
    columns=list(SCORING_COLUMNS),
)
FACTS = {"processors": "2 (x86_64)", "torch": "2.13.0"}
WHERE = pd.DataFrame(
    [("smollm2", 256, "plain", "softmax", 0.0), ("smollm2", 256, "probe-streams", "softmax", 0.5)],
    columns=list(WHERE_COLUMNS),
)
TABLES = {"tiny": TINY_TITLE, "scoring": SCORING_TITLE, "where": WHERE_TITLE, "reading": QUESTION}


def fake(words: Sequence[str]) -> dict[str, Any]:
    """A worker that takes no time: the plain pass 2 s, probe 2.1 and 2.3 s, nnsight fails on tiny."""
    model, _, name = words[:3]
    if name == "output-attentions":
        return {"skipped": "it is too large."}
    if name == "nnsight-sites" and model == "tiny":
        return {"failed": "KeyError: 'q_proj'"}
    if words[words.index("--measure") + 1] == "memory":
        return {"peak_mb": PEAKS[name]}
    assert words[words.index("--repeats") + 1] == "2"
    return {"plain": [2.0, 2.0, 2.0], "contender": {PLAIN: [2.0, 2.0], "probe-sites": [2.1, 2.3]}.get(name, [4.0, 8.0])}


@pytest.fixture
def table() -> pd.DataFrame:
    return measure(PLAN, ask=fake)


def row(table: pd.DataFrame, model: str, name: str) -> dict[str, Any]:
    (found,) = table[(table["model"] == model) & (table["contender"] == name)].to_dict("records")
    return found


def test_the_table_has_one_row_for_each_model_length_and_contender(table: pd.DataFrame) -> None:
    assert tuple(table.columns) == COLUMNS
    assert list(zip(table["model"], table["contender"], strict=True)) == [(c.model, n) for c in PLAN for n in NAMES]


def test_ratios_are_summed_up_by_median_and_range(table: pd.DataFrame) -> None:
    found = row(table, "smollm2", "probe-sites")
    assert [found[c] for c in ("ratio_min", "ratio_median", "ratio_max")] == pytest.approx([1.05, 1.1, 1.15])
    assert (found["repeats"], found["plain_seconds"]) == (2, 2.0)
    assert (found["peak_mb"], found["plain_peak_mb"], found["note"]) == (1200.0, 1000.0, "")


def test_what_was_not_measured_has_its_reason_and_no_numbers(table: pd.DataFrame) -> None:
    skipped, failed = row(table, "smollm2", "output-attentions"), row(table, "tiny", "nnsight-sites")
    assert (skipped["note"], failed["note"]) == ("skipped: it is too large.", "failed: KeyError: 'q_proj'")
    for found in (skipped, failed):
        assert found["repeats"] == 0
        assert math.isnan(found["ratio_median"])


def test_a_plain_pass_that_fails_ends_the_study() -> None:
    with pytest.raises(ProbeError, match="a plain pass of tiny at 64 tokens failed: failed: no memory"):
        measure(PLAN, ask=lambda words: {"failed": "no memory"})


def test_every_plan_names_known_contenders_and_quick_is_the_small_one() -> None:
    cases = [case for plan in PLANS.values() for case in plan]
    assert {name for case in cases for name in case.contenders} <= set(CONTENDERS)
    assert all(PLAIN in case.contenders for case in cases)
    assert max(c.n_tokens for c in PLANS["quick"]) == 256
    assert [c.n_tokens for c in PLANS["full"] if c.model == "smollm2"] == [256, 1024, 4096, 8192]


def test_a_worker_that_ends_without_an_answer_says_how() -> None:
    assert "invalid choice: 'plane'" in ask_worker(["tiny", "8", "plane", "--measure", "memory"])["failed"]


def test_the_answer_is_made_from_the_numbers(table: pd.DataFrame) -> None:
    text = answer(table)
    assert text.startswith("On smollm2 at 256 tokens, keeping q, k, v, z and the residual stream of every layer ")
    assert "with probe takes 1.10 (1.05–1.15) times as long as a plain forward pass" in text
    assert "2 pairs) and +200 MB of memory at the peak." in text
    assert "nnsight: q, k, v, z, residual stream, 3.00 (2.00–4.00) and −50 MB" in text
    assert "A plain pass against itself measures 1.00 (1.00–1.00)" in text
    assert answer(table.iloc[:1]) == "probe: q, k, v, z, residual stream was not measured."


def test_the_page_shows_every_row_and_the_reasons(table: pd.DataFrame) -> None:
    lines = markdown(table).splitlines()
    assert len(lines) == 2 + len(table)
    assert len({line.count("|") for line in lines}) == 1
    assert "| tiny | 64 | probe: q, k, v, z, residual stream | 1.10 (1.05–1.15) | 2 | 2 | 1,200 | +200 |" in lines
    assert any("skipped: it is too large." in line for line in lines)


def test_the_page_has_question_answer_figure_table_method_and_machine(table: pd.DataFrame) -> None:
    measured_with = dict.fromkeys(("cost.csv", "tiny-gpt.csv", "scoring.csv"), FACTS)
    text = readme(table, TINY, SCORING, measured_with)
    order = [
        f"# {QUESTION}",
        answer(table),
        "(cost.png)",
        "| model | tokens |",
        "## How",
        "[cost.csv](cost.csv)",
        f"## {TINY_TITLE}",
        tiny_answer(TINY),
        "[tiny-gpt.csv](tiny-gpt.csv)",
        f"## {SCORING_TITLE}",
        "| smollm2 | every head's z",
        "| 0.55 (0.50–0.60) | one forward pass for each head and prompt | 2 | 40 | 22 |",
        "[scoring.csv](scoring.csv)",
        "| measured with |",
        "| torch | 2.13",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_the_folder_holds_tables_figure_and_page(table: pd.DataFrame, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, FACTS, "python -m studies.cost", reading=table, tiny=TINY, scoring=SCORING)
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert files == ["README.md", "cost.csv", "cost.png", "machines.json", "scoring.csv", "tiny-gpt.csv"]
    back = pd.read_csv(tmp_path / "one" / "cost.csv", keep_default_na=True)
    pd.testing.assert_frame_equal(back.fillna({"note": ""}), table, check_dtype=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "one" / "tiny-gpt.csv"), TINY, check_dtype=False)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "one" / "scoring.csv"), SCORING, check_dtype=False)
    png = (tmp_path / "one" / "cost.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert png == (tmp_path / "two" / "cost.png").read_bytes()


def test_a_table_that_is_not_measured_again_stays_on_the_page(table: pd.DataFrame, tmp_path: Path) -> None:
    write(tmp_path / "both", FACTS, "again", reading=table, tiny=TINY, scoring=SCORING)
    write(tmp_path / "steps", FACTS, "again", tiny=TINY)
    assert (tmp_path / "steps" / "README.md").read_text().startswith(f"# {TINY_TITLE}\n")
    write(tmp_path / "steps", FACTS, "again", scoring=SCORING)
    write(tmp_path / "steps", FACTS, "again", reading=table)
    for name in ("README.md", "cost.csv", "tiny-gpt.csv", "scoring.csv"):
        assert (tmp_path / "steps" / name).read_bytes() == (tmp_path / "both" / name).read_bytes()
    write(tmp_path / "both", FACTS, "again", tiny=TINY.iloc[:1])
    text = (tmp_path / "both" / "README.md").read_text()
    assert answer(table) in text
    assert markdown(table) in text
    assert "greedy decoding" not in text


def machines_of(folder: Path) -> list[list[str]]:
    """The cells of the page's last table, without the line below its header."""
    lines = (folder / "README.md").read_text().rpartition("\n\n")[2].splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert {len(row) for row in cells} == {len(cells[0])}
    return [cells[0], *cells[2:]]


def test_each_table_keeps_what_it_was_measured_with(table: pd.DataFrame, tmp_path: Path) -> None:
    """One table measured again elsewhere says nothing of the others."""
    tables = {"reading": table, "where": WHERE, "scoring": SCORING}
    write(tmp_path, FACTS | {"nnsight": "0.8.1"}, "full", tiny=TINY, **tables)
    assert machines_of(tmp_path) == [
        ["measured with", ""],
        ["processors", "2 (x86_64)"],
        ["torch", "2.13.0"],
        ["nnsight", "0.8.1"],
        ["command", "full"],
    ]
    write(tmp_path, {"torch": "2.13.0", "processors": "8 (arm64)", "a|b": "NA\n007"}, "quick", tiny=TINY)
    one = ["2 (x86_64)", "2 (x86_64)", "8 (arm64)", "2 (x86_64)"]
    assert machines_of(tmp_path) == [
        ["measured with", "cost.csv", "where.csv", "tiny-gpt.csv", "scoring.csv"],
        ["processors", *one],
        ["torch", *["2.13.0"] * 4],
        ["nnsight", "0.8.1", "0.8.1", "not recorded", "0.8.1"],
        ["command", "full", "full", "quick", "full"],
        [r"a\|b", "not recorded", "not recorded", "NA 007", "not recorded"],
    ]
    for name, again in tables.items():
        write(tmp_path, FACTS, "half", **{name: again})
    assert ["command", "half", "half", "quick", "half"] in machines_of(tmp_path)
    write(tmp_path, FACTS, "half", tiny=TINY)
    assert machines_of(tmp_path)[0] == ["measured with", ""]


def test_a_table_measured_before_facts_were_kept_says_so(table: pd.DataFrame, tmp_path: Path) -> None:
    write(tmp_path, FACTS, "again", reading=table)
    (tmp_path / "machines.json").unlink()
    write(tmp_path, FACTS, "again", tiny=TINY)
    assert ["processors", "not recorded", "2 (x86_64)"] in machines_of(tmp_path)


def test_a_table_that_is_away_keeps_its_facts(table: pd.DataFrame, tmp_path: Path) -> None:
    write(tmp_path, FACTS, "before", reading=table)
    (tmp_path / "cost.csv").rename(tmp_path / "away.csv")
    write(tmp_path, FACTS, "after", tiny=TINY)
    (tmp_path / "away.csv").rename(tmp_path / "cost.csv")
    write(tmp_path, FACTS, "after", tiny=TINY)
    assert ["command", "before", "after"] in machines_of(tmp_path)


def test_a_table_without_its_facts_is_better_than_one_with_anothers(
    table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption between the two leaves no table beside the facts of the one before it."""
    write(tmp_path, FACTS, "before", reading=table, tiny=TINY)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_csv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, FACTS, "after", tiny=TINY)
    write(tmp_path, FACTS, "before", reading=table)
    assert ["command", "before", "not recorded"] in machines_of(tmp_path)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", r"machines\.json cannot be read: .* It must be JSON"),
        (b"\xff\xfe", r"machines\.json cannot be read"),
        (b'{"tiny-gpt.csv": {', r"machines\.json cannot be read"),
        (b"[]", r"machines\.json does not say"),
        (b'{"tiny-gpt.csv": "AVX2"}', r"machines\.json does not say"),
        (b'{"tiny-gpt.csv": {"threads": 2}}', r"gives 2 for 'threads' of tiny-gpt\.csv; a fact must be a text"),
    ],
)
def test_facts_that_cannot_be_read_are_refused_and_nothing_is_lost(said: bytes, why: str, tmp_path: Path) -> None:
    write(tmp_path, FACTS, "before", tiny=TINY)
    (tmp_path / "machines.json").write_bytes(said)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(ResultsError, match=why):
        write(tmp_path, FACTS, "after", tiny=TINY.iloc[:1], scoring=SCORING)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_notes_that_are_all_empty_stay_empty(table: pd.DataFrame, tmp_path: Path) -> None:
    measured = table[table["note"] == ""]
    write(tmp_path, FACTS, "again", reading=measured)
    write(tmp_path, FACTS, "again", tiny=TINY)
    assert markdown(measured) in (tmp_path / "README.md").read_text()


def test_a_foreign_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cost.csv").write_text("price,euro\n1,2\n")
    with pytest.raises(ResultsError, match=r"cost\.csv is no table of this study: its columns are price, euro\."):
        write(tmp_path, FACTS, "again", tiny=TINY)


def test_a_folder_that_cannot_be_written_is_named(table: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=r"the results cannot be written to .*file"):
        write(tmp_path / "file", FACTS, "python -m studies.cost", reading=table)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'model,"n_tok'])
def test_what_is_no_table_at_all_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "cost.csv").write_bytes(content)
    with pytest.raises(ResultsError, match=r"cost\.csv is no table of this study: "):
        write(tmp_path, FACTS, "again", tiny=TINY)
    assert [p.name for p in tmp_path.iterdir()] == ["cost.csv"]


@pytest.mark.parametrize(
    ("only", "measured"),
    [([], ["tiny", "scoring", "where", "reading"])] + [([name.replace("tiny", "tiny-gpt")], [name]) for name in TABLES],
)
def test_the_command_measures_all_tables_or_only_one(
    only: list[str], measured: list[str], table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(harness, "PLANS", {"quick": (PLAN[0],)})
    monkeypatch.setattr(harness, "measure", lambda plan, **_: ran.append("reading") or table)
    monkeypatch.setattr(harness, "measure_tiny", lambda repeats, **_: ran.append("tiny") or TINY)
    monkeypatch.setattr(harness, "measure_scoring", lambda repeats, **_: ran.append("scoring") or SCORING)
    monkeypatch.setattr(harness, "measure_where", lambda n_tokens, **_: ran.append("where") or WHERE)
    main(["--out", str(tmp_path), *(["--only", *only] if only else [])])
    assert ran == measured
    text = (tmp_path / "README.md").read_text()
    assert [title in text for title in TABLES.values()] == [name in measured for name in TABLES]
    assert "| command | python -m studies.cost --profile quick --threads 2 --seed 0 |" in text


def test_the_machine_is_described_without_naming_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "SVE")
    facts = machine(threads=2, seed=5)
    assert facts["vector instructions"] == "SVE"
    assert facts["threads"] == "2"
    assert facts["token ids"] == "uniform over the vocabulary, seed 5"
    assert {"processors", "vector instructions", "memory", "Python", "torch", "transformers"} <= set(facts)
    assert not any(harness.platform.node() in value or "/" in value for value in facts.values())


def test_the_study_is_no_cell_of_the_runner() -> None:
    assert "cost" not in all_studies()


def test_importing_the_study_loads_nothing_heavy() -> None:
    code = "import probe.studies.cost, sys; print({'torch', 'pandas', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
