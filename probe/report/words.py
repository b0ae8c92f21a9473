"""Values and figures in words: what stands in a table's cell, and what a figure draws for those who cannot see it."""

from __future__ import annotations

from numbers import Integral, Real

import numpy as np
import pandas as pd

from probe.report.numbers import NONE, number, whole
from probe.report.strips import visible
from probe.runner.findings import Plot, table_file

KINDS = {"lines": "Line chart", "points": "Points", "bars": "Bars", "heat": "Heat map"}


def cell(value: object, digits: int) -> str:
    """A value as text: "–" where there is none."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return whole(int(value))
    if isinstance(value, Real):
        return number(float(value), digits)
    missing = value is None or value is pd.NA or value is pd.NaT
    return NONE if missing else visible(str(value))


def alt(plot: Plot, frame: pd.DataFrame) -> str:
    """What a figure draws, in words."""
    x, y = plot.x_label or plot.x, plot.y_label or plot.y
    words = [f"{plot.value} over {x} and {y}" if plot.kind == "heat" else f"{y} over {x}"]
    for column, what in ((plot.by, "for each"), (plot.panel, "in a panel for each")):
        if column is not None:
            values = ", ".join(dict.fromkeys(cell(value, 3) for value in frame[column]))
            words.append(f"{what} {column}: {values}")
    if plot.marks:
        words.append("marked: " + ", ".join(f"{name} {number(at)}" for name, at in plot.marks.items()))
    return f"{KINDS[plot.kind]}: {'; '.join(words)}. The numbers are in {table_file(plot.table)}."
