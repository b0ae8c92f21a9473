"""Run a recorded result again from its manifest, and say what came out the same."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import DataAbsent, UsageError
from probe.runner import own_files
from probe.runner.cells import run_cell
from probe.runner.manifest import Manifest
from probe.runner.registry import find_study
from probe.threads import limited
from probe.verify.comparison import Comparison, compare
from probe.verify.differences import Tolerance
from probe.verify.recorded import Recorded, read_recorded

if TYPE_CHECKING:
    from probe.runner.registry import Study
    from probe.subject import Subject


@dataclass(frozen=True)
class Verification:
    """What came of running a result again. seconds: how long that took."""

    recorded: Recorded
    comparison: Comparison
    seconds: float

    @property
    def holds(self) -> bool:
        """The record is as the run wrote it, the experiment the same, and every metric exact or within tolerance."""
        return self.recorded.changed is None and self.comparison.agrees


def verify(
    recorded: Recorded,
    *,
    model: str | None = None,
    data: Path | None = None,
    study_file: Path | None = None,
    threads: int | None = None,
    tolerance: Tolerance | None = None,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Compute the result again and compare.

    model, data, study_file: where these are now; default, as the manifest names them, from this folder. threads: of
    torch; default as many as the run had. keep: a folder for what was computed again, as <study>/<model>; default,
    it is dropped. A page carries what can be compared, a manifest by itself only names.
    Raises DataAbsent where the run read a data file that is not here, UsageError for a study file that is not, and
    whatever the study raises.
    """
    manifest = recorded.manifest
    data = _data_file(manifest, data)
    study = _study(manifest, study_file)
    asked = model or manifest.asked.model or (manifest.model.name if manifest.model else None)
    began = time.monotonic()
    with limited(threads or manifest.threads), tempfile.TemporaryDirectory(prefix="probe-verify-") as out:
        subject = _subject(manifest, asked) if asked is not None and manifest.model is not None else None
        cell = run_cell(
            study,
            subject,
            out=Path(out),
            model=None if subject is None else asked,
            profile=manifest.profile,
            seed=manifest.seed,
            data=data,
            params=dict(manifest.params),
            say=say,
        )
        again = read_recorded(cell.folder)
        if keep is not None:
            shutil.copytree(cell.folder, keep / cell.folder.relative_to(out), dirs_exist_ok=True)
    return Verification(recorded, compare(recorded, again, tolerance), time.monotonic() - began)


def _data_file(manifest: Manifest, given: Path | None) -> Path | None:
    """The data file the run read: the one given, else the one of its name in this folder."""
    if manifest.data_file is None:
        return given
    name = manifest.asked.data or "a data file"
    path = given or Path(name)
    if not path.is_file():
        raise DataAbsent(
            f"data absent: the result was made from {name} (SHA-256 {manifest.data_file[:12]}…), which is not part of "
            f"probe{'' if given is None else f' and not at {given}'}. Give your copy with --data PATH."
        )
    return path


def _study(manifest: Manifest, given: Path | None) -> Study:
    """The study by its name, or from the user's file it came from."""
    name = manifest.asked.study_file
    if name is None and given is None:
        return find_study(manifest.study)
    path = given or Path(str(name))
    if not path.is_file():
        raise UsageError(f"the study {manifest.study} came from the file {name}, which is not here: give --study PATH.")
    found = {study.name: study for study in own_files.load_file(path)}
    if manifest.study not in found:
        raise UsageError(f"{path} holds no study named {manifest.study!r}, only {', '.join(found)}.")
    return found[manifest.study]


def _subject(manifest: Manifest, asked: str) -> Subject:
    """The model, in the precision and with the attention of the run."""
    from probe.subject import load

    known = manifest.model
    dtype = known.dtype if known else "float32"
    subject = load(asked, dtype=dtype)
    if known and subject.attention != known.attention and known.attention in ("eager", "sdpa"):
        subject = load(asked, dtype=dtype, attention=known.attention)
    return subject
