"""The linked view in a real browser: pointer, keys, links, back and forward, narrow, printed, and without script."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.report import write_report
from probe.runner.findings import Findings
from tests.report.browsing import Visit, in_chromium, until
from tests.report.linked_examples import HEADS, HOSTILE, PLACES, ROLES, WORDS, asked, found, mass, right

Make = Callable[..., Path]
pytestmark = in_chromium

HASH = "location.hash"
VALUE = ".values tbody tr[data-line='{}'] td:not(.off)"


@pytest.fixture(scope="module")
def findings() -> Findings:
    return found()


@pytest.fixture(scope="module")
def report(make_findings: Make, findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_findings(tmp_path_factory.mktemp("linked") / "run", findings))


def point(page: Any, panel: int, number: int) -> tuple[float, float]:
    """Where the x of a number stands in a panel, by the page's own axis labels."""
    area = page.locator(".area").nth(panel)
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    label = page.locator(".axis span").nth(number).bounding_box()
    return label["x"] + label["width"] / 2, box["y"] + box["height"] / 2


def cursors(page: Any) -> list[float]:
    """Where the cursors stand, pixels from the left of the window."""
    return [box["x"] for box in (c.bounding_box() for c in page.locator(".area .cursor").all())]


def lines(frame: pd.DataFrame, column: str, x: int) -> Iterator[tuple[str, float, float, float]]:
    for name, mine in frame.groupby(column):
        at = mine[mine["index"] == x]
        row = at.iloc[0] if len(at) else pd.Series({"value": np.nan, "low": np.nan, "high": np.nan})
        yield str(name), row["value"], row["low"], row["high"]


def check_values(page: Any, x: int) -> None:
    """Every line's value and interval at an x, within half of the last digit that is printed."""
    for frame, column, digits in ((right(), "phrasing", 3), (mass(), "head", 4)):
        for name, value, low, high in lines(frame, column, x):
            shown = page.locator(VALUE.format(name))
            assert shown.count() == 1
            text = shown.text_content()
            if np.isnan(value):
                assert text == "–"
                continue
            numbers = [float(n) for n in text.replace("[", "").replace("]", "").replace(",", "").split()]
            expected = [value] if np.isnan(low) else [value, low, high]
            assert numbers == pytest.approx(expected, abs=0.501 * 10**-digits), (name, x)


def test_pointing_moves_the_cursor_through_both_panels_and_shows_every_value(
    report: Path, visit: Callable[..., Visit]
) -> None:
    page = visit(report).page
    for panel, number in ((0, 2), (1, 3), (1, 0), (0, 1)):
        at = point(page, panel, number)
        page.mouse.move(*at)
        here = cursors(page)
        assert here == pytest.approx([at[0]] * 2, abs=1.5)
        assert page.locator(".values thead th:not(.off)").all_text_contents() == ["index", str(PLACES[number])]
        check_values(page, PLACES[number])
        dots = [d for d in page.locator(".here").evaluate_all("all => all.map(d => d.getAttribute('d'))") if d]
        assert len(dots) == 4 + (PLACES[number] != 14), "a dot on every line that has a value there"
    assert page.evaluate(HASH) == "", "pointing chooses nothing"
    page.mouse.move(5, 5)
    assert page.locator(".values thead th:not(.off)").nth(1).text_content() == "0"


