"""The list of reports: one page over every results folder below a root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from probe.errors import ResultsError
from probe.report.findings_folder import holds_findings, read_findings
from probe.report.findings_page import alt
from probe.report.folder import read_results
from probe.report.html import asset, environment
from probe.report.numbers import count
from probe.runner.findings import figure_file
from probe.runner.manifest import Manifest, finished


@dataclass(frozen=True)
class Entry:
    """One run in the list. model: "" for a study that takes none. holds: what its page shows, in a sentence.

    report, image: links relative to the index, None where the file is not there. alt: the image in words.
    """

    study: str
    question: str
    answer: str
    model: str
    date: str
    holds: str
    report: str | None
    image: str | None
    alt: str


def write_index(root: Path) -> Path:
    """Write `root/index.html` over all `root/*/*/manifest.json`, by study and model; returns its path.

    A folder that is malformed is named at the end of the page. Raises ResultsError if there is no results folder below
    `root`, or if `root` cannot be written.
    """
    root = Path(root)
    folders = finished(root)
    if not folders:
        raise ResultsError(f"no results below {root}: expected {root}/<study>/<run>/manifest.json.")
    entries, broken = [], []
    for folder in folders:
        try:
            entries.append(_entry(root, folder))
        except ResultsError as error:
            broken.append(str(error))
    entries.sort(key=lambda e: (e.study, e.model, e.date))
    template = environment().get_template("index.html.j2")
    text = template.render(entries=entries, broken=broken, style=Markup(asset("report.css")))
    path = root / "index.html"
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ResultsError(f"the index cannot be written to {root}: {error}.") from error
    return path


def _entry(root: Path, folder: Path) -> Entry:
    manifest = Manifest.read(folder)
    answer, holds, figure, words = _findings(folder) if holds_findings(manifest) else _heads(folder)
    return Entry(
        study=manifest.study,
        question=manifest.question,
        answer=answer,
        model=manifest.model.name if manifest.model else "",
        date=str(manifest.times["started"])[:10],
        holds=holds,
        report=_link(root, folder / "report.html"),
        image=_link(root, folder / figure) if figure else None,
        alt=words,
    )


def _findings(folder: Path) -> tuple[str, str, str, str]:
    """Answer, what the page holds, its first figure ("" if it has none) and that figure in words."""
    findings = read_findings(folder).findings
    tables = sum(table.shown for table in findings.tables.values())
    holds = f"{count(tables, 'table')}, {count(len(findings.plots), 'figure')}."
    if not findings.plots:
        return findings.answer, holds, "", ""
    first = findings.plots[0]
    return findings.answer, holds, figure_file(first.name), alt(first, findings.tables[first.table].frame)


def _heads(folder: Path) -> tuple[str, str, str, str]:
    """As `_findings`, for scores of heads: how many passed, and the score map."""
    results = read_results(folder)
    tested = [p for p in results.phenomena if p.tested]
    passed = "; ".join(
        f"{p.name}: {int(p.passed.sum())} of {count(int(p.picked.sum()), 'tested head')}" for p in tested
    )
    holds = f"Attention leg passed by {passed}. " if passed else "Heads are described only. "
    holds += "Whether the model’s answer depends on what they look at (the causal leg) is not measured."
    words = f"Score map of {results.manifest.study}, {results.model_name}"
    return results.answer, holds, "figures/score_map.png", words


def _link(root: Path, path: Path) -> str | None:
    return quote(path.relative_to(root).as_posix()) if path.is_file() else None
