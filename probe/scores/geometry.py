"""The shape of the residual stream: how long it grows, where it turns, what few numbers dominate it, how alike all of
it is.

Position 0 is apart in most models (attention sinks rest on it), so means leave it out and it has columns of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from probe import stats
from probe.capture.run import Run
from probe.errors import PromptError
from probe.subject import Subject

Array = npt.NDArray[np.float64]
States = list[list[Array]]  # blocks passed, text -> (pos, d_model)
DOMINANT = 3  # dimensions left out to see what the others say (Timkey and van Schijndel 2021)
LARGE, TIMES = 100.0, 1000.0  # a massive activation (Sun et al. 2024): so large, and so many times the median


def geometry(subject: Subject, texts: Sequence[str], *, seed: int = 0) -> pd.DataFrame:
    """One row for each number of blocks passed, in one pass over the texts: the columns of `growth`, `massive` and
    `anisotropy`. seed: of the bootstrap over texts.

    Raises PromptError for fewer than two texts, UnsupportedModel where the model's layers are not modules of their own.
    """
    if len(texts) < 2 or isinstance(texts, str):
        raise PromptError("geometry compares texts: give at least two.")
    mid = all(layer.mid for layer in subject.anatomy.stack.layers.values())
    run = subject.run(list(texts), ["resid_pre", "resid_post", *(["resid_mid"] if mid else [])])
    states = _states(run, subject.anatomy.layers)
    grown = growth(states, _middles(run, subject.anatomy.layers), seed=seed)
    return grown.merge(massive(states), on="blocks").merge(anisotropy(states), on="blocks")


def growth(states: States, middles: States | None, *, seed: int = 0) -> pd.DataFrame:
    """One row for each number of blocks passed: blocks, norm (mean length of the stream) with its 95 % interval over
    texts (low, high), first (at position 0), attention and mlp (mean length of what each half of the last block passed
    changed, over that of the stream before it), attention_cosine and mlp_cosine (of that change with the stream before
    it), cosine (of the whole block's change). NaN before the first block, and where the halves run side by side.
    """
    rows = []
    for blocks, texts in enumerate(states):
        norms = [np.linalg.norm(x, axis=-1) for x in texts]
        grouped = stats.by_cluster(np.concatenate([n[1:] for n in norms]), _names([len(n) - 1 for n in norms]))
        low, high = stats.interval(grouped, seed=seed, shares=False)
        row = {
            "blocks": blocks,
            "norm": float(grouped.overall),
            "low": float(low),
            "high": float(high),
            "first": float(np.mean([n[0] for n in norms])),
        }
        if blocks:
            before = states[blocks - 1]
            _, row["cosine"] = _change(before, texts)
            if middles is not None:
                row["attention"], row["attention_cosine"] = _change(before, middles[blocks - 1])
                row["mlp"], row["mlp_cosine"] = _change(middles[blocks - 1], texts)
        rows.append(row)
    names = ["blocks", "norm", "low", "high", "first", "attention", "mlp", "attention_cosine", "mlp_cosine", "cosine"]
    return pd.DataFrame(rows).reindex(columns=names)


def massive(states: States) -> pd.DataFrame:
    """The largest number of the stream, over all texts: blocks, position and dimension (where it lies in most texts),
    share (of texts where it lies there), value (median), times (median over texts of its size over the median size of
    that text's numbers), massive (share of texts where it is a massive activation; Sun et al. 2024).
    """
    rows = []
    for blocks, texts in enumerate(states):
        found = []
        for x in texts:
            position, dimension = np.unravel_index(int(np.abs(x).argmax()), x.shape)
            found.append((int(position), int(dimension), float(x[position, dimension]), float(np.median(np.abs(x)))))
        table = pd.DataFrame(found, columns=["position", "dimension", "value", "median"])
        (usual, _), *_ = Counter(zip(table["position"], table["dimension"], strict=True)).most_common(1)
        there = (table["position"] == usual[0]) & (table["dimension"] == usual[1])
        size = table["value"].abs()
        times = size / table["median"].clip(lower=1e-12)
        rows.append(
            {
                "blocks": blocks,
                "position": int(usual[0]),
                "dimension": int(usual[1]),
                "share": float(there.mean()),
                "value": float(table["value"][there].median()),
                "times": float(times.median()),
                "massive": float(((size > LARGE) & (times > TIMES)).mean()),
            }
        )
    return pd.DataFrame(rows)


def anisotropy(states: States) -> pd.DataFrame:
    """How like each other tokens of different texts are (Ethayarajh 2019): blocks, alike (mean cosine over all pairs of
    tokens from two texts), and alike_rest (the same without the `DOMINANT` dimensions that are largest on average).
    """
    rows = []
    for blocks, texts in enumerate(states):
        rest = [x[1:] for x in texts]
        sizes = np.abs(np.concatenate(rest)).mean(0)
        others = np.sort(np.argsort(sizes)[:-DOMINANT])
        rows.append((blocks, _between(rest), _between([x[:, others] for x in rest])))
    return pd.DataFrame(rows, columns=["blocks", "alike", "alike_rest"])


def _states(run: Run, layers: Sequence[int]) -> States:
    return [_texts(run, site) for site in [("resid_pre", layers[0]), *(("resid_post", layer) for layer in layers)]]


def _middles(run: Run, layers: Sequence[int]) -> States | None:
    if ("resid_mid", layers[0]) not in run.values:
        return None
    return [_texts(run, ("resid_mid", layer)) for layer in layers]


def _texts(run: Run, site: tuple[str, int]) -> list[Array]:
    return [x[: len(prompt)].to("cpu", torch.float64).numpy() for x, prompt in zip(run[site], run.prompts, strict=True)]


def _names(sizes: Sequence[int]) -> list[str]:
    """The text of each position, as a cluster's name."""
    return [f"text-{number:04}" for number, size in enumerate(sizes) for _ in range(size)]


def _change(before: Sequence[Array], after: Sequence[Array]) -> tuple[float, float]:
    """Length of the change over that of the stream, their cosine: means over positions but the first, then texts."""
    ratios, cosines = [], []
    for x, y in zip(before, after, strict=True):
        old, new = x[1:], y[1:] - x[1:]
        lengths, moved = np.linalg.norm(old, axis=-1), np.linalg.norm(new, axis=-1)
        ratios.append((moved / lengths).mean())
        cosines.append(((old * new).sum(-1) / np.maximum(lengths * moved, 1e-12)).mean())
    return float(np.mean(ratios)), float(np.mean(cosines))


def _between(texts: Sequence[Array]) -> float:
    """Mean cosine over pairs of positions of two texts: that of the mean unit vectors of the texts."""
    means = np.stack([(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)).mean(0) for x in texts])
    products = means @ means.T
    n = len(means)
    return float((products.sum() - np.trace(products)) / (n * (n - 1)))
