"""Accuracy above attention over the index of what is asked for, linked, with the prompts behind both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from probe.runner.parts import Linked, Part, Plot, Prompts, Table


@dataclass(frozen=True)
class Panel:
    """One figure of the view and the table it is drawn from, called `table`; the figure is `<table>_by_index`.

    frame: as from `probe.causal.by_index.curve`, with index, value, low, high and `by`, the column with a line for each
    of its values. about: what the table's numbers are. caption, marks, y_label: of the figure (`probe.Plot`).
    """

    table: str
    frame: pd.DataFrame
    about: str
    caption: str
    y_label: str
    by: str = "head"
    marks: Mapping[str, float] = field(default_factory=dict)


IN_LIST = "Share of lists in which the value asked for is the likeliest of those in the list."


def accuracy(frame: pd.DataFrame, n: int, caption: str = IN_LIST) -> Panel:
    """The panel of forced choices among n values."""
    about, marks = "Accuracy of the same questions.", {"chance": 1 / n}
    return Panel("watched", frame, about, caption, "accuracy", "phrasing", marks)


def over_index(
    panels: Sequence[Panel],
    asked: pd.DataFrame,
    tokens: pd.DataFrame | str,
    *,
    caption: str,
    shown: str,
    x_label: str = "index of the fact asked for",
    prefix: str = "",
) -> tuple[Part, ...]:
    """The tables of every panel and of the prompts, and the `probe.Linked` over them.

    panels: two or more, from above. asked: `probe.causal.prompts.asked_for`, the questions of the first panel. tokens:
    `probe.causal.prompts.tokens` of some of them, with heads that are lines of a panel; or, as text, why there are
    none. caption: what is to be seen, with n. shown: which prompts are shown. prefix: before the names of tables and
    figures, where a page has several views.
    """
    plots = [
        Plot(
            f"{prefix}{panel.table}_by_index",
            f"{prefix}{panel.table}",
            "lines",
            "index",
            "value",
            panel.caption,
            by=panel.by,
            low="low",
            high="high",
            marks=panel.marks,
            x_label=x_label if panel is panels[-1] else None,
            y_label=panel.y_label,
        )
        for panel in panels
    ]
    table = f"{prefix}tokens"
    read, prompts = [], None
    if isinstance(tokens, str):
        caption = f"{caption} Their prompts cannot be shown: {tokens}"
    else:
        read = [Table(table, tokens, "Tokens of some, with where heads look.", shown=False)]
        prompts = Prompts(f"{prefix}prompts", table, shown)
    return (
        *(Table(f"{prefix}{panel.table}", panel.frame, panel.about, shown=False) for panel in panels),
        Table(f"{prefix}prompts", asked, "Each of these questions, and what was answered.", digits=2, shown=False),
        *read,
        Linked(f"{prefix}by_index", tuple(plots), caption, prompts),
    )
