"""How time grows with length: repeated runs, the exponent of a power law through them, and attention by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from probe.models.gpt import eager_attention, fused_attention, shared


class Spread(NamedTuple):
    """Seconds of repeated runs: median, shortest, longest."""

    median: float
    low: float
    high: float


def repeated(run: Callable[[], object], repeats: int, *, clock: Callable[[], float] = time.perf_counter) -> Spread:
    """Time `run` so many times, after once unmeasured. clock: seconds."""
    run()
    seconds = []
    for _ in range(repeats):
        began = clock()
        run()
        seconds.append(clock() - began)
    return Spread(median(seconds), min(seconds), max(seconds))


class Exponent(NamedTuple):
    """b in time = a·n^b, with its 95% interval."""

    value: float
    low: float
    high: float


def exponent(lengths: Sequence[int], seconds: Sequence[float]) -> Exponent:
    """The slope of log seconds over log length by least squares, at least three lengths; interval by Student's t with
    n - 2 degrees of freedom. It holds for the lengths that were measured: no time is a pure power of length.
    """
    fit = stats.linregress(np.log(lengths), np.log(seconds))
    half = float(stats.t.ppf(0.975, len(lengths) - 2)) * float(fit.stderr)
    return Exponent(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def attention_runs(
    tokens: int, *, n_heads: int, n_kv_heads: int, d_head: int, seed: int
) -> dict[str, Callable[[], object]]:
    """One layer's attention over random queries, keys and values, without the projections around it: what it computes
    -> how to run it. No mask, so that all n·n comparisons are made.
    """
    draws = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, n, tokens, d_head, generator=draws) for n in (n_heads, n_kv_heads, n_kv_heads))
    layer, scaling = nn.Module(), d_head**-0.5
    layer.is_causal = False  # type: ignore[assignment]
    return {
        "scores": partial(_scores, q, k, scaling),
        "scores, softmax, values": partial(eager_attention, layer, q, k, v, None, scaling),
        "fused kernel": partial(fused_attention, layer, q, k, v, None, scaling),
    }


def _scores(query: Tensor, key: Tensor, scaling: float) -> Tensor:
    return query @ shared(key, query.shape[1]).transpose(2, 3) * scaling
