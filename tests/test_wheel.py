"""What a user installs: the wheel holds all it needs, nothing it does not, and runs away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import probe

ROOT = Path(__file__).parents[1]


def call(*words: object, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(w) for w in words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "wheel", *options, "-w", folder, ".", cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh environment with the wheel; its dependencies are those of this environment.

    A .pth file names this environment's packages. The .pth files among those are not read then, so a checkout that
    is installed here in place stays out of sight.
    """
    folder = tmp_path_factory.mktemp("installed")
    call(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=folder)
    place = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(place) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_wheel_holds_code_weights_studies_and_templates(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    needed = {p.relative_to(ROOT).as_posix() for p in (ROOT / "probe").rglob("*.py") if p.parent.name != "studies"}
    needed |= {f"probe/studies/{p.name}" for p in (ROOT / "studies").glob("*.py")}
    needed |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "probe" / "report" / "templates").iterdir()}
    needed |= {f"probe/models/tiny/{n}" for n in ("config.json", "model.safetensors", "tokenizer.json", "recipe.json")}
    needed |= {"probe/report/style.mplstyle", "probe/studies/coreference.py", "probe/report/templates/report.html.j2"}
    assert needed - set(names) == set()


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        tops = {name.partition("/")[0] for name in file.namelist()}
        assert tops == {"probe", f"headprobe-{probe.__version__}.dist-info"}
        kinds = {Path(name).suffix for name in file.namelist() if name.startswith("probe/")}
        assert kinds <= {".py", ".j2", ".css", ".js", ".json", ".safetensors", ".mplstyle", ".typed"}
        assert not [n for n in file.namelist() if "test" in n or "reports/" in n or "__pycache__" in n]
        assert sum(i.file_size for i in file.infolist()) < 8_000_000


def test_the_wheel_carries_its_licence_and_its_command(wheel: Path) -> None:
    info = f"headprobe-{probe.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as file:
        assert "Apache License" in file.read(f"{info}/licenses/LICENSE").decode()
        assert "probe = probe.cli:main" in file.read(f"{info}/entry_points.txt").decode()
        metadata = file.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {probe.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_the_weights_in_the_wheel_are_those_of_the_checkout(wheel: Path) -> None:
    name = "probe/models/tiny/model.safetensors"
    with zipfile.ZipFile(wheel) as file:
        assert file.read(name) == (ROOT / name).read_bytes()


def test_the_installed_package_is_the_one_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    found = Path(call(installed / "python", "-c", "import probe; print(probe.__file__)", cwd=tmp_path).strip())
    assert found.is_relative_to(installed.parent)
    assert not (found.parent / "studies").is_symlink()


def test_the_installed_command_lists_the_studies(installed: Path, tmp_path: Path) -> None:
    text = call(installed / "probe", "list", cwd=tmp_path)
    assert "Which heads look from a pronoun to its antecedent?" in text
    assert "coreference_gap" in text


def test_the_installed_command_runs_a_study_and_writes_its_report(installed: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    text = call(installed / "probe", "run", "coreference", "--model", "tiny", "--out", out, cwd=tmp_path)
    cell = out / "coreference" / "tiny"
    page, _, index = text.splitlines()
    assert page.startswith(f"{cell / 'report.html'} (")
    assert index.startswith(str(out / "index.html"))
    assert (cell / "report.html").is_file()
    manifest = json.loads((cell / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["git"] is None
    assert manifest["versions"]["headprobe"] == probe.__version__
    assert [p.name for p in tmp_path.iterdir()] == ["results"], "nothing is written elsewhere"
