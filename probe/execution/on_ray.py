"""Cells as tasks on a Ray cluster (extra `ray`). The folders of results, models and data must be the same on all of its
machines, as on shared storage.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from probe.errors import ProbeError, UsageError
from probe.execution.jobs import Job, Outcome, Say, failed, work
from probe.execution.processes import TRIES


def on_ray(jobs: Sequence[Job], n: int, say: Say, *, address: str | None = None) -> Iterator[Outcome]:
    """Compute cells as Ray tasks; yields the outcomes as they come. A worker that is killed in mid-cell is replaced.

    n: processors of the local cluster that is started where no `address` of a running one is given ("auto" finds one
    on this machine). Raises UsageError if ray is not installed, ProbeError if the cluster cannot be reached.
    """
    ray = _ray()
    try:
        options = {"address": address} if address else {"num_cpus": n, "include_dashboard": False}
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ProbeError(f"the Ray cluster {address or 'on this machine'} cannot be used: {error}") from error
    try:
        task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_task)
        pending = {task.remote(job, str(Path.cwd())): job for job in jobs}
        say(f"{len(jobs)} cells on Ray, {int(ray.cluster_resources().get('CPU', 0))} processors")
        while pending:
            for done in ray.wait(list(pending), num_returns=1)[0]:
                yield _outcome(ray, done, pending.pop(done))
    finally:
        ray.shutdown()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else a local cluster yields to all else on the machine
    try:
        import ray
    except ImportError as error:
        raise UsageError("--executor ray needs the package ray: pip install 'headprobe[ray]'.") from error
    return ray


def _task(job: Job, folder: str) -> Outcome:
    """In a worker: in the folder that the command was given in, so that paths mean the same."""
    os.chdir(folder)
    return work(job, lambda _: None)


def _outcome(ray: Any, done: Any, job: Job) -> Outcome:
    try:
        outcome: Outcome = ray.get(done)
    except ray.exceptions.RayError as error:
        return failed(job, ProbeError(f"its Ray task failed: {type(error).__name__}: {str(error).splitlines()[0]}"))
    if outcome.page is not None and not outcome.page.is_file():
        lost = f"a worker wrote {outcome.page}, which is not here: --out must lie on storage that all machines share."
        return Outcome(job, error=lost)
    return outcome
