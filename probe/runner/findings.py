"""What a study returns that is not about scores of heads: an answer, and sections of text, tables and figures.

<folder>/findings.json           answer, sections, method, notes; tables and figures are named there
<folder>/table-<name>.parquet    one file for each table
<folder>/manifest.json           written last: its presence means the folder is complete

Figures are drawn by `probe.report` from the tables, so that a report stays a pure function of its folder.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import pandas as pd

from probe.data.texts import Dataset
from probe.errors import ResultsError, UnknownName

FINDINGS = "findings.json"
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
Kind = Literal["lines", "points", "bars", "heat"]


@dataclass(frozen=True)
class Table:
    """Numbers. name: lower-case letters, digits, underscores. frame: its columns' names are the header.

    caption: what the numbers are, with units and n. digits: decimals printed. shown: whether the page prints it;
    one that is only drawn, or longer than a reader wants, is kept in its file alone.
    """

    name: str
    frame: pd.DataFrame
    caption: str
    digits: int = 3
    shown: bool = True


@dataclass(frozen=True)
class Plot:
    """A figure drawn from a table.

    kind: "lines", "points" and "bars" draw column y over column x; "heat" draws column `value` at (x, y), y downward,
    in the order of first appearance. by: a column with a line, or a group of bars, for each of its values; at most
    eight. panel: a column with axes of their own for each of its values. low, high: columns of an interval around y.
    log: "", "x", "y" or "xy". marks: label -> height of a horizontal line. labels: what the axes say, with units;
    default the columns' names. caption: what is to be seen, with n.
    """

    name: str
    table: str
    kind: Kind
    x: str
    y: str
    caption: str
    value: str | None = None
    by: str | None = None
    panel: str | None = None
    low: str | None = None
    high: str | None = None
    log: Literal["", "x", "y", "xy"] = ""
    marks: Mapping[str, float] = field(default_factory=dict)
    x_label: str | None = None
    y_label: str | None = None


@dataclass(frozen=True)
class Listing:
    """Text in which columns line up: a program, or what it printed."""

    text: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One step of the answer. text: paragraphs. parts: what they speak of, in order."""

    title: str
    text: tuple[str, ...] = ()
    parts: tuple[Table | Plot | Listing, ...] = ()


@dataclass(frozen=True)
class Findings:
    """A study's outcome. answer: the question's answer in one sentence with its number (and interval).

    method: paragraphs that say how it was measured. notes: caveats, in full sentences. data: the data sets that were
    measured, for the manifest. Raises ResultsError for names that are not unique or a figure of a table or column
    that is not there.
    """

    answer: str
    sections: tuple[Section, ...]
    method: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: tuple[Dataset, ...] = ()

    def __post_init__(self) -> None:
        names = [part.name for part in self._parts() if not isinstance(part, Listing)]
        for name in names:
            if not NAME.fullmatch(name):
                raise ResultsError(f"{name!r} cannot name a table or figure: lower-case letters, digits, underscores.")
        if twice := [name for name, n in Counter(names).items() if n > 1]:
            raise ResultsError(f"{twice[0]!r} names more than one table or figure.")
        tables = self.tables
        for part in self._parts():
            if not isinstance(part, Plot):
                continue
            if part.table not in tables:
                raise UnknownName.of(f"table of the figure {part.name!r}", part.table, tables)
            columns = [str(c) for c in tables[part.table].frame.columns]
            for column in (part.x, part.y, part.value, part.by, part.panel, part.low, part.high):
                if column is not None and column not in columns:
                    raise UnknownName.of(f"column of the table {part.table!r}", column, columns)

    @property
    def tables(self) -> dict[str, Table]:
        """Every table by its name."""
        return {part.name: part for part in self._parts() if isinstance(part, Table)}

    def write(self, folder: Path) -> list[str]:
        """Write every file but the manifest into `folder`, which exists; returns the file names."""
        for table in self.tables.values():
            table.frame.to_parquet(folder / table_file(table.name), index=False)
        sections = [
            {"title": s.title, "text": s.text, "parts": [_described(part) for part in s.parts]} for s in self.sections
        ]
        found = {"answer": self.answer, "sections": sections, "method": self.method, "notes": self.notes}
        (folder / FINDINGS).write_text(json.dumps(found, ensure_ascii=False, indent=1), encoding="utf-8")
        return [FINDINGS, *(table_file(name) for name in self.tables)]

    def _parts(self) -> Iterator[Table | Plot | Listing]:
        for section in self.sections:
            yield from section.parts


def table_file(name: str) -> str:
    """The file a table is kept in."""
    return f"table-{name}.parquet"


def _described(part: Table | Plot | Listing) -> dict[str, object]:
    """A part as JSON, {"part": "table" | "plot" | "listing", ...}; a table's numbers are in its own file."""
    if isinstance(part, Table):
        part = replace(part, frame=pd.DataFrame())
    fields = {name: value for name, value in asdict(part).items() if name != "frame"}
    return {"part": type(part).__name__.lower(), **fields}
