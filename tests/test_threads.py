"""As many threads of torch and of every BLAS as were asked for, and as before afterwards."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import numpy, torch
from threadpoolctl import threadpool_info
from probe.threads import limited, set_threads

def now():
    return torch.get_num_threads(), [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

import scipy.linalg
torch.set_num_threads(2)
before = now()
with limited(1):
    inside = now()
after = now()
assert inside == (1, [1] * len(before[1])), inside
assert len(before[1]) >= 1
assert after == before, (before, after)
set_threads(1)
assert now() == inside
"""


def test_torch_and_blas_have_as_many_threads() -> None:
    """In a Python of its own, whose threads nobody else sets."""
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=120)
