"""How a number is printed: the same digits in tables, figures and the page's script (`report.js`)."""

from __future__ import annotations

import math

NONE = "–"
"""Printed where a number does not exist: no test was made, no rival is defined."""


def fixed(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals and a true minus sign; `NONE` for NaN."""
    if not math.isfinite(value):
        return NONE
    return f"{value:.{digits}f}".replace("-", "−")


def interval(low: float, high: float) -> str:
    """The interval as "[0.881, 0.940]"; `NONE` where it was not computed."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return NONE
    return f"[{fixed(low)}, {fixed(high)}]"


def p_value(value: float) -> str:
    """A p or q value to four decimals; below that, the bound."""
    if not math.isfinite(value):
        return NONE
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def size(n_bytes: int) -> str:
    """Bytes as kB or MB (powers of ten)."""
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:.0f} kB"


def count(n: int, noun: str) -> str:
    """ "1 prompt", "412 prompts"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
