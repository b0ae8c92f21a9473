"""Writes the report of a results folder: one HTML page that opens offline, and its figures as PNG."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probe.errors import ResultsError
from probe.report import figures, island, numbers, sentence, strips, tables
from probe.report.folder import Results, read_results
from probe.report.numbers import size
from probe.runner.results import FIGURES

BUDGET = 4_000_000
"""Bytes a page may have."""

DRAWN_BY: dict[str, Callable[[Results], bytes | None]] = dict(
    zip(FIGURES, (figures.score_map, figures.best_heads, figures.described, sentence.example), strict=True)
)


def write_report(folder: Path) -> Path:
    """Write `folder/report.html` and `folder/figures/*.png` from a results folder; returns the page.

    The same folder gives the same bytes. Raises ResultsError, naming what is wrong, if the folder is missing,
    empty or foreign, if a file is missing, malformed or not the one the run wrote, if the page is larger than
    `BUDGET`, or if the folder cannot be written.
    """
    folder = Path(folder)
    results = read_results(folder)
    drawn = {name: image for name, draw in DRAWN_BY.items() if (image := draw(results)) is not None}
    page = render(results, drawn)
    path = folder / "report.html"
    try:
        (folder / "figures").mkdir(exist_ok=True)
        for name, image in drawn.items():
            (folder / "figures" / name).write_bytes(image)
        # the page appears whole or not at all
        partial = path.with_name(".report.html.partial")
        partial.write_bytes(page)
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"the report cannot be written to {folder}: {error}.") from error
    return path


def render(results: Results, drawn: dict[str, bytes]) -> bytes:
    """The page as bytes. drawn: figure name -> PNG. Raises ResultsError if it is over `BUDGET`."""
    shown = tuple(strips.pieces(example) for example in results.examples)
    scores = island.scores(results)
    attention = island.attention(results, shown)
    data = island.island({"scores": scores, "attention": attention})
    style, script = asset("report.css"), asset("report.js")
    images = {name.removesuffix(".png"): data_uri(image) for name, image in drawn.items() if name != "example.png"}
    best = results.main.best
    text = (
        environment()
        .get_template("report.html.j2")
        .render(
            results=results,
            manifest=results.manifest,
            style=Markup(style),
            script=Markup(script),
            script_hash=script_hash(script),
            data=Markup(data),
            images=images,
            tables=tables,
            number=numbers,
            main=results.main,
            best=best,
            strips=[tables.strip(results, i, pieces, best) for i, pieces in enumerate(shown)],
            attention_size=size(len(attention["codes"])),
            left_out=sum(p.stop - p.start for pieces in shown for p in pieces if p.left_out),
            long=strips.LONG,
        )
    )
    # tokens may hold lone surrogates only as visible text, but names and notes come as they are
    page = text.encode("utf-8", "replace")
    parts = {
        "figures": sum(map(len, images.values())),
        "scores of all heads": len(island.island(scores)),
        "attention of the example prompts": len(island.island(attention)),
        "style and script": len(style) + len(script),
    }
    check_budget(len(page), parts)
    return page


def check_budget(total: int, parts: dict[str, int], budget: int = BUDGET) -> None:
    """Raise ResultsError naming the largest part if a page of `total` bytes is over `budget`."""
    if total <= budget:
        return
    sizes = {**parts, "tables and example text": total - sum(parts.values())}
    largest = max(sizes, key=lambda name: sizes[name])
    raise ResultsError(
        f"report.html would be {size(total)}, allowed are {size(budget)}. The largest part is the {largest} "
        f"({size(sizes[largest])}): give the report fewer or shorter of them."
    )


@cache
def environment() -> Environment:
    """Templates that escape everything and fail on a name they do not know."""
    return Environment(
        loader=PackageLoader("probe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def asset(name: str) -> str:
    """A style sheet or script that is inlined in the page."""
    return (resources.files("probe.report") / "templates" / name).read_text(encoding="utf-8").strip()


def script_hash(script: str) -> str:
    """The content security policy's name for exactly this script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def data_uri(image: bytes) -> str:
    """A PNG as a data: address, so that the page holds its own figures."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
