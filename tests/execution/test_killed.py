"""Runs that are killed at random moments, that share a folder, that have no room: nothing finished is lost or redone.

PROBE_KILLS=20 python -m pytest tests/execution/test_killed.py kills twenty runs instead of three.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import probe

ROOT = Path(probe.__file__).parents[1]
KILLS = int(os.environ.get("PROBE_KILLS", "3"))
N_CELLS = 6


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each scenario of `killing`."""
    words = [sys.executable, "-m", "tests.execution.killing", tmp_path_factory.mktemp("killed"), KILLS, 7]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(w) for w in words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_killed_run_is_resumed_to_the_same_bytes(found: dict[str, Any]) -> None:
    kills = found["kills"]
    assert len(kills) == KILLS
    assert any(kill["killed"] for kill in kills)
    assert KILLS < 20 or len({kill["finished"] for kill in kills}) > 3, "they were killed at different stages"
    assert [(kill["resumed"], kill["same"]) for kill in kills] == [(0, True)] * KILLS, kills


def test_nothing_finished_is_computed_twice(found: dict[str, Any]) -> None:
    assert [kill["computed_again"] for kill in found["kills"]] == [{}] * KILLS


def test_no_file_is_left_over(found: dict[str, Any]) -> None:
    assert [kill["stray"] for kill in found["kills"]] == [[]] * KILLS


def test_two_runners_of_one_folder_compute_each_cell_once(found: dict[str, Any]) -> None:
    two = found["two"]
    assert two["codes"] == [0, 0], two["said"]
    assert list(two["calls"].values()) == [1] * N_CELLS
    assert (two["same"], two["stray"]) == (True, [])
    assert two["said"].count("(already there)") == N_CELLS


def test_a_full_disk_is_told_in_a_line_and_what_is_finished_stays(found: dict[str, Any]) -> None:
    full = found["full"]
    if full is None:
        pytest.skip("a file system cannot be mounted here")
    assert full["code"] == 1
    assert "No space left on device" in full["said"]
    assert "Traceback" not in full["said"]
    assert 0 < len(full["kept"]) < N_CELLS
    assert full["left"] == []
    assert (full["resumed"], full["same"]) == (0, True)
    assert full["computed_again"] == {}


def test_a_folder_that_may_only_be_read_is_told_in_a_line(found: dict[str, Any]) -> None:
    seen = found["read_only"]
    if seen is None:
        pytest.skip("a file system cannot be mounted here")
    assert seen["code"] == 1
    lines = seen["said"].splitlines()
    assert len(lines) == N_CELLS
    assert all("results cannot be written to" in x and "Read-only file system" in x for x in lines), lines
    assert seen["calls"] == 0, "nothing is computed that could not be kept"
