"""Statistics of whole attention patterns that never hold a whole pattern.

A few rows at a time go through the model's own eager function, are reduced, and are dropped: memory is that of
O(rows x keys), time that of the scores alone. For causal attention, keys later than a chunk's last row are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from probe.anatomy.interface import Call
from probe.anatomy.patterns import Link, attention_rows
from probe.errors import OutOfRange, ProbeError
from probe.sites import CROSS, check_indices, plain_indices

BUDGET = 1 << 22  # cells of one chunk: 16 MB, which the allocator hands out again without asking the system


@dataclass(frozen=True)
class Statistics:
    """What to compute of every row of every pattern.

    groups: (batch, key) whole numbers: which group of keys each belongs to (targets 0, foils 1, ...), -1 for none;
    None computes no group's mass. offsets: distances from the query, -1 is the previous token, whose mean weight is
    wanted. lengths, shift: each prompt's real tokens and the padding before them; default all, none. groups_in_all:
    how many groups there are, default as many as the greatest number in `groups` tells. prefix: of which patterns, ""
    of a decoder's or the only stack's own, or an encoder-decoder's "encoder." or "cross." ones; the latter have no
    offsets, for their queries and keys are two texts, of which `lengths` are the queries'.
    """

    groups: Tensor | None = None
    offsets: tuple[int, ...] = tuple(range(-8, 9))
    lengths: tuple[int, ...] | None = None
    shift: tuple[int, ...] | None = None
    groups_in_all: int | None = None
    prefix: str = ""

    @property
    def n_groups(self) -> int:
        """How many groups there are, empty ones too where `groups_in_all` says so."""
        if self.groups is None:
            return 0
        return int(self.groups.max()) + 1 if self.groups_in_all is None else self.groups_in_all

    def only(self, start: int, stop: int, n_keys: int) -> Statistics:
        """Of some of the prompts, whose longest has so many keys."""
        groups = None if self.groups is None else self.groups[start:stop, :n_keys]
        shift = None if self.shift is None else self.shift[start:stop]
        lengths = None if self.lengths is None else self.lengths[start:stop]
        return replace(self, groups=groups, shift=shift, lengths=lengths)

    def check(self, batch: int, n_keys: int) -> None:
        """Raises ProbeError where the groups do not fit the batch."""
        if self.groups is not None and tuple(self.groups.shape) != (batch, n_keys):
            raise ProbeError(
                f"groups have the shape {tuple(self.groups.shape)}; the batch's keys are {(batch, n_keys)}."
            )


@dataclass
class RowStatistics:
    """Statistics of one layer's rows; NaN (argmax: -1) in rows of padding.

    mass: (batch, head, query, group), the weight on each group's keys. entropy: (batch, head, query), nats; of the
    weights as they are, so a sink outside the keys takes its part with it. first: the weight on the prompt's first
    key. argmax: the key looked at most. offsets: (batch, head, offset), the mean weight at each of
    `Statistics.offsets` over the rows that have such a key; NaN where none has.
    """

    mass: Tensor
    entropy: Tensor
    first: Tensor
    argmax: Tensor
    offsets: Tensor
    counts: Tensor = field(repr=False)  # (batch, offset): how many rows have such a key


def row_statistics(
    call: Call, wanted: Statistics, causal: bool, links: Callable[[Tensor], Link] | None = None
) -> RowStatistics:
    """Reduce every row of one attention call. causal: no row sees a later key (of a call over whole prompts). links:
    from the rows of a chunk to what edits them.
    """
    batch, n_heads, n_queries, _ = call.query.shape
    n_keys = call.key.shape[2]
    reducer = Reducer(wanted, batch, n_heads, n_queries, n_keys, causal, call.query.device)
    chunk = max(8, BUDGET // (batch * n_heads * n_keys))
    for start in range(0, n_queries, chunk):
        stop = min(start + chunk, n_queries)
        at = torch.arange(start, stop, device=call.query.device).expand(batch, -1)
        seen = stop if causal and n_queries == n_keys else n_keys
        rows = attention_rows(call, at, links(at) if links else None, values=False, n_keys=seen)
        reducer.add(rows.pattern, rows.scores, start, edited=links is not None)
    return reducer.done()


class Reducer:
    """Collects the statistics of one layer, rows in order."""

    def __init__(
        self,
        wanted: Statistics,
        batch: int,
        n_heads: int,
        n_queries: int,
        n_keys: int,
        causal: bool,
        device: torch.device,
    ) -> None:
        wanted.check(batch, n_keys)
        self.offsets, self.causal = wanted.offsets, causal
        self.shift = torch.tensor(wanted.shift or (0,) * batch, device=device)
        self.ends = (
            self.shift + torch.tensor(wanted.lengths, device=device) if wanted.lengths else self.shift * 0 + n_queries
        )
        self.groups: Tensor | None = None
        if wanted.groups is not None:
            places = wanted.groups.to(device) + 1
            self.groups = torch.nn.functional.one_hot(places, wanted.n_groups + 1)[:, None, :, 1:].float()
        rows = (batch, n_heads, n_queries)
        nothing = torch.full(rows, float("nan"), device=device)
        self.made = RowStatistics(
            mass=torch.full((*rows, wanted.n_groups), float("nan"), device=device),
            entropy=nothing,
            first=nothing.clone(),
            argmax=torch.full(rows, -1, dtype=torch.long, device=device),
            offsets=torch.zeros(batch, n_heads, len(wanted.offsets), device=device),
            counts=torch.zeros(batch, len(wanted.offsets), device=device),
        )

    def add(self, pattern: Tensor, scores: Tensor, start: int, *, edited: bool = False) -> None:
        """pattern, scores: (batch, head, row, key) of the rows from `start` on; keys from 0, perhaps not to the end.

        edited: the pattern may not be the softmax of the scores.
        """
        pattern, scores, made = pattern.float(), scores.float(), self.made
        batch, n_heads, n_rows, n_keys = pattern.shape
        rows = slice(start, start + n_rows)
        at = torch.arange(start, start + n_rows, device=pattern.device).expand(batch, -1)
        real = (at >= self.shift[:, None]) & (at < self.ends[:, None])
        hidden = ~real[:, None, :]
        peak = argmax(pattern)
        made.argmax[:, :, rows] = peak.masked_fill(hidden, -1)
        entropy = torch.special.entr(pattern).sum(-1) if edited else _entropy(pattern, scores, peak)
        made.entropy[:, :, rows] = entropy.masked_fill(hidden, float("nan"))
        first = pattern.gather(
            3, self.shift[:, None, None, None].clamp(max=n_keys - 1).expand(batch, n_heads, n_rows, 1)
        )
        made.first[:, :, rows] = first.squeeze(3).masked_fill(hidden, float("nan"))
        if self.groups is not None:
            mass = pattern @ self.groups[:, :, :n_keys]
            made.mass[:, :, rows] = mass.masked_fill(hidden.unsqueeze(3), float("nan"))
        for place, offset in enumerate(self.offsets):
            key = at + offset
            has = real & (key >= self.shift[:, None]) & (key < self.ends[:, None])
            if self.causal and offset > 0:
                continue
            index = key.clamp(0, n_keys - 1)[:, None, :, None].expand(batch, n_heads, n_rows, 1)
            made.offsets[:, :, place] += (pattern.gather(3, index).squeeze(3) * has[:, None, :]).sum(2)
            made.counts[:, place] += has.sum(1)

    def done(self) -> RowStatistics:
        self.made.offsets /= self.made.counts.unsqueeze(1)  # 0 / 0 is NaN: no row has such a key
        return self.made


def _entropy(pattern: Tensor, scores: Tensor, peak: Tensor) -> Tensor:
    """-Σ p log p. log p is a score less the row's normaliser, which one entry gives: no logarithm of every cell."""
    at = peak.unsqueeze(3)
    normaliser = scores.gather(3, at) - pattern.gather(3, at).log()
    product = torch.einsum("bhqk,bhqk->bhq", pattern, scores)
    if bool(product.isnan().any()):  # a mask of -inf: 0 times infinity
        product = torch.einsum("bhqk,bhqk->bhq", pattern, scores.clamp(min=-1e30))
    return normaliser.squeeze(3) * pattern.sum(3) - product


