"""The page of findings is a pure function of a verified folder, and whatever the folder holds is shown as text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.errors import ResultsError
from probe.report import write_index, write_report
from probe.report.findings_folder import read_findings
from probe.report.numbers import number, power, whole
from probe.report.words import alt, cell
from probe.runner.findings import Findings, Listing, Plot, Section, Table

Make = Callable[..., Path]
HOSTILE = "</script><img src=x onerror=alert(1)> {{x}} &lt; \"'> \x00 \u202e"


class Page(HTMLParser):
    """A page's text outside style, its tags, and the text of each element of a few kinds, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.found: dict[str, list[str]] = {
            name: [] for name in ("h1", "h2", "h3", "p", "th", "td", "pre", "figcaption")
        }
        self._inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self._inside.append(tag)
        if tag in self.found:
            self.found[tag].append("")

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" in self._inside:
            return
        self.text += data
        for tag in self.found:
            if tag in self._inside:
                self.found[tag][-1] += data


def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def only(*parts: Table | Plot | Listing, **more: Any) -> Findings:
    return Findings("It is so.", (Section("One", ("Text.",), parts),), **more)


def table(**columns: Any) -> Table:
    return Table("numbers", pd.DataFrame(columns), "Numbers.")


# what it shows


def test_two_builds_are_byte_identical(found: Path, make_findings: Make, findings: Findings, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in [found / "report.html", *(found / "figures").iterdir()]}
    assert set(before) == {"report.html", "loss_by_step.png", "share_bars.png", "share_points.png", "pattern.png"}
    write_report(found)
    other = make_findings(tmp_path / "elsewhere" / "run", findings)
    write_report(other)
    for folder in (found, other):
        for name, content in before.items():
            path = folder / name if name == "report.html" else folder / "figures" / name
            assert path.read_bytes() == content, name


def test_the_question_is_the_title_and_the_answer_follows(found: Path) -> None:
    parsed = page(found)
    assert parsed.found["h1"] == ["How many layers does it take?"]
    assert parsed.found["p"][:2] == [
        "depth · quick profile",
        "Two layers do: their loss falls to 0.71 nats, one layer's to 2.42.",
    ]


def test_sections_stand_in_their_order_before_method_notes_command_and_manifest(found: Path) -> None:
    assert page(found).found["h2"] == [
        "How it falls", "How large", "What each part writes", "Where it looks",
        "Methods", "Notes", "Run this again", "Manifest",
    ]  # fmt: skip


def test_the_parts_of_a_section_stand_in_their_order(found: Path) -> None:
    assert page(found).found["figcaption"] == [
        "Loss falls with training; n = 512 prompts.",
        "Sizes of the models, in numbers.",
        "Share of the answer.", "Shares by task.", "The same, in panels.",
        "A causal pattern.", "Distances squared.", "The program.",
    ]  # fmt: skip


def test_paragraphs_method_notes_and_command_are_in_the_page(found: Path) -> None:
    parsed = page(found)
    paragraphs = parsed.found["p"]
    assert paragraphs[2:4] == ["The loss falls.", "It falls faster with two layers."]
    assert "Prompts are drawn once." in paragraphs
    assert "One seed says little." in parsed.text
    assert parsed.found["pre"][-1] == "probe run depth"


def test_numbers_are_printed_as_a_reader_wants_them(found: Path) -> None:
    parsed = page(found)
    at = parsed.found["th"].index("parameters")
    assert parsed.found["th"][at - 1 : at + 7] == [
        "model", "parameters", "causal", "bytes a token", "change", "tiny", "smollm2", "minilm",
    ]  # fmt: skip
    assert parsed.found["td"][:12] == [
        "812,288", "yes", "4,096.500", "−0.125",
        "134,515,008", "yes", "46,080.000", "1.2 × 10⁻⁷",
        "22,713,216", "no", "–", "3.5 × 10⁹",
    ]  # fmt: skip


def test_a_tables_digits_are_its_own(found: Path) -> None:
    cells = page(found).found["td"]
    at = cells.index("attention")
    assert cells[at : at + 4] == ["attention", "0.42", "0.40", "0.47"]
    assert "−0.13" in cells


