"""The figures of findings as PNG bytes: lines, points and bars here, heat maps in `heat.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from probe.report import heat
from probe.report.charts import Chart, Panel, Series, chart
from probe.report.figures import FAINT, INK, WIDTH, png, styled
from probe.report.folder import Floats
from probe.report.labels import TEXT, Names, Ticks, beside, drawn, height, ticks, width, wrapped
from probe.report.numbers import count
from probe.report.panels import (
    COLOURS,
    EDGE,
    GAP,
    Grid,
    Legend,
    axis_name,
    columns_for,
    look,
    name_axes,
    name_height,
    say,
    spread,
    title_panel,
)
from probe.runner.findings import Plot, Table

RULE = "#e4e8ec"
SMALL = 9.5
"""Points: of marks and notes."""
THICK = 0.6
"""Inches that a bar is wide at most."""
FEW = 30
"""Points of a line above which only some get a marker."""


def draw(plot: Plot, table: Table) -> bytes:
    """A figure as PNG, drawn from its table: 1200 pixels wide, the same bytes every time."""
    with styled():
        return png(figure(plot, table))


def figure(plot: Plot, table: Table) -> Figure:
    """The same, before it is an image; under the style sheet (`styled`)."""
    return heat.figure(plot, table) if plot.kind == "heat" else _figure(plot, chart(plot, table.frame))


@dataclass(frozen=True)
class _Along:
    """A panel's level axis: its ends, and the names or numbers along it."""

    ends: tuple[float, float]
    labels: Names | Ticks

    @property
    def depth(self) -> float:
        return self.labels.depth if isinstance(self.labels, Names) else height("0")


def _figure(plot: Plot, shown: Chart) -> Figure:
    marks = {wrapped(drawn(label), 1.3, SMALL): at for label, at in shown.marks.items()}
    right = max((width(text, SMALL) + 0.16 for text in marks), default=0.2) + EDGE
    least = max([2.0, *(_least(plot, shown) * len(panel.names or ()) for panel in shown.panels)])
    columns = columns_for(len(shown.panels), WIDTH - 1.0 - right, least, GAP)
    tall = {1: 3.3, 2: 2.5}.get(columns, 2.1)
    upright = ticks(*shown.ends, tall, shown.heights, log="y" in plot.log, upright=True)
    y_name = axis_name(plot.y_label or plot.y, tall)
    reach = max(map(width, upright.texts), default=0.0) + 0.18
    left = EDGE + height(y_name, TEXT) + 0.06 + reach
    for _ in range(4):  # a slanted name may need more room on the left, which leaves less for the panels
        wide = (WIDTH - left - right - (columns - 1) * GAP) / columns
        along = [_along(plot, panel, wide) for panel in shown.panels]
        left = max([left, *(_overhang(a, wide) + EDGE for a in along)])
    x_name = axis_name(plot.x_label or plot.x, WIDTH - left - right)
    titles = [wrapped(panel.title, wide) for panel in shown.panels]
    legend = Legend(plot.kind, shown.by_title, shown.by, WIDTH - left - EDGE)
    note = _note(shown.hidden)
    grid = Grid(
        n=len(shown.panels),
        columns=columns,
        width=wide,
        height=tall,
        left=left,
        gap=GAP,
        above=max(height(t) + 0.1 if t else 0.0 for t in titles),
        below=max(a.depth for a in along) + 0.12,
        head=EDGE + legend.height,
        foot=name_height(x_name) + (0.22 if note else 0.0) + EDGE,
    )
    made, all_axes = grid.draw()
    legend.draw(made, left, grid.total - EDGE)
    name_axes(made, grid, x_name, y_name, reach)
    say(made, EDGE, EDGE, note, va="bottom", size=SMALL, color=FAINT)
    for index, (axes, panel, level) in enumerate(zip(all_axes, shown.panels, along, strict=True)):
        _scale(axes, plot, level, upright, shown.ends)
        if not grid.is_first(index):
            axes.tick_params(axis="y", labelleft=False, length=0)
        title_panel(axes, grid, titles[index])
        _draw(axes, plot, panel, shown)
        for at in marks.values():
            axes.axhline(at, color=FAINT, lw=1.1, ls=(0, (4, 3)), zorder=2.5)
        if grid.is_last(index):
            _name_marks(axes, grid, marks)
    return made


def _least(plot: Plot, shown: Chart) -> float:
    """Inches that one place along an axis of names needs at least."""
    return 0.1 + 0.11 * max(1, len(shown.by)) if plot.kind == "bars" else 0.3


