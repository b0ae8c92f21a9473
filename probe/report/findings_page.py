"""The page of a folder of findings: an answer, and sections of text, tables, figures and listings. No script."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import numpy as np
import pandas as pd
from markupsafe import Markup

from probe.report import tables
from probe.report.findings_folder import Outcome
from probe.report.html import asset, check_budget, data_uri, environment
from probe.report.numbers import NONE, count, number, whole
from probe.report.strips import visible
from probe.runner.findings import Findings, Listing, Plot, Table, table_file

FOLDED = 40
"""Rows above which a table is folded away until it is asked for."""
LONG = 28
"""Characters above which a column's text may break into lines."""
KINDS = {"lines": "Line chart", "points": "Points", "bars": "Bars", "heat": "Heat map"}


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
    findings, style = outcome.findings, asset("report.css")
    sections = [
        (section.title, section.text, [shown for part in section.parts if (shown := _shown(part, findings, drawn))])
        for section in findings.sections
    ]
    text = (
        environment()
        .get_template("findings.html.j2")
        .render(
            findings=findings,
            manifest=outcome.manifest,
            record_rows=tables.manifest_rows(outcome.manifest),
            sections=sections,
            kept=kept(findings),
            style=Markup(style),
        )
    )
    page = text.encode("utf-8", "replace")
    parts = {
        "figures": sum(len(data_uri(image)) for image in drawn.values()),
        "listings": sum(len(shown.text) for *_, parts in sections for shown in parts if isinstance(shown, Text)),
        "style": len(style),
    }
    check_budget(len(page), parts)
    return page


def sheet(table: Table) -> Sheet:
    """A table's cells as text: whole numbers as they are, others with the table's digits."""
    columns = {str(name): [cell(value, table.digits) for value in column] for name, column in table.frame.items()}
    kinds = tuple(_kind(list(table.frame[name]), texts) for name, texts in columns.items())
    rows = tuple(zip(*columns.values(), strict=True))
    return Sheet(table.caption, tuple(columns), kinds, rows)


def cell(value: object, digits: int) -> str:
    """A value as text: "–" where there is none."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return whole(int(value))
    if isinstance(value, Real):
        return number(float(value), digits)
    missing = value is None or value is pd.NA or value is pd.NaT
    return NONE if missing else visible(str(value))


def kept(findings: Findings) -> list[Kept]:
    """The tables that the page does not print."""
    return [
        Kept(table_file(t.name), t.caption, count(len(t.frame), "row")) for t in findings.tables.values() if not t.shown
    ]


def alt(plot: Plot, frame: pd.DataFrame) -> str:
    """What a figure draws, in words."""
    x, y = plot.x_label or plot.x, plot.y_label or plot.y
    words = [f"{plot.value} over {x} and {y}" if plot.kind == "heat" else f"{y} over {x}"]
    for column, what in ((plot.by, "for each"), (plot.panel, "in a panel for each")):
        if column is not None:
            values = ", ".join(dict.fromkeys(cell(value, 3) for value in frame[column]))
            words.append(f"{what} {column}: {values}")
    if plot.marks:
        words.append("marked: " + ", ".join(f"{name} {number(at)}" for name, at in plot.marks.items()))
    return f"{KINDS[plot.kind]}: {'; '.join(words)}. The numbers are in {table_file(plot.table)}."


def _shown(part: Table | Plot | Listing, findings: Findings, drawn: dict[str, bytes]) -> Sheet | Image | Text | None:
    if isinstance(part, Table):
        return sheet(part) if part.shown else None
    if isinstance(part, Plot):
        return Image(part.caption, data_uri(drawn[part.name]), alt(part, findings.tables[part.table].frame))
    return Text(part.caption, part.text)


def _kind(values: list[object], texts: list[str]) -> Literal["number", "text", "long"]:
    there = [value for value, text in zip(values, texts, strict=True) if text != NONE]
    if there and all(isinstance(value, Real) and not isinstance(value, bool | np.bool_) for value in there):
        return "number"
    return "long" if max(map(len, texts), default=0) > LONG else "text"
