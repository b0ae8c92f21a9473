"""The list of reports: one page over every results folder below a root."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from probe.errors import ResultsError
from probe.report import page
from probe.report.folder import read_results
from probe.report.numbers import count
from probe.runner.manifest import finished


@dataclass(frozen=True)
class Entry:
    """One run in the list. report, map: links relative to the index, None where the file is not there."""

    study: str
    question: str
    answer: str
    model: str
    date: str
    passed: str
    report: str | None
    map: str | None


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
    template = page.environment().get_template("index.html.j2")
    text = template.render(entries=entries, broken=broken, style=Markup(page.asset("report.css")))
    path = root / "index.html"
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ResultsError(f"the index cannot be written to {root}: {error}.") from error
    return path


def _entry(root: Path, folder: Path) -> Entry:
    results = read_results(folder)
    manifest = results.manifest
    tested = [p for p in results.phenomena if p.tested]
    passed = "; ".join(
        f"{p.name}: {int(p.passed.sum())} of {count(int(p.picked.sum()), 'tested head')}" for p in tested
    )
    return Entry(
        study=manifest.study,
        question=manifest.question,
        answer=results.answer,
        model=results.model_name,
        date=str(manifest.times["started"])[:10],
        passed=passed or "described only",
        report=_link(root, folder / "report.html"),
        map=_link(root, folder / "figures" / "score_map.png"),
    )


def _link(root: Path, path: Path) -> str | None:
    return quote(path.relative_to(root).as_posix()) if path.is_file() else None
