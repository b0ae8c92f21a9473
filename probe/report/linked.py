"""A linked view as the template shows it: panels of lines as SVG, the exact values at each x, the prompts behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from pandas.api.types import is_string_dtype

from probe.report.behind import Behind, behind
from probe.report.charts import Series, chart, different, numbers_of
from probe.report.figures import styled
from probe.report.folder import Floats
from probe.report.labels import ticks, value_text
from probe.report.numbers import number
from probe.report.panels import COLOURS, DASHES
from probe.report.words import alt, cell
from probe.runner.findings import Linked, Plot, Table

SIDE = 1000
"""Units of an SVG panel along each side. It is stretched to the room there is; the width of its lines is not."""
WIDE, TALL = 3.0, 1.7
"""Inches of a panel on a narrow screen, which the numbers along its axes have to fit."""
DASH = 2.0
"""Pixels for one unit of a line's dashes."""
FEW = 40
"""Places above which lines have no points."""

Ends = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """by, name: its column and value, as the page's fragment gives them; text: as it is shown. colour: number of its
    colour. dashes: "" for none. heights: at each x, from the top, as the script reads them. band, stroke, points: SVG
    paths. cells: (value, interval) at each x.
    """

    by: str
    name: str
    text: str
    colour: int
    dashes: str
    heights: str
    band: str
    stroke: str
    points: str
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Panel:
    """One figure of the view. by: what stands before its lines' names.

    ticks, marks: (per cent from below, text). alt: what it draws, in words.
    """

    title: str
    caption: str
    by: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    marks: tuple[tuple[float, str], ...]
    alt: str


@dataclass(frozen=True)
class X:
    """One x. name: as a fragment gives it; text: as it is shown. at: per mille from the left. link: the fragment."""

    name: str
    text: str
    at: float
    link: str


@dataclass(frozen=True)
class View:
    """A linked view. x: its column; x_label: what its axis says. ticks: (per cent from the left, text).

    gutter: characters that the numbers beside the panels need.
    """

    kind = "linked"
    name: str
    caption: str
    x: str
    x_label: str
    places: tuple[X, ...]
    ticks: tuple[tuple[float, str], ...]
    panels: tuple[Panel, ...]
    gutter: int
    behind: Behind | None


def view(part: Linked, tables: dict[str, Table]) -> View:
    """A linked view, drawn from its tables."""
    with styled():  # what fits along an axis is measured in the figures' font
        return _view(part, tables)


def _view(part: Linked, tables: dict[str, Table]) -> View:
    x = part.panels[0].x
    xs = sorted({float(value) for plot in part.panels for value in numbers_of(tables[plot.table].frame, x)})
    room = 0.03 * (xs[-1] - xs[0]) or 0.5
    along = xs[0] - room, xs[-1] + room
    colours = _colours(part, tables)
    panels = tuple(_panel(plot, tables[plot.table], xs, along, colours[plot.by]) for plot in part.panels)
    places = tuple(_place(part.name, value, along) for value in xs)
    marked = ticks(*along, WIDE, xs, log=False, upright=False)
    return View(
        name=part.name,
        caption=part.caption,
        x=x,
        x_label=next((plot.x_label for plot in reversed(part.panels) if plot.x_label), x),
        places=places,
        ticks=tuple(zip(_percent(marked.at, along), marked.texts, strict=True)),
        panels=panels,
        gutter=1 + max((len(text) for panel in panels for _, text in panel.ticks), default=0),
        behind=behind(part, tables, [(v, f"{x} {p.text}", p.link[1:]) for v, p in zip(xs, places, strict=True)]),
    )


def link(name: str, x: str) -> str:
    """The fragment that opens a view at an x."""
    return f"#linked={name}&index={quote(x, safe='')}"


def _place(view: str, x: float, along: Ends) -> X:
    whole = x == int(x)
    name = str(int(x)) if whole else repr(x)
    return X(name, value_text(int(x) if whole else x), float(_along([x], along)[0]), link(view, name))


def _colours(part: Linked, tables: dict[str, Table]) -> dict[str | None, dict[str, int]]:
    """Each line's number, by column and name: the same in every panel, and different ones as long as colours last."""
    found: dict[str | None, dict[str, int]] = {}
    for plot in part.panels:
        known = found.setdefault(plot.by, {})
        for name in _names(plot, tables[plot.table]):
            if name not in known:
                known[name] = sum(map(len, found.values()))
    return found


