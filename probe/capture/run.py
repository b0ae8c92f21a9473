"""`Run`: what was captured of several prompts, by site, with positions that count each prompt's real tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from probe.capture.batch import Batch
from probe.errors import CaptureError, OutOfRange
from probe.sites import CROSS, ENCODER, KEY_SITES, SQUARE_SITES, Site, check_indices

Rows = Sequence[int] | Sequence[Sequence[int]] | None


@dataclass(frozen=True, repr=False)
class Run:
    """What `Subject.run` captured. Positions count each prompt's real tokens from 0.

    `run[site, layer]`, `run["embed"]` and `run["logits"]` are tensors with the shapes of `probe.sites`; shorter
    prompts are filled up with NaN, as are missing rows. prompts: the encoded texts, in order. rows: the query
    positions kept, or None. ids: what the model read: the prompts, and for a generation what it wrote; an
    encoder-decoder's decoder ids. heads: those kept, None for all.
    """

    prompts: tuple[Any, ...]
    rows: tuple[tuple[int, ...], ...] | None
    values: dict[tuple[str, int | None], Tensor]
    ids: tuple[tuple[int, ...], ...] = field(default=())
    heads: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        """What is there, not its thousands of numbers."""
        layers: dict[str, list[int]] = {}
        for name, layer in self.values:
            layers.setdefault(name, []).extend([] if layer is None else [layer])
        sites = ", ".join(f"{n} (layers {min(ls)} to {max(ls)})" if ls else n for n, ls in layers.items())
        return f"{type(self).__name__}({len(self.prompts)} prompts, {sites or 'no sites'})"

    def __getitem__(self, site: str | tuple[str, int]) -> Tensor:
        key = (site, None) if isinstance(site, str) else site
        if key not in self.values:
            layers = sorted({n for s, n in self.values if s == key[0] and n is not None})
            names = sorted({s for s, _ in self.values})
            raise OutOfRange(f"{site!r} was not captured: sites {', '.join(names)}; layers of {key[0]}: {layers}.")
        return self.values[key]


class Collector:
    """Lines up the tensors of successive batches. longest: tokens of the longest prompt, for each stack."""

    def __init__(self, longest: Mapping[str, int], rows: Sequence[Sequence[int]] | None, name: str) -> None:
        self.longest, self.rows, self.name = longest, rows, name
        self._parts: dict[tuple[str, int | None], list[Tensor]] = {}

    def add(self, site: Site, tensor: Tensor, batch: Batch) -> None:
        """Raises CaptureError where a real position holds NaN or infinite values."""
        aligned = self._align(site, tensor, batch)
        # Masked scores may be minus infinity by right.
        wrong = torch.isnan if site.base == "scores" else lambda t: ~torch.isfinite(t)
        if any(wrong(part).any() for part in self._real(site, aligned, batch)):
            raise CaptureError(f"{site} of {self.name} holds NaN or infinite values.")
        self._parts.setdefault((site.name, site.layer), []).append(aligned)

    def values(self) -> dict[tuple[str, int | None], Tensor]:
        return {key: torch.cat(tensors) for key, tensors in self._parts.items()}

    def _axes(self, site: Site, batch: Batch) -> Iterator[tuple[int, slice, int, slice]]:
        """For each prompt of the batch: its place, and its rows and keys in the tensor, with how many rows."""
        query = ENCODER if site.prefix == ENCODER else ""
        key = ENCODER if site.prefix in (ENCODER, CROSS) else ""
        rows, keys = batch.frames[query], batch.frames.get(key, batch.frames[query])
        if site.base in KEY_SITES:
            rows = keys
        for b, i in enumerate(batch.indices):
            n, s = rows.lengths[b], rows.shift[b]
            columns = slice(keys.shift[b], keys.shift[b] + keys.lengths[b])
            if self.rows is None or site.base in KEY_SITES or site.prefix == ENCODER:
                yield b, slice(s, s + n), n, columns
            else:
                yield b, slice(0, len(self.rows[i])), len(self.rows[i]), columns

    def _align(self, site: Site, tensor: Tensor, batch: Batch) -> Tensor:
        """Shift each prompt to position 0 and fill what is not real with NaN, up to the longest prompt or rows."""
        query = ENCODER if site.prefix == ENCODER or (site.prefix == CROSS and site.base in KEY_SITES) else ""
        key = ENCODER if site.prefix in (ENCODER, CROSS) else ""
        chosen = self.rows is not None and site.base not in KEY_SITES and site.prefix != ENCODER
        most = max(map(len, self.rows)) if chosen and self.rows is not None else self.longest[query]
        shape = list(tensor.shape)
        shape[2 if site.base in SQUARE_SITES else 1] = most
        if site.base in SQUARE_SITES:
            shape[3] = self.longest[key]
        full = tensor.new_full(shape, float("nan"))
        for b, rows, size, columns in self._axes(site, batch):
            if site.base in SQUARE_SITES:
                full[b, :, :size, : columns.stop - columns.start] = tensor[b, :, rows, columns]
            else:
                full[b, :size] = tensor[b, rows]
        return full

    def _real(self, site: Site, aligned: Tensor, batch: Batch) -> Iterator[Tensor]:
        for b, _, size, columns in self._axes(site, batch):
            width = columns.stop - columns.start
            yield aligned[b, :, :size, :width] if site.base in SQUARE_SITES else aligned[b, :size]


def rows_per_prompt(rows: Rows, lengths: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """The rows of each prompt, none of them negative. Raises OutOfRange."""
    if rows is None:
        return None
    each: list[Any] = [rows] if isinstance(rows, Integral) else list(rows)
    if not each or isinstance(each[0], Integral):
        each = [each] * len(lengths)
    if len(each) != len(lengths):
        raise OutOfRange(f"rows were given for {len(each)} prompts, but there are {len(lengths)}.")
    chosen = tuple(check_indices("row", r, n) for r, n in zip(each, lengths, strict=True))
    if not all(chosen):
        raise OutOfRange("each prompt needs at least one row; leave rows out to keep all.")
    return chosen
