"""Running studies: one cell for each (study, model, seed, parameters), kept on disk, never computed twice.

A cell is a folder <out>/<study>/<model>[+seed=1...], written to a temporary folder beside it and moved into place
when it is complete. Its key is the hash of everything that can change the numbers: a cell with the same key and
intact files is taken as it is; one with another key is replaced.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from probe.errors import ResultsError
from probe.runner.manifest import DataInfo, Manifest, command_of, git_state, inputs_of, key_of, sha256

if TYPE_CHECKING:
    from probe.runner.registry import Study
    from probe.runner.results import Result
    from probe.subject import Subject

OLD, NEW = ".old-", ".new-"


@dataclass(frozen=True)
class Cell:
    """One finished cell. reused: whether it was there already. why: what was wrong with the one found, if any."""

    folder: Path
    manifest: Manifest
    reused: bool
    why: str = ""


def run_cell(
    study: Study,
    subject: Subject,
    *,
    out: Path,
    model: str,
    profile: str = "quick",
    seed: int = 0,
    data: Path | None = None,
    params: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Cell:
    """Compute one cell, or take it from `out` if it is there, whole and made from the same inputs.

    model: the name the subject was loaded by. say: told what is happening, in a line.
    Raises ResultsError if `out` cannot be written, and whatever the study raises; nothing finished is lost.
    """
    params = dict(sorted((params or {}).items()))
    study.check({"profile": profile, "seed": seed, "data": data, **params})
    inputs = inputs_of(study, subject, profile=profile, seed=seed, data=data, params=params)
    folder = out / study.name / cell_name(subject.name, seed=seed, params=params)
    with _writing(folder):
        _restore(folder)
        why = _stale(folder, key_of(inputs))
        if why is None:
            return Cell(folder, Manifest.read(folder), reused=True)
        say(f"{study.name} on {subject.name}: {why}")
        began, clock = datetime.now(UTC), time.monotonic()
        extra = {name: _parsed(value) for name, value in params.items()}
        result = study.function(subject, profile=profile, seed=seed, data=data, **extra)
        fresh = Path(tempfile.mkdtemp(prefix=f"{NEW}{folder.name}-", dir=folder.parent))
        try:
            manifest = Manifest(
                **inputs.model_dump(),
                key=key_of(inputs),
                question=study.question,
                data=_data(result),
                command=command_of(study.name, model, profile=profile, seed=seed, data=data, params=params),
                outputs={name: sha256(fresh / name) for name in result.write(fresh)},
                git=git_state(),
                times={
                    "started": began.isoformat(timespec="seconds"),
                    "seconds": round(time.monotonic() - clock, 1),
                },
            )
            manifest.write(fresh)
            fresh.chmod(0o755)
            _swap(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return Cell(folder, manifest, reused=False, why=why)


def cell_name(model: str, *, seed: int, params: dict[str, str]) -> str:
    """The cell's folder: the model, and whatever is not the default."""
    parts = [model, *([f"seed={seed}"] if seed else []), *(f"{k}={v}" for k, v in params.items())]
    return re.sub(r"[^\w.=+-]", "_", "+".join(parts)).lstrip(".") or "_"


def _stale(folder: Path, key: str) -> str | None:
    """Why the cell has to be computed; None if it stands as it is."""
    if not folder.exists():
        return "computing"
    try:
        manifest = Manifest.read(folder)
        manifest.read_outputs(folder)
    except ResultsError as error:
        return f"computing again: {error}"
    if manifest.key != key:
        return "computing again: the result found there was made from other inputs (weights, data, code or versions)"
    return None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Hold the cell against other runners; turns what the file system says into a ResultsError."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        lock.acquire()
    except OSError as error:
        raise ResultsError(f"results cannot be written to {folder.parent}: {error}. Choose another --out.") from error
    try:
        yield
    except OSError as error:
        raise ResultsError(f"the result of {folder} could not be written: {error}") from error
    finally:
        lock.release()


def _swap(fresh: Path, folder: Path) -> None:
    old = folder.parent / f"{OLD}{folder.name}"
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _restore(folder: Path) -> None:
    """After a run that was killed: bring back a cell caught between its two renames, drop half-written ones."""
    old = folder.parent / f"{OLD}{folder.name}"
    if old.exists() and not folder.exists():
        old.rename(folder)
    for left in (old, *folder.parent.glob(f"{NEW}{folder.name}-*")):
        shutil.rmtree(left, ignore_errors=True)


def _data(result: Result) -> tuple[DataInfo, ...]:
    return tuple(
        DataInfo(name=d.name, source=d.source, licence=d.licence, sha256=d.hash, n_items=len(d.items))
        for d in result.data
    )


def _parsed(text: str) -> int | float | str:
    """A --set value: a whole number, a number, or text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
