"""How much memory a machine has, how much is free, and how much a pass took at its peak."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

_PROC = Path("/proc/self")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def total() -> int:
    """Bytes of memory that the machine has."""
    return int(psutil.virtual_memory().total)


def free() -> int:
    """Bytes that can be had without swapping."""
    return int(psutil.virtual_memory().available)


def peak_mb(run: Callable[[], object]) -> float:
    """The highest resident memory of this process, in MB (10^6 bytes), while `run` runs.

    On Linux the kernel's high-water mark is set back first; elsewhere it includes whatever the process did before.
    """
    reset = _PROC / "clear_refs"
    if not reset.exists():
        kept = run()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        del kept
        return peak / 1e6
    reset.write_text("5")
    kept = run()
    # Not ru_maxrss, which on Linux begins with the peak of the process that started this one.
    found = _PEAK.search((_PROC / "status").read_text())
    del kept
    return int(found[1]) * 1024 / 1e6 if found else float("nan")
