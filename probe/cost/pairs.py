"""Time in pairs: what a contender takes beside a plain pass in the same process, at the same moment."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import NamedTuple


class Pairs(NamedTuple):
    """Seconds of every plain pass (repeats + 1) and every contender's pass (repeats), in the order they ran."""

    plain: list[float]
    contender: list[float]

    @property
    def ratios(self) -> list[float]:
        """Each contender's pass over the mean of the two plain passes around it: a steady drift cancels."""
        around = [(before + after) / 2 for before, after in zip(self.plain, self.plain[1:], strict=False)]
        return [mine / plain for mine, plain in zip(self.contender, around, strict=True)]


def paired(
    plain: Callable[[], object],
    contender: Callable[[], object],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Pairs:
    """plain, contender, plain, contender, ..., plain; both have run once before, unmeasured. clock: seconds."""
    for warm_up in (plain, contender):
        warm_up()
    pairs = Pairs([_seconds(plain, clock)], [])
    for _ in range(repeats):
        pairs.contender.append(_seconds(contender, clock))
        pairs.plain.append(_seconds(plain, clock))
    return pairs


def timing_options(parser: argparse.ArgumentParser) -> None:
    """The options that every timed command has: repeats, threads of torch, seed."""
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)


def _seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """What is returned is freed, and garbage collected, while the clock stands still."""
    gc.collect()
    began = clock()
    kept = run()
    took = clock() - began
    del kept
    return took
