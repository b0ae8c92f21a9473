"""`probe doctor` says what is missing and how to get it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from probe import health
from probe.health import Check, checks
from tests.test_cli import command


def found() -> dict[str, Check]:
    return {check.what: check for check in checks()}


def test_everything_that_is_needed_is_here() -> None:
    ended = command("doctor")
    assert ended.code == 0, ended.out
    assert ended.out.splitlines()[-1].startswith("probe works")
    assert all(check.good for check in found().values() if check.needed)


def test_weights_that_are_not_fetched_are_said_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "nowhere" / "cache"))
    weights = found()["weights of smollm2"]
    assert (weights.good, weights.needed) == (False, False)
    assert (weights.state, weights.remedy) == ("not fetched yet (93 MB)", "probe fetch smollm2")
    assert str(tmp_path / "nowhere" / "cache") in found()["cache"].state
    assert not (tmp_path / "nowhere").exists(), "a check makes nothing"


def test_damaged_weights_are_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path))
    (tmp_path / "minilm").mkdir()
    assert found()["weights of minilm"].state == "SOURCE.json is missing"


def test_a_missing_extra_names_its_packages_and_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name in ("ray", "nnsight"):
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(health, "version", installed)
    ray = found()["extra [ray]"]
    assert (ray.good, ray.needed, ray.remedy) == (False, False, "pip install 'headprobe[ray]'")
    assert "ray is not installed" in ray.state
    ended = command("doctor")
    assert ended.code == 0
    assert "things that are optional are not here" in ended.out


def test_a_dependency_of_another_version_than_declared_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "version", lambda name: "4.57" if name == "transformers" else version(name))
    ended = command("doctor")
    assert ended.code == 1
    assert "transformers is 4.57, wanted is" in ended.out
    assert "probe does not work without probe" in ended.out.splitlines()[-1]


def test_chromium_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(health, "CHROMIUM", tmp_path / "chromium")
    chromium = found()["Chromium"]
    assert (chromium.good, chromium.remedy) == (False, "apt install chromium (Debian, Ubuntu)")
