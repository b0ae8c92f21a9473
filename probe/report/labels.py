"""The words and numbers along the axes of a figure: measured in inches, so that nothing is cut off or overlaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator

from probe.report.numbers import number, power, whole
from probe.report.sentence import drawable
from probe.report.strips import visible

TICK, TEXT = 10.0, 11.0
"""Points: of numbers along an axis; of an axis' name."""
MOST = 60
"""Characters of a text that are drawn; the whole of it is in the table."""
DPI = 150
"""Dots an inch of every figure: text is measured as it is drawn, fitted to whole dots."""
SMALL, LARGE = 1e-3, 1e6
"""Numbers beyond these are written as powers of ten."""
NUMERIC = frozenset("0123456789,.−× ⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SLANT = 40
"""Degrees by which names are turned that are too long to stand beside each other."""


def drawn(text: str, most: int = MOST) -> str:
    """A text as the font can draw it, in one line and not longer than `most`."""
    line = drawable(" ".join(visible(text).split())) or "␣" * len(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def value_text(value: object) -> str:
    """A value of a table as the name of a place, a line or a panel."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return whole(int(value))
    if isinstance(value, Real):
        known = math.isfinite(float(value))
        return tick_texts([float(f"{value:.4g}")], log=False)[0] if known else number(float(value))
    return drawn(str(value))


def width(text: str, size: float = TICK) -> float:
    """Width in inches of a text, of its longest line if it has several."""
    renderer, font = _renderer(), FontProperties(size=size)
    measured = (renderer.get_text_width_height_descent(line, font, ismath=False) for line in text.split("\n"))
    return max(float(wide) for wide, _, _ in measured) / DPI


def height(text: str, size: float = TICK) -> float:
    """Height in inches of the lines of a text."""
    return (1 + text.count("\n")) * size * 1.22 / 72.0


def wrapped(text: str, room: float, size: float = TICK) -> str:
    """The text broken at spaces, slashes, hyphens and underscores into lines of at most `room` inches, where it can."""
    lines = [""]
    for word in _words(text):
        if lines[-1] and width(lines[-1] + word.rstrip(), size) > room:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _words(text: str) -> list[str]:
    """Pieces after which a line may break; joined, they are the text."""
    words, start = [], 0
    for end, char in enumerate(text, 1):
        if char in " /-_":
            words.append(text[start:end])
            start = end
    return [*words, text[start:]]


@dataclass(frozen=True)
class Names:
    """Names under a row of places. angle: degrees they are turned. depth: inches they need below the axis.

    reach: inches the first one needs to the left of its place. step: only each such name is shown.
    """

    texts: tuple[str, ...]
    angle: int
    depth: float
    reach: float
    step: int = 1

    def put(self, axes: Axes) -> None:
        """Write them along a level axis with the places 0, 1, ..."""
        axes.set_xticks(range(0, len(self.texts), self.step), self.texts[:: self.step])
        axes.tick_params(axis="x", length=0)
        if self.angle:
            looks = {"rotation": self.angle, "rotation_mode": "anchor", "ha": "right"}
            for label in axes.get_xticklabels():
                label.set(va="center" if self.angle == 90 else "top", **looks)


def beside(names: Sequence[str], slot: float) -> Names:
    """Names of places `slot` inches apart: level if they fit, else in lines, slanted, upright, or only some."""
    texts = tuple(map(drawn, names))
    for fitted in (texts, tuple(wrapped(text, 0.92 * slot) for text in texts)):
        if all(width(text) <= 0.95 * slot and text.count("\n") < 3 for text in fitted):
            return Names(fitted, 0, max(map(height, fitted), default=0.0), max(map(width, fitted[:1]), default=0.0) / 2)
    if set("".join(texts)) <= NUMERIC:  # of numbers, some are enough
        return Names(texts, 0, height("0"), width(texts[0]) / 2, every(max(map(width, texts)) + 0.12, slot))
    turned = tuple(wrapped(text, 2.3) for text in texts)
    longest, thick = max(map(width, turned)), max(map(height, turned))
    if slot * math.sin(math.radians(SLANT)) >= thick:
        down, across = longest * math.sin(math.radians(SLANT)), width(turned[0]) * math.cos(math.radians(SLANT))
        return Names(turned, SLANT, down + 0.8 * thick, across + 0.3 * thick)
    return Names(turned, 90, longest, thick / 2, every(thick, slot))


def every(need: float, slot: float) -> int:
    """Of names that need so many inches, `slot` apart, which ones can be shown: each, every second, fifth, tenth ..."""
    steps = [step * int(10**n) for n in range(9) for step in (1, 2, 5)]
    return next(step for step in steps if step * slot >= need)


@dataclass(frozen=True)
class Ticks:
    """Places along an axis of numbers, and what is written at them."""

    at: tuple[float, ...]
    texts: tuple[str, ...]


def ticks(low: float, high: float, room: float, values: Iterable[float], *, log: bool, upright: bool) -> Ticks:
    """As many round numbers from `low` to `high` as fit into `room` inches; along a level axis the `values` themselves
    if they are few and round.

    upright: along a vertical axis, where a number needs its height and not its width.
    """
    exact = sorted({float(v) for v in values if math.isfinite(v)})
    integers = bool(exact) and all(v == round(v) for v in exact)
    few = 1 <= len(exact) <= 10 and (integers or all(math.isclose(float(f"{v:.2g}"), v) for v in exact))
    candidates = [exact] if few and not upright else []
    candidates += _decades(low, high) if log else []
    if not log or not any(len(_inside(c, low, high)) > 1 for c in candidates):
        candidates += [_linear(low, high, n, integers) for n in (8, 7, 6, 5, 4, 3, 2, 1)]
    for places in candidates:
        at = _inside(places, low, high)
        texts = tick_texts(at, log=log)
        if at and _fit(at, texts, (low, high), room, log=log, upright=upright):
            return Ticks(tuple(at), tuple(texts))
    middle = _inside(candidates[-1], low, high)[:1]
    return Ticks(tuple(middle), tuple(tick_texts(middle, log=log)))


def tick_texts(at: Sequence[float], *, log: bool) -> list[str]:
    """Numbers with the decimals that tell neighbours apart, or all with a power of ten if one is very large or small:
    along a linear axis with the same one.
    """
    sizes = [abs(value) for value in at if value]
    far = bool(sizes) and (max(sizes) >= LARGE or (min(sizes) if log else max(sizes)) < SMALL)
    if log:
        return [_power(value, math.floor(math.log10(value) + 1e-9)) if far else _plain([value])[0] for value in at]
    if not far:
        return _plain(at)
    exponent = math.floor(math.log10(max(sizes)) + 1e-9)
    digits = _digits([value / 10.0**exponent for value in at])
    return [_power(value, exponent, digits) if value else "0" for value in at]


def _plain(at: Sequence[float]) -> list[str]:
    return [f"{value + 0.0:,.{_digits(at)}f}".replace("-", "−") for value in at]


def _power(value: float, exponent: int, digits: int | None = None) -> str:
    """The number with a given power of ten; the power alone where it is once that power, and no decimals are asked."""
    mantissa = value / 10.0**exponent
    digits = _digits([mantissa]) if digits is None else digits
    sign, raised = "−" * (value < 0), power(10.0**exponent, 0).removeprefix("1 × ")
    return sign + raised if f"{abs(mantissa):.{digits}f}" == "1" else f"{sign}{abs(mantissa):.{digits}f} × {raised}"


def _digits(at: Sequence[float]) -> int:
    """Decimals that show these numbers, and the steps between them, whole; seven at most."""
    steps = [later - earlier for earlier, later in pairwise(at)]
    return next((d for d in range(7) if all(_is_round(v, d) for v in (*steps, *at))), 7)


def _is_round(value: float, digits: int) -> bool:
    return abs(value - round(value, digits)) < 1e-9 * max(1.0, abs(value))


def _linear(low: float, high: float, n: int, integers: bool) -> list[float]:
    locator = MaxNLocator(nbins=n, steps=[1, 2, 2.5, 5, 10], integer=integers)
    return [float(v) for v in locator.tick_values(low, high)]


def _decades(low: float, high: float) -> list[list[float]]:
    """Round numbers along a logarithmic axis, from many to few; what is less than three of them comes last.

    Where all are written as powers of ten, the powers themselves come first.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    sets = [[m * 10.0**e for e in range(first, last + 1) for m in digits] for digits in ((1, 2, 5), (1, 3))]
    powers = [[10.0**e for e in range(first, last + 1, step)] for step in (1, 2, 3, 4, 6, 10, 20, 50)]
    ordered = [*powers, *sets] if high >= LARGE or low < SMALL else [*sets, *powers]
    return sorted(ordered, key=lambda places: len(_inside(places, low, high)) < 3)


def _inside(places: Iterable[float], low: float, high: float) -> list[float]:
    return [place for place in places if low - 1e-9 * abs(low) <= place <= high + 1e-9 * abs(high)]


def _fit(
    at: Sequence[float], texts: Sequence[str], ends: tuple[float, float], room: float, *, log: bool, upright: bool
) -> bool:
    low, high = np.log10(ends) if log else ends
    spots = [((math.log10(v) if log else v) - low) / (high - low) * room for v in at]
    needs = [0.3 if upright else width(text) + 0.14 for text in texts]
    pairs = zip(spots, spots[1:], needs, needs[1:], strict=False)
    return all(later - earlier >= (one + two) / 2 for earlier, later, one, two in pairs)


@cache
def _renderer() -> Any:
    """What measures text; matplotlib gives it no types."""
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=DPI)).get_renderer()  # type: ignore[no-untyped-call]
