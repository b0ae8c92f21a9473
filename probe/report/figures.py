"""The figures of a report as PNG bytes: the same folder gives the same bytes.

No pyplot: each figure is an object of its own, drawn under the one style sheet `style.mplstyle`, whatever the
reader's matplotlib settings are.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from probe.report import metrics
from probe.report.folder import Phenomenon, Results
from probe.report.numbers import count, fixed

STYLE = Path(__file__).with_name("style.mplstyle")
WIDTH = 8.0
"""Inches; at 150 dpi 1200 pixels, so text of 11 points is still 15 pixels tall when shown 800 wide."""
INK, ACCENT, FAINT = "#1c2127", "#1757a6", "#6b747e"


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib's defaults plus the style sheet; the caller's settings are back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rc_file(STYLE)
        yield


def canvas(height: float) -> Figure:
    """An empty figure of the house width, `height` in inches."""
    figure = Figure(figsize=(WIDTH, height))
    FigureCanvasAgg(figure)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as PNG, without the version or the date that matplotlib would write into it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def sample(phenomenon: Phenomenon) -> str:
    """ "n = 412 prompts, 20 clusters"."""
    return f"n = {count(phenomenon.n_units, 'prompt')}, {count(phenomenon.n_clusters, 'cluster')}"


def score_map(results: Results) -> bytes:
    """Layer x head map of the main phenomenon; heads that passed are framed."""
    phenomenon = results.main
    with styled():
        width, height = _map_size(results, WIDTH - 1.0, 5.2)
        total = height + 2.15
        figure = canvas(total)
        axes = figure.add_axes((0.75 / WIDTH, 1.25 / total, width / WIDTH, height / total))
        _draw_map(axes, results, phenomenon, (width, height))
        _frame(axes, np.flatnonzero(phenomenon.passed), results.n_heads)
        n_passed = int(phenomenon.passed.sum())
        verdict = f"framed: {count(n_passed, 'head')} passing the attention leg" if phenomenon.tested else "described"
        title = f"{phenomenon.name}: {metrics.label(phenomenon, 'value')} of each head"
        _heading(figure, title, f"{results.model_name} · {sample(phenomenon)} · {verdict}")
        _colour_bar(figure, phenomenon, (2.0 / WIDTH, 0.38 / total, 4.0 / WIDTH, 0.13 / total))
        return png(figure)


def described(results: Results) -> bytes | None:
    """Small maps of the phenomena that are only described, two a row; None if there are none."""
    shown = [p for p in results.phenomena if not p.tested and p is not results.main]
    if not shown:
        return None
    with styled():
        columns = min(2, len(shown))
        room = WIDTH / columns
        width, height = _map_size(results, room - 1.0, 3.2)
        n_rows = -(-len(shown) // columns)
        each = height + 2.2
        total = n_rows * each
        figure = canvas(total)
        for number, phenomenon in enumerate(shown):
            left = (number % columns) * room + 0.7
            bottom = total - (number // columns + 1) * each + 1.3
            axes = figure.add_axes((left / WIDTH, bottom / total, width / WIDTH, height / total))
            _draw_map(axes, results, phenomenon, (width, height))
            best = phenomenon.best
            _frame(axes, np.asarray([best]), results.n_heads)
            heading = f"{phenomenon.name} (described)"
            figure.text((left - 0.55) / WIDTH, (bottom + height + 0.76) / total, heading, va="top", weight="bold")
            best_value = fixed(float(phenomenon.numbers["value"][best]))
            figure.text(
                (left - 0.55) / WIDTH,
                (bottom + height + 0.51) / total,
                f"framed: best head {phenomenon.label(best)}, {best_value}\n{sample(phenomenon)}",
                va="top",
                size=10,
                linespacing=1.35,
                color=FAINT,
            )
            bar = (left / WIDTH, (bottom - 0.78) / total, min(width, 2.6) / WIDTH, 0.1 / total)
            _colour_bar(figure, phenomenon, bar, marked=False)
        return png(figure)


def best_heads(results: Results, n: int = 10) -> bytes:
    """The best heads of the main phenomenon with their intervals, against each rival and random models."""
    phenomenon = results.main
    with styled():
        order = phenomenon.ranked()[:n]
        lines = _reference_lines(phenomenon)
        low, high = _value_range(phenomenon, order, [value for _, value, _, _ in lines])
        height, axis_width = 0.3 * len(order) + 0.3, WIDTH - 1.5
        names = [f"{name} {fixed(value)}" for name, value, _, _ in lines]
        widths = _text_widths(names, 10)
        # each name is centred on its line, but kept over the axis when the line is near an end
        middles = [
            min(max((value - low) / (high - low) * axis_width, width / 2), axis_width - width / 2)
            for (_, value, _, _), width in zip(lines, widths, strict=True)
        ]
        levels = _levels(middles, widths)
        total = height + 0.22 * (max(levels, default=0) + 1) + 1.55
        figure = canvas(total)
        axes = figure.add_axes((1.15 / WIDTH, 0.75 / total, axis_width / WIDTH, height / total))
        _draw_intervals(axes, phenomenon, order)
        box = {"fc": "white", "ec": "none", "pad": 0.8}
        for (_, value, style, colour), name, level, middle in zip(lines, names, levels, middles, strict=True):
            top = 1 + (0.06 + 0.22 * level) / height
            across, whole = axes.get_xaxis_transform(), axes.transAxes
            axes.plot([value] * 2, [0, top], transform=across, ls=style, color=colour, lw=1.3, clip_on=False, zorder=1)
            x, y = middle / axis_width, top + 0.02 / height
            axes.text(x, y, name, transform=whole, ha="center", va="bottom", size=10, color=colour, bbox=box)
        axes.set_xlim(low, high)
        axes.set_xlabel(f"{metrics.label(phenomenon, 'value')}, 95 % cluster-bootstrap interval")
        key = "● passes the attention leg   ○ does not" if phenomenon.tested else "described, no verdict"
        title = f"{phenomenon.name}: best heads against their rivals"
        _heading(figure, title, f"{results.model_name} · {sample(phenomenon)} · {key}")
        return png(figure)


def _heading(figure: Figure, title: str, subtitle: str) -> None:
    total = figure.get_figheight()
    figure.text(0.1 / WIDTH, 1 - 0.12 / total, title, va="top", weight="bold", size=12)
    figure.text(0.1 / WIDTH, 1 - 0.37 / total, subtitle, va="top", size=10.5, color=FAINT)


def _map_size(results: Results, room: float, tallest: float) -> tuple[float, float]:
    """Width and height of a map in inches; the cells of a model with few layers are wider than tall."""
    cell = min(0.42, room / results.n_layers, tallest / results.n_heads)
    return min(room, 2.0 * cell * results.n_layers), cell * results.n_heads


def _draw_map(axes: Axes, results: Results, phenomenon: Phenomenon, size: tuple[float, float]) -> None:
    scale = metrics.scale(phenomenon, "value")
    grid = phenomenon.numbers["value"].reshape(results.n_layers, results.n_heads).T
    axes.imshow(grid, cmap=metrics.COLOURS, vmin=scale.low, vmax=scale.high, aspect="auto")
    axes.set_xlabel("layer")
    axes.set_ylabel("head")
    for axis, n, ticks in (
        (axes.xaxis, results.n_layers, size[0] / 0.4),
        (axes.yaxis, results.n_heads, size[1] / 0.24),
    ):
        axis.set_major_locator(MaxNLocator(nbins=max(1, min(n, int(ticks))), integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(-0.5, results.n_layers - 0.5)
    axes.set_ylim(results.n_heads - 0.5, -0.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if size[0] / results.n_layers >= 0.5 and size[1] / results.n_heads >= 0.2:
        for (head, layer), value in np.ndenumerate(grid):
            # dark text on the bright end of the colour map, white on the dark end
            bright = (value - scale.low) / (scale.high - scale.low) > 0.6
            axes.text(
                layer,
                head,
                fixed(float(value), 2),
                ha="center",
                va="center",
                size=9,
                color=INK if bright else "white",
            )


def _frame(axes: Axes, heads: npt.NDArray[np.int64], n_heads: int) -> None:
    """A white frame with a dark edge around cells: seen on both ends of the colour scale."""
    for index in heads:
        layer, head = divmod(int(index), n_heads)
        frame = Rectangle((layer - 0.5, head - 0.5), 1, 1, fc="none", ec="white", lw=1.8, zorder=3, clip_on=False)
        frame.set_path_effects([withStroke(linewidth=4.2, foreground=INK)])
        axes.add_patch(frame)


def _colour_bar(
    figure: Figure, phenomenon: Phenomenon, box: tuple[float, float, float, float], *, marked: bool = True
) -> None:
    scale = metrics.scale(phenomenon, "value")
    axes = figure.add_axes(box)
    mappable = ScalarMappable(Normalize(scale.low, scale.high), metrics.COLOURS)
    bar = figure.colorbar(mappable, cax=axes, orientation="horizontal")
    bar.outline.set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.tick_params(labelsize=9)
    if not marked:
        axes.set_xlabel(metrics.label(phenomenon, "value"), size=9.5)
        return
    marks = sorted(scale.marks, key=lambda mark: mark[1])
    for number, (name, value) in enumerate(marks):
        axes.plot([value, value], [0, 1.7], transform=axes.get_xaxis_transform(), color=INK, lw=1.4, clip_on=False)
        # the lower mark's name runs to the left, the higher one's to the right: they never meet
        left = number == 0 and len(marks) > 1
        axes.text(
            value,
            1.75,
            f"{name} {fixed(value)} " if left else f" {name} {fixed(value)}",
            va="bottom",
            ha="right" if left else "left",
            transform=axes.get_xaxis_transform(),
            size=9.5,
        )


def _draw_intervals(axes: Axes, phenomenon: Phenomenon, order: list[int]) -> None:
    for y, index in enumerate(order):
        value, low, high = (float(phenomenon.numbers[c][index]) for c in ("value", "low", "high"))
        passed = bool(phenomenon.passed[index])
        colour = ACCENT if passed or not phenomenon.tested else FAINT
        axes.plot([low, high], [y, y], color=colour, lw=2.2, solid_capstyle="butt", zorder=2)
        axes.plot(value, y, "o", ms=7.5, color=colour, mfc=colour if passed else "white", mew=1.8, zorder=3)
    axes.set_yticks(range(len(order)), [phenomenon.label(i) for i in order])
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_ylabel("layer.head")
    axes.tick_params(axis="y", length=0)


def _reference_lines(phenomenon: Phenomenon) -> list[tuple[str, float, str, str]]:
    """Name, value, line style and colour of every rival, of chance and of the best random head.

    Those that print the same value share one line.
    """
    named = [(r.name, r.value) for r in phenomenon.rivals]
    if not any(name == "chance" for name, _ in named):
        named.append(("chance", phenomenon.middle("chance")))
    named.append(("best random head", phenomenon.middle("random_max")))
    styles = {"chance": (":", FAINT), "best random head": ("-.", "#8a4b08")}
    shared: dict[str, list[tuple[str, float]]] = {}
    for name, value in named:
        if np.isfinite(value):
            shared.setdefault(fixed(value), []).append((name, value))
    return [
        (", ".join(name for name, _ in same), same[0][1], *styles.get(same[0][0], ("--", INK)))
        for same in shared.values()
    ]


def _value_range(phenomenon: Phenomenon, order: list[int], lines: list[float]) -> tuple[float, float]:
    parts = [phenomenon.numbers[c][order] for c in ("value", "low", "high")]
    values = np.concatenate([*parts, np.asarray(lines, dtype=np.float64)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    margin = 0.06 * (float(values.max() - values.min()) or 1.0)
    return float(values.min()) - margin, float(values.max()) + margin


def _text_widths(texts: list[str], size: float) -> list[float]:
    """Widths of texts in inches."""
    figure = canvas(1.0)
    return [float(figure.text(0, 0, text, size=size).get_window_extent().width) / figure.dpi for text in texts]


def _levels(middles: list[float], widths: list[float]) -> list[int]:
    """For each label the lowest row in which it overlaps no other label."""
    taken: list[list[tuple[float, float]]] = []
    levels = [0] * len(middles)
    for i in sorted(range(len(middles)), key=lambda i: middles[i]):
        start, stop = middles[i] - widths[i] / 2 - 0.06, middles[i] + widths[i] / 2 + 0.06
        free = (k for k, row in enumerate(taken) if all(start >= b or stop <= a for a, b in row))
        levels[i] = next(free, len(taken))
        if levels[i] == len(taken):
            taken.append([])
        taken[levels[i]].append((start, stop))
    return levels
