"""The page in a real browser: offline, from disk, with mouse, keyboard, and without script."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.report import card, write_index, write_report
from probe.report.folder import read_results
from probe.runner.findings import Findings, Listing, Plot, Section, Table
from probe.runner.results import Example
from tests.report.browsing import Visit, in_chromium, until
from tests.report.test_report_causal import GATE, table, with_leg

Make = Callable[..., Path]
pytestmark = in_chromium


def settled(page: Any) -> None:
    """Wait until the attention is decoded: the first token's title follows the head."""
    until(page, "document.documentElement.classList.contains('js')")
    page.wait_for_timeout(60)


def sums(page: Any, number: int) -> dict[str, float]:
    shown = page.locator(".example").nth(number).locator("[data-sum]")
    pairs = shown.evaluate_all("all => all.map(s => [s.dataset.sum, s.textContent.replace('≈ ', '')])")
    return {name: float(value) for name, value in pairs}


def cell(page: Any, layer: int, head: int) -> Any:
    return page.locator(f'.map button[title^="layer {layer}, head {head}:"]')


def press(page: Any, layer: int, head: int) -> None:
    """Click a head on the map and wait until the page shows it: the page follows its address, a moment later."""
    cell(page, layer, head).click()
    until(page, f"document.getElementById('head-title').textContent === 'Head {layer}.{head}'")


def test_clicking_a_head_shows_its_numbers_and_prompts(big: Path, visit: Callable[..., Visit]) -> None:
    results = read_results(big)
    page = visit(big / "report.html").page
    for layer, head in ((4, 3), (29, 8), (0, 5)):
        press(page, layer, head)
        assert page.evaluate("location.hash") == f"#head={layer}.{head}&phenomenon=coreference"
        assert page.locator("#head-title").text_content() == f"Head {layer}.{head}"
        assert page.locator('[data-show="where"]').text_content().endswith(f"→ key-value head {head // 3}")
        settled(page)
        index = layer * 9 + head
        for number, phenomenon in enumerate(results.phenomena):
            shown = page.locator(f'tr[data-column="{number}"] [data-field="value"]').text_content()
            assert float(shown) == pytest.approx(phenomenon.numbers["value"][index], abs=5e-4)
        for number, example in enumerate(results.examples[:6]):
            row = results.rows[number, layer, head].astype(np.float64)
            shown = sums(page, number)
            # 0.004 for each quantised token and 0.005 for the printed digits
            on_target = row[list(example.target)].sum()
            assert shown["target"] == pytest.approx(on_target, abs=0.009 * len(example.target))
            assert shown["first"] == pytest.approx(row[0], abs=0.009)
            for i, foil in enumerate(example.foils):
                assert shown[f"foil-{i}"] == pytest.approx(row[list(foil)].sum(), abs=0.009 * len(foil))
            strip = page.locator(".example").nth(number).locator(".strip .tok")
            titles = strip.evaluate_all("tokens => tokens.map(t => t.title.replace('≈ ', ''))")
            # 0.004 for the quantised token and 0.0005 for the printed digits
            np.testing.assert_allclose(np.array(titles, float), row[: len(titles)], atol=0.0045)


