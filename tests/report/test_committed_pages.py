"""The committed reports as a reader opens them: offline, within their budget, on a narrow screen too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from probe.report.html import BUDGET
from tests.report.browsing import Visit, in_chromium

REPORTS = Path(__file__).parents[2] / "reports"
PAGES = sorted(p.relative_to(REPORTS).as_posix() for p in [*REPORTS.glob("*/*/report.html"), REPORTS / "index.html"])
pytestmark = in_chromium


@pytest.mark.parametrize("name", PAGES)
def test_a_committed_page_opens_offline_and_fits_a_narrow_screen(name: str, visit: Callable[..., Visit]) -> None:
    assert (REPORTS / name).stat().st_size <= BUDGET
    page = visit(REPORTS / name, viewport={"width": 400, "height": 800}, color_scheme="dark").page
    assert page.locator("h1").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_every_committed_report_is_in_the_index(visit: Callable[..., Visit]) -> None:
    page = visit(REPORTS / "index.html").page
    links = page.locator("article a").evaluate_all("all => all.map(a => decodeURI(a.getAttribute('href')))")
    assert sorted([*links, "index.html"]) == PAGES
    assert page.locator("h2", has_text="Not shown").count() == 0
