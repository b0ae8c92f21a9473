"""Heads that fetch, in tables: every variant of the retrieval score, how many heads pass it, and who does so where."""

from __future__ import annotations

import numpy as np
import pandas as pd

from probe.causal.retrieval import RETRIEVES, Retrieved
from probe.causal.sweep import Array, Head, highest


def variants(own: Retrieved, forced: Retrieved, absent_own: Retrieved, absent: Retrieved) -> pd.DataFrame:
    """A row a head: layer, head, and its score and value step, each in the model's own text ("score"), in text forced
    on it, and in both after a question for a name that is not there. NaN where a variant is untestable.

    own, absent_own: `generated`; forced, absent: `forced`.
    """
    measures: dict[str, Array] = {}
    for end, written, read in (("", own, forced), (", absent name", absent_own, absent)):
        for name, what in (("score", "share"), ("value step", "value")):
            measures[f"{name}{end}"] = written.score(what)
            measures[f"{name}, forced{end}"] = read.by_place(what)
    layer, head = np.indices(own.share.shape[:2])
    columns = {name: values.ravel() for name, values in measures.items()}
    return pd.DataFrame({"layer": layer.ravel(), "head": head.ravel(), **columns})


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """`variants` that can be tested, a row each: measure, heads (from `RETRIEVES` on), of, best head, its value."""
    rows = []
    for name in table.columns[2:]:
        if table[name].notna().all():
            best = table.iloc[int(table[name].to_numpy().argmax())]
            heads = int((table[name] >= RETRIEVES).sum())
            rows.append((name, heads, len(table), f"{best['layer']:.0f}.{best['head']:.0f}", float(best[name])))
    return pd.DataFrame(rows, columns=["measure", "heads", "of", "best head", "its value"])


def every_place(forced: Retrieved) -> pd.DataFrame:
    """A row a head, length and index, in forced text: layer, head, n, index, value step, weight on the value before it
    is written, weight on the fact while it is written (means over the questions asked there).
    """
    parts = []
    layer, head = np.indices(forced.share.shape[:2])
    for (n, index), part in forced.table.reset_index(drop=True).groupby(["n", "index"], sort=True):
        at = part.index.to_numpy()
        columns = {"layer": layer.ravel(), "head": head.ravel(), "n": n, "index": index}
        named = {"value step": "value", "weight before": "first", "weight while": "mass"}
        means = {label: getattr(forced, what)[..., at].mean(-1).ravel() for label, what in named.items()}
        parts.append(pd.DataFrame({**columns, **means}))
    return pd.concat(parts, ignore_index=True)


def by_place(forced: Retrieved, n: int, top: int = 10) -> pd.DataFrame:
    """Are they the same heads at every index? Among n facts, by the value step in forced text: index, best head, its
    value, heads (from `RETRIEVES` on), shared (how many of the `top` heads of this index are among those of the first).
    """
    mine = forced.only((forced.table["n"] == n).to_numpy())
    rows: list[tuple[object, ...]] = []
    first: set[Head] = set()
    for index in sorted(set(mine.table["index"])):
        mean = mine.value[..., (mine.table["index"] == index).to_numpy()].mean(-1)
        best = highest(mean, top)
        first = first or set(best)
        heads = int((mean >= RETRIEVES).sum())
        rows.append((index, f"{best[0][0]}.{best[0][1]}", float(mean.max()), heads, len(first & set(best))))
    return pd.DataFrame(rows, columns=["index", "best head", "its value", "heads", "shared"])
