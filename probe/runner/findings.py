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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
import pyarrow as pa
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from probe.data.texts import Dataset
from probe.errors import ResultsError, UnknownName

FINDINGS = "findings.json"
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
TIMES = "timing_"  # how the names of tables begin that hold times, which are never the same twice
MOST_BY = 8  # colours and markers that can be told apart
Kind = Literal["lines", "points", "bars", "heat"]
Log = Literal["", "x", "y", "xy"]


@dataclass(frozen=True)
class Table:
    """Numbers. name: lower-case letters, digits, underscores. frame: its columns' names are the header.

    caption: what the numbers are, with units and n. digits: decimals printed. shown: whether the page prints it;
    one that is only drawn, or longer than a reader wants, is kept in its file alone. The frame's index is not kept.
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
    log: "", "x", "y" or "xy"; what a logarithmic axis cannot show is counted below it. marks: label -> height of a
    horizontal line. labels: what the axes say, with units; default the columns' names. caption: what is to be seen,
    with n.
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
    log: Log = ""
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
    measured, for the manifest. Raises ResultsError for names that are not unique, a table that cannot be kept and a
    figure that cannot be drawn; UnknownName for a figure of a table or column that is not there.
    """

    answer: str
    sections: tuple[Section, ...]
    method: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: tuple[Dataset, ...] = ()

    def __post_init__(self) -> None:
        for paragraphs in (self.method, self.notes, *(section.text for section in self.sections)):
            if isinstance(paragraphs, str):
                raise ResultsError(f"paragraphs come as a tuple of texts, not as one text: {paragraphs[:40]!r}...")
        names = [part.name for part in self._parts() if not isinstance(part, Listing)]
        for name in names:
            if not NAME.fullmatch(name):
                raise ResultsError(f"{name!r} cannot name a table or figure: lower-case letters, digits, underscores.")
        if twice := [name for name, n in Counter(names).items() if n > 1]:
            raise ResultsError(f"{twice[0]!r} names more than one table or figure.")
        tables = self.tables
        for table in tables.values():
            _check_table(table)
        for plot in self.plots:
            if plot.table not in tables:
                raise UnknownName.of(f"table of the figure {plot.name!r}", plot.table, tables)
            _check_plot(plot, tables[plot.table].frame)

    @property
    def tables(self) -> dict[str, Table]:
        """Every table by its name."""
        return {part.name: part for part in self._parts() if isinstance(part, Table)}

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Every figure, in order."""
        return tuple(part for part in self._parts() if isinstance(part, Plot))

    def write(self, folder: Path) -> list[str]:
        """Write every file but the manifest into `folder`, which exists; returns the file names."""
        for table in self.tables.values():
            try:
                table.frame.to_parquet(folder / table_file(table.name), index=False)
            except (pa.ArrowException, UnicodeError) as error:
                raise ResultsError(f"the table {table.name!r} cannot be kept as Parquet: {error}") from error
        sections = [
            {"title": s.title, "text": s.text, "parts": [_described(part) for part in s.parts]} for s in self.sections
        ]
        found = {"answer": self.answer, "sections": sections, "method": self.method, "notes": self.notes}
        text = json.dumps(found, ensure_ascii=False, indent=1)
        # half of a surrogate pair, which a cut text may end in, cannot be kept
        text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
        (folder / FINDINGS).write_text(text, encoding="utf-8")
        return [FINDINGS, *(table_file(name) for name in self.tables)]

    def _parts(self) -> Iterator[Table | Plot | Listing]:
        for section in self.sections:
            yield from section.parts


def table_file(name: str) -> str:
    """The file a table is kept in."""
    return f"table-{name}.parquet"


def figure_file(name: str) -> str:
    """The file a report draws a figure to."""
    return f"figures/{name}.png"


def own_files(folder: Path) -> set[str]:
    """The files that a run and its report leave in `folder`, by its findings.json, which may be damaged."""
    path = folder / FINDINGS
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    names = re.findall(rf'"name": "({NAME.pattern})"', text)
    return {FINDINGS, *map(table_file, names), *map(figure_file, names)}


def _described(part: Table | Plot | Listing) -> dict[str, object]:
    """A part as JSON, {"part": "table" | "plot" | "listing", ...}; a table's numbers are in its own file."""
    if isinstance(part, Table):
        return {"part": "table", "name": part.name, "caption": part.caption, "digits": part.digits, "shown": part.shown}
    if isinstance(part, Plot):
        return {"part": "plot", **asdict(part), "marks": {label: float(at) for label, at in part.marks.items()}}
    return {"part": "listing", "text": part.text, "caption": part.caption}


def _check_table(table: Table) -> None:
    columns = list(table.frame.columns)
    if not columns or not all(isinstance(c, str) for c in columns) or len(set(columns)) < len(columns):
        raise ResultsError(f"the columns of the table {table.name!r} must be different names, they are {columns}.")
    if any(name is not None for name in table.frame.index.names):
        lost = ", ".join(map(str, table.frame.index.names))
        raise ResultsError(f"the table {table.name!r} has an index ({lost}), which is not kept: use reset_index().")
    if not 0 <= table.digits <= 12:
        raise ResultsError(f"the table {table.name!r} has {table.digits} digits; allowed are 0 to 12.")


def _check_plot(plot: Plot, frame: pd.DataFrame) -> None:
    """Raises UnknownName or ResultsError, naming the figure, if it cannot be drawn from the frame."""
    figure, heat = f"the figure {plot.name!r}", plot.kind == "heat"
    if plot.kind not in get_args(Kind):
        raise UnknownName.of(f"kind of figure, asked for by {plot.name!r},", plot.kind, get_args(Kind))
    if plot.log not in get_args(Log):
        raise ResultsError(f"{figure} asks for log={plot.log!r}; allowed are '', 'x', 'y' and 'xy'.")
    columns = list(frame.columns)
    for column in (plot.x, plot.y, plot.value, plot.by, plot.panel, plot.low, plot.high):
        if column is not None and column not in columns:
            raise UnknownName.of(f"column of the table {plot.table!r}", column, columns)
    if heat != (plot.value is not None):
        raise ResultsError(f"{figure} is of kind {plot.kind!r}: a heat, and only it, takes the value that colours it.")
    if heat and (plot.by or plot.low or plot.high or plot.log or plot.marks):
        raise ResultsError(f"{figure} is a heat, which takes no by, low, high, log or marks.")
    if (plot.low is None) != (plot.high is None):
        raise ResultsError(f"{figure} needs both ends of its interval, low and high, or neither.")
    for column in (plot.value,) if heat else (plot.y, plot.low, plot.high):
        if column is not None and (not is_numeric_dtype(frame[column]) or is_bool_dtype(frame[column])):
            raise ResultsError(f"{figure} draws the column {column!r}, which holds {frame[column].dtype}, not numbers.")
    if "x" in plot.log and (not is_numeric_dtype(frame[plot.x]) or plot.kind == "bars"):
        raise ResultsError(f"{figure} asks for a logarithmic x axis, which needs lines or points over numbers.")
    if plot.by is not None and (n := frame[plot.by].nunique(dropna=False)) > MOST_BY:
        raise ResultsError(f"{figure} has {n} values of {plot.by!r}; at most {MOST_BY} can be told apart.")
    places = [c for c in (plot.panel, plot.x, plot.y if heat else plot.by) if c is not None]
    if plot.kind in ("bars", "heat") and (twice := frame[frame.duplicated(places)].to_dict("records")):
        where = ", ".join(f"{c} = {twice[0][c]}" for c in places)
        raise ResultsError(f"{figure} has more than one row at {where}.")
