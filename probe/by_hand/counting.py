"""Numbers that count what is done with them, so that a cost is counted and not only derived.

tally = Tally()
x = tally.counted([[1.0, 2.0], [3.0, 4.0]])
matmul(x, x)
tally.additions  # 8: each of four numbers is a sum of two products
"""

from __future__ import annotations

from probe.by_hand.in_python import Rows


class Tally:
    """How many additions and multiplications its numbers took part in, since it was made."""

    def __init__(self) -> None:
        self.additions = 0
        self.multiplications = 0

    def counted(self, rows: Rows) -> Rows:
        """The same rows, made of numbers that count here."""
        return [[Counted(number, self) for number in row] for row in rows]


class Counted(float):
    """A float whose sums and products are counted in its tally and count in turn. What `math` returns does not."""

    tally: Tally

    def __new__(cls, value: float, tally: Tally) -> Counted:
        number = super().__new__(cls, value)
        number.tally = tally
        return number

    def __add__(self, other: float) -> Counted:
        self.tally.additions += 1
        return Counted(float(self) + float(other), self.tally)

    def __mul__(self, other: float) -> Counted:
        self.tally.multiplications += 1
        return Counted(float(self) * float(other), self.tally)

    __radd__ = __add__
    __rmul__ = __mul__