def _names(plot: Plot, table: Table) -> list[str]:
    """The values of `by`, in the order of the chart's lines."""
    return list(map(str, _values(plot, table)))


def _values(plot: Plot, table: Table) -> list[object]:
    return [""] if plot.by is None else list(different(table.frame[plot.by]))


def _panel(plot: Plot, table: Table, xs: Sequence[float], along: Ends, colours: dict[str, int]) -> Panel:
    made = chart(plot, table.frame)
    names = _names(plot, table)
    title = plot.y_label or plot.y
    texts = [cell(value, table.digits) if plot.by else title for value in _values(plot, table)]
    upright = ticks(*made.ends, TALL, made.heights, log=False, upright=True)
    lines = []
    for series in made.panels[0].series:
        name = names[series.index]
        colour = colours[name]
        paths = _paths(series, along, made.ends, points=len(xs) <= FEW)
        heights, cells = _at(series, xs, made.ends, table.digits)
        lines.append(
            Line(
                plot.by or "", name, texts[series.index], colour % len(COLOURS), dashes(colour), heights, *paths, cells
            )
        )
    return Panel(
        title=title,
        caption=plot.caption,
        by=plot.by if plot.by and not is_string_dtype(table.frame[plot.by]) else "",
        lines=tuple(lines),
        ticks=tuple(zip(_percent(upright.at, made.ends), upright.texts, strict=True)),
        marks=tuple(zip(_percent(made.marks.values(), made.ends), made.marks, strict=True)),
        alt=alt(plot, table.frame),
    )


def dashes(colour: int) -> str:
    """The dashes of the line with a number, in pixels; "" for a solid one."""
    pattern = DASHES[colour % len(DASHES)]
    return "" if pattern == "-" else " ".join(f"{DASH * part:g}" for part in pattern[1])


def _paths(series: Series, along: Ends, upright: Ends, *, points: bool) -> tuple[str, str, str]:
    """Band, stroke and points of a line, as SVG paths; missing values leave gaps."""
    x, y, low, high = (
        _along(series.x, along), *(_down(values, upright) for values in (series.y, series.low, series.high)),
    )  # fmt: skip
    bands = [[*zip(x[r], high[r], strict=True), *zip(x[r][::-1], low[r][::-1], strict=True)] for r in _runs(low + high)]
    strokes = [list(zip(x[r], y[r], strict=True)) for r in _runs(y)]
    dots = "".join(f"M{_n(a)} {_n(b)}h0" for a, b in zip(x, y, strict=True) if np.isfinite(b))
    return "".join(_path(p) + "Z" for p in bands), "".join(map(_path, strokes)), dots if points else ""


def _at(series: Series, xs: Sequence[float], upright: Ends, digits: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A line's heights and its (value, interval) at each x; "" and "–" where it has none."""
    rows = {
        float(x): (float(y), float(low), float(high))
        for x, y, low, high in zip(series.x, series.y, series.low, series.high, strict=True)
        if np.isfinite(y)
    }
    nothing = float("nan"), float("nan"), float("nan")
    found = [rows.get(x, nothing) for x in xs]
    heights = _down([y for y, _, _ in found], upright)
    cells = tuple((number(y, digits), _interval(low, high, digits)) for y, low, high in found)
    return ",".join(_n(h) if np.isfinite(h) else "" for h in heights), cells


def _interval(low: float, high: float, digits: int) -> str:
    return f"[{number(low, digits)}, {number(high, digits)}]" if np.isfinite(low + high) else ""


def _runs(values: Floats) -> list[npt.NDArray[np.int64]]:
    """Indices of neighbours that are all finite."""
    there = np.flatnonzero(np.isfinite(values))
    return [run for run in np.split(there, np.flatnonzero(np.diff(there) > 1) + 1) if len(run)]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _along(values: Sequence[float] | Floats, ends: Ends) -> Floats:
    """Units from the left."""
    return np.asarray(SIDE * (np.asarray(values, dtype=np.float64) - ends[0]) / (ends[1] - ends[0])).round(1)


def _down(values: Sequence[float] | Floats, ends: Ends) -> Floats:
    """Units from the top."""
    return np.asarray(SIDE - _along(values, ends)).round(1)


def _percent(values: Iterable[float], ends: Ends) -> list[float]:
    """Per cent of the way from one end of an axis to the other."""
    return [round(float(value) / 10, 2) for value in _along(list(values), ends)]


def _n(value: float) -> str:
    """A number of units, as short as it is exact."""
    return f"{value:.1f}".removesuffix(".0")
