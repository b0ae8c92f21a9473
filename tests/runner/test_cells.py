"""A finished result is never computed twice, never lost, and never taken for another's."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe.data.texts import Dataset, Text
from probe.errors import ProbeError, ResultsError, UnknownName
from probe.runner import cells
from probe.runner.cells import Cell, cell_name, run_cell
from probe.runner.manifest import Manifest, inputs_of, key_of
from probe.runner.registry import Study
from probe.runner.results import Example, Result

CALLS: list[dict[str, object]] = []
DURING: list[Callable[[], None]] = []  # what happens while the study computes
OUTPUTS = ["heads.parquet", "rivals.parquet", "examples.npz", "examples.json", "result.json"]


def echo(
    subject: probe.Subject,
    *,
    data: Path | None = None,
    profile: str = "quick",
    seed: int = 0,
    scale: float = 1,
    label: str = "",
) -> Result:
    """Does the runner keep what it was given?"""
    CALLS.append({"profile": profile, "seed": seed, "scale": scale, "label": label})
    for happens in DURING:
        happens()
    weight = float(next(subject.model.parameters()).detach().flatten()[:8].sum())
    values = np.random.default_rng(seed).random(4) * scale + weight
    heads = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "value": values})
    return Result(
        answer=f"Yes, with seed {seed}.",
        heads=heads,
        rivals=pd.DataFrame({"rival": ["chance"], "value": [0.5]}),
        examples=(Example("one", "c", ("<bos>", "the", " cat"), (2,), (1,), ()),),
        rows=np.full((1, 2, 2, 3), seed, dtype=np.float32),
        data=(Dataset("words", "echo", "mass", (), (Text("one", "c", "the cat"),), "here", "none"),),
    )


ECHO = Study("echo", "Does the runner keep what it was given?", echo, ("tiny",), needs_data=False)


def run(subject: probe.Subject, out: Path, **more: object) -> Cell:
    return run_cell(ECHO, subject, out=out, model="tiny", **more)


def other_weights(subject: probe.Subject) -> probe.Subject:
    model = copy.deepcopy(subject.model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 0.5
    return probe.load(model, subject.tokenizer, name=subject.name)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def tables(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name != "manifest.json"}


def beside(folder: Path) -> set[str]:
    return {p.name for p in folder.parent.iterdir()}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    CALLS.clear()
    DURING.clear()


@pytest.fixture
def done(tiny: probe.Subject, tmp_path: Path) -> Cell:
    cell = run(tiny, tmp_path)
    CALLS.clear()
    return cell


# once and no more


def test_a_result_lies_under_its_study_and_model(tiny: probe.Subject, tmp_path: Path) -> None:
    said: list[str] = []
    cell = run(tiny, tmp_path, say=said.append)
    assert cell.folder == tmp_path / "echo" / "tiny"
    assert not cell.reused
    assert said == ["echo on tiny: computing"]
    assert set(contents(cell.folder)) == {*OUTPUTS, "manifest.json"}
    assert beside(cell.folder) == {"tiny", ".tiny.lock"}
    assert CALLS == [{"profile": "quick", "seed": 0, "scale": 1, "label": ""}]


def test_a_finished_cell_is_not_computed_again(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    before, said = contents(done.folder), []
    again = run(tiny, tmp_path, say=said.append)
    assert (again.reused, again.why, again.folder) == (True, "", done.folder)
    assert (CALLS, said) == ([], [])
    assert contents(done.folder) == before
    assert again.manifest == done.manifest


def test_the_manifest_says_what_was_asked_and_what_came_out(done: Cell) -> None:
    manifest = done.manifest
    assert Manifest.read(done.folder) == manifest
    assert (manifest.study, manifest.question) == ("echo", "Does the runner keep what it was given?")
    assert manifest.command == "probe run echo --model tiny"
    assert manifest.outputs == {name: hashlib.sha256((done.folder / name).read_bytes()).hexdigest() for name in OUTPUTS}
    (data,) = manifest.data
    assert (data.name, data.source, data.licence, data.n_items) == ("words", "here", "none", 1)
    assert manifest.times["seconds"] >= 0


def test_times_are_the_studys_own(tiny: probe.Subject, tmp_path: Path) -> None:
    DURING.append(lambda: time.sleep(0.3))
    assert 0.3 <= run(tiny, tmp_path).manifest.times["seconds"] < 5


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({"seed": 1}, "tiny+seed=1"),
        ({"params": {"scale": "2.5"}}, "tiny+scale=2.5"),
        ({"seed": 3, "params": {"scale": "2", "label": "x"}}, "tiny+seed=3+label=x+scale=2"),
    ],
)
def test_another_seed_or_parameter_lands_elsewhere_and_leaves_the_first_untouched(
    tiny: probe.Subject, done: Cell, tmp_path: Path, more: dict, folder: str
) -> None:
    before = contents(done.folder)
    cell = run(tiny, tmp_path, **more)
    assert cell.folder.name == folder
    assert not cell.reused
    assert contents(done.folder) == before
    assert tables(cell.folder)["heads.parquet"] != before["heads.parquet"]
    assert run(tiny, tmp_path).reused
    assert run(tiny, tmp_path, **more).reused
    assert len(CALLS) == 1


def test_parameters_arrive_as_the_types_the_study_says(tiny: probe.Subject, tmp_path: Path) -> None:
    run(tiny, tmp_path, seed=2, profile="full", params={"scale": "2", "label": "two"})
    assert CALLS == [{"profile": "full", "seed": 2, "scale": 2, "label": "two"}]
    assert isinstance(CALLS[0]["scale"], float)


def test_the_order_of_parameters_does_not_matter(tiny: probe.Subject, tmp_path: Path) -> None:
    one = run(tiny, tmp_path, params={"scale": "2", "label": "x"})
    two = run(tiny, tmp_path, params={"label": "x", "scale": "2"})
    assert two.reused
    assert one.folder == two.folder


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"params": {"label": "a/b"}}, {"params": {"label": "a_b"}}),
        ({"params": {"label": "a", "scale": "2"}}, {"params": {"label": "a+scale=2"}}),
        ({"params": {"label": "a=b"}}, {"params": {"label": "a%3Db"}}),
    ],
    ids=["odd characters", "plus signs", "percent signs"],
)
def test_results_of_different_inputs_never_share_a_folder(
    tiny: probe.Subject, tmp_path: Path, one: dict, two: dict
) -> None:
    """What was finished is kept, so going back to the first asks for no computation."""
    first = run(tiny, tmp_path, **one)
    second = run(tiny, tmp_path, **two)
    assert first.folder != second.folder
    assert run(tiny, tmp_path, **one).reused


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("tiny", "tiny"),
        ("tiny, random weights 1", "tiny, random weights 1-0123abcd"),
        ("../../etc", "%2E.%2F..%2Fetc-0123abcd"),
        ("..", "%2E.-0123abcd"),
        (".hidden", "%2Ehidden-0123abcd"),
        ("模型", "模型-0123abcd"),
        ("m~x", "m%7Ex-0123abcd"),
    ],
)
def test_a_models_name_becomes_a_folder_that_stays_where_it_belongs(model: str, name: str) -> None:
    """Models that are not probe's own are told apart by their weights."""
    found = cell_name(model, "0123abcd4567", seed=0, params={})
    assert found == name
    assert "/" not in found
    assert not found.startswith(".")