def test_a_click_opens_the_prompts_asked_there(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    table = asked()
    assert page.locator("details.asked:visible").count() == 1
    assert page.locator(".example:visible").count() == 0
    for number in (2, 1):
        page.mouse.click(*point(page, 1, number))
        assert page.evaluate(HASH) == f"#linked=by_index&index={PLACES[number]}"
        mine = table[table["index"] == PLACES[number]]
        summary = page.locator("details.asked:visible > summary").text_content()
        assert summary == f"index {PLACES[number]}: {int(mine['correct'].sum())} of 4 right"
        assert page.locator(".example:visible").count() == 2, "others are folded away"
        page.locator("details.more:visible > summary").click()
        outcomes = page.locator(".example:visible .verdict").all_text_contents()
        assert outcomes == [("✓ right" if c else "✕ wrong") for c in mine["correct"][:3]]
        assert page.locator(".example:visible .target .tok").all_text_contents() == ["lamp"] * 3
        assert page.locator(".example:visible .foil .tok").all_text_contents() == ["ca", "ke"] * 3


def test_a_line_that_is_chosen_stands_out_among_its_own(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    page.locator(".choice button", has_text=HEADS[2]).click()
    assert page.evaluate(HASH) == "#linked=by_index&index=0&line=9.0"
    dim = "all => all.filter(e => e.classList.contains('dim')).map(e => e.dataset.line)"
    for kind in ("g.line", ".choice", ".values tr"):
        assert page.locator(kind).evaluate_all(dim) == list(HEADS[:2]), kind
    faint = page.locator("g.line.dim").first.evaluate("e => getComputedStyle(e).opacity")
    assert float(faint) < 0.5
    assert page.locator(".choice button[aria-pressed=true]").all_text_contents() == [HEADS[2]]
    page.mouse.click(*point(page, 0, 3))
    assert page.evaluate(HASH) == "#linked=by_index&index=14&line=9.0"
    page.locator(".choice button", has_text=HEADS[2]).click()
    assert page.evaluate(HASH) == "#linked=by_index&index=14"
    assert page.locator(".dim").count() == 0
    page.locator(".choice button", has_text="box").click()
    assert page.locator("g.line").evaluate_all(dim) == ["market"], "heads are another column's lines"


def test_tokens_take_the_colours_of_the_chosen_head(
    report: Path, findings: Findings, visit: Callable[..., Visit]
) -> None:
    page = visit(report, "#linked=by_index&index=7").page
    words = findings.tables["words"].frame

    def check(head: str) -> None:
        assert set(page.locator('[data-show="line"]').all_text_contents()) == {head}, "beside every prompt, too"
        mine = words[words["prompt"] == "list-1-07"]
        example = page.locator(".example", has_text="list-1-07")
        shades = example.locator(".strip .tok").evaluate_all("all => all.map(t => +t.style.getPropertyValue('--a'))")
        np.testing.assert_allclose(shades, np.sqrt(mine[head]), atol=0.003)
        titles = example.locator(".strip .tok").evaluate_all("all => all.map(t => +t.title.replace('≈ ', ''))")
        np.testing.assert_allclose(titles, mine[head], atol=0.0046)
        sums = dict(example.locator("[data-sum]").evaluate_all("all => all.map(s => [s.dataset.sum, s.textContent])"))
        for role in ("target", "foil"):
            total = mine[head][mine["role"].str.startswith(role)].sum()
            assert float(sums[role].replace("≈ ", "")) == pytest.approx(total, abs=0.014)

    check(HEADS[0])
    page.locator(".choice button", has_text=HEADS[2]).click()
    check(HEADS[2])
    page.locator(".choice button", has_text=HEADS[1]).click()  # whose attention was not kept
    check(HEADS[0])


def test_everything_can_be_done_with_keys(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.getAttribute('role')") != "slider":
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body"), "the axis is never reached"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    before = page.evaluate("history.length")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.locator(".axis").get_attribute("aria-valuetext") == "index 7"
    check_values(page, 7)
    assert page.locator(".example:visible").count() == 2
    until(page, f"{HASH} === '#linked=by_index&index=7'")
    assert page.evaluate("history.length") == before + 1, "keys that follow each other are one step back"
    for key, x in (("Home", 0), ("End", 14)):
        page.keyboard.press(key)
        check_values(page, x)
    page.locator(".choice button").nth(3).press("Enter")
    assert page.evaluate(HASH) == f"#linked=by_index&index=14&line={HEADS[1]}"
    page.locator(".values thead a:visible").press("Enter")
    page.locator("details.asked:visible > summary").press("Enter")
    assert page.locator(".example:visible").count() == 0


def test_a_link_points_at_a_finding_and_back_and_forward_lead_there(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report, "#linked=by_index&index=7&line=9.0").page
    check_values(page, 7)
    assert page.locator(".example:visible").count() == 2
    assert page.locator("g.line.dim").count() == 2
    assert page.locator("figure.linked").evaluate("f => f.getBoundingClientRect().top < innerHeight")
    page.mouse.click(*point(page, 0, 1))
    page.locator(".choice button", has_text=HEADS[0]).click()
    assert page.evaluate(HASH) == "#linked=by_index&index=3&line=18.6"
    page.go_back()
    until(page, "document.querySelectorAll('g.line.dim').length === 2 && location.hash.endsWith('index=3&line=9.0')")
    check_values(page, 3)
    page.go_back()
    until(page, "document.querySelector('.axis').getAttribute('aria-valuetext') === 'index 7'")
    check_values(page, 7)
    page.go_forward()
    until(page, "document.querySelector('.axis').getAttribute('aria-valuetext') === 'index 3'")
    page.evaluate("location.hash = '#answer'")
    page.wait_for_timeout(50)
    check_values(page, 3)


@pytest.mark.parametrize("fragment", ["#linked=by_index&index=99&line=0.0", "#linked=other&index=7", "#index=7"])
def test_a_link_to_what_is_not_there_shows_the_beginning(
    report: Path, visit: Callable[..., Visit], fragment: str
) -> None:
    page = visit(report, fragment).page
    check_values(page, 0)
    assert page.locator(".dim, .example:visible").count() == 0


def test_every_value_can_be_seen_at_once(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report).page
    cells = page.locator(".values td:visible")
    assert cells.count() == 5
    page.locator(".every").check()
    assert cells.count() == 20
    page.locator(".every").uncheck()
    assert cells.count() == 5


def test_without_script_figure_numbers_and_prompts_remain(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report, java_script_enabled=False).page
    assert page.locator(".area svg").count() == 2
    for box in page.locator(".area svg").all():
        assert box.bounding_box()["height"] > 100
    assert page.locator(".stack .legend li:visible").all_text_contents() == ["market", "box", *HEADS]
    assert page.locator(".values td:visible").count() == 20
    assert page.locator("button, .cursor:visible, .thumb:visible, input:visible").count() == 0
    assert page.locator("details.asked:visible").count() == 4
    page.locator("details.asked > summary").nth(1).click()
    assert page.locator(".example:visible").count() == 2
    again = visit(report, "#linked=by_index&index=7", java_script_enabled=False).page
    assert again.locator("details.asked[open] > summary").all_text_contents()[0].startswith("index 7:")


def test_a_narrow_page_does_not_scroll_sideways_and_is_touched(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report, viewport={"width": 400, "height": 800}, color_scheme="dark", has_touch=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.touchscreen.tap(*point(page, 1, 2))
    assert page.evaluate(HASH) == "#linked=by_index&index=7"
    check_values(page, 7)
    page.locator(".every").check()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    labels = [label.bounding_box() for label in page.locator(".axis span").all()]
    assert all(one["x"] + one["width"] < two["x"] for one, two in itertools.pairwise(labels))


def test_a_printed_view_is_whole_and_still(report: Path, visit: Callable[..., Visit]) -> None:
    page = visit(report, "#linked=by_index&index=7&line=9.0", viewport={"width": 700, "height": 900}).page
    page.emulate_media(media="print")
    assert page.locator(".values td:visible").count() == 20
    assert page.locator(".cursor:visible, .thumb:visible").count() == 0
    assert page.locator("g.line").evaluate_all("all => all.map(e => getComputedStyle(e).opacity)") == ["1"] * 5
    assert page.locator(".example:visible").count() == 2, "what was open is printed"
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_hostile_tokens_and_names_are_text(make_findings: Make, tmp_path: Path, visit: Callable[..., Visit]) -> None:
    text = "</script><img src=x onerror=alert(1)> {{x}} &lt; \"'>+,%"
    made = found(words=HOSTILE, roles=ROLES)
    tables = {name: t.frame for name, t in made.tables.items()}
    tables["mass"] = tables["mass"].replace({"head": {HEADS[2]: text}})
    tables["words"] = tables["words"].rename(columns={HEADS[2]: text})
    section = made.sections[0]
    parts = tuple(replace(p, frame=tables[p.name]) if p.name in tables else p for p in section.parts)
    folder = make_findings(tmp_path / "run", replace(made, sections=(replace(section, parts=parts),)))
    page = visit(write_report(folder), viewport={"width": 400, "height": 800}).page
    page.locator(".choice button").last.click()
    assert set(page.locator('[data-show="line"]').all_text_contents()) == {text}, "beside every prompt, too"
    assert page.locator(".choice button").last.text_content() == text
    assert len(page.locator("g.line.dim").all()) == 2
    shown = page.locator(".example:visible").first.locator(".strip .tok").all_text_contents()
    assert shown[:5] == ["</script>", '"><img src=x onerror=alert(1)>', "{{x}}", "&lt;", "nul␀l"]
    assert page.locator("figure img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    again = visit(folder / "report.html", page.evaluate(HASH)).page
    assert again.locator("g.line.dim").count() == 2, "its name comes back from the link"
    assert len(WORDS) == len(HOSTILE)


def test_a_key_is_not_undone_by_the_news_of_an_earlier_choice(report: Path, visit: Callable[..., Visit]) -> None:
    """The fragment changes at once, the page hears of it later; what is chosen meanwhile stays."""
    page = visit(report).page
    page.evaluate(
        """() => {
          document.querySelector('.choice button').click();
          document.querySelector('.axis').dispatchEvent(new KeyboardEvent('keydown', {key: 'End', bubbles: true}));
        }"""
    )
    page.wait_for_timeout(50)
    check_values(page, 14)
    until(page, f"{HASH} === '#linked=by_index&index=14&line=market'")
