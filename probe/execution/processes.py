"""Cells in processes of their own on this machine. A process that is killed in mid-cell costs that cell's time alone:
the cell is computed again in another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from probe.execution.jobs import Job, Outcome, Say, work

TRIES = 3
"""How often a cell is begun before a process that dies over it is taken for the cell's own fault."""


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    job: Job
    attempt: int


def in_processes(jobs: Sequence[Job], n: int, say: Say) -> Iterator[Outcome]:
    """Compute cells, `n` at a time, each in a fresh process; yields the outcomes as they come.

    say: told what is happening, in a line. When the iteration is given up, the processes are stopped.
    """
    waiting = deque((job, 1) for job in jobs)
    running: dict[Connection, _Worker] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n:
                started, worker = _start(*waiting.popleft())
                running[started] = worker
            ready = wait(list(running))
            for connection in [c for c in running if c in ready]:
                message = _received(connection)
                if isinstance(message, str):
                    say(message)
                    continue
                worker = running.pop(connection)
                connection.close()
                worker.process.join()
                if message is not None:
                    yield message
                elif worker.attempt < TRIES:
                    say(f"{worker.job.label}: its process {_end(worker.process)}; beginning it again")
                    waiting.appendleft((worker.job, worker.attempt + 1))
                else:
                    yield Outcome(worker.job, error=f"its process {_end(worker.process)}, {TRIES} times.")
    finally:
        for worker in running.values():
            worker.process.terminate()
        for worker in running.values():
            worker.process.join()


def _start(job: Job, attempt: int) -> tuple[Connection, _Worker]:
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, theirs), name=job.label)
    process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return ours, _Worker(process, job, attempt)


def _received(connection: Connection) -> str | Outcome | None:
    """A line to say, the outcome, or None if the process ended without one."""
    try:
        message: str | Outcome = connection.recv()
    except (EOFError, OSError):
        return None
    return message


def _end(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with status {code}"


def _child(job: Job, connection: Connection) -> None:
    """In the new process: compute the cell, and end with the parent, whatever becomes of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and stops us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Path(os.devnull).open("w") as nowhere:
        sys.stderr = nowhere  # bars of several processes on one terminal are no use
        connection.send(work(job, connection.send))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
