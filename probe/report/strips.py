"""Example prompts as token strips: what of each token is shown, and its attention in one byte.

Attention is stored as round(255 * sqrt(p)): one byte a token, finest where p is small (the step is at most
0.008 at p = 1, 0.0008 at p = 0.01). Prompts of more than `LONG` tokens show the marked words with their
surroundings; what lies between is one piece, whose attention is the sum over the tokens left out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probe.runner.results import Example

LONG = 400
AROUND = 30
"""Tokens kept on each side of a marked one when a long prompt is shortened."""

_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True)
class Piece:
    """One token of a strip, or the tokens start..stop left out of a long prompt.

    lead: whitespace before the token's first visible character, shown outside its box.
    roles: of "query", "target", "foil", "foil 1" ...
    """

    start: int
    stop: int
    lead: str
    text: str
    rtl: bool
    roles: tuple[str, ...]

    @property
    def left_out(self) -> bool:
        return self.stop - self.start > 1


def visible(text: str) -> str:
    """The token's text with every control character shown as a symbol, so nothing acts and nothing is hidden.

    >>> visible("a\\x00b\\n")
    'a␀b↵\\n'
    """
    return "".join(_visible(c) for c in text)


def readable(text: str) -> str:
    """As `visible`, for text of several lines: line ends and tabs stay what they are."""
    return "".join(c if c in "\n\t" else _visible(c) for c in text.replace("\r\n", "\n"))


def _visible(c: str) -> str:
    code = ord(c)
    if c == "\n":
        return "↵\n"
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    # line and paragraph separators, C1 controls, lone surrogates and direction overrides
    if c in _BIDI_CONTROLS or unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp"):
        return f"⟨U+{code:04X}⟩"
    return c


def pieces(example: Example) -> tuple[Piece, ...]:
    """The strip of an example, in order; together the pieces cover every token once."""
    roles = _roles(example)
    shown = _shown(len(example.tokens), roles)
    strip: list[Piece] = []
    start = 0
    while start < len(example.tokens):
        stop = start + 1
        if start not in shown:
            while stop < len(example.tokens) and stop not in shown:
                stop += 1
        if stop - start > 1:
            strip.append(Piece(start, stop, " ", f"⋯ {stop - start} tokens ⋯", False, ()))
        else:
            strip.append(single(start, example.tokens[start], tuple(roles.get(start, ()))))
        start = stop
    return tuple(strip)


def single(position: int, token: str, roles: tuple[str, ...] = ()) -> Piece:
    """The piece of one token."""
    body = token.lstrip(" ") or token
    lead = token[: len(token) - len(body)]
    rtl = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in body)
    return Piece(position, position + 1, lead, visible(body), rtl, roles)


def _roles(example: Example) -> dict[int, list[str]]:
    roles: dict[int, list[str]] = {}
    names = ["foil"] if len(example.foils) == 1 else [f"foil {i + 1}" for i in range(len(example.foils))]
    marked = [("query", example.query), ("target", example.target), *zip(names, example.foils, strict=True)]
    for name, positions in marked:
        for position in positions:
            roles.setdefault(position, []).append(name)
    return roles


def _shown(n_tokens: int, marked: Iterable[int]) -> set[int]:
    if n_tokens <= LONG:
        return set(range(n_tokens))
    anchors = [0, n_tokens - 1, *marked]
    return {p for a in anchors for p in range(max(0, a - AROUND), min(n_tokens, a + AROUND + 1))}


def groups(strip: tuple[Piece, ...]) -> list[tuple[tuple[str, ...], list[tuple[int, Piece]]]]:
    """Neighbouring pieces of the same roles together, so that a word of several tokens gets one box."""
    grouped: list[tuple[tuple[str, ...], list[tuple[int, Piece]]]] = []
    for index, piece in enumerate(strip):
        if not grouped or grouped[-1][0] != piece.roles:
            grouped.append((piece.roles, []))
        grouped[-1][1].append((index, piece))
    return grouped


def indices(strip: tuple[Piece, ...], positions: Iterable[int]) -> list[int]:
    """Which pieces hold these token positions."""
    of = {piece.start: index for index, piece in enumerate(strip)}
    return [of[p] for p in positions]


def codes(strip: tuple[Piece, ...], rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Attention on each piece as a byte. rows: (..., key), padded or not; result: (..., piece)."""
    starts = [piece.start for piece in strip]
    summed = np.add.reduceat(rows[..., : strip[-1].stop].astype(np.float64), starts, axis=-1)
    return np.asarray(np.rint(255 * np.sqrt(np.clip(summed, 0, 1))), dtype=np.uint8)


def decoded(code: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Attention from its byte: (code / 255) squared."""
    return np.asarray((code / 255.0) ** 2)


def on_target(example: Example, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Where a head puts more attention on the target than on any foil. rows: (layer, head, key)."""
    target = rows[..., list(example.target)].sum(-1)
    foils = [rows[..., list(foil)].sum(-1) for foil in example.foils]
    return np.asarray(np.all([target > foil for foil in foils], axis=0) if foils else target > 0)
