"""How many threads compute: torch's, and those of the BLAS behind NumPy, SciPy and scikit-learn.

Sums of another number of threads are rounded otherwise, which decides what is tied: results of one number are the same
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def set_threads(number: int) -> Any:
    """Let so many threads compute, from now on. Returns what takes the BLAS' back (`threadpoolctl`)."""
    import scipy.linalg  # noqa: F401  (a BLAS of its own, which has to be there to be told)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(number)
    return threadpool_limits(limits=number, user_api="blas")


@contextmanager
def limited(number: int) -> Iterator[None]:
    """Let so many threads compute inside, and as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    limits = set_threads(number)
    try:
        yield
    finally:
        limits.restore_original_limits()
        torch.set_num_threads(before)
