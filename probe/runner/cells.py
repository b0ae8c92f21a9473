"""Running studies: one cell for each (study, model, seed, parameters), kept on disk, never computed twice.

A cell is a folder <out>/<study>/<model>[+seed=1...], or <out>/<study>/run[+seed=1...] for a study that takes no model,
written to a temporary folder beside it and moved into place when it is complete. Its key is the hash of everything that
can change the numbers. A cell with the same key and intact files is taken as it is; one whose code, weights or versions
have changed is computed again in its place; one of another profile or data file, or a folder that holds anything else,
is never replaced.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from filelock import FileLock

from probe.errors import ProbeError, ResultsError
from probe.models.loading import NAMES
from probe.runner.findings import FINDINGS, Findings, own_files
from probe.runner.manifest import (
    Asked,
    DataInfo,
    Inputs,
    Manifest,
    Times,
    command_of,
    git_state,
    inputs_of,
    key_of,
    machine,
    sha256,
)
from probe.runner.results import CAUSAL, FIGURES, FILES, RESULT, Result

if TYPE_CHECKING:
    from probe.runner.registry import Study
    from probe.subject import Subject

# A folder with nothing in it but these, and what `own_files` and its manifest name, may be replaced.
PAGE = ("report.html", ".report.html.partial")  # the second is left by a report that was killed
OURS = {*FILES, CAUSAL, "manifest.json", *PAGE, "figures", *(f"figures/{name}" for name in FIGURES)}


@dataclass(frozen=True)
class Cell:
    """One finished cell. reused: whether it was there already. why: why it was computed."""

    folder: Path
    manifest: Manifest
    reused: bool
    why: str = ""

    @property
    def answer(self) -> str:
        """The study's answer, in one sentence."""
        name = FINDINGS if FINDINGS in self.manifest.outputs else RESULT
        return str(json.loads((self.folder / name).read_bytes())["answer"])


