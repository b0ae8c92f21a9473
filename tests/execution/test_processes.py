"""Cells in other processes give the same results, and a process that is killed costs its own cell's time alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from probe.execution.jobs import Job, Outcome, failed
from probe.execution.processes import TRIES, in_processes
from tests.execution.dying import dies
from tests.own_studies import COUNTED, FAILING, PLANTED
from tests.test_cli import Ended, command


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As many threads as the other processes are told to use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outputs(out: Path) -> dict[str, bytes]:
    """Every file of every cell but its manifest and page, which hold times."""
    files = [p for p in sorted(out.rglob("*")) if p.is_file() and p.suffix not in (".lock", ".html")]
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in files if p.name != "manifest.json"}


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    (tmp_path / "counted.py").write_text(COUNTED + PLANTED)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    return lambda *words: command("run", "counted.py", *words)


def test_two_processes_of_which_one_is_killed_give_the_results_of_one(
    counted: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = counted("--seed", 0, "--out", "alone")
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed once"))
    both = counted("--seed", 0, "--out", "both", "--jobs", 2)
    assert (alone.code, both.code) == (0, 0), both.err
    assert (tmp_path / "killed once").exists()
    assert "planted on planted:previous_token: its process was killed (SIGKILL); beginning it again" in both.err
    assert outputs(tmp_path / "both") == outputs(tmp_path / "alone")
    assert len(outputs(tmp_path / "both")) == 6
    assert {p.name for p in tmp_path.glob("both/*/.*")} == {".run.lock", ".planted%3Aprevious_token.lock"}
    again = counted("--seed", 0, "--out", "both")
    assert again.out.count("(already there)") == 2, "the keys are the same: the threads were told"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sorted(calls) == ["counted 0", "counted 0", "planted 0", "planted 0", "planted 0"]


def test_a_cell_that_kills_every_process_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is simulated by one that dies at once, so that three of them take no time."""
    monkeypatch.setattr("probe.execution.processes._child", dies)
    job = Job("failing", None, "tiny", "quick", 0, None, {}, tmp_path)
    said: list[str] = []
    (outcome,) = in_processes([job], 1, said.append)
    assert outcome.error == f"its process was killed (SIGKILL), {TRIES} times."
    assert len(said) == TRIES - 1


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    """The parent is killed, which leaves it no time to stop them."""
    (tmp_path / "counted.py").write_text(COUNTED)
    words = [sys.executable, "-m", "probe", "run", "counted.py", "--jobs", "2", "--set", "pause=300", "--out", "out"]
    env = {**os.environ, "CALLS": str(tmp_path / "calls")}
    with subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as parent:
        wait_for(lambda: (tmp_path / "calls").exists())
        children = _children(parent.pid)
        parent.kill()
    assert children
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def wait_for(happened: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.02)


# errors of cells


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    return lambda how: command("run", "failing.py", "--set", f"how={how}", "--seed", 1, "--seed", 2, "--out", "out")


def test_an_error_no_one_foresaw_fails_its_cell_alone_and_is_logged(
    failing: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = failing("surprise")
    assert ended.code == 1
    assert "error: failing on tiny: ZeroDivisionError: no one foresaw this (more in out/errors.log)" in ended.err
    assert "Traceback" not in ended.err + ended.out
    assert (tmp_path / "out" / "failing" / "tiny+seed=2+how=surprise" / "report.html").is_file()
    log = (tmp_path / "out" / "errors.log").read_text()
    assert "failing on tiny, seed 1, quick profile, {'how': 'surprise'}" in log
    assert "ZeroDivisionError: no one foresaw this" in log
    assert "Traceback" in log


def test_the_log_has_the_prompt_that_the_model_was_reading(failing: Callable[..., Ended], tmp_path: Path) -> None:
    ended = failing("prompt")
    assert ended.code == 1
    assert "RuntimeError: the edit is broken (more in out/errors.log)" in ended.err
    assert "prompt: '" in (tmp_path / "out" / "errors.log").read_text()
    assert "Anna thanked Ben" in (tmp_path / "out" / "errors.log").read_text()


def test_an_error_that_was_foreseen_says_it_all_in_its_line(failing: Callable[..., Ended], tmp_path: Path) -> None:
    ended = failing("foreseen")
    assert ended.code == 1
    assert "error: failing on tiny: everyone foresaw this.\n" in ended.err
    assert not (tmp_path / "out" / "errors.log").exists()


def test_a_choice_that_is_none_ends_in_two_before_anything_runs(failing: Callable[..., Ended], tmp_path: Path) -> None:
    ended = failing("promt")
    assert ended.code == 2
    assert "no how of failing named 'promt'. Did you mean 'prompt'?" in ended.err
    assert not (tmp_path / "out").exists()


def test_an_outcome_names_its_error(tmp_path: Path) -> None:
    job = Job("s", None, None, "quick", 0, None, {}, tmp_path)
    assert failed(job, ValueError("x")) == Outcome(job, error="ValueError: x", log="ValueError: x\n")


def test_an_unknown_executor_names_the_nearest(counted: Callable[..., Ended]) -> None:
    ended = counted("--executor", "rya")
    assert ended.code == 2
    assert "no executor named 'rya'. Did you mean 'ray'?" in ended.err


def test_an_address_is_of_a_ray_cluster(counted: Callable[..., Ended]) -> None:
    ended = counted("--address", "auto")
    assert ended.code == 2
    assert "give --executor ray as well" in ended.err
