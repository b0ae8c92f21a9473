"""Run by test_killed.py in a Python of its own: `probe run` is killed at random moments, run twice at once, and run
where there is no room, or nothing may be written.

    python -m tests.execution.killing FOLDER KILLS SEED      # prints JSON: scenario -> what came of it

All that is heavy is imported once; each run is a fork of this process, so that it takes a second and not ten.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import probe.cli
import probe.report.index
import probe.report.page
import probe.runner.cells
import probe.studies
import probe.subject
from probe.runner.manifest import Manifest, finished
from tests.own_studies import COUNTED, PLANTED

SEEDS = (0, 1, 2)
PAUSE = 0.05
VARIES = (".html", ".lock")  # pages hold the time of the run; locks are empty


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    probe.subject.load("planted:previous_token")  # so that what it imports is there before the first fork
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counted.py").write_text(COUNTED + PLANTED)
    os.chdir(folder)
    began = time.monotonic()
    assert ended(start("undisturbed")) == 0, Path("undisturbed.said").read_text()
    usual = time.monotonic() - began
    draw = random.Random(seed)
    found = {
        "kills": [kill(f"killed-{n}", (n + draw.random()) / kills * usual) for n in range(kills)],
        "two": two_at_once("two"),
        "full": on_small_disk(Path("full").resolve(), full_disk),
        "read_only": on_small_disk(Path("read-only").resolve(), read_only),
    }
    print(json.dumps(found))


def kill(out: str, delay: float) -> dict[str, Any]:
    """Kill a run after `delay` seconds, and let another finish it."""
    child = start(out)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    killed = ended(child) == -signal.SIGKILL
    # as finished as a cell can be: its manifest is read, and its files are as it says
    before = {str(cell.relative_to(out)) for cell in finished(Path(out)) if whole(cell)}
    calls = counts(out)
    resumed = ended(start(out))
    return {
        "delay": round(delay, 3),
        "killed": killed,
        "finished": len(before),
        "resumed": resumed,
        "same": outputs(Path(out)) == outputs(Path("undisturbed")),
        "stray": sorted(everything(Path(out)) ^ everything(Path("undisturbed"))),
        "computed_again": {cell: n for cell in before if (n := counts(out)[cell] - calls[cell])},
    }


def two_at_once(out: str) -> dict[str, Any]:
    """Two runs of one folder, begun at the same time."""
    codes = [ended(child) for child in [start(out), start(out)]]
    return {
        "codes": codes,
        "calls": counts(out),
        "same": outputs(Path(out)) == outputs(Path("undisturbed")),
        "stray": sorted(everything(Path(out)) ^ everything(Path("undisturbed"))),
        "said": Path(f"{out}.said").read_text(),
    }


def on_small_disk(place: Path, happens: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
    """Something happens on a file system of 150 kB; None where none may be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=150k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        return None
    try:
        return happens(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def full_disk(place: Path) -> dict[str, Any]:
    """A run that has no room for all of its results; then another, with room."""
    out = str(place / "out")
    code, said = ended(start(out, "full")), Path("full.said").read_text()
    kept = [str(cell.relative_to(out)) for cell in finished(Path(out)) if whole(cell)]
    left = sorted(p.name for p in place.rglob("*") if p.name.startswith((".new", ".old")))
    calls = counts("full")
    subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
    resumed = ended(start(out, "full"))
    return {
        "code": code,
        "said": said,
        "kept": kept,
        "left": left,
        "resumed": resumed,
        "same": outputs(Path(out)) == outputs(Path("undisturbed")),
        "computed_again": {cell: n for cell in kept if (n := counts("full")[cell] - calls[cell])},
    }


def read_only(place: Path) -> dict[str, Any]:
    """A run in a folder that may only be read."""
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    code = ended(start(str(place / "out"), "read-only"))
    return {"code": code, "said": Path("read-only.said").read_text(), "calls": sum(counts("read-only").values())}


def start(out: str, name: str = "") -> int:
    """`probe run` in a fork; returns its process id. name: of the files of its calls and of what it says."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ["CALLS"] = f"{name or out}.calls"
        said = os.open(f"{name or out}.said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        seeds = [word for s in SEEDS for word in ("--seed", str(s))]
        sys.argv = ["probe", "run", "counted.py", *seeds, "--set", f"pause={PAUSE}", "--out", out]
        probe.cli.main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child: int) -> int:
    """The exit status, or minus the signal that killed it."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def counts(out: str) -> dict[str, int]:
    """How often each cell's computation was begun, by the cell's folder."""
    path = Path(f"{out}.calls")
    lines = path.read_text().splitlines() if path.exists() else []
    found = {}
    for study, model in (("counted", "run"), ("planted", "planted%3Aprevious_token")):
        for seed in SEEDS:
            name = f"{study}/{model}{f'+seed={seed}' if seed else ''}+pause={PAUSE}"
            found[name] = lines.count(f"{study} {seed}")
    return found


def whole(cell: Path) -> bool:
    Manifest.read(cell).read_outputs(cell)
    return True


def everything(out: Path) -> set[str]:
    return {p.relative_to(out).as_posix() for p in out.rglob("*")}


def outputs(out: Path) -> dict[str, str]:
    """Tables, texts and figures, as hexadecimal; of manifests, the hash of the part that is hashed."""
    found = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file() and p.suffix not in VARIES):
        name = path.relative_to(out).as_posix()
        found[name] = Manifest.read(path.parent).sha256 if path.name == "manifest.json" else path.read_bytes().hex()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