def run_cell(
    study: Study,
    subject: Subject | None,
    *,
    out: Path,
    model: str | None = None,
    profile: str = "quick",
    seed: int = 0,
    data: Path | None = None,
    params: dict[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Cell:
    """Compute one cell, or take it from `out` if it is there, whole and made from the same inputs.

    subject, model: the model and the name it was loaded by; None for a study that takes no model. params: the study's
    own parameters, as text. say: told what is happening, in a line.
    Raises ResultsError if `out` cannot be written or holds something that must not be replaced, ProbeError if the
    study and the subject do not fit each other, and whatever the study raises; nothing finished is lost.
    """
    params = dict(sorted((params or {}).items()))
    study.check(profile=profile, seed=seed, data=data, params=params)
    if not bool(study.models) == (subject is not None) == (model is not None):
        needs = "a subject and the name it was loaded by" if study.models else "no subject"
        raise ProbeError(f"{study.name} takes {needs}.")
    inputs = inputs_of(study, subject, profile=profile, seed=seed, data=data, params=params)
    known = (inputs.model.name, inputs.model.weights_sha256) if inputs.model else (None, "")
    folder = out / study.name / cell_name(*known, seed=seed, params=params)
    with locked(folder):
        with _writing(folder):
            _restore(folder)
        why = _stale(folder, inputs)
        if why is None:
            return Cell(folder, Manifest.read(folder), reused=True)
        say(f"{study.name}{f' on {subject.name}' if subject else ''}: {why}")
        began, clock = datetime.now(UTC), time.monotonic()
        result = _computed(study, subject, inputs, data)
        times: Times = {"started": began.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - clock, 1)}
        asked = Asked(model=model, data=data.name if data else None, study_file=study.file.name if study.file else None)
        facts = {
            "question": study.question,
            "asked": asked,
            "machine": machine(),
            "command": command_of(
                asked.study_file or study.name, model, profile=profile, seed=seed, data=data, params=params
            ),
            "times": times,
        }
        with _writing(folder):
            manifest = _write(result, inputs, facts, folder)
        return Cell(folder, manifest, reused=False, why=why)


def _computed(study: Study, subject: Subject | None, inputs: Inputs, data: Path | None) -> Result | Findings:
    """What the study returns. Raises whatever it raises, and ProbeError for anything but a result."""
    extra = study.values(inputs.params)
    if study.needs_data:
        extra["data"] = data
    subjects = () if subject is None else (subject,)
    result = study.function(*subjects, profile=inputs.profile, seed=inputs.seed, **extra)
    if not isinstance(result, Result | Findings):
        raise ProbeError(
            f"the study {study.name} returned a {type(result).__name__}; it must return probe.Result or probe.Findings."
        )
    return result


def cell_name(model: str | None, weights: str, *, seed: int, params: dict[str, str]) -> str:
    """The cell's folder: the model, and whatever is not the default, so that different cells never share one.

    A model that is not one of probe's own is told apart by its weights: folders and hub ids may share a last name.
    Without a model the folder is "run".
    """
    name = "run" if model is None else model if model in NAMES else f"{model}-{weights[:8]}"
    parts = [_safe(name), *([f"seed={seed}"] if seed else []), *(f"{_safe(k)}={_safe(v)}" for k, v in params.items())]
    return "+".join(parts)


def _safe(text: str) -> str:
    """The text as part of a file name: percent-encoded, a leading dot too, which would hide the folder."""
    encoded = "".join(c if c.isalnum() or c in "-_. ,()[]" else quote(c, safe="") for c in text).replace("~", "%7E")
    return f"%2E{encoded[1:]}" if encoded.startswith(".") else encoded


def _stale(folder: Path, inputs: Inputs) -> str | None:
    """Why the cell has to be computed; None if it stands as it is. Raises ResultsError if it must not be replaced."""
    if not folder.exists():
        return "computing"
    foreign = _foreign(folder) if folder.is_dir() else [folder.name]
    if foreign:
        raise ResultsError(f"{folder} holds {foreign[0]!r}, which is not a result of probe. Choose another --out.")
    try:
        manifest = Manifest.read(folder)
        manifest.read_outputs(folder)
    except ResultsError as error:
        return f"computing again: {error}"
    for name in ("profile", "data_file"):
        if getattr(manifest, name) != getattr(inputs, name):
            raise ResultsError(
                f"{folder} holds a finished result of another {name.replace('_', ' ')} ({getattr(manifest, name)}, "
                f"not {getattr(inputs, name)}), which is not replaced. Choose another --out, or remove it."
            )
    if manifest.key == key_of(inputs):
        return None
    changed = [name for name in Inputs.model_fields if getattr(manifest, name) != getattr(inputs, name)]
    return f"computing again: the result found there was made with another {', '.join(changed)}"


def _foreign(folder: Path) -> list[str]:
    """What the folder holds beside a cell's own files, which are told by the manifest and by findings.json: either
    may be damaged.
    """
    try:
        listed = set(Manifest.read(folder).outputs)
    except ResultsError:
        listed = set()
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*")}
    return sorted(found - OURS - listed - own_files(folder))


def _write(result: Result | Findings, inputs: Inputs, facts: dict[str, Any], folder: Path) -> Manifest:
    """Write a cell beside its place and move it there; returns its manifest. facts: its fields beside the inputs and
    what comes of the result.
    """
    fresh = Path(tempfile.mkdtemp(prefix=_new(folder), dir=folder.parent))
    try:
        fresh.chmod(0o755)
        manifest = Manifest(
            **inputs.model_dump(),
            key=key_of(inputs),
            data=tuple(DataInfo.of(d) for d in result.data),
            outputs={name: sha256(fresh / name) for name in result.write(fresh)},
            git=git_state(),
            **facts,
        )
        manifest.write(fresh)
        old = _old(folder)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return manifest


def _new(folder: Path) -> str:
    return f".new~{folder.name}~"  # a tilde ends the name; `_safe` lets none into it


def _old(folder: Path) -> Path:
    return folder.parent / f".old~{folder.name}~"


def _restore(folder: Path) -> None:
    """After a run that was killed: bring back a cell caught between its two renames, drop half-written ones."""
    old = _old(folder)
    if old.exists() and not folder.exists():
        old.rename(folder)
    unfinished = [p for p in folder.parent.iterdir() if p.name.startswith(_new(folder))]
    for left in (old, *unfinished):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the cell against other runners. Raises ResultsError if its place cannot be written."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f".{folder.name}.lock")
        lock.acquire()
    except OSError as error:
        raise ResultsError(f"results cannot be written to {folder.parent}: {error}. Choose another --out.") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turns what the file system says into a ResultsError."""
    try:
        yield
    except OSError as error:
        raise ResultsError(f"the result of {folder} could not be written: {error}") from error