def test_numbers_are_aligned_and_words_are_not(found: Path) -> None:
    cells = [(attributes.get("class"), tag) for tag, attributes in page(found).tags if tag in ("td", "th")]
    assert cells[:5] == [("text", "th"), ("number", "th"), ("text", "th"), ("number", "th"), ("number", "th")]


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0, 3, "0"),
        (-1234567, 3, "−1,234,567"),
        (np.int64(4096), 3, "4,096"),
        (True, 3, "yes"),
        (np.bool_(False), 3, "no"),
        (0.0, 3, "0.000"),
        (-0.0, 3, "0.000"),
        (0.12345, 3, "0.123"),
        (np.float32(0.5), 2, "0.50"),
        (-12345.678, 1, "−12,345.7"),
        (0.0123, 1, "0.012"),
        (0.25, 0, "0.25"),
        (1.2e-7, 3, "1.2 × 10⁻⁷"),
        (-9.96e-5, 3, "−1.0 × 10⁻⁴"),
        (2.5e9, 3, "2.5 × 10⁹"),
        (float("nan"), 3, "–"),
        (None, 3, "–"),
        (pd.NA, 3, "–"),
        (pd.NaT, 3, "–"),
        (float("inf"), 3, "∞"),
        (float("-inf"), 3, "−∞"),
        (" the", 3, " the"),
        ("\n", 3, "↵\n"),
        ("a\x00b", 3, "a␀b"),
    ],
)
def test_a_cell_says_its_value(value: object, digits: int, text: str) -> None:
    assert cell(value, digits) == text


def test_every_size_of_number_reads_back_as_what_it_was() -> None:
    """Powers of ten have two digits; all others are as near as three decimals are."""
    for exponent in range(-12, 13):
        for mantissa in (1.0, 1.49, 9.94, 9.96):
            value = mantissa * 10.0**exponent
            text = number(value).replace(",", "")
            power_of_ten = "×" in text
            if power_of_ten:
                digits, raised = text.split(" × 10")
                text = f"{digits}e{raised.translate(str.maketrans('⁻⁰¹²³⁴⁵⁶⁷⁸⁹', '-0123456789'))}"
            assert float(text) == pytest.approx(value, rel=0.05 if power_of_ten else 0, abs=0 if power_of_ten else 5e-4)
    assert whole(-1000) == "−1,000"
    assert power(-3e-5, 0) == "−3 × 10⁻⁵"


def test_a_table_that_is_only_kept_is_named_with_its_file_and_rows(found: Path) -> None:
    text = " ".join(page(found).text.split())
    assert "Tables whose numbers are in their files alone: table-curves.parquet (18 rows): Loss by step" in text
    assert "table-cells.parquet (15 rows)" in text
    assert "3.690" not in text, "the second loss is drawn, not printed"


def test_every_file_is_in_the_page_with_its_hash(found: Path) -> None:
    text = page(found).text
    names = ["findings.json", *(f"table-{name}.parquet" for name in ("curves", "sizes", "shares", "cells", "long"))]
    for name in names:
        assert name in text
        assert hashlib.sha256((found / name).read_bytes()).hexdigest() in text


def test_a_long_table_is_folded_away_and_a_short_one_is_not(found: Path) -> None:
    html = (found / "report.html").read_text(encoding="utf-8")
    assert html.count("<details>") == 1
    assert "<summary>All 60 rows</summary>" in html
    assert "3,481" in html, "59 squared"


def test_a_listing_keeps_its_lines_and_its_spaces(found: Path) -> None:
    assert page(found).found["pre"][0] == "for i in range(3):\n    print(i < 2)\n"


def test_a_figure_says_in_words_what_it_draws(findings: Findings) -> None:
    by_name = {plot.name: plot for plot in findings.plots}
    words = {name: alt(plot, findings.tables[plot.table].frame) for name, plot in by_name.items()}
    assert words["loss_by_step"] == (
        "Line chart: loss, nats over step; for each model: one layer, two layers, two layers, no MLP; "
        "marked: chance 4.160. The numbers are in table-curves.parquet."
    )
    assert words["pattern"] == "Heat map: weight over key and query. The numbers are in table-cells.parquet."
    assert "in a panel for each task: agreement, brackets" in words["share_points"]


def test_a_table_without_rows_says_so(make_findings: Make, tmp_path: Path) -> None:
    folder = make_findings(tmp_path / "run", only(table(a=[], b=[])))
    assert "No rows." in write_report(folder).read_text(encoding="utf-8")


