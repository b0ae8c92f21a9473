"""Prompts without a figure in a real browser: the head that colours them, in the fragment, by keys, without script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probe.report import write_report
from probe.runner.findings import Findings
from tests.report.browsing import Visit, in_chromium, until
from tests.report.linked_examples import HEADS, WORDS
from tests.report.test_asked import of

pytestmark = in_chromium
HASH = "location.hash"


@pytest.fixture(scope="module")
def findings() -> Findings:
    return of()


@pytest.fixture(scope="module")
def report(make_findings: Callable[..., Path], findings: Findings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_findings(tmp_path_factory.mktemp("asked") / "run", findings))


def check_colours(visited: Visit, findings: Findings, head: str) -> None:
    """The first prompt's tokens have the head's attention, to a step of its byte."""
    page, words = visited.page, findings.tables["words"].frame
    shares = words[words["prompt"] == "list-0-00"][head].to_numpy()
    strength = (
        page.locator(".example")
        .first.locator(".tok")
        .evaluate_all("all => all.map(e => Number(e.style.getPropertyValue('--a')))")
    )
    np.testing.assert_allclose(strength, np.sqrt(shares), atol=0.003)
    assert set(page.locator('[data-show="line"]').all_text_contents()) == {head}, "beside every prompt, too"


def test_a_head_is_chosen_and_a_link_points_at_it(
    report: Path, findings: Findings, visit: Callable[..., Visit]
) -> None:
    visited = visit(report)
    page = visited.page
    assert page.locator("details.asked > summary").first.text_content().startswith("index: 0: ")
    assert page.locator(".choice button").all_text_contents() == [HEADS[0], HEADS[2]]
    check_colours(visited, findings, HEADS[0])
    page.locator(".choice button", has_text=HEADS[2]).focus()
    page.keyboard.press("Enter")
    assert page.evaluate(HASH) == "#prompts=shown&line=9.0"
    check_colours(visited, findings, HEADS[2])
    assert page.locator(".choice button[aria-pressed=true]").all_text_contents() == [HEADS[2]]
    page.go_back()
    until(page, f"{HASH} === ''")
    check_colours(visited, findings, HEADS[0])


def test_a_link_opens_the_prompts_under_the_head(report: Path, findings: Findings, visit: Callable[..., Visit]) -> None:
    size = {"width": 900, "height": 200}
    below = "f => f.getBoundingClientRect().top > innerHeight"
    page = visit(report, viewport=size).page
    assert page.locator("figure.prompts").evaluate(below)
    assert page.locator(".example:visible").count() == 0
    page.evaluate("location.hash = '#prompts=shown&line=9.0'")
    until(page, "document.querySelector('details.asked').open")
    for visited in (Visit(page), visit(report, "#prompts=shown&line=9.0", viewport=size)):
        check_colours(visited, findings, HEADS[2])
        assert visited.page.locator(".example:visible").count() >= 2
        assert not visited.page.locator("figure.prompts").evaluate(below)


@pytest.mark.parametrize("fragment", ["#prompts=shown&line=7.7", "#prompts=other&line=9.0", "#line=9.0"])
def test_a_link_to_what_is_not_there_is_the_first_head(
    report: Path, findings: Findings, visit: Callable[..., Visit], fragment: str
) -> None:
    visited = visit(report, fragment)
    check_colours(visited, findings, HEADS[0])


def test_without_script_and_on_a_narrow_screen_prompts_are_there(report: Path, visit: Callable[..., Visit]) -> None:
    visited = visit(report, java_script_enabled=False, viewport={"width": 400, "height": 800})
    page = visited.page
    page.locator("details.asked > summary").first.click()
    assert page.locator(".example:visible").first.locator(".tok").count() == len(WORDS)
    assert not page.locator(".choice").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