def test_the_map_has_layers_along_and_heads_down(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html").page
    box = {at: cell(page, *at).bounding_box() for at in ((0, 0), (2, 1), (3, 1), (2, 2))}
    assert box[2, 1]["y"] == box[3, 1]["y"] < box[2, 2]["y"]
    assert box[0, 0]["x"] < box[2, 1]["x"] == box[2, 2]["x"] < box[3, 1]["x"]
    column = page.locator(".map .layer").nth(2).bounding_box()
    assert column["x"] == pytest.approx(box[2, 1]["x"], abs=1)
    assert page.locator(".map button.passed").count() == 3
    assert "passed" in cell(page, 2, 1).get_attribute("class")


def test_back_and_a_shared_link_restore_the_state(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html", "#head=7.2&phenomenon=previous%20token&metric=entropy").page
    assert page.locator("#head-title").text_content() == "Head 7.2"
    assert page.locator("#phenomenon").input_value() == "1"
    assert page.locator("#scale-label").text_content() == "entropy of the attention row (nats)"
    press(page, 3, 3)
    page.locator("#metric").select_option("mass")
    assert page.evaluate("location.hash") == "#head=3.3&phenomenon=previous%20token&metric=mass"
    page.go_back()
    page.go_back()
    until(page, "document.getElementById('head-title').textContent === 'Head 7.2'")
    page.goto((big / "report.html").as_uri() + "#head=99.99&phenomenon=nothing&metric=none")
    until(page, "document.getElementById('head-title').textContent === 'Head 2.1'")


def test_headline_links_lead_to_the_prompts_of_their_head(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html").page
    link = page.locator(".verdicts a").nth(2)
    name = link.text_content()
    link.click()
    assert page.locator("#head-title").text_content() == f"Head {name}"
    assert page.evaluate("document.activeElement.id") == "head-title"
    assert page.evaluate("document.getElementById('head').getBoundingClientRect().top") < 100


def test_tables_sort_and_the_best_passed_head_is_first(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html").page
    table = page.locator("table.sortable").first
    first = table.locator("tbody tr").first
    assert "2.1" in first.text_content()
    assert "pass" in first.text_content()
    header = table.locator("thead th").nth(2)

    def column() -> list[float]:
        return [float(text) for text in table.locator("tbody tr td:nth-child(3)").all_text_contents()]

    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert column() == sorted(column())
    table.locator("thead th").nth(9).locator("button").click()
    assert table.locator("tbody tr td:nth-child(10)").all_text_contents()[-1] == "–"
    table.locator("thead th").first.locator("button").click()
    heads = [tuple(map(int, text.split("."))) for text in table.locator("tbody th").all_text_contents()]
    assert heads == sorted(heads)


def test_everything_works_by_keyboard(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    cell(page, 2, 1).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("#readout").text_content().startswith("layer 4, head 2:")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px"
    page.keyboard.press("Enter")
    assert page.locator("#head-title").text_content() == "Head 4.2"
    assert page.locator(".map button[tabindex='0']").count() == 1


def test_narrow_pages_do_not_scroll_sideways(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html", viewport={"width": 400, "height": 800}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert cell(page, 2, 1).bounding_box()["y"] > cell(page, 1, 1).bounding_box()["y"]


def test_dark_scheme_is_dark_and_legible(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html", color_scheme="dark").page
    settled(page)
    style = "getComputedStyle(document.body)"
    ink, paper = (luminance(page.evaluate(f"{style}.{name}")) for name in ("color", "backgroundColor"))
    assert (ink + 0.05) / (paper + 0.05) > 7
    assert page.screenshot()[:4] == b"\x89PNG"


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of an "rgb(r, g, b)" colour."""
    channels = np.array([int(c) for c in re.findall(r"\d+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_without_script_figures_tables_and_prompts_remain(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html", java_script_enabled=False).page
    assert page.locator("figure img").first.is_visible()
    assert page.locator("figure img").count() == 3
    assert page.locator(".verdicts").is_visible()
    assert page.locator("table.sortable").first.is_visible()
    assert page.locator(".example").first.is_visible()
    assert not page.locator("#controls").is_visible()
    assert "≈ 0.9" in page.locator(".example").nth(1).locator("[data-sum=target]").text_content()
    page.locator("summary").last.click()
    assert page.locator("details").last.locator("tbody tr").count() == 270


def test_hostile_tokens_do_nothing(
    make_folder: Make, hostile_example: Example, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    made = make_folder(tmp_path / "run", 4, 4, 1, examples=[hostile_example])
    page = visit(write_report(made), viewport={"width": 400, "height": 800}).page
    settled(page)
    shown = page.locator(".strip .tok").all_text_contents()
    assert shown[1:6] == ["</script>", '"><img src=x onerror=alert(1)>', "{{x}}", "&lt;", "nul␀l"]
    assert page.locator(".strip bdi").all_text_contents() == ["مرحبا", "بك"]
    assert page.locator(".strip img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_card_says_the_same_for_every_head_as_it_does_without_script(
    make_folder: Make, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), table(), {"coreference": {**GATE, "most_loss": 0.1}})
    page = visit(write_report(folder)).page
    results = read_results(folder)
    read = "rows => rows.map(r => [r.dataset.line, ...[...r.cells].map(c => c.textContent)])"
    for name, phenomenon in enumerate(results.phenomena):
        page.locator("#phenomenon").select_option(str(name))
        title = "document.querySelector('[data-show=phenomenon]').textContent"
        until(page, f"name => {title} === name", phenomenon.name)
        for index in (9, 15, 0):
            press(page, *divmod(index, 4))
            shown = page.locator("[data-line]:visible").evaluate_all(read)
            lines = [*card.attention(phenomenon, index), *card.causal(results, phenomenon, index)]
            assert shown == [[x.field, x.words, x.value, x.control] for x in lines if x.shown]
            said = page.locator('[data-show="outcome"]').text_content()
            assert said == card.outcome(results, phenomenon, index)


def test_prompts_are_sorted_by_what_they_earned(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(big / "report.html").page
    settled(page)
    results = read_results(big)
    press(page, 5, 4)
    settled(page)
    margins = []
    for example, rows in zip(results.examples, results.rows[:, 5, 4], strict=True):
        foils = [rows[list(foil)].sum() for foil in example.foils]
        margins.append(rows[list(example.target)].sum() - max([0.0, *foils]))
    said = page.locator('[data-show="tally"]').text_content()
    missed = [str(i + 1) for i, margin in enumerate(margins) if not margin > 0]
    assert said.endswith(f"not in {', '.join(missed)}")
    page.locator("button.all").click()
    for order, sign in (("earned", -1), ("cost", 1)):
        page.locator("#order").select_option(order)
        numbers = page.locator(".example .about").evaluate_all("all => all.map(a => parseInt(a.textContent.slice(7)))")
        shown = [sign * margins[number - 1] for number in numbers]
        assert sorted(numbers) == list(range(1, 13))
        assert all(a <= b + 0.02 for a, b in pairwise(shown))


# findings


def test_findings_need_no_script_and_show_every_part(found: Path, visit: Callable[..., Visit]) -> None:
    page = visit(found / "report.html", java_script_enabled=False).page
    assert page.locator("h1").text_content() == "How many layers does it take?"
    assert page.locator("figure img").count() == 4
    for image in page.locator("figure img").all():
        assert image.is_visible()
    assert page.locator(".sheet table").first.is_visible()
    assert not page.locator("details table").is_visible()
    page.locator("summary").click()
    assert page.locator("details table tbody tr").count() == 60
    assert page.locator(".listing pre").inner_text() == "for i in range(3):\n    print(i < 2)\n"


def test_figures_of_findings_are_whole_and_in_the_order_of_the_page(found: Path, visit: Callable[..., Visit]) -> None:
    page = visit(found / "report.html").page
    until(page, "[...document.images].every(i => i.complete)")
    sizes = page.evaluate("[...document.images].map(i => i.naturalWidth)")
    assert sizes == [1200] * 4
    assert "Loss falls" in page.locator("figure").first.locator("figcaption").text_content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_findings_are_legible_on_light_and_dark(found: Path, visit: Callable[..., Visit], scheme: str) -> None:
    page = visit(found / "report.html", color_scheme=scheme).page
    for selector in ("body", ".sheet td", ".plot figcaption", ".listing pre code"):
        ink = luminance(page.locator(selector).first.evaluate("e => getComputedStyle(e).color"))
        paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        bright, dark = max(ink, paper), min(ink, paper)
        assert (bright + 0.05) / (dark + 0.05) > 4.5, selector
    assert (luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.1) == (scheme == "dark")


def wide() -> Findings:
    """A table, a figure and a listing that are wider than a narrow page."""
    frame = pd.DataFrame({f"a column with a name {i}": [i, 123456789.25] for i in range(20)})
    x = str(frame.columns[0])
    parts = (
        Table("t", frame.assign(text=["W" * 300, "a long text of many words " * 20]), "Wide."),
        Plot("p", "t", "lines", x, x, "Wide."),
        Listing("x" * 500, "Wide."),
    )
    return Findings("W" * 300, (Section("W" * 300, ("W" * 300,), parts),))


def test_what_is_wider_than_the_page_scrolls_in_its_own_box(
    make_findings: Make, tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    report = write_report(make_findings(tmp_path / "run", wide()))
    for width in (400, 800, 1280):
        page = visit(report, viewport={"width": width, "height": 800}).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = page.locator(".sheet .scroll, .listing .scroll")
        inside = "boxes => boxes.map(b => b.scrollWidth > b.clientWidth && b.clientWidth < innerWidth)"
        assert boxes.evaluate_all(inside) == [True, True]
    figure = visit(report, viewport={"width": 400, "height": 800}).page.locator(".plot .scroll")
    assert figure.evaluate("b => b.scrollWidth > b.clientWidth"), "it would be too small to read"


def test_boxes_that_scroll_are_reached_by_keyboard(found: Path, visit: Callable[..., Visit]) -> None:
    page = visit(found / "report.html", viewport={"width": 400, "height": 800}).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "answer"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.querySelector('img') !== null")
    page.keyboard.press("ArrowRight")
    until(page, "document.activeElement.scrollLeft > 0")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_a_printed_page_shows_whole_figures(found: Path, visit: Callable[..., Visit]) -> None:
    page = visit(found / "report.html", viewport={"width": 700, "height": 900}).page
    page.emulate_media(media="print")
    for box in page.locator("figure.plot .scroll").all():
        assert box.evaluate("b => b.scrollWidth <= b.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_hostile_text_in_findings_is_text(make_findings: Make, tmp_path: Path, visit: Callable[..., Visit]) -> None:
    text = "</script><img src=x onerror=alert(1)> {{x}} &lt; \"'>"
    frame = pd.DataFrame({text: [text, "b"], "n": [1, 2]})
    parts = (
        Table("t", frame, text),
        Plot("p", "t", "bars", text, "n", text, y_label=text, marks={text: 1.5}),
        Listing(text, text),
    )
    hostile = Findings(text, (Section(text, (text,), parts),), method=(text,), notes=(text,))

    def change(record: dict[str, Any]) -> None:
        record["question"] = text
        record["command"] = text

    report = write_report(make_findings(tmp_path / "depth" / "run", hostile, change))
    page = visit(report, viewport={"width": 400, "height": 800}).page
    for selector in ("h1", "#answer", "h2 >> nth=0", "thead th >> nth=0", "tbody th >> nth=0", ".listing pre"):
        assert page.locator(selector).first.text_content() == text, selector
    assert page.locator("figcaption").all_text_contents() == [text] * 3
    assert page.locator("img").count() == 1
    assert page.title() == text
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    index = visit(write_index(tmp_path)).page
    assert index.locator("h3").text_content() == text
    assert index.locator("img").count() == 1


def test_the_index_shows_the_maps_of_its_reports(big: Path, visit: Callable[..., Visit]) -> None:
    page = visit(write_index(big.parent.parent)).page
    until(page, "document.images[0].complete")
    assert page.evaluate("document.images[0].naturalWidth") == 1200
    page.locator("article a").click()
    assert page.locator("h1").text_content() == "Which heads look from a pronoun to its antecedent?"
