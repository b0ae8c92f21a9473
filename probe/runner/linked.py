"""What a linked view must be (figures over one x), and prompts: tokens, roles and attention that can be shown."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd

from probe.errors import ResultsError, UnknownName
from probe.runner.parts import Asked, Linked, Plot, Prompts, Table, check_column, check_once, holds_numbers

ASKED = ("prompt", "correct")
"""Columns of the table of prompts, beside the view's x."""
TOKENS = ("prompt", "token", "role")
"""Columns of the table of tokens; every other one holds the attention of a line."""
ROLE = re.compile(r"(query|target|foil( [1-9][0-9]*)?)?")
MOST_GROUPS = 16  # of prompts, one below the other
SLACK = 1e-3  # of attention above 1, which half precision rounds to


def check_linked(view: Linked, tables: Mapping[str, Table]) -> None:
    """Raises UnknownName or ResultsError, naming the view, if it cannot be shown. Its panels have been checked as the
    figures that they are.
    """
    who = f"the linked view {view.name!r}"
    if len(view.panels) < 2:
        raise ResultsError(f"{who} has {len(view.panels)} panels; it takes two or more (one alone is a Plot).")
    for plot in view.panels:
        _check_panel(who, plot, view.panels[0].x, tables[plot.table].frame)
    x = view.panels[0].x
    first, *others = (set(tables[plot.table].frame[x]) for plot in view.panels)
    if not first.intersection(*others):
        raise ResultsError(f"{who} has no {x} that all of its panels show.")
    if view.prompts is not None:
        _check_behind(view, view.prompts, tables, first.union(*others))


def names_of(view: Linked, tables: Mapping[str, Table]) -> list[str]:
    """The lines of a view by name, in the order of first appearance."""
    values = [v for plot in view.panels if plot.by is not None for v in tables[plot.table].frame[plot.by]]
    return list(dict.fromkeys(map(str, values)))


def _check_panel(who: str, plot: Plot, x: str, frame: pd.DataFrame) -> None:
    if plot.kind != "lines" or plot.panel is not None or plot.log:
        raise ResultsError(f"{who} takes figures of kind 'lines' without panel and log, which {plot.name!r} is not.")
    if plot.x != x:
        raise ResultsError(f"{who} has panels over {x!r} and {plot.x!r}; linked are those over one x.")
    _check_x(who, frame, x)
    check_once(f"the figure {plot.name!r}", frame, [c for c in (x, plot.by) if c is not None])


def _check_x(who: str, frame: pd.DataFrame, x: str) -> None:
    if not holds_numbers(frame[x]):
        raise ResultsError(f"{who} runs over the column {x!r}, which holds {frame[x].dtype}, not numbers.")
    if not np.isfinite(frame[x].to_numpy(dtype=np.float64, na_value=np.nan)).all():
        raise ResultsError(f"{who} runs over the column {x!r}, in which some numbers are missing or infinite.")


def check_asked(part: Asked, tables: Mapping[str, Table]) -> None:
    """Raises UnknownName or ResultsError, naming the part, if its prompts cannot be shown."""
    who = f"the list of prompts {part.name!r}"
    check_prompts(who, part.prompts, tables, () if part.by is None else (part.by,))
    if part.by is None:
        return
    table = tables[part.prompts.table]
    values = table.frame[part.by]
    if values.isna().any():
        raise ResultsError(f"{who} is told apart by the column {part.by!r}, in which some values are missing.")
    if not all(isinstance(value, Hashable) for value in values):
        raise ResultsError(f"{who} is told apart by the column {part.by!r}, which holds more than numbers and texts.")
    if (n := values.nunique()) > MOST_GROUPS:
        raise ResultsError(f"{who} is told apart by {n} values of {part.by!r}; {MOST_GROUPS} can be.")


def check_prompts(who: str, prompts: Prompts, tables: Mapping[str, Table], more: tuple[str, ...]) -> None:
    """Raises UnknownName or ResultsError if prompts cannot be shown. more: columns that their table has, too."""
    for name, needed in ((prompts.table, (*more, *ASKED)), (prompts.tokens, TOKENS)):
        if name not in tables:
            raise UnknownName.of(f"table of {who}", name, tables)
        for column in needed:
            check_column(tables[name], column)
    asked, tokens = tables[prompts.table].frame, tables[prompts.tokens].frame
    check_once(f"the table {prompts.table!r}", asked, ["prompt"])
    for frame, columns in ((asked, ("prompt",)), (tokens, TOKENS)):
        for column in columns:
            if not all(isinstance(value, str) for value in frame[column]):
                raise ResultsError(f"{who} reads the column {column!r}, in which not everything is text.")
    if strangers := set(tokens["prompt"]) - set(asked["prompt"]):
        raise ResultsError(f"{who} has tokens of {min(strangers)!r}, which is no prompt of {prompts.table!r}.")
    if not asked["correct"].isin((True, False)).all() and not _within(asked["correct"], 0.0):
        raise ResultsError(f"{who} reads the column 'correct', which goes from 0 (wrong) to 1 (right).")
    for role in dict.fromkeys(tokens["role"]):
        if not ROLE.fullmatch(role):
            raise UnknownName.of(f"role of a token of {who}", role, ("query", "target", "foil", "foil 1"))
    for column in lines_of(tokens):
        if not _within(tokens[column], SLACK):
            raise ResultsError(f"{who} colours tokens by the column {column!r}; attention goes from 0 to 1.")


def lines_of(tokens: pd.DataFrame) -> tuple[str, ...]:
    """The heads, or lines of a view, whose attention a table of tokens holds."""
    return tuple(column for column in tokens.columns if column not in TOKENS)


def _check_behind(view: Linked, prompts: Prompts, tables: Mapping[str, Table], places: set[float]) -> None:
    who, x = f"the linked view {view.name!r}", view.panels[0].x
    check_prompts(who, prompts, tables, (x,))
    asked = tables[prompts.table].frame
    _check_x(who, asked, x)
    if elsewhere := sorted(set(asked[x]) - places):
        raise ResultsError(f"{who} has prompts at {x} = {elsewhere[0]}, where it has no line.")
    lines = names_of(view, tables)
    for column in lines_of(tables[prompts.tokens].frame):
        if column not in lines:
            raise UnknownName.of(f"line of {who}", column, lines, "Attention is of the line that has its name.")


def _within(column: pd.Series, slack: float) -> bool:
    """Whether all are numbers from 0 to 1."""
    return holds_numbers(column) and bool(column.notna().all() and column.between(0, 1 + slack).all())
