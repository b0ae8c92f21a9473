"""How a number is printed: the same digits in tables, figures and the page's script (`report.js`)."""

from __future__ import annotations

import math

NONE = "–"
"""Printed where a number does not exist: no test was made, no rival is defined."""
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def fixed(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals and a true minus sign, which what is printed as zero has not; `NONE` for NaN.

    >>> fixed(-1.25), fixed(-0.0004), fixed(-0.004, 2), fixed(float("nan"))
    ('−1.250', '0.000', '0.00', '–')
    """
    if not math.isfinite(value):
        return NONE
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


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


def signed(value: float) -> str:
    """A whole number with its sign; `NONE` for NaN.

    >>> signed(3.0), signed(-1.0), signed(0.0), signed(float("nan"))
    ('+3', '−1', '0', '–')
    """
    if not math.isfinite(value):
        return NONE
    return f"{value:+.0f}".replace("-", "−") if value else "0"


def count(n: int, noun: str) -> str:
    """ "1 prompt", "412 prompts"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def number(value: float, digits: int = 3) -> str:
    """`value` with `digits` decimals and thousands separators; two digits, or a power of ten, where it is too small or
    too large for them.

    >>> number(4096.5, 1), number(0.25, 0), number(-1.2e-7), number(2.5e9), number(float("nan"))
    ('4,096.5', '0.25', '−1.2 × 10⁻⁷', '2.5 × 10⁹', '–')
    """
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value and abs(value) < 10.0**-digits:
        if abs(value) < 1e-3:
            return power(value)
        digits = 1 - math.floor(math.log10(abs(value)))
    if abs(value) >= 1e7:
        return power(value)
    return f"{value + 0.0:,.{digits}f}".replace("-", "−")  # + 0.0, since zero may have a sign


def whole(value: int) -> str:
    """A whole number with thousands separators and a true minus sign, "4,096"."""
    return f"{value:,}".replace("-", "−")


def power(value: float, digits: int = 1) -> str:
    """A number between 1 and 10 with `digits` decimals and a power of ten, "1.2 × 10⁻⁷"."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(_RAISED)}".replace("-", "−")
