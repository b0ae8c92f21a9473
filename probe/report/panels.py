"""Where the panels of a figure stand, and what stands around them: legend, names of axes, notes. All in inches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from probe.report.figures import FAINT, INK, WIDTH, canvas
from probe.report.labels import TEXT, TICK, drawn, height, width, wrapped

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1c2127", "#8c510a")
"""Okabe and Ito's, which every kind of colour vision tells apart; their yellow, unseen on white, is a brown here."""
MARKERS = "oDsv^PXd"
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.6, 1.2, 1.6)),
    (0, (9, 2)), (0, (2.5, 1.2)), (0, (6, 1.4, 1.2, 1.4, 1.2, 1.4)), (0, (1.2, 2.6)),
)  # fmt: skip
EDGE = 0.1
GAP = 0.3
"""Inches between panels."""
LINE = 0.25
"""Inches from one row of a legend to the next."""


@dataclass(frozen=True)
class Grid:
    """Panels of one size in rows. above, below: room for a panel's title, and for the names under its axis.

    head, foot: room above all panels (legend) and below them (name of the axis, notes).
    """

    n: int
    columns: int
    width: float
    height: float
    left: float
    gap: float
    above: float
    below: float
    head: float
    foot: float

    @property
    def rows(self) -> int:
        return math.ceil(self.n / self.columns)

    @property
    def total(self) -> float:
        """The figure's height."""
        return self.head + self.rows * (self.above + self.height + self.below) + self.foot

    def place(self, index: int) -> tuple[float, float]:
        """Left and lower edge of a panel."""
        row, column = divmod(index, self.columns)
        top = self.total - self.head - row * (self.above + self.height + self.below) - self.above
        return self.left + column * (self.width + self.gap), top - self.height

    def is_first(self, index: int) -> bool:
        """Whether a panel begins its row."""
        return index % self.columns == 0

    def is_last(self, index: int) -> bool:
        """Whether a panel ends its row."""
        return index % self.columns == self.columns - 1 or index == self.n - 1

    @property
    def middle(self) -> float:
        """Half way along a row."""
        return self.left + (self.columns * (self.width + self.gap) - self.gap) / 2

    def draw(self) -> tuple[Figure, list[Axes]]:
        """An empty figure with its panels."""
        figure = canvas(self.total)
        places = [self.place(index) for index in range(self.n)]
        size = (self.width / WIDTH, self.height / self.total)
        return figure, [figure.add_axes((x / WIDTH, y / self.total, *size)) for x, y in places]


def columns_for(n: int, room: float, least: float, gap: float) -> int:
    """As many columns of panels at least `least` wide as fit into `room`, with the rows filled evenly."""
    most = max(1, min(n, int((room + gap) / (least + gap))))
    return math.ceil(n / math.ceil(n / most))


def say(figure: Figure, x: float, y: float, text: str, **look: Any) -> None:
    """Write at a place in inches."""
    figure.text(x / WIDTH, y / figure.get_figheight(), text, **look)


@dataclass(frozen=True)
class Legend:
    """One entry for each value of a column, in rows of `room` inches. kind: what the figure draws."""

    kind: str
    title: str
    entries: tuple[str, ...]
    room: float

    @property
    def sample(self) -> float:
        """Width of the piece of line, marker or bar."""
        return {"lines": 0.42, "points": 0.16}.get(self.kind, 0.2)

    def spots(self) -> list[tuple[float, int]]:
        """Where each entry begins, and in which row."""
        x, row, spots = self._start, 0, []
        for text in self.entries:
            needs = self.sample + 0.08 + width(text, TEXT)
            if x > self._start and x + needs > self.room:
                x, row = self._start, row + 1
            spots.append((x, row))
            x += needs + 0.28
        return spots

    @property
    def height(self) -> float:
        return (self.spots()[-1][1] + 1) * LINE + 0.06 if self.entries else 0.0

    @property
    def _start(self) -> float:
        return width(self.title, TEXT) + 0.16 if self.title else 0.0

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw it, its upper left corner at a place."""
        if self.title:
            say(figure, left, top - LINE / 2, self.title, va="center_baseline", color=FAINT)
        for index, (text, (x, row)) in enumerate(zip(self.entries, self.spots(), strict=True)):
            start, y = left + x, top - (row + 0.5) * LINE
            self._sample(figure, index, start, y)
            say(figure, start + self.sample + 0.08, y, text, va="center_baseline")

    def _sample(self, figure: Figure, index: int, x: float, y: float) -> None:
        inches = figure.dpi_scale_trans
        if self.kind == "bars":
            box = Rectangle((x, y - 0.065), self.sample, 0.13, fc=COLOURS[index], ec="none", transform=inches)
            figure.add_artist(box)
            return
        line = Line2D([x, x + self.sample / 2, x + self.sample], [y] * 3, transform=inches, **look(index))
        line.set_markevery([1])
        if self.kind == "points":
            line.set_linestyle("")
        figure.add_artist(line)


def look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the value at `index` of a column."""
    return {"color": COLOURS[index], "ls": DASHES[index], "lw": 1.8, "marker": MARKERS[index], "ms": 5.5, "mew": 0}


def name_axes(figure: Figure, grid: Grid, x_name: str, y_name: str, reach: float) -> None:
    """Write the vertical axis' name beside each row, `reach` inches from it, and the level one's below all rows."""
    for index in range(0, grid.n, grid.columns):
        _, bottom = grid.place(index)
        middle = (bottom + grid.height / 2) / grid.total
        x = (grid.left - reach) / WIDTH
        figure.text(x, middle, y_name, rotation=90, ha="right", va="center", size=TEXT, color=INK, linespacing=1.15)
    say(figure, grid.middle, grid.foot - 0.06, x_name, ha="center", va="top", size=TEXT, color=INK)


def title_panel(axes: Axes, grid: Grid, title: str) -> None:
    """Write a panel's title above it."""
    axes.text(0, 1 + 0.06 / grid.height, title, transform=axes.transAxes, va="bottom", size=TICK, weight="bold")


def name_height(text: str) -> float:
    """Room below the panels for the level axis' name."""
    return height(text, TEXT) + 0.06


def axis_name(text: str, room: float) -> str:
    """An axis' name in lines that are no longer than `room`."""
    return wrapped(drawn(text, 200), room, TEXT)


def spread(middles: Sequence[float], needs: Sequence[float], room: float) -> list[float]:
    """Places near `middles` for labels of these heights, from 0 to `room`, without overlap where there is room."""
    order = sorted(range(len(middles)), key=lambda i: middles[i])
    places = list(middles)
    floor = 0.0
    for i in order:
        places[i] = max(middles[i], floor + needs[i] / 2)
        floor = places[i] + needs[i] / 2
    ceiling = room
    for i in reversed(order):
        places[i] = min(places[i], ceiling - needs[i] / 2)
        ceiling = places[i] - needs[i] / 2
    return places
