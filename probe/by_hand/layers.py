"""Layers of random numbers: whether the three pages agree, what heads cost, and what the order of tokens changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.by_hand import in_numpy, in_python
from probe.by_hand.counting import Tally

Array = npt.NDArray[np.float64]
ROUNDING = 1e-12  # a smaller change is the order of summation


class Layer(NamedTuple):
    """What `multi_head` takes. x: (tokens, width). The rest: (width, width)."""

    x: Array
    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array


def random_layer(rng: np.random.Generator, *, tokens: int, width: int) -> Layer:
    """Random normal numbers, such that queries, keys and values vary as much as x."""
    matrices = (rng.standard_normal((width, width)) / math.sqrt(width) for _ in range(4))
    return Layer(rng.standard_normal((tokens, width)), *matrices)


class Distance(NamedTuple):
    """The largest difference of outputs and weights from plain Python's, as a share of the largest number in them.

    numbers: "float64" or "float32".
    """

    page: str
    numbers: str
    difference: float


def distances(*, draws: int, seed: int) -> tuple[Distance, ...]:
    """NumPy's and torch's distance from plain Python: four heads, seven tokens, half of the draws causal."""
    import torch

    from probe.by_hand import in_torch

    numpy_off, torch_off = [0.0], [0.0]
    for draw in range(draws):
        given = random_layer(np.random.default_rng([seed, draw]), tokens=7, width=16)
        causal = draw % 2 == 0
        x, q, k, v, o = (array.tolist() for array in given)
        exact = in_python.multi_head(x, q, k, v, o, 4, causal=causal)
        x, q, k, v, o = (torch.tensor(array, dtype=torch.float32) for array in given)
        numpy_off += _off(in_numpy.multi_head(*given, 4, causal=causal), exact)
        torch_off += _off(in_torch.multi_head(x, q, k, v, o, 4, causal=causal), exact)
    return Distance("in_numpy", "float64", max(numpy_off)), Distance("in_torch", "float32", max(torch_off))


class Cost(NamedTuple):
    """One layer computed in plain Python with numbers that count, and how its heads' weights differ.

    multiply_adds: of the matrix products. scalings: multiplications by 1/√d, as many as exponentials and as the
    weights that are held. apart: mean over pairs of heads and over queries of half the summed difference of their
    weights, 0 alike to 1 disjoint; nan with one head.
    """

    n_heads: int
    multiply_adds: int
    scalings: int
    apart: float


def counted(n_heads: int, *, tokens: int, width: int, seed: int) -> Cost:
    """Run one layer with `n_heads` heads and count. The numbers are the same for every `n_heads`."""
    tally = Tally()
    given = random_layer(np.random.default_rng(seed), tokens=tokens, width=width)
    x, q, k, v, o = (tally.counted(array.tolist()) for array in given)
    weights = np.array(in_python.multi_head(x, q, k, v, o, n_heads)[1])  # (H, n, n)
    pairs = [(a, b) for a in range(n_heads) for b in range(a)]
    apart = [abs(weights[a] - weights[b]).sum(-1).mean() / 2 for a, b in pairs]
    # Every product but the scaling of a score is summed, so additions are multiply-adds and the rest are scalings.
    return Cost(
        n_heads,
        tally.additions,
        tally.multiplications - tally.additions,
        float(np.mean(apart)) if apart else math.nan,
    )


def patterns(n_heads: int, *, tokens: int, width: int, seed: int) -> Array:
    """The weights of that layer's heads, (n_heads, tokens, tokens)."""
    return in_numpy.multi_head(*random_layer(np.random.default_rng(seed), tokens=tokens, width=width), n_heads)[1]


class Change(NamedTuple):
    """How far outputs move when something is put in another order. largest, smallest: over draws, of the largest
    difference in any number, as a share of the outputs' root mean square; 0 where it is rounding.
    """

    moved: str
    layers: int
    mask: str
    read: str
    largest: float
    smallest: float


def order_changes(*, draws: int, seed: int, tokens: int = 8, width: int = 16) -> tuple[Change, ...]:
    """What changes when keys, or the tokens before the last one, are put in another order. Nothing has a position."""
    found: dict[tuple[str, int, str, str], list[float]] = {}
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        layer = random_layer(rng, tokens=tokens, width=width)
        x = layer.x
        order = [*(1 + rng.permutation(tokens - 2)), 0, tokens - 1]  # the first token always moves, the last never
        for causal in (False, True):
            mask = "causal" if causal else None
            keys = in_numpy.attention(x, x, x, mask=mask)[0], in_numpy.attention(x, x[order], x[order], mask=mask)[0]
            found.setdefault(("keys with their values", 1, mask or "none", "every query"), []).append(_change(*keys))
            for layers in (1, 2):
                last = (_stream(layer._replace(x=rows), layers, causal)[-1] for rows in (x, x[order]))
                case = ("tokens before the last", layers, mask or "none", "the last token")
                found.setdefault(case, []).append(_change(*last))
    return tuple(Change(*case, max(changes), min(changes)) for case, changes in found.items())


def _stream(layer: Layer, layers: int, causal: bool) -> Array:
    """The residual stream after so many layers of attention alone, all with the same matrices."""
    for _ in range(layers):
        layer = layer._replace(x=layer.x + in_numpy.multi_head(*layer, 4, causal=causal)[0])
    return layer.x


def _change(before: Array, after: Array) -> float:
    change = float(abs(after - before).max() / np.sqrt((before**2).mean()))
    return 0.0 if change < ROUNDING else change


def _off(found: Sequence[Any], exact: Sequence[Any]) -> list[float]:
    """The largest difference of the outputs, and of the weights, as a share of the largest number there is."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, exact, strict=True)]
    return [float(abs(a - b).max() / abs(b).max()) for a, b in pairs]
