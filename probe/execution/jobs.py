"""One cell to compute, and what came of it, as plain values that can be sent to another process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import ProbeError

if TYPE_CHECKING:
    from probe.runner.registry import Study

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A cell to compute. file: the user's own file that the study is in. threads: None leaves them."""

    study: str
    file: Path | None
    model: str | None
    profile: str
    seed: int
    data: Path | None
    params: dict[str, str] = field(hash=False)
    out: Path
    threads: int | None = None

    @property
    def label(self) -> str:
        return f"{self.study}{f' on {self.model}' if self.model else ''}"


@dataclass(frozen=True)
class Outcome:
    """What came of a job. page: its report; None if it failed, for the reason in `error`.

    log: more about an error than its line says: the prompt the model was reading, the traceback of what no one foresaw.
    """

    job: Job
    page: Path | None = None
    answer: str = ""
    seconds: float = 0.0
    reused: bool = False
    error: str = ""
    log: str = ""


def work(job: Job, say: Say, study: Study | None = None) -> Outcome:
    """Compute a cell and write its page. study: the job's, if it is at hand.

    Whatever the study raises becomes the outcome's error; only an interruption is passed on.
    """
    from probe.report.page import write_report
    from probe.runner.cells import locked, run_cell
    from probe.subject import load

    try:
        if job.threads is not None:
            from probe.threads import set_threads

            set_threads(job.threads)
        cell = run_cell(
            study or _study(job),
            None if job.model is None else load(job.model),
            out=job.out,
            model=job.model,
            profile=job.profile,
            seed=job.seed,
            data=job.data,
            params=job.params,
            say=say,
        )
        with locked(cell.folder):  # two runners of one cell write one page after the other
            page = write_report(cell.folder)
        return Outcome(job, page, cell.answer, float(cell.manifest.times["seconds"]), cell.reused)
    except Exception as error:
        return failed(job, error)


def failed(job: Job, error: Exception) -> Outcome:
    """The outcome of a job that raised."""
    foreseen = isinstance(error, ProbeError)
    said = str(error) if foreseen else f"{type(error).__name__}: {error}"
    notes = list(getattr(error, "__notes__", []))
    log = "" if foreseen and not notes else "".join(traceback.format_exception(error))
    return Outcome(job, error=said, log=log)


def _study(job: Job) -> Study:
    from probe.runner.own_files import find

    asked = job.study if job.file is None else str(job.file)
    return next(study for study in find(asked) if study.name == job.study)