def test_a_quick_run_never_replaces_a_full_result(tiny: probe.Subject, tmp_path: Path) -> None:
    full = run(tiny, tmp_path, profile="full")
    before = contents(full.folder)
    with pytest.raises(ResultsError, match=r"finished result of another profile \(full, not quick\).* another --out"):
        run(tiny, tmp_path, profile="quick")
    assert contents(full.folder) == before
    assert run(tiny, tmp_path, profile="full").reused


def test_a_figure_of_the_users_is_kept(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    (done.folder / "figures").mkdir()
    (done.folder / "figures" / "mine.png").write_text("mine")
    (done.folder / "result.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"holds 'figures/mine\.png', which is not a result of probe"):
        run(tiny, tmp_path)
    assert (done.folder / "figures" / "mine.png").read_text() == "mine"


def test_training_on_a_model_in_memory_makes_another_cell_of_it(tiny: probe.Subject, tmp_path: Path) -> None:
    subject = other_weights(tiny)
    first = run(subject, tmp_path)
    with torch.no_grad():
        next(subject.model.parameters()).view(-1)[1] += 0.5
    second = run(subject, tmp_path)
    assert not second.reused
    assert first.manifest.key != second.manifest.key


def test_a_configuration_changes_the_key_though_the_weights_are_the_same() -> None:
    """Two Llamas with one state dict and another rotary base give other numbers."""
    from transformers import LlamaConfig, LlamaModel

    tokenizer = probe.load("tiny").tokenizer
    subjects = []
    for base in (1e4, 5e5):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=200, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            rope_parameters={"rope_type": "default", "rope_theta": base},
        )  # fmt: skip
        subjects.append(probe.load(LlamaModel(config), tokenizer, name="llama"))
    one, two = (inputs_of(ECHO, s, profile="quick", seed=0, data=None, params={}) for s in subjects)
    assert one.model.weights_sha256 == two.model.weights_sha256
    assert key_of(one) != key_of(two)


def test_a_study_that_returns_something_else_is_told(tiny: probe.Subject, tmp_path: Path) -> None:
    wrong = replace(ECHO, function=lambda *_, **__: 3)
    with pytest.raises(ProbeError, match=r"the study echo returned a int; it must return probe\.Result"):
        run_cell(wrong, tiny, out=tmp_path, model="tiny")


@pytest.mark.parametrize("name", ["notes.txt", "thesis"])
def test_a_folder_with_anything_of_the_users_in_it_is_kept(
    tiny: probe.Subject, done: Cell, tmp_path: Path, name: str
) -> None:
    (done.folder / name).mkdir()
    (done.folder / "manifest.json").unlink()
    with pytest.raises(ResultsError, match=f"holds '{name}', which is not a result of probe"):
        run(tiny, tmp_path)
    assert (done.folder / name).is_dir()


# what was found is not what was made


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_tampered_output_is_computed_again_and_said(
    tiny: probe.Subject, done: Cell, tmp_path: Path, name: str
) -> None:
    before, said = contents(done.folder), []
    path = done.folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    cell = run(tiny, tmp_path, say=said.append)
    assert not cell.reused
    found = hashlib.sha256(before[name][:-1] + b"?").hexdigest()
    assert cell.why.startswith(
        f"computing again: {path} is not the file the run wrote: its SHA-256 is {found[:12]}…, "
        f"the manifest says {done.manifest.outputs[name][:12]}…."
    )
    assert said == [f"echo on tiny: {cell.why}"]
    assert tables(cell.folder) == {n: b for n, b in before.items() if n != "manifest.json"}
    assert beside(cell.folder) == {"tiny", ".tiny.lock"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_missing_output_is_computed_again_and_said(
    tiny: probe.Subject, done: Cell, tmp_path: Path, name: str
) -> None:
    (done.folder / name).unlink()
    cell = run(tiny, tmp_path)
    assert cell.why.startswith(f"computing again: {done.folder / name} is missing, but the manifest lists it")
    assert (cell.folder / name).is_file()
    assert run(tiny, tmp_path).reused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "is not a results folder, or its run has not finished: no manifest.json (found examples.json, "),
        (b"", "is not a manifest of probe: the file: "),
        (b'{"study": "echo", "prof', "is not a manifest of probe: the file: "),
        (b'{"study": "echo"}', "is not a manifest of probe: profile: Field required"),
        (b"[1, 2]", "is not a manifest of probe: the file: "),
        (b"\xff\xfe\x00garbage\x80", "is not a manifest of probe"),
    ],
    ids=["missing", "empty", "half", "other fields", "a list", "not text"],
)
def test_a_broken_manifest_is_computed_again_and_said(
    tiny: probe.Subject, done: Cell, tmp_path: Path, text: bytes | None, why: str
) -> None:
    before = tables(done.folder)
    (done.folder / "manifest.json").unlink()
    if text is not None:
        (done.folder / "manifest.json").write_bytes(text)
    cell = run(tiny, tmp_path)
    assert cell.why.startswith(f"computing again: {done.folder}")
    assert why in cell.why
    assert tables(cell.folder) == before
    assert run(tiny, tmp_path).reused


