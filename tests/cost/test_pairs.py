"""Ratios come from pairs, on a clock that the test turns by hand."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from probe.cost.pairs import Pairs, paired


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """Garbage is collected between passes; what other tests have left in memory need not be looked at each time."""
    gc.freeze()
    yield
    gc.unfreeze()


class Clock:
    """Stands still but for what the passes add to it. slower: how much longer everything takes after each pass."""

    def __init__(self, slower: float = 1.0) -> None:
        self.now, self.factor, self.slower = 0.0, 1.0, slower
        self.ran: list[str] = []

    def work(self, name: str, seconds: float) -> object:
        self.ran.append(name)
        self.now += seconds * self.factor
        self.factor *= self.slower
        return object()


def timed(clock: Clock, plain: float, contender: float, repeats: int) -> Pairs:
    return paired(
        lambda: clock.work("plain", plain),
        lambda: clock.work("contender", contender),
        repeats,
        clock=lambda: clock.now,
    )


def test_a_contender_that_takes_half_as_long_again_has_ratio_one_and_a_half() -> None:
    assert timed(Clock(), plain=2.0, contender=3.0, repeats=4).ratios == [1.5] * 4


def test_passes_alternate_after_one_unmeasured_pass_of_each_and_end_with_a_plain_one() -> None:
    clock = Clock()
    pairs = timed(clock, plain=1.0, contender=1.0, repeats=2)
    assert clock.ran == ["plain", "contender", "plain", "contender", "plain", "contender", "plain"]
    assert (len(pairs.plain), len(pairs.contender)) == (3, 2)


def test_a_machine_that_slows_down_does_not_make_the_contender_look_slow() -> None:
    ratios = timed(Clock(slower=1.05), plain=1.0, contender=1.0, repeats=3).ratios
    assert ratios == pytest.approx([1.0] * 3, abs=0.002)
    assert timed(Clock(slower=1.05), plain=1.0, contender=2.0, repeats=3).ratios == pytest.approx([2.0] * 3, abs=0.005)


def test_what_a_pass_returns_is_held_until_its_clock_has_stopped() -> None:
    alive: list[str] = []

    class Kept:
        def __init__(self) -> None:
            alive.append("kept")

        def __del__(self) -> None:
            alive.remove("kept")

    seen: list[int] = []

    def clock() -> float:
        seen.append(len(alive))
        return float(len(seen))

    paired(Kept, Kept, 1, clock=clock)
    assert seen == [0, 1] * 3
    assert alive == []
