"""Attention patterns in few bytes, as the viewer's script reads them.

A weight is one byte, round(255 * sqrt(p)), as in the prompts of a report (`probe.report.strips`). Of every head there
is a thumbnail of at most 32 x 32 cells, each the *largest* weight in it: a mean would hide a diagonal. Up to `DENSE`
keys a head's pattern is kept whole, its lower half where nothing looks ahead; above, each row keeps its `TOP` largest
weights and the *residual mass*, what all others have together.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 32
DENSE = 1024
TOP = 16
COLOUR = (63, 134, 220)
"""Red, green, blue of full attention; less of it lets the page's ground through, be it light or dark."""

Weights = npt.NDArray[np.floating]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packed:
    """One head's pattern, deflated, in base64. kind: "half" (rows of 1, 2, 3 ... keys), "whole" (rows of all keys) or
    "top" (keys as little-endian 16-bit numbers, then their bytes, then each row's residual mass).
    """

    kind: Literal["half", "whole", "top"]
    data: str
    shape: tuple[int, int]

    def row(self, query: int) -> Codes:
        """The bytes of one row, a byte for each key; 0 for what was not kept."""
        rows, keys = self.shape
        code = np.frombuffer(zlib.decompress(base64.b64decode(self.data)), dtype=np.uint8)
        if self.kind == "whole":
            return code[query * keys : (query + 1) * keys]
        made = np.zeros(keys, dtype=np.uint8)
        if self.kind == "half":
            made[: query + 1] = code[query * (query + 1) // 2 :][: query + 1]
        else:
            at = code[: 2 * rows * TOP].view("<u2")[query * TOP :][:TOP]
            made[at] = code[2 * rows * TOP :][query * TOP :][:TOP]
        return made


def codes(weights: Weights) -> Codes:
    """Weights as bytes: the step is at most 0.008 at 1 and 0.0008 at 0.01."""
    return np.asarray(np.rint(255 * np.sqrt(np.clip(weights, 0, 1))), dtype=np.uint8)


def thumbnail(pattern: Weights, side: int = SIDE) -> Codes:
    """A pattern (query, key) in at most `side` x `side` cells, each the largest weight in it."""
    down, across = (np.arange(min(n, side)) * n // min(n, side) for n in pattern.shape)
    return codes(np.maximum.reduceat(np.maximum.reduceat(pattern, down, axis=0), across, axis=1))


def packed(pattern: Weights) -> Packed:
    """A pattern (query, key), whole or by its largest weights."""
    rows, keys = pattern.shape
    if keys > DENSE:
        return Packed("top", deflated(*largest(pattern)), (rows, keys))
    code = codes(pattern)
    if rows == keys and not np.triu(code, 1).any():
        return Packed("half", deflated(code[np.tril_indices(rows)]), (rows, keys))
    return Packed("whole", deflated(code), (rows, keys))


def largest(pattern: Weights, top: int = TOP) -> tuple[npt.NDArray[np.uint16], Codes, Codes]:
    """Of each row the keys with the largest weights, in order of the keys (row, top), their bytes (row, top), and the
    byte of what the rest of the row has together (row).
    """
    at = np.sort(np.argpartition(-pattern, top - 1, axis=1)[:, :top], axis=1)
    kept = np.take_along_axis(pattern, at, axis=1)
    rest = pattern.sum(axis=1, dtype=np.float64) - kept.sum(axis=1, dtype=np.float64)
    return at.astype("<u2"), codes(kept), codes(rest)


def vectors(values: Weights) -> dict[str, object]:
    """Vectors (pos, d_head) as signed bytes, in steps of the largest size / 127: {"step", "data"}."""
    step = float(np.abs(values).max(initial=0.0)) / 127 or 1.0
    return {"step": step, "data": deflated(np.rint(values / step).astype(np.int8))}


def deflated(*parts: npt.NDArray[np.generic]) -> str:
    """Arrays one after the other, deflated, in base64."""
    return base64.b64encode(zlib.compress(b"".join(part.tobytes() for part in parts), 6)).decode("ascii")


def sheet(thumbnails: Sequence[Codes], columns: int) -> bytes:
    """Thumbnails of one size side by side, row by row, as a PNG of one colour whose opacity is the weight."""
    height, width = thumbnails[0].shape
    rows = len(thumbnails) // columns
    grid = np.stack(thumbnails).reshape(rows, columns, height, width).transpose(0, 2, 1, 3)
    image = Image.fromarray(grid.reshape(rows * height, columns * width), mode="L").convert("P")
    image.putpalette(COLOUR * 256)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True, transparency=bytes(range(256)))
    return buffer.getvalue()