def test_every_half_of_a_manifest_is_seen_as_broken(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    path = done.folder / "manifest.json"
    whole = path.read_bytes()
    for cut in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:cut])
        with pytest.raises(ResultsError, match=r"manifest\.json is not a manifest of probe"):
            Manifest.read(done.folder)


@pytest.mark.parametrize(
    ("field", "value"), [("seed", 7), ("model", {"weights_sha256": "0" * 64}), ("versions", {"torch": "0"})]
)
def test_a_manifest_that_was_edited_until_its_key_no_longer_fits_is_computed_again(
    tiny: probe.Subject, done: Cell, tmp_path: Path, field: str, value: object
) -> None:
    path = done.folder / "manifest.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    written[field] = {**written[field], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(written), encoding="utf-8")
    cell = run(tiny, tmp_path)
    assert not cell.reused
    assert cell.why.startswith("computing again: ")
    assert Manifest.read(cell.folder).seed == 0


def test_changed_weights_change_the_key_and_replace_the_result(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    before = tables(done.folder)
    changed = other_weights(tiny)
    cell = run(changed, tmp_path)
    assert cell.folder == done.folder
    assert cell.manifest.key != done.manifest.key
    assert cell.manifest.model.weights_sha256 != done.manifest.model.weights_sha256
    assert cell.why == "computing again: the result found there was made with another model"
    assert tables(cell.folder)["heads.parquet"] != before["heads.parquet"]
    assert run(changed, tmp_path).reused
    back = run(tiny, tmp_path)
    assert back.manifest.key == done.manifest.key
    assert tables(back.folder) == before


def test_a_result_of_another_data_file_is_not_replaced(tiny: probe.Subject, tmp_path: Path) -> None:
    def run(subject: probe.Subject, out: Path, **more: object) -> Cell:
        return run_cell(replace(ECHO, needs_data=True), subject, out=out, model="tiny", **more)

    data = tmp_path / "data.tsv"
    data.write_text("one")
    first = run(tiny, tmp_path / "out", data=data)
    assert first.manifest.data_file == hashlib.sha256(b"one").hexdigest()
    assert run(tiny, tmp_path / "out", data=data).reused
    data.write_text("two")
    with pytest.raises(ResultsError, match="finished result of another data file"):
        run(tiny, tmp_path / "out", data=data)
    assert not run(tiny, tmp_path / "elsewhere", data=data).reused
    assert len(CALLS) == 2


# when it goes wrong


class Unforeseen(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [ProbeError("no"), Unforeseen("no"), KeyboardInterrupt(), FileNotFoundError(2, "No such file", "words.txt")],
    ids=lambda e: type(e).__name__,
)
def test_a_study_that_raises_leaves_the_old_result_and_nothing_else(
    tiny: probe.Subject, done: Cell, tmp_path: Path, error: BaseException
) -> None:
    before = contents(done.folder)

    def fail() -> None:
        raise error

    DURING.append(fail)
    with pytest.raises(type(error)) as raised:
        run(other_weights(tiny), tmp_path)
    assert raised.value is error, "what the study raised arrives as it was"
    assert contents(done.folder) == before
    assert beside(done.folder) == {"tiny", ".tiny.lock"}
    DURING.clear()
    assert run(tiny, tmp_path).reused, "the lock was let go"


def test_a_study_that_raises_at_first_leaves_no_result(tiny: probe.Subject, tmp_path: Path) -> None:
    DURING.append(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tiny, tmp_path)
    assert {p.name for p in (tmp_path / "echo").iterdir()} == {".tiny.lock"}


def test_a_full_disk_is_told_and_leaves_the_old_result(
    tiny: probe.Subject, done: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(done.folder)

    def full(result: Result, folder: Path) -> list[str]:
        (folder / "heads.parquet").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Result, "write", full)
    with pytest.raises(ResultsError) as error:
        run(other_weights(tiny), tmp_path)
    assert str(error.value) == (f"the result of {done.folder} could not be written: [Errno 28] No space left on device")
    assert contents(done.folder) == before
    assert beside(done.folder) == {"tiny", ".tiny.lock"}


def test_an_out_that_is_a_file_is_named_and_kept(tiny: probe.Subject, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(ResultsError) as error:
        run(tiny, out)
    assert str(error.value).startswith(f"results cannot be written to {out / 'echo'}: ")
    assert str(error.value).endswith("Choose another --out.")
    assert out.read_text() == "mine"
    assert CALLS == []


def test_a_study_folder_that_is_a_file_is_named_and_kept(tiny: probe.Subject, tmp_path: Path) -> None:
    (tmp_path / "echo").write_text("mine")
    with pytest.raises(ResultsError, match="results cannot be written to"):
        run(tiny, tmp_path)
    assert (tmp_path / "echo").read_text() == "mine"
    assert CALLS == []


def test_a_file_where_the_cell_should_be_is_named_and_kept(tiny: probe.Subject, tmp_path: Path) -> None:
    (tmp_path / "echo").mkdir()
    (tmp_path / "echo" / "tiny").write_text("mine")
    with pytest.raises(ResultsError, match="tiny"):
        run(tiny, tmp_path)
    assert (tmp_path / "echo" / "tiny").read_text() == "mine"


def test_a_name_too_long_for_the_disk_is_told(tiny: probe.Subject, tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="File name too long"):
        run(tiny, tmp_path, params={"label": "x" * 300})


def test_a_parameter_the_study_does_not_take_is_refused_before_anything_is_written(
    tiny: probe.Subject, tmp_path: Path
) -> None:
    with pytest.raises(UnknownName, match=r"no parameter of echo named 'scael'\. Did you mean 'scale'\?"):
        run(tiny, tmp_path / "out", params={"scael": "2"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["seed", "profile", "data", "subject"])
def test_a_parameter_that_has_an_option_of_its_own_is_refused(tiny: probe.Subject, tmp_path: Path, name: str) -> None:
    """`--set seed=1` would be given beside `--seed`."""
    (tmp_path / "file").write_text("data")
    value = {"seed": "1", "profile": "full", "data": str(tmp_path / "file"), "subject": "x"}[name]
    with pytest.raises(ProbeError, match=name):
        run(tiny, tmp_path / "out", params={name: value})


# leftovers of runs that were killed


def test_half_written_results_of_a_killed_run_are_dropped(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    for name in (".new~tiny~abc123", ".new~tiny~x_y9"):
        (done.folder.parent / name).mkdir()
        (done.folder.parent / name / "heads.parquet").write_bytes(b"half")
    assert run(tiny, tmp_path).reused
    assert beside(done.folder) == {"tiny", ".tiny.lock"}


def test_a_result_caught_between_two_renames_is_brought_back(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    before = contents(done.folder)
    done.folder.rename(done.folder.parent / ".old~tiny~")
    assert run(tiny, tmp_path).reused
    assert contents(done.folder) == before
    assert beside(done.folder) == {"tiny", ".tiny.lock"}


def test_an_old_result_beside_its_successor_is_dropped(tiny: probe.Subject, done: Cell, tmp_path: Path) -> None:
    shutil.copytree(done.folder, done.folder.parent / ".old~tiny~")
    assert run(tiny, tmp_path).reused
    assert beside(done.folder) == {"tiny", ".tiny.lock"}


@pytest.mark.parametrize("theirs", [".new~tiny-2~abc123", ".new~tiny-2+seed=1~abc123", ".old~tiny-2~"])
def test_what_another_cell_is_writing_is_left_alone(
    tiny: probe.Subject, done: Cell, tmp_path: Path, theirs: str
) -> None:
    """The cell of a model `tiny-2` has a lock of its own, so its runner may be at work beside us."""
    half = done.folder.parent / theirs
    half.mkdir()
    (half / "heads.parquet").write_bytes(b"half")
    run(tiny, tmp_path)
    run(tiny, tmp_path, seed=1)
    assert (half / "heads.parquet").read_bytes() == b"half"


# killed in the middle; two at once: in processes of their own


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _half_write(result: Result, folder: Path) -> list[str]:
    result.heads.to_parquet(folder / "heads.parquet", index=False)
    (folder / "rivals.parquet").write_bytes(b"PAR1")
    _die()
    return []


def _half_manifest(manifest: Manifest, folder: Path) -> None:
    text = json.dumps(manifest.model_dump(by_alias=True))
    (folder / "manifest.json").write_text(text[: len(text) // 2], encoding="utf-8")
    _die()


def _rename_but_new(path: Path, target: Path) -> None:
    if path.name.startswith(".new~"):
        _die()
    os.rename(path, target)  # noqa: PTH104


def _drop_all_but_old(path: Path, ignore_errors: bool = False) -> None:
    if path.name.startswith(".old~") and path.exists():
        _die()


MOMENTS: dict[str, Callable[[], None]] = {
    "while the study computes": lambda: DURING.append(_die),
    "after the first table": lambda: setattr(Result, "write", _half_write),
    "in the middle of the manifest": lambda: setattr(Manifest, "write", _half_manifest),
    "between the two renames": lambda: setattr(Path, "rename", _rename_but_new),
    "before the old result is dropped": lambda: setattr(cells.shutil, "rmtree", _drop_all_but_old),
}


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def _killed_runs(out: Path) -> None:
    """In a process of its own: for each moment, a finished older result, then a run killed at that moment."""
    tiny = probe.load("tiny")
    older = other_weights(tiny)
    for number, arm in enumerate(MOMENTS.values()):
        run(older, out / str(number))

        def work(arm: Callable[[], None] = arm, number: int = number) -> None:
            arm()
            run(tiny, out / str(number))

        _, status = os.waitpid(_fork(work), 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


def _two_at_once(out: Path) -> None:
    """In a process of its own: two runners of one cell; each call of the study leaves a line in a file."""
    tiny = probe.load("tiny")

    def slowly() -> None:
        with (out / "calls").open("a") as file:
            file.write("called\n")
        time.sleep(0.5)

    DURING.append(slowly)

    def work() -> None:
        cell = run(tiny, out / "results")
        (out / f"reused-{cell.reused}").write_text(cell.manifest.key)

    for child in [_fork(work) for _ in range(2)]:
        os.waitpid(child, 0)


def elsewhere(function: str, out: Path) -> list[str]:
    """Run one of the functions above in another Python, with as many threads as here (they are part of the key)."""
    code = (
        f"import sys, torch; from pathlib import Path; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"
        f"import test_cells; test_cells.{function}(Path({str(out)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("killed")
    assert elsewhere("_killed_runs", out) == [str(int(signal.SIGKILL))] * len(MOMENTS)
    return out


@pytest.mark.parametrize("number", range(len(MOMENTS)), ids=list(MOMENTS))
def test_a_run_that_was_killed_is_resumed_to_the_same_bytes(
    tiny: probe.Subject, killed: Path, tmp_path: Path, number: int
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(killed / str(number), out)
    undisturbed = run(tiny, tmp_path / "undisturbed")
    resumed = run(tiny, out)
    assert tables(resumed.folder) == tables(undisturbed.folder)
    assert resumed.manifest.outputs == undisturbed.manifest.outputs
    assert resumed.manifest.key == undisturbed.manifest.key
    assert beside(resumed.folder) == {"tiny", ".tiny.lock"}
    assert resumed.reused == (number == 4), "only a result that was in place is taken as it is"
    assert run(tiny, out).reused


@pytest.mark.parametrize("number", range(4), ids=list(MOMENTS)[:4])
def test_a_run_that_was_killed_has_not_lost_the_older_result(
    tiny: probe.Subject, killed: Path, tmp_path: Path, number: int
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(killed / str(number), out)
    cell = run(other_weights(tiny), out)
    assert cell.reused
    assert CALLS == []
    assert beside(cell.folder) == {"tiny", ".tiny.lock"}


def test_two_processes_at_once_compute_once(tiny: probe.Subject, tmp_path: Path) -> None:
    elsewhere("_two_at_once", tmp_path)
    assert (tmp_path / "calls").read_text() == "called\n"
    keys = {p.name: p.read_text() for p in tmp_path.glob("reused-*")}
    assert set(keys) == {"reused-False", "reused-True"}
    cell = run(tiny, tmp_path / "results")
    assert cell.reused
    assert set(keys.values()) == {cell.manifest.key}


def test_a_study_of_another_name_with_the_same_code_is_another_cell(
    tiny: probe.Subject, done: Cell, tmp_path: Path
) -> None:
    cell = run_cell(replace(ECHO, name="other"), tiny, out=tmp_path, model="tiny")
    assert cell.folder == tmp_path / "other" / "tiny"
    assert cell.manifest.key != done.manifest.key
