"""The same cells on a local Ray cluster of two workers. These tests skip where ray is not installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.execution.test_processes import outputs
from tests.own_studies import COUNTED, PLANTED
from tests.test_cli import command

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="needs ray: pip install 'headprobe[ray]'",
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_two_ray_workers_of_which_one_is_killed_give_the_results_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counted.py").write_text(COUNTED + PLANTED)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.chdir(tmp_path)
    words = ("run", "counted.py", "--seed", 0, "--seed", 1)
    alone = command(*words, "--out", "alone")
    assert alone.code == 0
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed once"))
    on_ray = command(*words, "--out", "ray", "--executor", "ray", "--jobs", 2)
    assert on_ray.code == 0, on_ray.err
    assert (tmp_path / "killed once").exists()
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "alone")
    assert command(*words, "--out", "ray").out.count("(already there)") == 4


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = command("run", "by_hand", "--executor", "ray", "--out", tmp_path / "out")
    assert ended.code == 2
    assert "error: --executor ray needs the package ray: pip install 'headprobe[ray]'." in ended.err
