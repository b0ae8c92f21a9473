"""Pages in Chromium, offline and from disk; whatever a page does that it must not do fails its test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
in_chromium = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium at {CHROMIUM} (Debian: apt install chromium)"),
]


@dataclass
class Visit:
    """An open page and what it did that it must not do."""

    page: Any
    wrong: list[str] = field(default_factory=list)


def until(page: Any, expression: str, arg: Any = None, seconds: float = 30) -> None:
    """Wait until an expression holds in a page or frame. Asked from outside, again and again: Playwright's own
    `wait_for_function` evaluates text inside the page when it does not hold at once, which the page's policy forbids.
    """
    ends = time.monotonic() + seconds
    while not page.evaluate(expression, arg):
        assert time.monotonic() < ends, f"{expression} does not hold after {seconds} s"
        page.wait_for_timeout(20)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"]
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    visits: list[tuple[Any, Visit]] = []

    def open_page(path: Path, fragment: str = "", **options: Any) -> Visit:
        context = browser.new_context(offline=True, **{"viewport": {"width": 1280, "height": 900}, **options})
        page = context.new_page()
        opened = Visit(page)
        visits.append((context, opened))
        page.on("console", lambda m: opened.wrong.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: opened.wrong.append(str(e)))
        page.on(
            "request",
            lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else opened.wrong.append(r.url),
        )
        page.on("dialog", lambda d: (opened.wrong.append("dialog"), d.dismiss()))
        page.goto(path.as_uri() + fragment)
        return opened

    yield open_page
    for context, opened in visits:
        context.close()
        assert opened.wrong == []
