"""The list of reports: one page over every results folder below a root, by study, in an order worth reading in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from probe.errors import ResultsError
from probe.report.findings_folder import holds_findings, read_findings
from probe.report.folder import Results, read_results
from probe.report.html import asset, environment
from probe.report.numbers import count
from probe.report.words import alt
from probe.runner.findings import Findings, figure_file
from probe.runner.manifest import Manifest, finished

PARTS = (
    (
        "Heads and their jobs",
        (
            "atlas",
            "coreference",
            "coreference_gap",
            "coreference_heads",
            "gender_bias",
            "agreement_blimp",
            "induction_heads",
            "published_heads",
            "position",
            "lost_in_the_middle",
            "retrieval",
            "haystack",
            "key_value_file",
        ),
    ),
    (
        "How a transformer computes",
        ("by_hand", "block", "pipeline", "residual", "positions", "induction", "lineages", "cache"),
    ),
)
"""Parts of the list and the studies in each, in order; those of a user's own stand between them."""
OTHERS = "Other studies"
VERDICTS = ("supported", "causal only", "attention only")


@dataclass(frozen=True)
class Entry:
    """One run in the list. run: the model, or "" for a study that takes none, with what is not the default. holds: its
    verdicts, or what its page shows.

    report, image: links relative to the index, None where the file is not there. alt: the image in words.
    """

    study: str
    question: str
    answer: str
    run: str
    date: str
    holds: str
    report: str | None
    image: str | None
    alt: str


@dataclass(frozen=True)
class Group:
    """The runs of one study that ask the same question."""

    question: str
    study: str
    entries: tuple[Entry, ...]


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
            broken.append(str(error).replace(f"{root}/", ""))
    style = asset("report.css")
    text = (
        environment()
        .get_template("index.html.j2")
        .render(parts=parts(entries), n=len(entries), broken=broken, style=Markup(style))
    )
    path = root / "index.html"
    try:
        path.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        raise ResultsError(f"the index cannot be written to {root}: {error}.") from error
    return path


def parts(entries: Sequence[Entry]) -> list[tuple[str, list[Group]]]:
    """The list's parts that have a run, with the runs of each study together."""
    known = [study for _, studies in PARTS for study in studies]
    own = sorted({e.study for e in entries} - set(known))
    ordered = [PARTS[0], (OTHERS, tuple(own)), *PARTS[1:]]
    found = []
    for title, studies in ordered:
        groups = [group for study in studies for group in _groups([e for e in entries if e.study == study])]
        if groups:
            found.append((title, groups))
    return found


def _groups(entries: Sequence[Entry]) -> list[Group]:
    """Runs that ask the same question together."""
    questions = dict.fromkeys(e.question for e in entries)
    mine = [tuple(e for e in entries if e.question == question) for question in questions]
    return [Group(runs[0].question, runs[0].study, runs) for runs in mine]


def sentence(text: str) -> str:
    """The first sentence of a text.

    >>> sentence("Of 16 heads, 9 do (0.91 [0.88, 0.94]). Most is head 2.1.")
    'Of 16 heads, 9 do (0.91 [0.88, 0.94]).'
    """
    return re.split(r"(?<=[.?!])\s+(?=[^\sa-z])", text.strip(), maxsplit=1)[0]


def _entry(root: Path, folder: Path) -> Entry:
    manifest = Manifest.read(folder)
    answer, holds, figure, words = _findings(folder) if holds_findings(manifest) else _heads(folder)
    other = {"seed": str(manifest.seed)} if manifest.seed else {}
    named = [f"{name} {value}" for name, value in (other | manifest.params).items()]
    return Entry(
        study=manifest.study,
        question=manifest.question,
        answer=sentence(answer),
        run=", ".join([*([manifest.model.name] if manifest.model else []), *named]),
        date=str(manifest.times["started"])[:10],
        holds=holds,
        report=_link(root, folder / "report.html"),
        image=_link(root, folder / figure) if figure else None,
        alt=words,
    )


def _findings(folder: Path) -> tuple[str, str, str, str]:
    """Answer, verdicts or what the page holds, its first figure ("" if it has none) and that figure in words."""
    findings = read_findings(folder).findings
    shown = sum(table.shown for table in findings.tables.values())
    holds = _verdicts(findings) or f"{count(shown, 'table')}, {count(len(findings.plots), 'figure')}."
    if not findings.plots:
        return findings.answer, holds, "", ""
    first = findings.plots[0]
    return findings.answer, holds, figure_file(first.name), alt(first, findings.tables[first.table].frame)


def _verdicts(findings: Findings) -> str:
    """Verdict counts of the first table that has one for each head; "" if none does."""
    for table in findings.tables.values():
        columns = set(table.frame.columns)
        name = next((c for c in ("kind", "verdict") if c in columns), None)
        if name and {"layer", "head"} <= columns and table.frame[name].isin(VERDICTS).any():
            return f"{counts(table.frame[name])}, of {count(len(table.frame), 'head')}."
    return ""


def counts(verdicts: pd.Series) -> str:
    """ "3 supported, 1 causal only, 0 attention only"."""
    return ", ".join(f"{int((verdicts == verdict).sum())} {verdict}" for verdict in VERDICTS)


def _heads(folder: Path) -> tuple[str, str, str, str]:
    """As `_findings`, for scores of heads: what came of each phenomenon, and the score map."""
    results = read_results(folder)
    judged = [_judged(results, p.name) for p in results.phenomena if p.tested]
    words = f"Score map of {results.manifest.study}, {results.model_name}"
    return results.answer, " ".join(judged) or "Heads are described only.", "figures/score_map.png", words


def _judged(results: Results, name: str) -> str:
    phenomenon = next(p for p in results.phenomena if p.name == name)
    leg = results.legs.get(name)
    looks = f"attention leg passed by {int(phenomenon.passed.sum())} of {count(int(phenomenon.picked.sum()), 'head')}"
    if leg is not None and leg.reason is None:
        return f"{name}: {leg.summary}; {looks} tested."
    return f"{name}: {looks} tested; causal leg {'not measured' if leg is None else 'untestable here'}."


def _link(root: Path, path: Path) -> str | None:
    return quote(path.relative_to(root).as_posix()) if path.is_file() else None
