"""The linked view in the page: what is drawn and printed is what the tables hold, and prompts keep to their room."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from probe.report import write_report
from probe.report.behind import ROOM, behind, fitting, tally
from probe.report.findings_folder import read_findings
from probe.report.html import asset, script_hash
from probe.report.linked import SIDE, View, view
from probe.report.panels import COLOURS
from probe.runner.findings import Findings, Linked, Listing, Plot, Section, Table
from tests.report.linked_examples import HEADS, HOSTILE, PLACES, ROLES, WORDS, asked, found, mass, right
from tests.report.test_findings_page import Page, page

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def findings() -> Findings:
    return found()


@pytest.fixture(scope="module")
def shown(findings: Findings) -> View:
    return view(findings.views[0], findings.tables)


@pytest.fixture(scope="module")
def folder(make_findings: Make, findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_findings(tmp_path_factory.mktemp("linked") / "run", findings)
    write_report(made)
    return made


# what is read again


def test_a_view_survives_writing_and_reading(
    folder: Path, findings: Findings, make_findings: Make, tmp_path: Path
) -> None:
    read = read_findings(folder).findings
    assert read.views == findings.views
    again = make_findings(tmp_path / "again", replace(read, data=findings.data))
    write_report(again)
    for name in ("findings.json", "report.html", "table-words.parquet", "figures/right.png", "figures/looks.png"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_page_without_a_view_has_no_script_and_one_with_it_allows_exactly_its_own(folder: Path, found: Path) -> None:
    policies = []
    for at in (folder, found):
        tags = page(at).tags
        policies.append(next(a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy"))
        assert [tag for tag, _ in tags].count("script") == (at == folder)
    allowed = f"script-src '{script_hash(asset('linked.js'))}'; "
    assert policies[0].replace(allowed, "") == policies[1] != policies[0]
    assert asset("linked.js") in (folder / "report.html").read_text(encoding="utf-8")
    assert ".stack" not in (found / "report.html").read_text(encoding="utf-8")


# what is drawn


def test_the_numbers_of_every_line_are_those_of_its_table(shown: View) -> None:
    for panel, frame, digits in zip(shown.panels, (right(), mass()), (3, 4), strict=True):
        column = panel.lines[0].by
        assert [line.name for line in panel.lines] == list(dict.fromkeys(frame[column]))
        for line in panel.lines:
            mine = frame[frame[column] == line.name].set_index("index")
            for x, (value, interval) in zip(PLACES, line.cells, strict=True):
                if x not in mine.index:
                    assert (value, interval) == ("–", "")
                    continue
                assert value == f"{mine.loc[x, 'value']:.{digits}f}"
                low, high = mine.loc[x, "low"], mine.loc[x, "high"]
                assert interval == ("" if np.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]")


def test_lines_stand_where_their_values_are(shown: View) -> None:
    """Heights are a straight line of the values, downward; places of the x; the same in both panels."""
    at = [place.at for place in shown.places]
    assert np.allclose(np.diff(at) / np.diff(PLACES), np.diff(at)[0] / np.diff(PLACES)[0], atol=0.1)
    assert 0 < at[0] < at[-1] < SIDE
    for panel, frame in zip(shown.panels, (right(), mass()), strict=True):
        heights, values = [], []
        for line in panel.lines:
            mine = frame[frame[line.by] == line.name].set_index("index")["value"]
            own = [(x, h) for x, h in zip(PLACES, line.heights.split(","), strict=True) if h]
            assert [x for x, _ in own] == list(mine.index)
            points = re.findall(r"[ML]([\d.]+) ([\d.]+)", line.stroke)
            assert [float(y) for _, y in points] == [float(h) for _, h in own]
            assert [float(x) for x, _ in points] == [at[PLACES.index(x)] for x in mine.index]
            heights += [float(h) for _, h in own]
            values += list(mine)
        slope, offset = np.polyfit(values, heights, 1)
        assert slope < 0
        assert np.allclose(slope * np.array(values) + offset, heights, atol=0.2)
        ticks = [(100 - (slope * float(text) + offset) / 10, up) for up, text in panel.ticks]
        assert np.allclose(*zip(*ticks, strict=True), atol=0.1)
        for up, text in panel.marks:
            assert (up, text) == (pytest.approx(100 - (slope * 0.2 + offset) / 10, abs=0.1), "chance")


def test_an_interval_is_a_band_around_its_line_and_is_left_out_where_there_is_none(shown: View) -> None:
    line = shown.panels[1].lines[-1]
    bands = [re.findall(r"[ML]([\d.]+) ([\d.]+)", band) for band in line.band.split("Z")[:-1]]
    assert [len(band) for band in bands] == [4, 2], "nothing at the third of four places"
    heights = dict(zip([f"{p.at:g}" for p in shown.places], map(float, line.heights.split(",")), strict=True))
    for band in bands:
        top, bottom = band[: len(band) // 2], band[len(band) // 2 :][::-1]
        for (x, high), (same, low) in zip(top, bottom, strict=True):
            assert x == same
            assert float(high) < heights[x] < float(low)


def test_without_intervals_there_is_no_band() -> None:
    over = {"table": "mass", "kind": "lines", "x": "index", "y": "value", "caption": "", "by": "head"}
    parts = (Table("mass", mass(), ""), Linked("v", (Plot("p", **over), Plot("q", **over)), ""))
    made = Findings("So.", (Section("One", (), parts),))
    for line in view(made.views[0], made.tables).panels[0].lines:
        assert line.band == "", "an empty path is no error in a browser, half of one is"
        assert {interval for _, interval in line.cells} == {""}


def test_missing_values_leave_gaps() -> None:
    frame = mass().assign(value=lambda t: np.where((t["head"] == "9.0") & (t["index"] == 3), np.nan, t["value"]))
    over = {"table": "mass", "kind": "lines", "x": "index", "y": "value", "caption": "", "by": "head"}
    parts = (Table("mass", frame, ""), Linked("v", (Plot("p", **over), Plot("q", **over)), ""))
    made = Findings("So.", (Section("One", (), parts),))
    line = view(made.views[0], made.tables).panels[0].lines[-1]
    assert [line.stroke.count(step) for step in "ML"] == [2, 1]
    assert line.heights.split(",")[1] == ""
    assert line.cells[1] == ("–", "")


def test_every_line_has_a_colour_of_its_own_and_the_same_in_every_panel(shown: View) -> None:
    assert [[line.colour for line in panel.lines] for panel in shown.panels] == [[0, 1], [2, 3, 4]]
    over = {"kind": "lines", "x": "index", "y": "value", "caption": "", "by": "head"}
    turned = mass().iloc[::-1].reset_index(drop=True)
    parts = (
        Table("a", mass(), ""), Table("b", turned, ""),
        Linked("v", (Plot("p", "a", **over), Plot("q", "b", **over)), ""),
    )  # fmt: skip
    made = Findings("So.", (Section("One", (), parts),))
    first, second = view(made.views[0], made.tables).panels
    assert {line.name: line.colour for line in first.lines} == {line.name: line.colour for line in second.lines}
    assert [line.name for line in first.lines] != [line.name for line in second.lines]


def test_lines_have_the_colours_of_the_image_files() -> None:
    assert re.findall(r"--c(\d): (#\w+);", asset("linked.css").split("@media")[0]) == [
        (str(number), colour) for number, colour in enumerate(COLOURS)
    ]


# the prompts behind


def test_prompts_are_counted_where_they_were_asked(shown: View) -> None:
    table = asked()
    assert shown.behind is not None
    for x, place in zip(PLACES, shown.behind.places, strict=True):
        mine = table[table["index"] == x]
        assert place.tally == f"{int(mine['correct'].sum())} of {len(mine)} right"
        assert len(place.prompts) == 3
        assert place.left_out == "1 more prompt asked here is in table-asked.parquet."
        for html, row in zip(place.prompts, mine.to_dict("records"), strict=False):
            parsed = Page(str(html))
            assert row["prompt"] in parsed.found["p"][-1]
            said = "✓ right" if row["correct"] else "✕ wrong"
            assert parsed.found["p"][0] == f"{said} · likeliest: {row['likeliest']} · p: {row['p']:.2f}"


def test_ties_are_neither_right_nor_wrong() -> None:
    assert tally(pd.Series([1.0, 0.5, 0.0, 1.0])) == "2 of 4 right, 1 tied"
    assert tally(pd.Series([True, False])) == "1 of 2 right"


def test_tokens_carry_their_roles_and_every_lines_attention(shown: View, findings: Findings) -> None:
    words = findings.tables["words"].frame
    assert shown.behind is not None
    assert shown.behind.lines == (HEADS[0], HEADS[2])
    assert json.loads(shown.behind.names) == [HEADS[0], HEADS[2]]
    assert (shown.behind.by, shown.behind.kinds) == ("head", ("query", "target", "foil"))
    name = "list-1-07"
    mine = words[words["prompt"] == name]
    (html,) = [p for place in shown.behind.places for p in place.prompts if name in p]
    codes = np.frombuffer(base64.b64decode(re.search(r'data-codes="([^"]+)"', html)[1]), np.uint8)
    decoded = (codes.reshape(2, len(WORDS)) / 255) ** 2
    np.testing.assert_allclose(decoded, mine[[HEADS[0], HEADS[2]]].to_numpy().T, atol=0.004)
    colours = [float(a) for a in re.findall(r"--a:([\d.]+)", html)]
    np.testing.assert_allclose(colours, np.sqrt(mine[HEADS[0]]), atol=0.003)
    target = mine[HEADS[0]][mine["role"] == "target"].sum()
    assert float(re.search(r'data-sum="target">≈ ([\d.]+)', html)[1]) == pytest.approx(target, abs=0.01)
    foils = mine[HEADS[0]][mine["role"] == "foil 1"].sum()
    assert float(re.search(r'data-sum="foil">≈ ([\d.]+)', html)[1]) == pytest.approx(foils, abs=0.013)
    assert re.findall(r'class="mark">([^<]*)<', html) == ["target", "foil", "query"]


AT = [(x, f"index {x}", "") for x in PLACES]


def test_at_most_four_prompts_of_a_place_are_shown() -> None:
    made = found(per_place=9)
    seen = behind(made.views[0], made.tables, AT)
    assert seen is not None
    assert [len(place.prompts) for place in seen.places] == [4] * 4
    assert {place.left_out for place in seen.places} == {"6 more prompts asked here are in table-asked.parquet."}


def test_prompts_keep_to_their_room_and_no_place_goes_without_before_another_has_two(
    make_findings: Make, tmp_path: Path
) -> None:
    long = found(per_place=4, words=WORDS * 25, roles=ROLES * 25)
    seen = behind(long.views[0], long.tables, AT)
    assert seen is not None
    counts = [len(place.prompts) for place in seen.places]
    assert ROOM / 2 < seen.size <= ROOM
    assert 0 < sum(counts) < 16
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)
    html = write_report(make_findings(tmp_path / "run", long)).read_text(encoding="utf-8")
    part = html.split('<figure class="linked"')[1].split("</figure>")[0]
    assert len(part.encode()) <= 300_000
    for count in counts:
        assert f"{5 - count} more prompts asked here are in table-asked.parquet." in part


def test_what_does_not_fit_is_left_out_of_every_list_in_turn() -> None:
    texts = [[Markup("a" * 4), Markup("b" * 4)], [Markup("é" * 2)], [Markup("c" * 4)]]
    assert [len(kept) for kept in fitting(texts, 16)] == [2, 1, 1]
    assert [len(kept) for kept in fitting(texts, 15)] == [1, 1, 1]
    assert [len(kept) for kept in fitting(texts, 11)] == [1, 1, 0]
    assert fitting([], 5) == []


def test_a_view_without_prompts_and_prompts_without_attention_are_shown(make_findings: Make, tmp_path: Path) -> None:
    made = found()
    words = made.tables["words"]
    plain = replace(words, frame=words.frame.drop(columns=list(HEADS), errors="ignore"))
    section = made.sections[0]
    for number, parts in enumerate(
        (
            tuple(plain if part is words or getattr(part, "name", "") == "words" else part for part in section.parts),
            tuple(replace(part, prompts=None) if isinstance(part, Linked) else part for part in section.parts),
        )
    ):
        folder = make_findings(tmp_path / str(number), replace(made, sections=(replace(section, parts=parts),)))
        html = write_report(folder).read_text(encoding="utf-8")
        assert ("share of attention" in html, "✓</span> right" in html) == (False, number == 0)
        assert "one byte each" not in html


def test_hostile_text_is_text_in_a_view(make_findings: Make, tmp_path: Path) -> None:
    text = "</script><img src=x onerror=alert(1)> {{x}} &lt; \"'>"
    made = found(words=HOSTILE, roles=ROLES)
    (section,) = made.sections
    (old,) = made.views
    tables = made.tables
    named = {HEADS[0]: text}
    frame = tables["mass"].frame.replace({"head": named})
    words = tables["words"].frame.rename(columns=named)
    facts = tables["asked"].frame.assign(likeliest=text)
    parts = (
        tables["accuracy"], replace(tables["mass"], frame=frame), replace(tables["asked"], frame=facts),
        replace(tables["words"], frame=words), Listing("x", "y"),
        replace(
            old, caption=text, prompts=replace(old.prompts, caption=text),
            panels=tuple(replace(p, caption=text, y_label=text, x_label=text, marks={text: 0.3}) for p in old.panels),
        ),
    )  # fmt: skip
    folder = make_findings(tmp_path / "run", replace(made, sections=(replace(section, parts=parts),)))
    html = write_report(folder).read_text(encoding="utf-8")
    parsed = Page(html)
    tags = [tag for tag, _ in parsed.tags]
    assert (tags.count("img"), tags.count("script")) == (0, 1)
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)
    figure = next(a for tag, a in parsed.tags if tag == "figure" and a.get("class") == "linked")
    assert json.loads(figure["data-lines"])[0] == text
    assert text in [a.get("data-line") for _, a in parsed.tags]
    assert not set(html) & {"\x00", "\u202e"}