def _along(plot: Plot, panel: Panel, wide: float) -> _Along:
    if panel.names is not None:
        n = max(1, len(panel.names))
        return _Along((-0.5, n - 0.5), beside(panel.names, wide / n))
    places, log = panel.places, "x" in plot.log
    if not len(places):
        return _Along((1.0, 10.0) if log else (0.0, 1.0), Ticks((), ()))
    low, high = float(places.min()), float(places.max())
    if log:
        room = (high / low) ** 0.03 if high > low else 2.0
        ends = (low / room, high * room)
    else:
        room = 0.03 * (high - low) or 0.5
        ends = (low - room, high + room)
    return _Along(ends, ticks(*ends, wide, places, log=log, upright=False))


def _overhang(along: _Along, wide: float) -> float:
    """Inches that the first name reaches over the panel's left edge."""
    if isinstance(along.labels, Ticks):
        return 0.0
    return along.labels.reach - wide / max(1, len(along.labels.texts)) / 2


def _note(hidden: int) -> str:
    if not hidden:
        return ""
    return f"Not shown: {count(hidden, 'value')} of 0 or less, which a logarithmic axis does not have."


def _scale(axes: Axes, plot: Plot, along: _Along, upright: Ticks, ends: tuple[float, float]) -> None:
    axes.set_xscale("log" if "x" in plot.log else "linear")
    axes.set_yscale("log" if "y" in plot.log else "linear")
    axes.set_xlim(*along.ends)
    axes.set_ylim(*ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_yticks(upright.at, upright.texts)
    if isinstance(along.labels, Ticks):
        axes.set_xticks(along.labels.at, along.labels.texts)
    else:
        along.labels.put(axes)
    axes.grid(axis="y", color=RULE, lw=0.8)
    axes.set_axisbelow(True)


def _draw(axes: Axes, plot: Plot, panel: Panel, shown: Chart) -> None:
    if not len(panel.places):
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color=FAINT)
    n = max(1, len(shown.by))
    for series in panel.series:
        # an interval that reaches below a logarithmic axis ends with it
        low, high = (np.maximum(end, shown.ends[0]) for end in (series.low, series.high))
        if plot.kind == "lines":
            _line(axes, series, low, high)
            continue
        step = min(0.8 / n, THICK / _slot(axes)) if plot.kind == "bars" else min(0.14, 0.6 / n)
        x = series.x + (step * (series.index - (n - 1) / 2) if panel.names is not None else 0.0)
        if plot.kind == "bars":
            base = shown.ends[0] if "y" in plot.log else 0.0
            axes.bar(x, series.y - base, 0.92 * step, bottom=base, color=COLOURS[series.index], zorder=2)
            axes.vlines(x, low, high, color=INK, lw=1.3, zorder=3)
        else:
            crowded = len(series.x) > 200
            axes.vlines(x, low, high, color=COLOURS[series.index], lw=1.8, zorder=3)
            style = {**look(series.index), "ls": "", "ms": 3.5 if crowded else 6.5, "alpha": 0.6 if crowded else 1}
            axes.plot(x, series.y, zorder=4, **style)
    if plot.kind == "bars" and shown.ends[0] < 0:
        axes.axhline(0, color=INK, lw=0.8, zorder=3)


def _slot(axes: Axes) -> float:
    """Inches from one place to the next along an axis of names."""
    low, high = axes.get_xlim()
    return axes.get_position().width * WIDTH / (high - low)


def _line(axes: Axes, series: Series, low: Floats, high: Floats) -> None:
    axes.fill_between(series.x, low, high, color=COLOURS[series.index], alpha=0.17, lw=0, zorder=2)
    every = math.ceil(len(series.x) / 12) if len(series.x) > FEW else 1
    # markers of different lines do not fall on the same places
    first = series.index * every // 8 if every > 1 else 0
    axes.plot(series.x, series.y, zorder=3, markevery=(first, every), **look(series.index))


def _name_marks(axes: Axes, grid: Grid, marks: dict[str, float]) -> None:
    """The marks' names, right of a row's last panel, apart from each other, each with a line to its mark."""
    to_axes = axes.transData + axes.transAxes.inverted()
    at = [float(to_axes.transform((axes.get_xlim()[0], value))[1]) for value in marks.values()]
    places = spread([grid.height * y for y in at], [height(text, SMALL) for text in marks], grid.height)
    for text, y, place in zip(marks, at, places, strict=True):
        end = place / grid.height
        x = (1 + 0.02 / grid.width, 1 + 0.1 / grid.width)
        axes.plot(x, (y, end), transform=axes.transAxes, color=FAINT, lw=0.9, clip_on=False, scalex=False, scaley=False)
        axes.text(1 + 0.14 / grid.width, end, text, transform=axes.transAxes, va="center", size=SMALL, color=FAINT)
