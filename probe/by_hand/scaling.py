"""Why scores are divided by √d: the example with longer keys, and random vectors, measured.

Queries and keys of d independent standard normal numbers: q·k has variance d, so that undivided scores grow with the
width and the softmax of many keys picks one, wherever it is. Divided by √d the variance is 1 at every width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.by_hand import examples
from probe.by_hand.in_numpy import softmax
from probe.by_hand.in_python import entropy

Array = npt.NDArray[np.float64]


def variance(d: int, *, pairs: int, rng: np.random.Generator) -> float:
    """Variance of q·k over random pairs of width d."""
    q, k = rng.standard_normal((2, pairs, d))
    return float((q * k).sum(-1).var(ddof=1))


def mean_entropies(d: int, *, keys: int, queries: int, rng: np.random.Generator) -> tuple[float, float]:
    """Mean entropy in nats of random queries over random keys of width d: with scores divided by √d, and undivided."""
    q, k = rng.standard_normal((queries, d)), rng.standard_normal((keys, d))
    scores = q @ k.T
    divided, undivided = (float(_entropy(softmax(s)).mean()) for s in (scores / np.sqrt(d), scores))
    return divided, undivided


class ByWidth(NamedTuple):
    """One number for each width and draw, (width, draw); entropies in nats."""

    variances: Array
    divided: Array
    undivided: Array


def by_width(widths: Sequence[int], *, draws: int, seed: int, keys: int) -> ByWidth:
    """Variance of q·k over 200 pairs, and mean entropy of 20 queries over `keys` keys, for each width and draw."""
    found = np.empty((3, len(widths), draws))
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        for i, d in enumerate(widths):
            found[0, i, draw] = variance(d, pairs=200, rng=rng)
            found[1:, i, draw] = mean_entropies(d, keys=keys, queries=20, rng=rng)
    return ByWidth(*found)


def factor_curves() -> list[tuple[float, str, float]]:
    """Rows of (factor, curve, entropy in nats) of the example's weights as all its keys are made longer, from a tenth
    to a hundred times: with the original keys and with tired's replaced by the query, divided by √d and undivided.
    """
    rows = []
    for name, kept in (("original keys", examples.KEYS), ("tired's key is the query", examples.edited())):
        for divided, scale in (("q·k/√d", 1 / examples.ROOT), ("q·k", 1.0)):
            for step in range(-20, 41):
                weights = examples.weights_of(examples.times(10 ** (step / 20), kept), scale=scale)
                rows.append((10 ** (step / 20), f"{name}, {divided}", entropy(weights)))
    return rows


def _entropy(weights: Array) -> Array:
    """In nats, of the last axis. A share too small for a float is 0 and adds nothing."""
    return np.asarray(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1))
