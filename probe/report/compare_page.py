"""A page with two results side by side: what they answer, their figures, and what differs. No script."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from probe.errors import ResultsError
from probe.report import page
from probe.report.html import asset, check_budget, data_uri, environment
from probe.report.strips import visible
from probe.runner.manifest import Manifest
from probe.verify.comparison import Comparison
from probe.verify.differences import CHANGED, CLOSE, EXACT, SKIPPED
from probe.verify.heads import Heads
from probe.verify.recorded import Recorded, answer_of

MOST_ROWS = 200
"""Rows of one table that the page shows."""
LEFT_OUT = ("figures/example.png",)


@dataclass(frozen=True)
class Side:
    """One of the two results. figures: name -> image as a data: address."""

    letter: str
    place: str
    manifest: Manifest
    answer: str
    figures: dict[str, str]


def write_comparison(a: Recorded, b: Recorded, found: Comparison, heads: Heads, path: Path) -> Path:
    """Write the page to `path`; returns it.

    Raises ResultsError if it would be over the budget, a figure cannot be drawn, or the file cannot be written.
    """
    text = render(a, b, found, heads)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    except OSError as error:
        raise ResultsError(f"the comparison cannot be written to {path}: {error.strerror}.") from error
    return path


def render(a: Recorded, b: Recorded, found: Comparison, heads: Heads) -> bytes:
    """The page as bytes: the same two results give the same page."""
    sides = [_side("A", a), _side("B", b)]
    names = list(dict.fromkeys([*sides[0].figures, *sides[1].figures]))
    style = asset("report.css") + "\n" + asset("compare.css")
    metrics = [m for outcome in (CHANGED, CLOSE) for m in found.of(outcome)]
    text = (
        environment()
        .get_template("compare.html.j2")
        .render(
            sides=sides,
            figures=[(_words(name), [(s.letter, s.figures.get(name)) for s in sides]) for name in names],
            found=found,
            metrics=[
                (
                    m.outcome,
                    m.file,
                    m.name,
                    f"{m.different} of {m.n}" if m.n else "",
                    m.where,
                    _short(m.was),
                    _short(m.now),
                )
                for m in metrics[:MOST_ROWS]
            ],
            same=[(outcome, found.of(outcome)) for outcome in (EXACT, SKIPPED)],
            left_out=max(0, len(metrics) - MOST_ROWS),
            heads=heads,
            head_rows=[row.cells for row in heads.rows[:MOST_ROWS]],
            style=Markup(style),
            visible=visible,
        )
    )
    made = text.encode("utf-8", "replace")
    check_budget(len(made), {"figures": sum(len(uri) for side in sides for uri in side.figures.values())})
    return made


def _side(letter: str, recorded: Recorded) -> Side:
    return Side(letter, str(recorded.place), recorded.manifest, answer_of(recorded), _figures(recorded))


def _figures(recorded: Recorded) -> dict[str, str]:
    """The figures that the two pages show: drawn from a folder, taken from a page; none of a manifest by itself."""
    place = recorded.place
    if place.is_dir() and recorded.changed is None:
        return {name: data_uri(image) for name, image in page.draw(place).items() if name not in LEFT_OUT}
    if place.suffix != ".html":
        return {}
    found = re.findall(r'<img src="(data:image/png;base64,[^"]+)"', place.read_text(encoding="utf-8", errors="replace"))
    return {f"figures/figure {i}.png": uri for i, uri in enumerate(found, 1) if _is_png(uri)}


def _is_png(uri: str) -> bool:
    try:
        return base64.b64decode(uri.partition(",")[2], validate=True).startswith(b"\x89PNG")
    except ValueError:
        return False


def _short(text: str, most: int = 120) -> str:
    """Enough of a text to see what it is; answers stand in full above."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _words(name: str) -> str:
    return Path(name).stem.replace("_", " ")
