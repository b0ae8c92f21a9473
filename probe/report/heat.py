"""Heat maps: a column's values as colours on a grid of two others, one colour scale for all panels."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from pandas.api.types import is_integer_dtype

from probe.report.charts import numbers_of, sorted_into, title_of
from probe.report.figures import INK, WIDTH
from probe.report.folder import Floats
from probe.report.labels import TEXT, beside, drawn, every, height, ticks, value_text, width, wrapped
from probe.report.metrics import COLOURS
from probe.report.numbers import fixed, number, whole
from probe.report.panels import EDGE, GAP, Grid, axis_name, columns_for, name_axes, name_height, say, title_panel
from probe.runner.findings import Plot, Table

MISSING = "#e6e9ed"
PRINTED = 12
"""Rows and columns up to which a grid's values are printed in it."""
CELL = 9.0
"""Points of a printed value."""
BAR = (2.6, 0.13)
"""Inches of the colour bar."""


@dataclass(frozen=True)
class Cells:
    """One panel. values: (row, column), NaN where there is none."""

    title: str
    values: Floats
    across: tuple[str, ...]
    down: tuple[str, ...]


def cells(plot: Plot, frame: pd.DataFrame) -> tuple[Cells, ...]:
    """A figure's panels, rows and columns in the order of first appearance."""
    value = numbers_of(frame, plot.value)
    groups, panel_of = sorted_into(frame, plot.panel)
    panels = []
    for name, index in groups.items():
        mine = panel_of == index
        across, column = sorted_into(frame[mine], plot.x)
        down, row = sorted_into(frame[mine], plot.y)
        grid = np.full((max(1, len(down)), max(1, len(across))), np.nan)
        grid[row, column] = value[mine]
        names = [tuple(map(value_text, places)) or ("",) for places in (across, down)]
        panels.append(Cells(title_of(plot.panel, name), grid, names[0], names[1]))
    return tuple(panels)


def figure(plot: Plot, table: Table) -> Figure:
    """The heat map, under the style sheet."""
    panels = cells(plot, table.frame)
    ends = _ends(np.concatenate([panel.values.ravel() for panel in panels]))
    rows, across = (max(panel.values.shape[axis] for panel in panels) for axis in (0, 1))
    small = max(rows, across) <= PRINTED
    down = [tuple(wrapped(name, 1.8) for name in panel.down) for panel in panels]
    reach = max(width(name) for names in down for name in names) + 0.16
    shared = len(set(down)) == 1
    gap = GAP if shared else GAP + reach
    left = EDGE + height("0", TEXT) + 0.08 + reach
    columns = columns_for(len(panels), WIDTH - left - 0.2, max(1.6, across * (0.45 if small else 0.1)), gap)
    for _ in range(4):  # a slanted name may need more room on the left, which leaves less for the cells
        cell = min((WIDTH - left - 0.2 - (columns - 1) * gap) / columns / across, 0.85)
        wide = cell * across
        along = [beside(panel.across, wide / len(panel.across)) for panel in panels]
        left = max([left, *(a.reach - wide / len(a.texts) / 2 + EDGE for a in along)])
    tallest = max(height(name) for names in down for name in names)
    tall = rows * max(min(cell, 0.42), tallest + 0.04) if small else max(min(cell * rows, 5.5), tallest)
    y_name, x_name = axis_name(plot.y_label or plot.y, max(tall, 1.0)), axis_name(plot.x_label or plot.x, WIDTH - left)
    left += height(y_name, TEXT) - height("0", TEXT)
    titles = [wrapped(panel.title, wide) for panel in panels]
    grid = Grid(
        n=len(panels),
        columns=columns,
        width=wide,
        height=tall,
        left=left,
        gap=gap,
        above=max(height(t) + 0.1 if t else 0.0 for t in titles),
        below=max(a.depth for a in along) + 0.1,
        head=EDGE + BAR[1] + 0.38,
        foot=name_height(x_name) + EDGE,
    )
    made, all_axes = grid.draw()
    name_axes(made, grid, x_name, y_name, reach)
    _colour_bar(made, grid, drawn(plot.value or ""), ends)
    texts = _texts(panels, table, plot, (wide / across, tall / rows)) if small else None
    for index, (axes, panel, names, labels) in enumerate(zip(all_axes, panels, down, along, strict=True)):
        title_panel(axes, grid, titles[index])
        _draw(axes, panel, ends)
        labels.put(axes)
        step = every(max(map(height, names)), tall / len(names))
        shown = names if grid.is_first(index) or not shared else [""] * len(names)
        axes.set_yticks(range(0, len(names), step), shown[::step])
        axes.tick_params(length=0)
        if texts is not None:
            _print(axes, panel, texts[index], ends)
    return made


