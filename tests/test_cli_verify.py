"""The commands `probe verify` and `probe compare`: what was changed is found, named, and ends in three."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from probe.models import store
from probe.runner.manifest import Manifest, key_of
from tests.own_studies import LINES
from tests.test_cli import Ended, command, one_error

TEXT = "Anna thanked Ben\nthe cat did not reach the shelf\nEmma saw Paul because she was late\n"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's study, data, model, and the result of one run in out/."""
    place = tmp_path_factory.mktemp("verify")
    (place / "lines.py").write_text(LINES)
    (place / "lines.txt").write_text(TEXT)
    shutil.copytree(store.TINY, place / "model")
    ended = within(place, "run", "lines.py", "--data", "lines.txt", "-m", "model", "--seed", 3, "--out", "out")
    assert (ended.code, ended.err.count("computing")) == (0, 1), ended.err
    return place


@pytest.fixture
def place(done: Path, tmp_path: Path) -> Path:
    shutil.copytree(done, tmp_path / "copy")
    return tmp_path / "copy"


def within(place: Path, *words: object) -> Ended:
    """The command, given in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return command(*words)


def cell(place: Path) -> Path:
    (folder,) = (place / "out" / "lines").glob("model-*")
    return folder


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object], *, rehash: bool = True) -> None:
    """Change a manifest, and, as a careful forger would, every hash that covers it."""
    path = folder / "manifest.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    change(record)
    if rehash:
        stated = record.pop("sha256")
        made = Manifest.model_validate(record)
        made = made.model_copy(update={"key": key_of(made)})
        record = made.model_dump(mode="json", by_alias=True)
        assert record["sha256"] != stated
    path.write_text(json.dumps(record), encoding="utf-8")


# nothing changed


def test_an_untouched_result_holds_and_every_metric_is_exact(place: Path) -> None:
    ended = within(place, "verify", cell(place))
    assert ended.code == 0, ended.out + ended.err
    first, *rest = ended.out.splitlines()
    # answer, sections, method, notes; 3 columns of heads; 2 of draws
    assert re.search(r": holds \(9 exact, 0 within tolerance \(0\.0001 \+ 0\.001·\|value\|\), 0 changed, 1 not", first)
    lines = [re.split(r"\s{2,}", line.strip()) for line in rest]
    assert ["exact", "table-heads.parquet", "layer, head, first"] in lines
    assert ["not compared", "table-timing_all.parquet", "times"] in [line[:3] for line in lines]
    assert "differ:" not in ended.out
    assert list((place / "out" / "lines").glob(".new*")) == []


@pytest.mark.parametrize("name", ["manifest.json", "report.html"])
def test_the_manifest_and_the_page_stand_for_their_result(place: Path, name: str) -> None:
    ended = within(place, "verify", cell(place) / name)
    assert (ended.code, ended.out.count(": holds (9 exact")) == (0, 1), ended.out


def test_what_was_computed_again_can_be_kept(place: Path) -> None:
    ended = within(place, "verify", cell(place) / "manifest.json", "--keep", "again")
    assert ended.code == 0, ended.out + ended.err
    kept = place / "again" / "lines" / cell(place).name
    was, now = (json.loads((folder / "manifest.json").read_text()) for folder in (cell(place), kept))
    assert was["key"] == now["key"]
    # a clock's readings differ between runs, and with them the two files that hold them
    clocks = {"table-timing_all.parquet", "findings.json"}
    assert {k: v for k, v in was["outputs"].items() if k not in clocks} == {
        k: v for k, v in now["outputs"].items() if k not in clocks
    }
    assert len(was["outputs"]) > len(clocks)
    again = within(place, "compare", cell(place), kept)
    assert (again.code, "they agree" in again.out) == (0, True), again.out


@pytest.mark.parametrize("there", ["file", "folder"])
def test_what_is_kept_replaces_nothing(place: Path, there: str) -> None:
    kept = place / "again"
    if there == "file":
        kept.write_text("mine")
    else:
        kept.mkdir()
        (kept / "notes.txt").write_text("mine")
    ended = within(place, "verify", cell(place), "--keep", "again")
    assert (ended.code, ended.out) == (2, "")
    assert "--keep again is there already" in ended.err
    assert (kept if there == "file" else kept / "notes.txt").read_text() == "mine"


def test_a_page_alone_is_enough(place: Path) -> None:
    (cell(place) / "report.html").rename(place / "sent.html")
    shutil.rmtree(place / "out")
    ended = within(place, "verify", "sent.html")
    assert (ended.code, ended.out.count(": holds (9 exact")) == (0, 1), ended.out


def test_a_manifest_alone_is_judged_by_its_hashes(place: Path) -> None:
    (cell(place) / "manifest.json").rename(place / "sent.json")
    shutil.rmtree(place / "out")
    ended = within(place, "verify", "sent.json")
    assert ended.code == 0, ended.out
    # the texts speak of times, so that their hash says nothing
    assert "sent.json: holds (2 exact" in ended.out


def test_a_folder_of_results_is_verified_whole(place: Path) -> None:
    within(place, "run", "lines.py", "--data", "lines.txt", "-m", "model", "--out", "out")
    ended = within(place, "verify", "out")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "2 hold"


# something changed: exit 3, with the reason


def test_an_edited_score_is_found_by_its_hash_and_by_its_number(place: Path) -> None:
    path = cell(place) / "table-heads.parquet"
    table = pd.read_parquet(path)
    table.loc[5, "first"] += 0.25
    table.to_parquet(path, index=False)
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    assert "table-heads.parquet is not the file the run wrote" in ended.out
    assert re.search(r"changed\s+table-heads\.parquet\s+first\s+1 of 16\s+head 1\.1\s+", ended.out)


def test_a_score_edited_with_all_its_hashes_is_found_by_its_number(place: Path) -> None:
    path = cell(place) / "table-heads.parquet"
    table = pd.read_parquet(path)
    table.loc[5, "first"] += 0.25
    table.to_parquet(path, index=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(cell(place), lambda record: record["outputs"].update({path.name: digest}))
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    assert "is not the file the run wrote" not in ended.out
    (line,) = [line for line in ended.out.splitlines() if line.strip().startswith("changed")]
    was, now = map(float, line.split()[-2:])
    assert was - now == pytest.approx(0.25, abs=1e-4)


def test_a_change_below_the_tolerance_is_said_and_holds(place: Path) -> None:
    path = cell(place) / "table-heads.parquet"
    table = pd.read_parquet(path)
    table.loc[5, "first"] += 2e-5
    table.to_parquet(path, index=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_manifest(cell(place), lambda record: record["outputs"].update({path.name: digest}))
    ended = within(place, "verify", cell(place))
    assert ended.code == 0
    assert re.search(r"within tolerance\s+table-heads\.parquet\s+first\s+1 of 16\s+head 1\.1", ended.out)
    assert within(place, "verify", cell(place), "--absolute", 0, "--relative", 0).code == 3


def test_an_edited_seed_does_not_fit_the_manifests_hashes(place: Path) -> None:
    edit_manifest(cell(place), lambda record: record.update(seed=4), rehash=False)
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    assert "was edited after it was written: its key does not fit its fields" in ended.out


def test_an_edited_item_name_does_not_fit_the_manifests_hashes(place: Path) -> None:
    edit_manifest(cell(place), lambda record: record["data"][0].update(n_items=4), rehash=False)
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    assert "was edited after it was written: its sha256 does not fit its fields" in ended.out


def test_an_edited_seed_with_all_its_hashes_gives_other_numbers(place: Path) -> None:
    edit_manifest(cell(place), lambda record: record.update(seed=4))
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    assert re.search(r"changed\s+table-draws\.parquet\s+number\s+3 of 3", ended.out)
    assert re.search(r"exact\s+table-heads\.parquet\s+layer, head, first", ended.out)


def test_a_changed_weight_is_named_with_what_it_moves(place: Path) -> None:
    path = place / "model" / "model.safetensors"
    weights = load_file(path)
    name = next(n for n in weights if weights[n].ndim == 2 and "embed" not in n)
    weights[name][:8] += 0.5
    save_file(weights, path)
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    (field,) = [line for line in ended.out.splitlines() if line.strip().startswith("model.")]
    assert field.split()[0] == "model.weights_sha256"
    assert field.rstrip().endswith("what was measured")
    assert re.search(r"changed\s+table-heads\.parquet\s+first", ended.out)


def test_a_changed_item_of_the_data_is_named(place: Path) -> None:
    (place / "lines.txt").write_text(TEXT.replace("Ben", "Paul"))
    ended = within(place, "verify", cell(place))
    assert ended.code == 3
    assert re.search(r"data_file\s+[0-9a-f]{12}…\s+[0-9a-f]{12}…\s+what was measured", ended.out)
    assert "3 items: 1 changed (line-0)" in ended.out
    assert re.search(r"changed\s+table-heads\.parquet\s+first", ended.out)


def test_changed_code_is_named_and_does_not_fail_by_itself(place: Path) -> None:
    with (place / "lines.py").open("a") as file:
        file.write("# a remark\n")
    ended = within(place, "verify", cell(place))
    assert ended.code == 0
    assert re.search(r"code\s+[0-9a-f]{12}…\s+[0-9a-f]{12}…\s+how it was computed", ended.out)


def test_another_number_of_threads_is_named_and_does_not_fail_by_itself(place: Path) -> None:
    ended = within(place, "verify", cell(place), "--threads", 2)
    assert ended.code == 0
    assert re.search(r"threads\s+1\s+2\s+how it was computed", ended.out)
    assert torch.get_num_threads() == 1


def test_a_page_whose_tables_were_edited_is_found(place: Path) -> None:
    page = cell(place) / "report.html"
    text = page.read_text(encoding="utf-8")
    at = text.index('"table-heads.parquet":"', text.index('<template id="outputs">')) + 400
    page.write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :], encoding="utf-8")
    ended = within(place, "verify", page)
    assert ended.code == 3
    assert "table-heads.parquet is not the file the run wrote" in ended.out


# not to be had


def test_without_its_data_file_a_result_is_said_to_lack_it(place: Path) -> None:
    (place / "lines.txt").rename(place / "moved.txt")
    ended = within(place, "verify", cell(place))
    assert ended.code == 1
    assert "data absent: the result was made from lines.txt (SHA-256 " in ended.out
    assert within(place, "verify", cell(place), "--data", "moved.txt").code == 0


def test_a_study_and_a_model_that_were_moved_are_given_by_their_paths(place: Path) -> None:
    (place / "lines.py").rename(place / "other.py")
    (place / "model").rename(place / "moved")
    ended = within(place, "verify", cell(place))
    assert ended.code == 1
    assert "came from the file lines.py, which is not here: give --study PATH." in ended.err
    ended = within(place, "verify", cell(place), "--study", "other.py", "-m", "moved")
    # its folder's name is the model's: another name, the same weights
    assert ended.code == 3
    assert re.search(r"model\.name\s+model\s+moved", ended.out)
    assert re.search(r": differs \(9 exact", ended.out)


@pytest.mark.parametrize("made", ["nothing", "folder", "page"])
def test_what_is_no_result_is_said_to_be_none(tmp_path: Path, made: str) -> None:
    path = tmp_path / ("page.html" if made == "page" else "folder")
    if made == "folder":
        path.mkdir()
    if made == "page":
        path.write_text("<p>mine</p>")
    ended = command("verify", path)
    assert ended.code == 1
    assert str(path) in one_error(ended)


# compare


def test_a_result_agrees_with_itself(place: Path) -> None:
    ended = within(place, "compare", cell(place), cell(place) / "report.html")
    assert ended.code == 0
    assert ended.out.splitlines()[-1].startswith("they agree: 9 exact")


def test_two_seeds_differ_in_what_the_seed_draws(place: Path) -> None:
    within(place, "run", "lines.py", "--data", "lines.txt", "-m", "model", "--seed", 5, "--out", "out")
    a, b = sorted((place / "out" / "lines").glob("model-*"))
    ended = within(place, "compare", a, b, "--html", "both.html")
    assert ended.code == 3
    assert re.search(r"seed\s+3\s+5\s+what was measured", ended.out)
    assert re.search(r"changed\s+table-draws\.parquet\s+number\s+3 of 3\s+row \d", ended.out)
    page = (place / "both.html").read_text(encoding="utf-8")
    assert page.count("<img src=") == 2
    assert "<script" not in page
    assert within(place, "compare", a, b, "--html", "again.html").code == 3
    assert (place / "again.html").read_bytes() == (place / "both.html").read_bytes()


def test_a_comparison_that_cannot_be_written_is_told(place: Path) -> None:
    (place / "file").write_text("mine")
    ended = within(place, "compare", cell(place), cell(place), "--html", "file/page.html")
    assert ended.code == 1
    assert "the comparison cannot be written to file/page.html" in ended.err


def test_what_was_edited_is_warned_of(place: Path) -> None:
    shutil.copytree(cell(place), place / "copy")
    table = pd.read_parquet(io.BytesIO((place / "copy" / "table-heads.parquet").read_bytes()))
    table.loc[0, "first"] = 2.0
    table.to_parquet(place / "copy" / "table-heads.parquet", index=False)
    ended = within(place, "compare", cell(place), "copy")
    assert ended.code == 3
    assert ended.err.startswith("warning: ")
    assert re.search(r"changed\s+table-heads\.parquet\s+first\s+1 of 16\s+head 0\.0\s+\S+\s+2\b", ended.out)
