"""Writes the report of a results folder: one HTML page that opens offline, and its figures as PNG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from probe.errors import ResultsError
from probe.report import card, causal, figures, findings_page, island, numbers, plots, sentence, strips, tables
from probe.report.findings_folder import holds_findings, read_findings
from probe.report.folder import Results, read_results
from probe.report.html import BUDGET, asset, check_budget, data_uri, environment, script_hash
from probe.report.numbers import size
from probe.runner.findings import figure_file
from probe.runner.manifest import Manifest
from probe.runner.results import FIGURES
from probe.verify.recorded import carried, read_recorded

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
    page, drawn = _made(folder)
    page = _with_record(page, folder)
    path = folder / "report.html"
    try:
        for name, image in drawn.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(image)
        # the page appears whole or not at all
        partial = path.with_name(".report.html.partial")
        partial.write_bytes(page)
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"the report cannot be written to {folder}: {error}.") from error
    return path


def draw(folder: Path) -> dict[str, bytes]:
    """The figures of a results folder, by their file's name. Raises as `write_report`."""
    return _made(Path(folder))[1]


def _with_record(page: bytes, folder: Path) -> bytes:
    """The page with its manifest and tables in it, so that it can be verified without its folder."""
    recorded = read_recorded(folder)
    held = carried(recorded.manifest, recorded.files, BUDGET - len(page)).encode("ascii")
    return page.replace(b"</body>", held + b"</body>")


def _made(folder: Path) -> tuple[bytes, dict[str, bytes]]:
    """The page of a folder, and its figures by their file's name: of scores of heads, or of findings."""
    if holds_findings(Manifest.read(folder)):
        outcome = read_findings(folder)
        found = outcome.findings
        images = {plot.name: plots.draw(plot, found.tables[plot.table]) for plot in found.plots}
        return findings_page.render(outcome, images), {figure_file(name): image for name, image in images.items()}
    results = read_results(folder)
    drawn = {name: image for name, draw in DRAWN_BY.items() if (image := draw(results)) is not None}
    return render(results, drawn), {f"figures/{name}": image for name, image in drawn.items()}


def render(results: Results, drawn: dict[str, bytes]) -> bytes:
    """The page of scores of heads as bytes. drawn: figure name -> PNG. Raises ResultsError if it is over `BUDGET`."""
    shown = tuple(strips.pieces(example) for example in results.examples)
    scores = island.scores(results)
    attention = island.attention(results, shown)
    data = island.island({"scores": scores, "attention": attention})
    style, script = asset("report.css"), asset("report.js")
    images = {name.removesuffix(".png"): data_uri(image) for name, image in drawn.items() if name != "example.png"}
    best = results.main.best
    examples = [tables.strip(results, i, pieces, best) for i, pieces in enumerate(shown)]
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
            card=card,
            number=numbers,
            main=results.main,
            causal_columns=causal.SHOWN,
            best=best,
            strips=examples,
            tally=tables.tally(examples),
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
