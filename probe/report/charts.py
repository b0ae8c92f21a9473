"""What a figure of lines, points or bars shows: its table sorted into panels and lines, and the ends of its axes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_string_dtype

from probe.report.folder import Floats
from probe.report.labels import drawn, value_text
from probe.report.numbers import NONE
from probe.runner.findings import Plot

ONE: dict[object, int] = {"": 0}


@dataclass(frozen=True)
class Series:
    """One line, or one group of points or bars. index: its place among the values of `by`. low, high: ends of the
    intervals, NaN where there is none.
    """

    index: int
    x: Floats
    y: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Panel:
    """What one pair of axes shows. names: of the places 0, 1, ... along a level axis that has no numbers."""

    title: str
    series: tuple[Series, ...]
    names: tuple[str, ...] | None

    @property
    def places(self) -> Floats:
        """Every x that has something to show."""
        return np.concatenate([s.x[np.isfinite(s.x) & np.isfinite(s.y)] for s in self.series] or [np.empty(0)])


@dataclass(frozen=True)
class Chart:
    """by: the values with a line each, in order. by_title: what stands before them, where they are no words.

    ends: of the upright axis. marks: label -> height. hidden: how many values and marks a logarithmic axis cannot show.
    """

    panels: tuple[Panel, ...]
    by: tuple[str, ...]
    by_title: str
    ends: tuple[float, float]
    marks: dict[str, float]
    hidden: int

    @property
    def heights(self) -> Floats:
        """Every y."""
        return np.concatenate([s.y for panel in self.panels for s in panel.series] or [np.empty(0)])


def different(values: Iterable[object]) -> dict[object, int]:
    """Each different value of a column -> its place, in the order of first appearance."""
    places: dict[object, int] = {}
    for value in values:
        places.setdefault(known(value), len(places))
    return places


def known(value: object) -> object:
    """The value, or `NONE` where there is none."""
    return NONE if value is None or value is pd.NA or value != value else value


def sorted_into(frame: pd.DataFrame, column: str | None) -> tuple[dict[object, int], npt.NDArray[np.int64]]:
    """The different values of a column, and of each row, which it has; one value if there is no column or row."""
    if column is None or frame.empty:
        return ONE, np.zeros(len(frame), dtype=np.int64)
    places = different(frame[column])
    return places, np.array([places[known(value)] for value in frame[column]], dtype=np.int64)


def title_of(column: str | None, value: object) -> str:
    """A panel's title: the value, after the column's name where it is no text of its own."""
    if column is None:
        return ""
    return value_text(value) if isinstance(value, str) else drawn(f"{column} {value_text(value)}")


def numbers_of(frame: pd.DataFrame, column: str | None) -> Floats:
    """A column's finite numbers, NaN for the rest."""
    if column is None:
        return np.full(len(frame), np.nan)
    values = frame[column].to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def chart(plot: Plot, frame: pd.DataFrame) -> Chart:
    """A figure's data by panel and line, without what a logarithmic axis cannot show."""
    x, y, low, high = (numbers_of(frame, c) for c in (_number_axis(plot, frame), plot.y, plot.low, plot.high))
    hidden = (x <= 0) & ("x" in plot.log) | (y <= 0) & ("y" in plot.log)
    y = np.where(hidden, np.nan, y)
    marks = {label: at for label, at in plot.marks.items() if np.isfinite(at) and (at > 0 or "y" not in plot.log)}
    (by, line_of), (groups, panel_of) = sorted_into(frame, plot.by), sorted_into(frame, plot.panel)
    panels = []
    for value, number in groups.items():
        mine = panel_of == number
        names = None
        if _number_axis(plot, frame) is None:
            places, place_of = sorted_into(frame[mine], plot.x)
            x[mine], names = place_of, tuple(map(value_text, places))
        series = tuple(_series(i, mine & (line_of == i), (x, y, low, high)) for i in by.values())
        panels.append(Panel(title_of(plot.panel, value), tuple(s for s in series if len(s.x)), names))
    return Chart(
        panels=tuple(panels),
        by=tuple(map(value_text, by)) if plot.by else (),
        by_title=drawn(plot.by) if plot.by and not is_string_dtype(frame[plot.by]) else "",
        ends=_ends(np.concatenate([y, low, high, [*marks.values()]]), log="y" in plot.log, bars=plot.kind == "bars"),
        marks=marks,
        hidden=int(hidden.sum()) + len(plot.marks) - len(marks),
    )


def _number_axis(plot: Plot, frame: pd.DataFrame) -> str | None:
    """The column of a level axis that has numbers; None if it has names, as it always has under bars."""
    numeric = is_numeric_dtype(frame[plot.x]) and not is_bool_dtype(frame[plot.x])
    return plot.x if numeric and plot.kind != "bars" else None


def _series(index: int, rows: npt.NDArray[np.bool_], columns: tuple[Floats, ...]) -> Series:
    """The rows of one line, from left to right."""
    order = np.argsort(columns[0][rows], kind="stable")
    return Series(index, *(column[rows][order] for column in columns))


def _ends(values: Floats, *, log: bool, bars: bool) -> tuple[float, float]:
    """The ends of the upright axis, with some room around the values; bars, and what comes near it, begin at zero."""
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return low / room, high * room
    if bars or 0 <= low < 0.3 * (high - low):
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room * (not bars or low < 0), high + room * (not bars or high > 0)
