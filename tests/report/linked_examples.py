"""Findings with a linked view: every number is known, the panels' places are not all the same, prompts can be told."""

from __future__ import annotations

import numpy as np
import pandas as pd

from probe.runner.findings import Findings, Linked, Plot, Prompts, Section, Table

PLACES = (0, 3, 7, 14)
HEADS = ("18.6", "2.11", "9.0")
WORDS = ("<|im_start|>", "Anna", " bought", " a", " lamp", ".", " Ben", " bought", " a", " ca", "ke", ".", " a")
ROLES = ("", "", "", "", "target", "", "", "", "", "foil 1", "foil 1", "", "query")
HOSTILE = (
    "</script>", ' "><img src=x onerror=alert(1)>', " {{x}}", " &lt;", " nul\x00l", " 👩‍👩‍👧", " مرحبا",
    " \u202eevil", "\n", "\u2028", " $a_1$", " " + "W" * 300, " she",
)  # fmt: skip


def right() -> pd.DataFrame:
    """Accuracy of two phrasings; the second was not asked at 14."""
    one = pd.DataFrame({"index": PLACES, "phrasing": "market", "value": [0.9, 0.4, 0.31, 0.85]})
    two = pd.DataFrame({"index": PLACES[:3], "phrasing": "box", "value": [0.7, 0.65, 0.5]})
    both = pd.concat([one, two], ignore_index=True)
    return both.assign(low=both["value"] - 0.0613, high=both["value"] + 0.05)


def mass() -> pd.DataFrame:
    """Attention of three heads; the last one's interval was not computed at 7."""
    made = [
        pd.DataFrame({"index": PLACES, "head": head, "value": np.array([0.1, 0.2, 0.125, 0.4]) * (k + 1) / 2})
        for k, head in enumerate(HEADS)
    ]
    table = pd.concat(made, ignore_index=True)
    table = table.assign(low=table["value"] * 0.9, high=table["value"] * 1.25)
    table.loc[len(table) - 2, ["low", "high"]] = np.nan
    return table


def asked(per_place: int = 3) -> pd.DataFrame:
    """So many prompts at every place, every third of them wrong, and one more that has no tokens."""
    rows = [
        (x, f"list-{k}-{x:02}", float((k + i) % 3 > 0), f"value {k} {x}", 0.25 + 0.125 * (k % 4))
        for k in range(per_place + 1)
        for i, x in enumerate(PLACES)
    ]
    return pd.DataFrame(rows, columns=["index", "prompt", "correct", "likeliest", "p"])


def tokens(names: list[str], words: tuple[str, ...] = WORDS, roles: tuple[str, ...] = ROLES) -> pd.DataFrame:
    """The same words for every prompt, with attention that no two heads and no two prompts share."""
    rng = np.random.default_rng(3)
    heads = {head: rng.dirichlet(np.full(len(words), 0.4), size=len(names)).ravel() for head in (HEADS[0], HEADS[2])}
    n = len(names)
    frame = pd.DataFrame({"prompt": np.repeat(names, len(words)), "token": words * n, "role": roles * n})
    return frame.assign(**heads)


def found(per_place: int = 3, words: tuple[str, ...] = WORDS, roles: tuple[str, ...] = ROLES) -> Findings:
    """A section with the view, between a table and nothing else."""
    table = asked(per_place)
    named = table["prompt"][~table["prompt"].str.startswith(f"list-{per_place}-")]
    over = {"kind": "lines", "x": "index", "y": "value", "low": "low", "high": "high"}
    panels = (
        Plot("right", "accuracy", by="phrasing", caption="Right.", marks={"chance": 0.2}, y_label="accuracy", **over),
        Plot(
            "looks", "mass", by="head", caption="Attention.", x_label="index of the fact", y_label="attention", **over
        ),
    )
    parts = (
        Table("accuracy", right(), "Accuracy.", shown=False),
        Table("mass", mass(), "Mass.", digits=4, shown=False),
        Table("asked", table, "Prompts.", digits=2, shown=False),
        Table("words", tokens(list(named), words, roles), "Tokens.", shown=False),
        Linked("by_index", panels, "Accuracy above attention; n = 4.", Prompts("asked", "words", "The first ones.")),
    )
    return Findings("The middle is lost.", (Section("By index", (), parts),))
