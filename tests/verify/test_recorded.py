"""A result is read from its folder, its manifest or its page; those of older versions too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import probe
from probe.errors import Changed, ResultsError
from probe.models.hashes import config_hash, weights_hash
from probe.report import write_report
from probe.runner.manifest import Manifest, finished
from probe.subject import Subject
from probe.verify.comparison import compare, differing
from probe.verify.recorded import carried, read_recorded

ROOT = Path(probe.__file__).parents[1]
COMMITTED = finished(ROOT / "reports")


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_every_committed_report_is_read(folder: Path) -> None:
    for place in (folder, folder / "manifest.json", folder / "report.html"):
        found = read_recorded(place)
        assert found.changed is None
        assert found.manifest.study == folder.parent.name
        asked = found.manifest.asked
        assert (asked.model is None) == (found.manifest.model is None)
        assert (asked.data is None) == (found.manifest.data_file is None)


def test_the_shipped_model_is_the_one_of_every_committed_report_on_it(tiny: Subject) -> None:
    """Or none of them could be verified."""
    said = [read_recorded(folder).manifest.model for folder in COMMITTED if folder.name == "tiny"]
    assert len(said) >= 6
    for model in filter(None, said):
        assert (model.config_sha256, model.weights_sha256) == (config_hash(tiny.model), weights_hash(tiny.model))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A committed result that was written under schema 1."""
    source = next(f for f in COMMITTED if json.loads((f / "manifest.json").read_text())["schema"] == 1)
    return shutil.copytree(source, tmp_path / "old")


def test_a_page_written_now_carries_its_manifest_and_tables(old: Path, tmp_path: Path) -> None:
    page = write_report(old).rename(tmp_path / "alone.html")
    folder = read_recorded(old)
    shutil.rmtree(old)
    found = read_recorded(page)
    assert found.manifest == folder.manifest
    assert found.files == {n: data for n, data in folder.files.items() if not n.endswith(".npz")}
    assert found.changed is None


def test_a_page_of_an_older_version_without_its_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<h1>Which heads?</h1>")
    with pytest.raises(ResultsError, match=r"carries no manifest: .* Give its folder, or write the page again"):
        read_recorded(tmp_path / "page.html")


def test_a_page_with_no_room_for_tables_carries_the_manifest_alone(old: Path, tmp_path: Path) -> None:
    folder = read_recorded(old)
    (tmp_path / "page.html").write_text(carried(folder.manifest, folder.files, room=20_000))
    found = read_recorded(tmp_path / "page.html")
    assert (found.manifest, found.files) == (folder.manifest, {})


def test_nothing_in_what_a_page_carries_can_end_its_element(old: Path) -> None:
    manifest = read_recorded(old).manifest.model_copy(update={"question": "</template><script>x</script>&?"})
    text = carried(manifest, {}, room=10**6)
    assert text.count("<") == 4
    assert "</template><script>" not in text


def test_a_missing_and_a_changed_file_are_both_said(old: Path) -> None:
    first, second, *_ = (n for n in Manifest.read(old).outputs)
    (old / first).unlink()
    (old / second).write_bytes(b"other")
    found = read_recorded(old)
    assert f"{first} is missing, but the manifest lists it" in str(found.changed)
    assert f"{second} is not the file the run wrote" in str(found.changed)
    assert found.absent == [first]


def test_an_edited_manifest_in_a_page_is_refused(old: Path) -> None:
    page = write_report(old)
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace('"seed":0', '"seed":1'), encoding="utf-8")
    with pytest.raises(Changed, match="was edited after it was written"):
        read_recorded(page)


def test_manifests_differ_in_what_was_changed_and_nothing_else(old: Path) -> None:
    manifest = Manifest.read(old)
    assert differing(manifest, manifest) == []
    other = manifest.model_copy(update={"seed": 1, "threads": 64, "machine": "another"})
    found = {f.name: (f.was, f.now, f.around) for f in differing(manifest, other)}
    # schema 1 kept no machine, so that it cannot differ
    assert found == {"seed": ("0", "1", False), "threads": (str(manifest.threads), "64", True)}


def test_a_result_compared_with_its_page_agrees(old: Path) -> None:
    page = write_report(old)
    found = compare(read_recorded(old), read_recorded(page))
    assert found.agrees
    assert found.of("changed") == found.of("within tolerance") == []
