"""What a section of findings is made of: tables, figures, listings, prompts, and figures linked with the prompts
behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from probe.errors import ResultsError, UnknownName

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
class Prompts:
    """The prompts behind the numbers of a linked view (`Linked`) or of a section (`Asked`), in two tables.

    table: one row a prompt, with the view's x where it has one, `prompt` (its name) and `correct` (1 right, 0 wrong, a
    share where it is a tie); what its other columns hold is printed beside it. tokens: one row a token, in order, with
    `prompt`, `token` (its text, spaces included) and `role` ("target", "foil", "foil 1", ..., "query", or "" for none);
    each other column is the attention, 0 to 1, of the head, or the line of the view, that has its name. A prompt that
    has no tokens is counted and not shown.
    caption: what is shown, and how these prompts were chosen.
    """

    table: str
    tokens: str
    caption: str


@dataclass(frozen=True)
class Linked:
    """Lines over one x in two or more figures, one above the other, linked with each other and with the prompts.

    An x that is pointed at or chosen is marked in all of them, with the value and interval of every line; a line that
    is chosen stands out; the prompts asked at the chosen x are shown below, coloured by the chosen line's attention.
    panels: plots of kind "lines" over the same column of numbers, without `panel` and `log`; each is drawn as an image
    file, too. caption: what is to be seen, with n.
    """

    name: str
    panels: tuple[Plot, ...]
    caption: str
    prompts: Prompts | None = None


@dataclass(frozen=True)
class Asked:
    """Prompts behind a section's numbers: their tokens coloured by the attention of one head, which can be chosen.

    by: a column of the prompts' table; they are shown apart for each of its values, in the order of first appearance.
    """

    name: str
    prompts: Prompts
    by: str | None = None


Part = Table | Plot | Listing | Linked | Asked


def described(part: Part) -> dict[str, object]:
    """A part as JSON, {"part": "table" | "plot" | "listing" | "linked", ...}; a table's numbers are in its own file."""
    if isinstance(part, Table):
        return {"part": "table", "name": part.name, "caption": part.caption, "digits": part.digits, "shown": part.shown}
    if isinstance(part, Plot):
        return {"part": "plot", **asdict(part), "marks": {label: float(at) for label, at in part.marks.items()}}
    if isinstance(part, Linked):
        prompts = None if part.prompts is None else asdict(part.prompts)
        panels = [described(plot) for plot in part.panels]
        return {"part": "linked", "name": part.name, "panels": panels, "caption": part.caption, "prompts": prompts}
    if isinstance(part, Asked):
        return {"part": "asked", "name": part.name, "prompts": asdict(part.prompts), "by": part.by}
    return {"part": "listing", "text": part.text, "caption": part.caption}


def check_table(table: Table) -> None:
    """Raises ResultsError, naming the table, if it cannot be kept."""
    columns = list(table.frame.columns)
    if not columns or not all(isinstance(c, str) for c in columns) or len(set(columns)) < len(columns):
        raise ResultsError(f"the columns of the table {table.name!r} must be different names, they are {columns}.")
    if any(name is not None for name in table.frame.index.names):
        lost = ", ".join(map(str, table.frame.index.names))
        raise ResultsError(f"the table {table.name!r} has an index ({lost}), which is not kept: use reset_index().")
    if not 0 <= table.digits <= 12:
        raise ResultsError(f"the table {table.name!r} has {table.digits} digits; allowed are 0 to 12.")


def check_plot(plot: Plot, tables: Mapping[str, Table]) -> None:
    """Raises UnknownName or ResultsError, naming the figure, if it cannot be drawn from its table."""
    if plot.table not in tables:
        raise UnknownName.of(f"table of the figure {plot.name!r}", plot.table, tables)
    figure, heat, frame = f"the figure {plot.name!r}", plot.kind == "heat", tables[plot.table].frame
    if plot.kind not in get_args(Kind):
        raise UnknownName.of(f"kind of figure, asked for by {plot.name!r},", plot.kind, get_args(Kind))
    if plot.log not in get_args(Log):
        raise ResultsError(f"{figure} asks for log={plot.log!r}; allowed are '', 'x', 'y' and 'xy'.")
    for column in (plot.x, plot.y, plot.value, plot.by, plot.panel, plot.low, plot.high):
        if column is not None:
            check_column(tables[plot.table], column)
    if heat != (plot.value is not None):
        raise ResultsError(f"{figure} is of kind {plot.kind!r}: a heat, and only it, takes the value that colours it.")
    if heat and (plot.by or plot.low or plot.high or plot.log or plot.marks):
        raise ResultsError(f"{figure} is a heat, which takes no by, low, high, log or marks.")
    if (plot.low is None) != (plot.high is None):
        raise ResultsError(f"{figure} needs both ends of its interval, low and high, or neither.")
    for column in (plot.value,) if heat else (plot.y, plot.low, plot.high):
        if column is not None and not holds_numbers(frame[column]):
            raise ResultsError(f"{figure} draws the column {column!r}, which holds {frame[column].dtype}, not numbers.")
    if "x" in plot.log and (not is_numeric_dtype(frame[plot.x]) or plot.kind == "bars"):
        raise ResultsError(f"{figure} asks for a logarithmic x axis, which needs lines or points over numbers.")
    if plot.by is not None and (n := frame[plot.by].nunique(dropna=False)) > MOST_BY:
        raise ResultsError(f"{figure} has {n} values of {plot.by!r}; at most {MOST_BY} can be told apart.")
    if plot.kind in ("bars", "heat"):
        places = [c for c in (plot.panel, plot.x, plot.y if heat else plot.by) if c is not None]
        check_once(figure, frame, places)


def check_column(table: Table, column: str) -> None:
    """Raises UnknownName if the table has no such column."""
    if column not in table.frame.columns:
        raise UnknownName.of(f"column of the table {table.name!r}", column, list(table.frame.columns))


def check_once(figure: str, frame: pd.DataFrame, places: list[str]) -> None:
    """Raises ResultsError, naming the figure, where two rows have one place."""
    if twice := frame[frame.duplicated(places)].to_dict("records"):
        where = ", ".join(f"{c} = {twice[0][c]}" for c in places)
        raise ResultsError(f"{figure} has more than one row at {where}.")


def holds_numbers(column: pd.Series) -> bool:
    """Whether a column can be drawn along an axis; truth values cannot."""
    return is_numeric_dtype(column) and not is_bool_dtype(column)
