"""A linked view is checked when findings are made: its panels share an x, and its prompts can be shown and coloured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import probe
from probe.errors import ProbeError, ResultsError, UnknownName
from probe.runner.findings import Findings, Linked, Plot, Prompts, Section, Table, own_files
from probe.verify.differences import _untimed

RIGHT = pd.DataFrame({"index": [0, 1, 2], "phrasing": "market", "value": [0.5, 0.25, 1.0]})
MASS = pd.DataFrame({"index": [0, 1, 2] * 2, "head": ["1.0"] * 3 + ["2.5"] * 3, "value": [0.1, 0.2, 0.3] * 2})
ASKED = pd.DataFrame({"index": [0, 0, 1], "prompt": ["a", "b", "c"], "correct": [1.0, 0.0, 0.5]})
WORDS = pd.DataFrame(
    {"prompt": ["a", "a", "c"], "token": ["The", " cat", "x"], "role": ["", "target", "foil 1"], "2.5": [0.0, 1.0, 0.5]}
)
Frames = dict[str, pd.DataFrame]


def frames(**more: pd.DataFrame) -> Frames:
    return {"right": RIGHT, "mass": MASS, "asked": ASKED, "words": WORDS, **more}


def plot(name: str, table: str, **more: Any) -> Plot:
    return Plot(**{"name": name, "table": table, "kind": "lines", "x": "index", "y": "value", "caption": "", **more})


PANELS = (plot("p", "right", by="phrasing"), plot("q", "mass", by="head"))
VIEW = Linked("view", PANELS, "Both.", Prompts("asked", "words", "The first."))


def of(view: Linked = VIEW, tables: Frames | None = None) -> Findings:
    parts = [Table(name, frame, "", shown=False) for name, frame in (tables or frames()).items()]
    return Findings("So.", (Section("One", (), (*parts, view)),))


def test_its_panels_are_figures_and_its_names_are_public() -> None:
    found = of()
    assert [p.name for p in found.plots] == ["p", "q"]
    assert found.views == (VIEW,)
    assert (probe.Linked, probe.Prompts) == (Linked, Prompts)


def with_panels(*panels: Plot) -> Linked:
    return replace(VIEW, panels=panels, prompts=None)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (with_panels(PANELS[0]), "the linked view 'view' has 1 panels; it takes two or more (one alone is a Plot)."),
        (
            with_panels(PANELS[0], plot("q", "mass", kind="points")),
            "the linked view 'view' takes figures of kind 'l",
        ),
        (with_panels(PANELS[0], plot("q", "mass", log="y")), "the linked view 'view' takes figures of kind 'lines' wi"),
        (
            with_panels(PANELS[0], plot("q", "mass", panel="head")),
            "the linked view 'view' takes figures of kind 'lines",
        ),
        (
            with_panels(PANELS[0], plot("q", "mass", x="value")),
            "the linked view 'view' has panels over 'index' and 'va",
        ),
        (with_panels(PANELS[0], plot("q", "mass")), "the figure 'q' has more than one row at index = 0."),
        (with_panels(plot("p", "right", x="phrasing"), PANELS[1]), "the linked view 'view' runs over the column 'phra"),
        (with_panels(PANELS[0], plot("p", "right")), "'p' names more than one table or figure."),
        (replace(VIEW, name="mass"), "'mass' names more than one table or figure."),
        (replace(VIEW, name="The view"), "'The view' cannot name a table or figure"),
    ],
)
def test_what_cannot_be_linked_is_refused_by_name(view: Linked, said: str) -> None:
    with pytest.raises(ResultsError) as error:
        of(view)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (with_panels(PANELS[0], plot("q", "masss")), "no table of the figure 'q' named 'masss'. Did you mean 'mass'?"),
        (with_panels(PANELS[0], plot("q", "mass", by="heads")), "no column of the table 'mass' named 'heads'. Did you"),
        (
            replace(VIEW, prompts=Prompts("askd", "words", "")),
            "no table of the linked view 'view' named 'askd'. Did",
        ),
        (replace(VIEW, prompts=Prompts("asked", "mass", "")), "no column of the table 'mass' named 'prompt'."),
        (replace(VIEW, prompts=Prompts("words", "words", "")), "no column of the table 'words' named 'index'."),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest(view: Linked, said: str) -> None:
    with pytest.raises(UnknownName) as error:
        of(view)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("mass", {"index": [3, 4, 5] * 2}, "the linked view 'view' has no index that all of its panels show."),
        ("mass", {"index": [0, 1, None] * 2}, "the linked view 'view' runs over the column 'index', in which some"),
        ("asked", {"prompt": ["a", "a", "c"]}, "the table 'asked' has more than one row at prompt = a."),
        (
            "asked",
            {"prompt": ["b", "d", "c"]},
            "the linked view 'view' has tokens of 'a', which is no prompt of 'asked'",
        ),
        ("asked", {"index": [0, 0, 7]}, "the linked view 'view' has prompts at index = 7, where it has no line."),
        ("asked", {"correct": [1.0, 2.0, 0.0]}, "the linked view 'view' reads the column 'correct', which goes from 0"),
        ("asked", {"correct": ["a", "b", "c"]}, "the linked view 'view' reads the column 'correct', which goes from 0"),
        (
            "asked",
            {"prompt": [1, 2, 3]},
            "the linked view 'view' reads the column 'prompt', in which not everything is",
        ),
        ("words", {"token": ["a", None, "c"]}, "the linked view 'view' reads the column 'token', in which not everyth"),
        ("words", {"role": ["", "aim", ""]}, "no role of a token of the linked view 'view' named 'aim'."),
        (
            "words",
            {"2.5": [0.0, 1.5, 0.0]},
            "the linked view 'view' colours tokens by the column '2.5'; attention goes",
        ),
        (
            "words",
            {"2.5": [0.0, None, 0.0]},
            "the linked view 'view' colours tokens by the column '2.5'; attention goe",
        ),
        ("words", {"2.6": [0.0, 0.0, 0.0]}, "no line of the linked view 'view' named '2.6'. Did you mean '2.5'?"),
    ],
)
def test_tables_that_cannot_be_shown_are_refused_by_name(name: str, change: dict[str, Any], said: str) -> None:
    changed = frames()[name].assign(**change)
    with pytest.raises(ProbeError) as error:
        of(tables=frames(**{name: changed}))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("correct", [[True, False, True], [1, 0, 1], [0.5, 0.25, 1.0]])
def test_right_and_wrong_may_be_truth_values_or_shares(correct: list[Any]) -> None:
    assert of(tables=frames(asked=ASKED.assign(correct=correct))).views


def test_a_view_is_described_with_its_panels_and_its_files_are_its_own(tmp_path: Path) -> None:
    of().write(tmp_path)
    part = json.loads((tmp_path / "findings.json").read_bytes())["sections"][0]["parts"][-1]
    assert {name: part[name] for name in ("part", "name", "caption")} == {
        "part": "linked",
        "name": "view",
        "caption": "Both.",
    }
    assert part["prompts"] == {"table": "asked", "tokens": "words", "caption": "The first."}
    assert [(p["part"], p["name"], p["by"]) for p in part["panels"]] == [
        ("plot", "p", "phrasing"),
        ("plot", "q", "head"),
    ]
    assert {"figures/p.png", "figures/q.png", "table-words.parquet"} <= own_files(tmp_path)


def test_a_view_of_times_is_not_compared() -> None:
    """Its section speaks of times, which are never the same twice."""
    timed: Callable[[str], dict[str, Any]] = lambda table: {  # noqa: E731
        "sections": [{"parts": [{"part": "linked", "name": "view", "panels": [{"name": "p", "table": table}]}]}]
    }
    assert _untimed("findings.json", timed("timing_all"))["sections"] == []
    assert len(_untimed("findings.json", timed("right"))["sections"]) == 1