def test_the_model_and_the_seed_are_named_where_there_are_some(make_findings: Make, tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        hashes = {f"{name}_sha256": "ab" * 32 for name in ("weights", "config", "tokenizer")}
        sizes = {"n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "d_model": 8, "n_parameters": 9}
        names = {"name": "tiny", "family": "gpt", "dtype": "float32", "attention": "sdpa"}
        record["model"] = {**names, **hashes, **sizes}
        record["seed"] = 3

    folder = make_findings(tmp_path / "run", only(table(a=[1])), change)
    write_report(folder)
    parsed = page(folder)
    assert parsed.found["p"][0] == "depth · tiny · quick profile · seed 3"
    assert "How many layers does it take? – tiny" in parsed.text


# what it must not do


def test_the_page_allows_no_script_and_nothing_from_outside(found: Path) -> None:
    tags = page(found).tags
    policy = next(a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    assert "script" not in [tag for tag, _ in tags]
    for _, attributes in tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png"))


def hostile() -> Findings:
    frame = pd.DataFrame({HOSTILE.replace("\x00", ""): [HOSTILE, "b"], "n": [1.0, 2.0]})
    column = str(frame.columns[0])
    return Findings(
        HOSTILE,
        (
            Section(
                HOSTILE,
                (HOSTILE,),
                (
                    Table("t", frame, HOSTILE),
                    Plot("p", "t", "bars", column, "n", HOSTILE, y_label=HOSTILE, marks={HOSTILE: 1.5}),
                    Plot("q", "t", "lines", "n", "n", HOSTILE, by=column, x_label=HOSTILE),
                    Listing(HOSTILE, HOSTILE),
                ),
            ),
        ),
        method=(HOSTILE,),
        notes=(HOSTILE,),
    )


def test_hostile_text_is_text_everywhere(make_findings: Make, tmp_path: Path) -> None:
    def change(record: dict[str, Any]) -> None:
        record["question"] = HOSTILE

    folder = make_findings(tmp_path / "run", hostile(), change)
    html = write_report(folder).read_text(encoding="utf-8")
    parsed = Page(html)
    shown = HOSTILE.replace("\x00", "␀").replace("\u202e", "⟨U+202E⟩")
    assert parsed.found["h1"] == [shown]
    assert parsed.found["h2"][0] == shown
    assert parsed.found["figcaption"] == [shown] * 4
    assert parsed.found["pre"][0] == shown
    assert parsed.found["th"][2] == shown
    # question, answer, paragraph and method; title, h1, h2, header, cell, four captions, listing, note
    assert parsed.text.count(shown) >= 12
    assert [tag for tag, _ in parsed.tags].count("img") == 2
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert tag != "script"
    assert not set(html) & {"\x00", "\u202e"}


def test_a_report_that_is_too_large_names_its_largest_part(make_findings: Make, tmp_path: Path) -> None:
    folder = make_findings(tmp_path / "run", only(Listing("x" * 4_100_000, "Long.")))
    with pytest.raises(ResultsError, match=r"would be 4\.1\d MB.* The largest part is the listings \(4\.10 MB\)"):
        write_report(folder)
    assert not (folder / "report.html").exists()


# folders that are not what a run wrote


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and its hash: malformed, but not tampered with."""
    (folder / name).write_bytes(content)
    record = json.loads((folder / "manifest.json").read_bytes())
    record["outputs"][name] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(record))


@pytest.fixture
def folder(make_findings: Make, findings: Findings, tmp_path: Path) -> Path:
    return make_findings(tmp_path / "run", findings)


def test_what_was_written_is_read_again(folder: Path, findings: Findings) -> None:
    read = read_findings(folder).findings
    assert replace(read, sections=()) == replace(findings, sections=())
    for mine, theirs in zip(read.sections, findings.sections, strict=True):
        assert (mine.title, mine.text) == (theirs.title, theirs.text)
        for one, two in zip(mine.parts, theirs.parts, strict=True):
            if isinstance(two, Table):
                pd.testing.assert_frame_equal(one.frame, two.frame)
                one, two = replace(one, frame=None), replace(two, frame=None)
            assert one == two


@pytest.mark.parametrize("name", ["findings.json", "table-sizes.parquet"])
def test_a_changed_or_missing_file_is_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content + b" ")
    with pytest.raises(ResultsError, match=rf"{re.escape(name)} is not the file the run wrote: its SHA-256"):
        write_report(folder)
    (folder / name).unlink()
    with pytest.raises(ResultsError, match=rf"{re.escape(name)} is missing"):
        write_report(folder)
    assert not (folder / "report.html").exists()


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], bytes]:
    def edited(found: dict[str, Any]) -> bytes:
        change(found)
        return json.dumps(found).encode()

    return edited


PLOT = ("sections", 0, "parts", 1)


def put(found: dict[str, Any], *path: Any) -> None:
    *way, last, value = path
    for step in way:
        found = found[step]
    found[last] = value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: b"{", "the file: Invalid JSON"),
        (lambda _: b"[1]", "the file: Input should be an object"),
        (edit(lambda f: f.pop("answer")), "answer: Field required"),
        (edit(lambda f: put(f, "colour", "red")), "colour: Extra inputs are not permitted"),
        (edit(lambda f: put(f, "notes", "one text")), "notes: Input should be a valid array"),
        (edit(lambda f: f["sections"][1].pop("title")), "sections.1.title: Field required"),
        (edit(lambda f: put(f, *PLOT, "kind", "pie")), "sections.0.parts.1.plot.kind: Input should be 'lines'"),
        (edit(lambda f: put(f, *PLOT, "part", "song")), "sections.0.parts.1: Input tag 'song'"),
        (edit(lambda f: put(f, *PLOT, "y", "losss")), "no column of the table 'curves' named 'losss'. Did you mean"),
        (edit(lambda f: put(f, *PLOT, "table", "curvess")), "no table of the figure 'loss_by_step' named 'curvess'."),
        (edit(lambda f: put(f, *PLOT, "name", "../x")), "'../x' cannot name a table or figure"),
        (edit(lambda f: put(f, *PLOT, "name", "sizes")), "'sizes' names more than one table or figure"),
    ],
)
def test_malformed_findings_are_named_with_their_field(
    folder: Path, change: Callable[[dict[str, Any]], bytes], said: str
) -> None:
    path = folder / "findings.json"
    rewrite(folder, "findings.json", change(json.loads(path.read_bytes())))
    with pytest.raises(ResultsError) as error:
        write_report(folder)
    assert str(error.value).startswith(f"{path} is malformed: {said}")


def test_a_table_that_is_no_parquet_file_is_named(folder: Path) -> None:
    rewrite(folder, "table-sizes.parquet", b"not a table")
    with pytest.raises(ResultsError, match=r"table-sizes\.parquet is not a Parquet table"):
        write_report(folder)


def test_a_table_that_the_manifest_does_not_list_is_named(folder: Path) -> None:
    record = json.loads((folder / "manifest.json").read_bytes())
    del record["outputs"]["table-sizes.parquet"]
    (folder / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(ResultsError, match=r"manifest\.json does not list table-sizes\.parquet, the file of the table"):
        write_report(folder)


def test_more_lines_than_can_be_told_apart_are_refused_by_the_figures_name(folder: Path) -> None:
    frame = pd.DataFrame({"model": list("abcdefghi"), "step": 1, "loss": 1.0, "low": 1.0, "high": 1.0})
    rewrite(folder, "table-curves.parquet", frame.to_parquet())
    with pytest.raises(ResultsError, match=r"figure 'loss_by_step' has 9 values of 'model'; at most 8 can be told"):
        write_report(folder)


# the list of reports


def test_the_index_lists_both_kinds_of_run(
    make_findings: Make, make_folder: Make, findings: Findings, tmp_path: Path
) -> None:
    write_report(make_findings(tmp_path / "depth" / "run", findings))
    write_report(make_folder(tmp_path / "coreference" / "smollm2", 4, 4, 1))
    html = write_index(tmp_path).read_text(encoding="utf-8")
    parsed = Page(html)
    assert parsed.text.count("2 runs.") == 1
    assert parsed.found["h3"] == ["Which heads look from a pronoun to its antecedent?", "How many layers does it take?"]
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert [image["src"] for image in images] == [
        "coreference/smollm2/figures/score_map.png",
        "depth/run/figures/loss_by_step.png",
    ]
    assert images[1]["alt"].startswith("Line chart: loss, nats over step;")
    assert "the report 2026-01-02" in parsed.text
    assert "3 tables, 4 figures." in parsed.text
    assert "Two layers do: their loss falls" in parsed.text
    before, after = html.split("<main", 1)
    assert "heads look" not in before, "what stands above all runs is true of each"
    assert "causal leg not measured" in after


def test_the_index_shows_findings_without_a_figure(make_findings: Make, tmp_path: Path) -> None:
    make_findings(tmp_path / "depth" / "run", only(table(a=[1])))
    html = write_index(tmp_path).read_text(encoding="utf-8")
    assert "<img" not in html
    assert "1 table, 0 figures. The report of this run has not been written yet." in html