def argmax(pattern: Tensor) -> Tensor:
    """The largest entry along the last axis; NumPy's search is ten times faster than torch's on a processor."""
    if pattern.device.type == "cpu" and not pattern.requires_grad:
        return torch.from_numpy(pattern.numpy().argmax(-1))
    return pattern.argmax(-1)


@dataclass(frozen=True)
class Streamed:
    """`RowStatistics` of several prompts and layers, NaN (argmax: -1) where a prompt has no such row.

    mass: (prompt, layer, head, query, group); entropy, first, argmax: (prompt, layer, head, query); offsets:
    (prompt, layer, head, offset). layers: which ones, in order.
    """

    layers: tuple[int, ...]
    mass: Tensor
    entropy: Tensor
    first: Tensor
    argmax: Tensor
    offsets: Tensor


def stacked(batches: list[dict[int, RowStatistics]], longest: int) -> Streamed:
    """The statistics of successive batches, lined up; prompts are padded on the right."""
    layers = tuple(sorted(batches[0]))

    def whole(name: str, fill: float) -> Tensor:
        parts = [torch.stack([getattr(b[layer], name) for layer in layers], 1) for b in batches]
        if name == "offsets":
            return torch.cat(parts)
        room = [(0, 0, 0, longest - p.shape[3]) if name == "mass" else (0, longest - p.shape[3]) for p in parts]
        return torch.cat([torch.nn.functional.pad(p, r, value=fill) for p, r in zip(parts, room, strict=True)])

    nan = float("nan")
    return Streamed(
        layers,
        whole("mass", nan),
        whole("entropy", nan),
        whole("first", nan),
        whole("argmax", -1),
        whole("offsets", nan),
    )


