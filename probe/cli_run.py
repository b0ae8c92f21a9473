"""The command `probe run`: studies by name or from your own files, on models, with seeds and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.errors import UnknownName, UsageError
from probe.exits import DONE, FAILED, INTERRUPTED

if TYPE_CHECKING:
    from probe.execution.jobs import Job, Outcome
    from probe.runner.registry import Study

REPORTS = Path("reports")
LOG = "errors.log"
EXECUTORS = ("local", "ray")

Models = Annotated[list[str] | None, typer.Option("--model", "-m", help="Name, folder or hub id; repeat for more.")]
Out = Annotated[Path | None, typer.Option(help="Folder for results; default reports/quick, or reports if full.")]
Data = Annotated[Path | None, typer.Option(help="A data file of yours, where the study reads one.")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="A study's parameter, as name=value; repeat for more.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Seed of the split; repeat for more.")]
Jobs = Annotated[int, typer.Option(min=1, help="Cells computed at the same time, each in a process of its own.")]
Executor = Annotated[str, typer.Option(help="local: this machine; ray: a Ray cluster (extra ray).")]
Address = Annotated[str | None, typer.Option(help="Of the Ray cluster; default: one is started here for --jobs.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of torch; part of what a result is made of.")]


def run(
    studies: Annotated[
        list[str], typer.Argument(help="Names of studies (`probe list` shows them), or your .py files.")
    ],
    model: Models = None,
    profile: Annotated[str, typer.Option(help="quick: a sample of the data; full: all of it.")] = "quick",
    seed: Seeds = None,
    data: Data = None,
    out: Out = None,
    set_: Sets = None,
    jobs: Jobs = 1,
    executor: Executor = "local",
    address: Address = None,
    threads: Threads = None,
) -> None:
    """Run studies, keep their results, and write their reports. What is already there is not computed again.

    Exits with 0 if all is done, 1 if a cell failed (the others are finished; errors.log in the folder has the prompt
    and the traceback), 2 if the command cannot be carried out, 130 if interrupted.
    """
    if executor not in EXECUTORS:
        raise UnknownName.of("executor", executor, EXECUTORS)
    if address is not None and executor != "ray":
        raise UsageError("--address is of a Ray cluster: give --executor ray as well.")
    params = dict(_parameter(s) for s in set_ or ())
    chosen = _chosen(studies)
    seeds = list(dict.fromkeys(seed or [0]))
    out = out or (REPORTS if profile == "full" else REPORTS / "quick")
    planned = _plan(list(chosen.values()), model, profile, seeds, data, params, out, threads)
    failures = 0
    try:
        for outcome in _outcomes(planned, chosen, jobs, executor, address):
            failures += not _told(outcome)
    except KeyboardInterrupt:
        typer.echo("interrupted; what was finished is kept, and the same command goes on from there.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    write_index_of(out)
    raise typer.Exit(FAILED if failures else DONE)


def _chosen(asked: Sequence[str]) -> dict[str, Study]:
    """The studies that are meant, by name. Raises UsageError where two files have one of the same name."""
    from probe.runner.own_files import find

    chosen: dict[str, Study] = {}
    for study in (study for name in dict.fromkeys(asked) for study in find(name)):
        if chosen.setdefault(study.name, study).file != study.file:
            raise UsageError(f"{chosen[study.name].file} and {study.file} both have a study named {study.name!r}.")
    return chosen


def write_index_of(out: Path) -> None:
    """Write the index over the finished results below `out`, if there are any."""
    from probe.report.index import write_index
    from probe.runner.manifest import finished

    if finished(out):
        typer.echo(f"{write_index(out)} (open this in a browser)")


def _plan(
    studies: Sequence[Study],
    models: list[str] | None,
    profile: str,
    seeds: Sequence[int],
    data: Path | None,
    params: dict[str, str],
    out: Path,
    threads: int | None,
) -> list[Job]:
    """Every cell, after all that can be said against it without computing has been."""
    from probe.execution.jobs import Job
    from probe.models.loading import check_name

    planned = [
        Job(study.name, study.file, name, profile, number, data, params, out, threads)
        for study in studies
        for name in study.runs_on(models)
        for number in seeds
    ]
    for study in studies:
        for number in seeds:
            study.check(profile=profile, seed=number, data=data, params=params)
    for name in dict.fromkeys(job.model for job in planned if job.model is not None):
        check_name(name)
    return planned


def _outcomes(
    planned: Sequence[Job], studies: dict[str, Study], jobs: int, executor: str, address: str | None
) -> Iterator[Outcome]:
    """What came of each cell, in this process or in others. Others have as many threads each as this one would."""
    from dataclasses import replace

    if executor == "local" and jobs == 1:
        from probe.execution.jobs import work

        yield from (work(job, _say, studies[job.study]) for job in planned)
        return
    import torch

    planned = [replace(job, threads=job.threads or torch.get_num_threads()) for job in planned]
    if executor == "ray":
        from probe.execution.on_ray import on_ray

        yield from on_ray(planned, jobs, _say, address=address)
    else:
        from probe.execution.processes import in_processes

        yield from in_processes(planned, jobs, _say)


def _told(outcome: Outcome) -> bool:
    """Say what came of a cell; False, with the reason on stderr and more in the log, if it failed."""
    if outcome.page is None:
        more = f" (more in {_logged(outcome)})" if outcome.log else ""
        _say(f"error: {outcome.job.label}: {outcome.error}{more}")
        return False
    typer.echo(f"{outcome.page} ({'already there' if outcome.reused else f'{outcome.seconds} s'})")
    typer.echo(f"    {outcome.answer}")
    return True


def _logged(outcome: Outcome) -> str:
    """Write what is known of an error to the log; returns where that is."""
    job, now = outcome.job, datetime.now(UTC).isoformat(timespec="seconds")
    path = job.out / LOG
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{now} {job.label}, seed {job.seed}, {job.profile} profile, {job.params}\n{outcome.log}\n")
    except OSError as error:
        return f"no log, since {path} cannot be written: {error.strerror}"
    return str(path)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"--set {text!r} is not of the form name=value.")
    return name, value
