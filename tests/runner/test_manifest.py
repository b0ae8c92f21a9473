"""The manifest holds everything that can change the numbers, and its key notices each of them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import probe
from probe.errors import Changed, ResultsError
from probe.runner import manifest as module
from probe.runner.manifest import (
    DataInfo,
    Git,
    Inputs,
    Manifest,
    ModelInfo,
    command_of,
    git_state,
    inputs_of,
    key_of,
    sha256,
)
from probe.runner.registry import Study, find_study

MODEL = ModelInfo(
    name="tiny", family="gpt", weights_sha256="w", config_sha256="k", tokenizer_sha256="t", n_layers=4, n_heads=4,
    n_kv_heads=2, d_model=8, n_parameters=100, dtype="float32", attention="sdpa",
)  # fmt: skip
INPUTS = Inputs(
    study="echo", profile="quick", seed=0, params={"scale": "2"}, data_file=None, model=MODEL,
    versions={"torch": "2.6", "numpy": "2.0"}, code="c", device="cpu", threads=2,
)  # fmt: skip
OTHERWISE: dict[str, Any] = {
    "study": "other",
    "profile": "full",
    "seed": 1,
    "params": {"scale": "3"},
    "data_file": "d",
    "model": None,
    "versions": {"torch": "2.7", "numpy": "2.0"},
    "code": "other",
    "device": "cuda:0",
    "threads": 4,
}


def manifest(**more: Any) -> Manifest:
    fields = {
        "key": key_of(INPUTS),
        "question": "Est-ce que ça marche — 猫?",
        "data": (DataInfo(name="n", source="s", licence="l", sha256="h", n_items=3),),
        "command": "probe run echo --model tiny",
        "outputs": {},
        "git": Git(commit="abc", dirty=True),
        "times": {"started": "2025-01-01T00:00:00+00:00", "seconds": 1.5},
    }
    return Manifest(**INPUTS.model_dump(), **{**fields, **more})


# the key


def test_the_key_is_the_hash_of_canonical_json() -> None:
    """Written out by hand, so that a change of the form, which orphans all results, is noticed."""
    text = (
        '{"code":"c","data_file":null,"device":"cpu","model":{"attention":"sdpa","config_sha256":"k","d_model":8,"dtype":"float32",'
        '"family":"gpt","n_heads":4,"n_kv_heads":2,"n_layers":4,"n_parameters":100,"name":"tiny",'
        '"tokenizer_sha256":"t","weights_sha256":"w"},"params":{"scale":"2"},"profile":"quick","seed":0,'
        '"study":"echo","threads":2,"versions":{"numpy":"2.0","torch":"2.6"}}'
    )
    assert key_of(INPUTS) == hashlib.sha256(text.encode()).hexdigest()


def test_the_fields_tried_here_are_all_there_are() -> None:
    assert set(OTHERWISE) == set(Inputs.model_fields)


@pytest.mark.parametrize("field", Inputs.model_fields)
def test_each_input_changes_the_key(field: str) -> None:
    changed = INPUTS.model_copy(update={field: OTHERWISE[field]})
    assert getattr(changed, field) != getattr(INPUTS, field)
    assert key_of(changed) != key_of(INPUTS)


@pytest.mark.parametrize("field", ModelInfo.model_fields)
def test_each_fact_about_the_model_changes_the_key(field: str) -> None:
    value = getattr(MODEL, field)
    model = MODEL.model_copy(update={field: value + 1 if isinstance(value, int) else value + "x"})
    assert key_of(INPUTS.model_copy(update={"model": model})) != key_of(INPUTS)


def test_the_order_of_fields_does_not_change_the_key() -> None:
    backwards = dict(reversed(INPUTS.model_dump().items()))
    backwards["versions"] = dict(reversed(backwards["versions"].items()))
    assert key_of(Inputs(**backwards)) == key_of(INPUTS)


def inputs_in(made: Manifest) -> Inputs:
    return Inputs(**{name: getattr(made, name) for name in Inputs.model_fields})


def test_times_and_git_are_no_part_of_the_key() -> None:
    one = manifest()
    two = manifest(times={"started": "2026-12-31T00:00:00+00:00", "seconds": 99.0}, git=None)
    assert one != two
    assert key_of(inputs_in(one)) == key_of(inputs_in(two)) == one.key
    assert not {"times", "git"} & set(Inputs.model_fields)


def test_inputs_take_no_field_they_do_not_know() -> None:
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        Inputs(**INPUTS.model_dump(), colour="red")


# on disk


@pytest.mark.parametrize("more", [{}, {"git": None}, {"data": ()}, {"outputs": {"a": "b"}}])
def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path, more: dict[str, Any]) -> None:
    written = manifest(**more)
    written.write(tmp_path)
    assert Manifest.read(tmp_path) == written


def test_a_manifest_is_readable_text_with_its_schema(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    text = (tmp_path / "manifest.json").read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert "ça marche — 猫" in text
    found = json.loads(text)
    assert found["schema"] == 2
    assert "schema_version" not in found


def test_the_json_schema_beside_the_code_is_that_of_the_manifest() -> None:
    path = Path(module.__file__).with_name("manifest.schema.json")
    again = f"Path({str(path)!r}).write_text(json_schema())"
    assert path.read_text(encoding="utf-8") == module.json_schema(), f"write it again: {again}"
    schema = json.loads(module.json_schema())
    written = json.loads(json.dumps(manifest().model_dump(mode="json", by_alias=True)))
    assert set(schema["required"]) <= set(written) == set(schema["properties"])


def test_a_manifest_of_schema_one_is_read_and_its_command_says_what_was_asked(tmp_path: Path) -> None:
    manifest(command="probe run echo --model 'my model' --data 'my file.tsv'").write(tmp_path)
    path = tmp_path / "manifest.json"
    old = json.loads(path.read_text(encoding="utf-8"))
    for name in ("sha256", "asked", "machine"):
        del old[name]
    for data in old["data"]:
        del data["items"]
    path.write_text(json.dumps({**old, "schema": 1}), encoding="utf-8")
    found = Manifest.read(tmp_path)
    assert found.schema_version == 1
    assert (found.asked.model, found.asked.data, found.machine) == ("my model", "my file.tsv", "")
    path.write_text(json.dumps({**old, "schema": 1, "seed": 5}), encoding="utf-8")
    with pytest.raises(Changed, match="its key does not fit its fields"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("outputs", {"heads.parquet": "0"}),
        ("question", "Another?"),
        ("command", "probe run other"),
        ("data", []),
        ("machine", "another"),
        ("asked", {"model": "other"}),
    ],
)
def test_what_is_no_input_cannot_be_edited_either(tmp_path: Path, field: str, value: object) -> None:
    manifest().write(tmp_path)
    path = tmp_path / "manifest.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**written, field: value}), encoding="utf-8")
    with pytest.raises(Changed, match="its sha256 does not fit its fields"):
        Manifest.read(tmp_path)


def test_times_may_be_edited(tmp_path: Path) -> None:
    one, two = manifest(), manifest(times={"started": "2026-12-31T00:00:00+00:00", "seconds": 99.0}, git=None)
    assert one.sha256 == two.sha256
    assert one.sha256 != manifest(question="Another?").sha256


def test_a_folder_without_a_manifest_holds_no_result(tmp_path: Path) -> None:
    with pytest.raises(ResultsError) as error:
        Manifest.read(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} is not a results folder, or its run has not finished: no manifest.json (it is empty)."
    )
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ResultsError, match=r"no manifest\.json \(found notes\.txt\)\.$"):
        Manifest.read(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsError) as error:
        Manifest.read(tmp_path / "nowhere")
    assert str(error.value).startswith(f"no results folder at {tmp_path / 'nowhere'}: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": "many"}, "threads: Input should be a valid integer"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"model": {"name": "tiny"}}, "model.family: Field required"),
    ],
)
def test_a_foreign_manifest_is_refused_by_its_first_wrong_field(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "manifest.json"
    manifest().write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(ResultsError) as error:
        Manifest.read(tmp_path)
    assert str(error.value).startswith(f"{path} is not a manifest of probe: {said}")


def test_a_manifest_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest().write(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "schema": 3}), encoding="utf-8")
    with pytest.raises(ResultsError, match="schema"):
        Manifest.read(tmp_path)


def test_a_manifest_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\x80\x81\xff")
    with pytest.raises(ResultsError, match=r"manifest\.json is not a manifest of probe"):
        Manifest.read(tmp_path)


def test_outputs_are_read_as_they_were_written_and_what_is_not_is_named(tmp_path: Path) -> None:
    was, now = hashlib.sha256(b"[]").hexdigest(), hashlib.sha256(b"[ ]").hexdigest()
    (tmp_path / "a.json").write_bytes(b"[]")
    made = manifest(outputs={"a.json": was})
    assert made.read_outputs(tmp_path) == {"a.json": b"[]"}
    (tmp_path / "a.json").write_bytes(b"[ ]")
    with pytest.raises(ResultsError) as changed:
        made.read_outputs(tmp_path)
    assert str(changed.value).startswith(
        f"{tmp_path / 'a.json'} is not the file the run wrote: its SHA-256 is {now[:12]}…, "
        f"the manifest says {was[:12]}…."
    )
    (tmp_path / "a.json").unlink()
    with pytest.raises(ResultsError) as missing:
        made.read_outputs(tmp_path)
    assert str(missing.value).startswith(f"{tmp_path / 'a.json'} is missing, but the manifest lists it")


def test_outputs_outside_the_folder_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "cell").mkdir()
    made = manifest(outputs={"../secret": hashlib.sha256(b"x").hexdigest()})
    with pytest.raises(ResultsError, match="is missing, but the manifest lists it"):
        made.read_outputs(tmp_path / "cell")


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"cat" * 100_000)
    assert sha256(tmp_path / "file") == hashlib.sha256(b"cat" * 100_000).hexdigest()


# the inputs of a real run


def inputs(study: Study, subject: probe.Subject, **more: Any) -> Inputs:
    asked = {"profile": "quick", "seed": 0, "data": None, "params": {}, **more}
    return inputs_of(study, subject, **asked)


def test_inputs_describe_the_model_that_is_measured(tiny: probe.Subject) -> None:
    found = inputs(find_study("coreference"), tiny)
    assert found.model.name == "tiny"
    assert (found.model.n_layers, found.model.n_heads) == (4, 4)
    assert found.model.n_parameters == sum(p.numel() for p in tiny.model.parameters())
    assert found.model.dtype == "float32"
    assert (found.device, found.threads) == ("cpu", torch.get_num_threads())
    assert found.versions["torch"] == torch.__version__
    assert found.versions["headprobe"] == probe.__version__


def test_the_weights_hash_notices_one_bit_of_one_weight(tiny: probe.Subject) -> None:
    import copy

    model = copy.deepcopy(tiny.model)
    same = probe.load(copy.deepcopy(tiny.model), tiny.tokenizer, name="tiny")
    with torch.no_grad():
        bits = list(model.parameters())[-1].view(-1).view(torch.int32)
        bits[0] ^= 1
    changed = probe.load(model, tiny.tokenizer, name="tiny")
    assert same.weights_hash == tiny.weights_hash
    assert changed.weights_hash != tiny.weights_hash
    study = find_study("coreference")
    assert key_of(inputs(study, same)) == key_of(inputs(study, tiny)) != key_of(inputs(study, changed))


def test_a_model_in_another_precision_or_attention_has_another_key(tiny: probe.Subject) -> None:
    study = find_study("coreference")
    keys = {
        key_of(inputs(study, s))
        for s in (tiny, probe.load("tiny", dtype="bfloat16"), probe.load("tiny", attention="eager"))
    }
    assert len(keys) == 3


def test_the_number_of_threads_changes_the_key(tiny: probe.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    study = find_study("coreference")
    here = key_of(inputs(study, tiny))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert inputs(study, tiny).threads == 77
    assert key_of(inputs(study, tiny)) != here


def test_the_studys_own_code_changes_the_key(tiny: probe.Subject, tmp_path: Path) -> None:
    codes = []
    for number, body in enumerate(("return 1", "return 2", "return 1")):
        path = tmp_path / str(number) / "mine.py"
        path.parent.mkdir()
        path.write_text(f"def mine(subject):\n    {body}\n")
        spec = importlib.util.spec_from_file_location(f"mine_{number}", path)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
        codes.append(inputs(Study("mine", "Is it?", loaded.mine, ("tiny",), False), tiny).code)
        del sys.modules[spec.name]
    assert codes[0] != codes[1]
    assert codes[0] == codes[2], "where the file lies is not part of it"


def test_the_packages_code_changes_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import shutil

    package = tmp_path / "probe"
    skip = shutil.ignore_patterns("__pycache__", "tiny", "studies", "report", "compatibility", "verify", "execution")
    shutil.copytree(module.PACKAGE, package, ignore=skip)
    monkeypatch.setattr(module, "PACKAGE", package)
    study = tmp_path / "study.py"
    study.write_text("pass\n")
    before = module._code_hash(study)
    for path in sorted(package.rglob("*.py")):
        text, name = path.read_bytes(), path.relative_to(package).parts[0]
        path.write_bytes(text + b"# changed\n")
        changed = module._code_hash(study) != before
        path.write_bytes(text)
        # words and looks only: neither can change a number
        shown = name in ("__init__.py", "__main__.py", "errors.py", "exits.py", "health.py", "tty.py")
        assert changed != (shown or name.startswith("cli")), path.name
    assert module._code_hash(study) == before


def test_a_new_file_of_code_changes_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in module.CODE:
        place = tmp_path / name
        place.write_text("") if name.endswith(".py") else place.mkdir()
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    study = tmp_path / "stats.py"
    before = module._code_hash(study)
    (tmp_path / "scores" / "new.py").write_text("")
    assert module._code_hash(study) != before


def test_code_moved_from_one_file_to_the_next_changes_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in module.CODE:
        place = tmp_path / name
        place.write_text("") if name.endswith(".py") else place.mkdir()
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    study = tmp_path / "study.py"
    study.write_text("")
    hashes = set()
    for one, two in (("ab", ""), ("a", "b"), ("", "ab")):
        (tmp_path / "data" / "one.py").write_text(one)
        (tmp_path / "data" / "two.py").write_text(two)
        hashes.add(module._code_hash(study))
    assert len(hashes) == 3


# for the reader


@pytest.mark.parametrize(
    ("more", "command"),
    [
        ({}, "probe run echo --model tiny"),
        ({"seed": 3}, "probe run echo --model tiny --seed 3"),
        ({"profile": "full"}, "probe run echo --model tiny --profile full"),
        ({"data": Path("some/where/my file.tsv")}, "probe run echo --model tiny --data 'my file.tsv'"),
        ({"params": {"a": "1", "b": "x y"}}, "probe run echo --model tiny --set a=1 --set 'b=x y'"),
    ],
)
def test_the_command_makes_the_cell_again(more: dict[str, Any], command: str) -> None:
    asked = {"profile": "quick", "seed": 0, "data": None, "params": {}, **more}
    assert command_of("echo", "tiny", **asked) == command
    assert command_of("echo", None, **asked) == command.replace(" --model tiny", "")


def test_git_is_that_of_the_packages_own_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "probe").mkdir()
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "probe")
    answers = {"rev-parse": "abc123\n", "status": " M probe/stats.py\n"}
    asked = []

    def git(words: list[str], *, cwd: Path, **_: Any) -> SimpleNamespace:
        asked.append(cwd)
        return SimpleNamespace(stdout=answers[words[1]])

    monkeypatch.setattr(module.subprocess, "run", git)
    assert git_state() == Git(commit="abc123", dirty=True)
    answers["status"] = ""
    assert git_state() == Git(commit="abc123", dirty=False)
    assert set(asked) == {tmp_path / "probe"}


def test_an_installed_package_has_no_git_even_inside_someone_elses_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    installed = tmp_path / ".venv" / "site-packages" / "probe"
    installed.mkdir(parents=True)
    monkeypatch.setattr(module, "PACKAGE", installed)
    assert git_state() is None


def test_a_broken_or_missing_git_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("not a repository")
    (tmp_path / "probe").mkdir()
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "probe")
    assert git_state() is None
    monkeypatch.setenv("PATH", "")
    assert git_state() is None