def asked(
    prefix: str,
    queries: Sequence[Sequence[int]],
    keys: Sequence[Sequence[int]],
    groups: Sequence[Sequence[Sequence[int]]] | None,
    offsets: Sequence[int] | None,
) -> Statistics:
    """What to compute of prompts, padded on the right. queries, keys: the ids of each text that looks, and that is
    looked at. groups, offsets: as users give them (`Subject.stream`). Raises OutOfRange, ProbeError.
    """
    if groups is not None and len(groups) != len(keys):
        raise OutOfRange(f"groups were given for {len(groups)} prompts, but there are {len(keys)}.")
    if prefix == CROSS and offsets:
        raise ProbeError("cross-attention has no offsets: its queries and its keys are two texts. Leave offsets out.")
    usual: Sequence[int] = () if prefix == CROSS else Statistics.offsets
    return Statistics(
        None if groups is None else grouped(groups, [len(k) for k in keys]),
        plain_indices("offset", usual if offsets is None else offsets),
        tuple(len(q) for q in queries),
        groups_in_all=None if groups is None else max(map(len, groups)),
        prefix=prefix,
    )


def grouped(groups: Sequence[Sequence[Sequence[int]]], lengths: Sequence[int]) -> Tensor:
    """Lists of key positions for each prompt and group as (prompt, key): the group of each key, -1 for none.

    Raises OutOfRange for a position that the prompt does not have, ProbeError for one that is in two groups.
    """
    found = torch.full((len(groups), max(lengths)), -1)
    for prompt, (lists, length) in enumerate(zip(groups, lengths, strict=True)):
        for number, positions in enumerate(lists):
            for at in check_indices("key", positions, length):
                if found[prompt, at] not in (-1, number):
                    raise ProbeError(
                        f"key {at} of prompt {prompt} is in two groups, {int(found[prompt, at])} and {number}."
                    )
                found[prompt, at] = number
    return found
