"""What the viewer keeps of attention patterns, layer by layer, so that no more than a layer is ever held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from probe.errors import CaptureError
from probe.report.packing import Codes, Packed, packed, thumbnail, vectors

Array = npt.NDArray[np.floating]
SHARES = ("first token", "itself", "previous", "special", "elsewhere")


@dataclass(frozen=True)
class Prompt:
    """One text as a model read it. tokens: the keys, each its own characters of the text (joined, they are the text).

    at: positions of the queries among the tokens; None: they are `queries`, other tokens (cross-attention). special:
    positions of special tokens.
    """

    tokens: tuple[str, ...]
    at: tuple[int, ...] | None
    special: tuple[int, ...] = ()
    queries: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """The text of each query."""
        return self.queries if self.at is None else tuple(self.tokens[i] for i in self.at)


@dataclass(frozen=True)
class Layer:
    """One layer's attention in each prompt. patterns: (head, query, key) each. q, k, v: (pos, head, d_head) each, k and
    v with the key-value heads; empty where they were not read.
    """

    index: int
    patterns: tuple[Array, ...]
    q: tuple[Array, ...] = ()
    k: tuple[Array, ...] = ()
    v: tuple[Array, ...] = ()


@dataclass(frozen=True)
class Difference:
    """How far one head's rows differ between two prompts: total variation, half of Σ|a - b| over keys (0: the same; 1:
    no key in common). mean: over queries. most: the largest; query: where.
    """

    mean: float
    most: float
    query: int


@dataclass
class Gathered:
    """Everything kept. layers, heads: their numbers in the model. Lists run over heads, layer by layer; inner ones over
    prompts.

    shares: how a head's attention is spread, mean over queries: (prompt, 5), see `SHARES`. q: of each head; k, v: of
    each key-value head. differences: empty unless there are two prompts of the same shape.
    """

    heads: tuple[int, ...]
    layers: list[int] = field(default_factory=list)
    n_kv_heads: int = 0
    thumbnails: list[list[Codes]] = field(default_factory=list)
    patterns: list[list[Packed]] = field(default_factory=list)
    shares: list[Array] = field(default_factory=list)
    q: list[list[dict[str, object]]] = field(default_factory=list)
    k: list[list[dict[str, object]]] = field(default_factory=list)
    v: list[list[dict[str, object]]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def n_heads(self) -> int:
        return len(self.heads)

    @property
    def elsewhere(self) -> Array:
        """(head): the share of attention on none of the usual places, mean over prompts."""
        return np.array([shares[:, SHARES.index("elsewhere")].mean() for shares in self.shares])

    def kv_head(self, head: int) -> int:
        """Which of the lists of k and v belongs to a head."""
        layer, place = divmod(head, self.n_heads)
        return layer * self.n_kv_heads + place // (self.n_heads // self.n_kv_heads)


def gather(
    layers: Iterable[Layer], prompts: Sequence[Prompt], heads: Sequence[int], n_kv_heads: int | None = None
) -> Gathered:
    """Reduce every layer as it comes. heads: their numbers. n_kv_heads: as many as heads, unless k is there or it is
    given. Raises CaptureError if there is no layer.
    """
    made, places = Gathered(tuple(heads)), [_usual(prompt) for prompt in prompts]
    for layer in layers:
        made.layers.append(layer.index)
        for head in range(made.n_heads):
            mine = [patterns[head] for patterns in layer.patterns]
            made.thumbnails.append([thumbnail(pattern) for pattern in mine])
            made.patterns.append([packed(pattern) for pattern in mine])
            made.shares.append(np.stack([_shares(p, u) for p, u in zip(mine, places, strict=True)]))
            if len(mine) == 2 and mine[0].shape == mine[1].shape:
                made.differences.append(difference(*mine))
        _keep_vectors(made, layer)
        made.n_kv_heads = layer.k[0].shape[1] if layer.k else n_kv_heads or len(heads)
    if not made.layers:
        raise CaptureError("no attention pattern was captured, so there is nothing to look at: ask for site pattern.")
    return made


def _keep_vectors(made: Gathered, layer: Layer) -> None:
    for kept, given in ((made.q, layer.q), (made.k, layer.k), (made.v, layer.v)):
        heads = range(given[0].shape[1]) if given else ()
        kept += [[vectors(prompt[:, head]) for prompt in given] for head in heads]


def difference(one: Array, other: Array) -> Difference:
    """How far two patterns of the same shape (query, key) differ."""
    rows = np.abs(one - other).sum(axis=1) / 2
    return Difference(float(rows.mean()), float(rows.max()), int(rows.argmax()))


def _usual(prompt: Prompt) -> list[npt.NDArray[np.int64]]:
    """Cells, counted row by row, of the first token; of each query itself; of the one before it; of special tokens."""
    rows, keys = np.arange(len(prompt.rows)), len(prompt.tokens)
    at = np.array(prompt.at or (), dtype=np.int64)
    own = rows[: len(at)] * keys + at
    special = rows[:, None] * keys + np.array(prompt.special, dtype=np.int64)[None, :]
    return [rows * keys, own, own[at > 0] - 1, special.ravel()]


def _shares(pattern: Array, usual: list[npt.NDArray[np.int64]]) -> Array:
    """As `SHARES`: weight on each of the usual places, which may overlap, and on none of them; mean over queries."""
    cells = np.ravel(pattern)
    on = [cells[place].sum(dtype=np.float64) for place in usual]
    rest = cells.sum(dtype=np.float64) - cells[np.unique(np.concatenate(usual))].sum(dtype=np.float64)
    return np.array([*on, max(rest, 0.0)]) / len(pattern)
