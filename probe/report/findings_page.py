"""The page of a folder of findings: an answer, and sections of text, tables, figures and listings. It has a script only
where figures are linked, or prompts shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
from markupsafe import Markup

from probe.report import linked, tables
from probe.report.behind import Listed, listed
from probe.report.findings_folder import Outcome
from probe.report.html import asset, check_budget, data_uri, environment, script_hash
from probe.report.linked import View
from probe.report.numbers import NONE, count
from probe.report.words import alt, cell
from probe.runner.findings import Asked, Findings, Linked, Part, Plot, Table, table_file

FOLDED = 40
"""Rows above which a table is folded away until it is asked for."""
LONG = 28
"""Characters above which a column's text may break into lines."""


@dataclass(frozen=True)
class Sheet:
    """A table as the template shows it. kinds: of each column, for its alignment and line breaks."""

    kind = "table"
    caption: str
    header: tuple[str, ...]
    kinds: tuple[Literal["number", "text", "long"], ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def folded(self) -> bool:
        return len(self.rows) > FOLDED


@dataclass(frozen=True)
class Image:
    """A figure as the template shows it: source as a data: address; alt for those who cannot see it."""

    kind = "figure"
    caption: str
    source: str
    alt: str


@dataclass(frozen=True)
class Text:
    """A listing as the template shows it."""

    kind = "listing"
    caption: str
    text: str


@dataclass(frozen=True)
class Kept:
    """A table whose numbers are in its file alone."""

    file: str
    caption: str
    rows: str


def render(outcome: Outcome, drawn: dict[str, bytes]) -> bytes:
    """The page as bytes. drawn: name of a figure -> PNG. Raises ResultsError if it is over the budget."""
    findings = outcome.findings
    sections = [
        (section.title, section.text, [shown for part in section.parts if (shown := _shown(part, findings, drawn))])
        for section in findings.sections
    ]
    views = [shown for *_, parts in sections for shown in parts if isinstance(shown, View | Listed)]
    style = "\n".join(asset(name) for name in ("report.css", *(["linked.css"] if views else [])))
    script = asset("linked.js") if views else ""
    text = (
        environment()
        .get_template("findings.html.j2")
        .render(
            findings=findings,
            manifest=outcome.manifest,
            record_rows=tables.manifest_rows(outcome.manifest),
            sections=sections,
            kept=kept(findings),
            quantised=any(shown.behind and shown.behind.lines for shown in views),
            style=Markup(style),
            script=Markup(script),
            script_hash=script_hash(script),
        )
    )
    page = text.encode("utf-8", "replace")
    every = [part for *_, parts in sections for part in parts]
    parts = {
        "figures": sum(len(part.source) for part in every if isinstance(part, Image)),
        "listings": sum(len(part.text) for part in every if isinstance(part, Text)),
        "prompts": sum(part.behind.size for part in views if part.behind),
        "style and script": len(style) + len(script),
    }
    check_budget(len(page), parts)
    return page


def sheet(table: Table) -> Sheet:
    """A table's cells as text: whole numbers as they are, others with the table's digits."""
    columns = {str(name): [cell(value, table.digits) for value in column] for name, column in table.frame.items()}
    kinds = tuple(_kind(list(table.frame[name]), texts) for name, texts in columns.items())
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(table.caption, tuple(columns), kinds, rows)


def kept(findings: Findings) -> list[Kept]:
    """The tables that the page does not print."""
    return [
        Kept(table_file(t.name), t.caption, count(len(t.frame), "row")) for t in findings.tables.values() if not t.shown
    ]


def _shown(part: Part, findings: Findings, drawn: dict[str, bytes]) -> Sheet | Image | Text | View | Listed | None:
    if isinstance(part, Table):
        return sheet(part) if part.shown else None
    if isinstance(part, Plot):
        return Image(part.caption, data_uri(drawn[part.name]), alt(part, findings.tables[part.table].frame))
    if isinstance(part, Linked):
        return linked.view(part, findings.tables)
    if isinstance(part, Asked):
        return listed(part, findings.tables)
    return Text(part.caption, part.text)


def _kind(values: list[object], texts: list[str]) -> Literal["number", "text", "long"]:
    there = [value for value, text in zip(values, texts, strict=True) if text != NONE]
    if there and all(isinstance(value, Real) and not isinstance(value, bool | np.bool_) for value in there):
        return "number"
    return "long" if max(map(len, texts), default=0) > LONG else "text"
