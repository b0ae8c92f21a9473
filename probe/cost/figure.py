"""The figure of the cost study: time over a plain pass and peak memory, by model and length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from probe.cost.contenders import CONTENDERS, PLAIN
from probe.report.figures import FAINT, INK, WIDTH, canvas, png, styled

COLOURS = ("#4d4d4d", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#8c510a")  # Okabe and Ito's
MARKERS = "oDsv^PXd"
RATIO_TICKS = (0.5, 0.7, 1, 1.4, 2, 3, 5, 7, 10, 20, 50, 100)
MEMORY_TICKS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)


def cost_figure(table: pd.DataFrame) -> bytes:
    """PNG of two panels over the same cases: median ratio with its range, and peak memory. Every contender has a
    colour and a marker of its own, and a place beside the others; lines join the lengths of one model.
    """
    measured = table[table["repeats"] > 0]
    names = [name for name in CONTENDERS if name in set(measured["contender"])]
    cases = list(dict.fromkeys(zip(table["model"], table["n_tokens"], strict=True)))
    legend = 0.24 * len(names)
    with styled():
        total = 6.9 + legend
        figure = canvas(total)
        top = figure.add_axes((0.95 / WIDTH, (3.75 + legend) / total, (WIDTH - 1.1) / WIDTH, 2.45 / total))
        low = figure.add_axes((0.95 / WIDTH, (0.95 + legend) / total, (WIDTH - 1.1) / WIDTH, 2.45 / total))
        for place, name in enumerate(names):
            rows = measured[measured["contender"] == name]
            shift = 0.74 * (place / max(1, len(names) - 1) - 0.5)
            look: dict[str, Any] = {"color": COLOURS[place % 8], "marker": MARKERS[place % 8], "ms": 6.5, "lw": 0.9}
            for _, same in rows.groupby("model", sort=False):
                x = np.array([cases.index((r.model, r.n_tokens)) + shift for r in same.itertuples()])
                top.vlines(x, same["ratio_min"], same["ratio_max"], color=COLOURS[place % 8], lw=2)
                top.plot(x, same["ratio_median"], **look)
                low.plot(x, same["peak_mb"], **look)
            figure.text(0.62 / WIDTH, (legend - 0.24 * place) / total, CONTENDERS[name].label, va="center", size=10.5)
            key = figure.add_axes((0.2 / WIDTH, (legend - 0.24 * place - 0.1) / total, 0.3 / WIDTH, 0.2 / total))
            key.plot([0], [0], **look)
            key.set_axis_off()
        top.axhline(1, color=FAINT, lw=0.9, ls="--", zorder=0)
        _scale(top, RATIO_TICKS, measured[["ratio_min", "ratio_max"]].to_numpy())
        _scale(low, MEMORY_TICKS, measured[["peak_mb"]].to_numpy())
        top.set_ylabel("time, plain pass = 1")
        low.set_ylabel("peak memory, MB")
        for axes in (top, low):
            axes.set_xlim(-0.5, len(cases) - 0.5)
            axes.set_xticks(range(len(cases)), [])
            for edge in range(1, len(cases)):
                axes.axvline(edge - 0.5, color="#dfe3e8", lw=0.8, zorder=0)
        low.set_xticks(range(len(cases)), [_case(table, model, n) for model, n in cases])
        figure.text(0.1 / WIDTH, 1 - 0.12 / total, "What reading a model costs", va="top", weight="bold", size=12)
        words = "above: median and range of the paired passes; below: highest resident memory during one pass"
        figure.text(0.1 / WIDTH, 1 - 0.37 / total, words, va="top", size=10.5, color=FAINT)
        return png(figure)


def _case(table: pd.DataFrame, model: str, n_tokens: int) -> str:
    here = (table["model"] == model) & (table["n_tokens"] == n_tokens) & (table["contender"] == PLAIN)
    return f"{model}\n{n_tokens:,} tokens\nn = {table.loc[here, 'repeats'].max()} pairs"


def _scale(axes: Axes, ticks: tuple[float, ...], values: npt.NDArray[np.float64]) -> None:
    """A logarithmic scale around the values, with plain numbers."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    axes.set_yscale("log")
    axes.set_ylim(low / 1.12, high * 1.12)
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low / 1.12 <= t <= high * 1.12]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"))
    axes.tick_params(axis="y", colors=INK)