def _ends(values: Floats) -> tuple[float, float]:
    """Ends of the colour scale; it begins at zero where the values come near it."""
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    low = 0.0 if 0 <= low < 0.3 * (high - low) else low
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _draw(axes: Axes, panel: Cells, ends: tuple[float, float]) -> None:
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=MISSING)
    axes.imshow(np.ma.masked_invalid(panel.values), cmap=colours, vmin=ends[0], vmax=ends[1], aspect="auto")
    rows, columns = panel.values.shape
    if max(rows, columns) <= 2 * PRINTED:
        axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color="white", lw=1.2)
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color="white", lw=1.2)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _texts(
    panels: tuple[Cells, ...], table: Table, plot: Plot, cell: tuple[float, float]
) -> list[list[list[str]]] | None:
    """What is printed in each cell, with as many digits as fit; None if nothing does."""
    integers = is_integer_dtype(table.frame[str(plot.value)])
    largest = max((float(np.nanmax(np.abs(p.values))) for p in panels if np.isfinite(p.values).any()), default=0.0)
    for digits in range(table.digits, -1, -1):
        ordinary = 10.0**-digits <= largest < 1e6

        def text(value: float, digits: int = digits, ordinary: bool = ordinary) -> str:
            if not np.isfinite(value):
                return ""
            return whole(int(value)) if integers else fixed(value, digits) if ordinary else number(value, digits)

        texts = [[[text(float(v)) for v in row] for row in panel.values] for panel in panels]
        widest = max(width(t, CELL) for rows in texts for row in rows for t in row)
        if widest < 0.92 * cell[0] and height("0", CELL) < cell[1]:
            return texts
    return None


def _print(axes: Axes, panel: Cells, texts: list[list[str]], ends: tuple[float, float]) -> None:
    colours = matplotlib.colormaps[COLOURS]
    for (row, column), value in np.ndenumerate(panel.values):
        if np.isfinite(value):
            ground = np.array(colours((value - ends[0]) / (ends[1] - ends[0]))[:3])
            linear = np.where(ground <= 0.04045, ground / 12.92, ((ground + 0.055) / 1.055) ** 2.4)
            # dark and white text have the same contrast (WCAG 2) on a ground of this luminance
            colour = INK if linear @ [0.2126, 0.7152, 0.0722] > 0.21 else "white"
            axes.text(column, row, texts[row][column], ha="center", va="center_baseline", size=CELL, color=colour)


def _colour_bar(made: Figure, grid: Grid, name: str, ends: tuple[float, float]) -> None:
    """Above the panels: what the colours measure, and their scale."""
    name = wrapped(name, WIDTH - grid.left - BAR[0] - 0.8, TEXT)
    top = grid.total - EDGE
    start = grid.left + width(name, TEXT) + 0.2
    say(made, grid.left, top - BAR[1] / 2, name, va="center_baseline")
    box = (start / WIDTH, (top - BAR[1]) / grid.total, BAR[0] / WIDTH, BAR[1] / grid.total)
    axes = made.add_axes(box, label="<colorbar>")
    bar = made.colorbar(
        ScalarMappable(Normalize(*ends), matplotlib.colormaps[COLOURS]), cax=axes, orientation="horizontal"
    )
    bar.outline.set_visible(False)
    marked = ticks(*ends, BAR[0], (), log=False, upright=False)
    bar.set_ticks(list(marked.at), labels=list(marked.texts))
    axes.tick_params(labelsize=9)
