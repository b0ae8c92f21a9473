"""The command `probe train`: what it leaves on disk, how it is stopped and goes on, and its errors in one line."""

from __future__ import annotations

import csv
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

import probe
from probe.models.checkpoints import CHECKPOINT
from probe.models.recipes import RECIPES, Named
from probe.models.train import Recipe
from probe.report.losses import loss_figure
from tests.test_cli import Ended, command, one_error

TEXT = "Anna thanked Ben because she was late. The cat did not reach the shelf, because it was too tired!\n" * 60
SMALL = ("--layers", 1, "--heads", 2, "--d-model", 16, "--positions", 48, "--steps", 8, "--every", 4, "--batch-size", 4)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small are trained faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "cats.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """A small model of characters, with rotary positions."""
    folder = tmp_path_factory.mktemp("models") / "cats"
    sizes = [128 if word == 48 else word for word in SMALL]  # long enough for the sentences of the coreference study
    return command("train", text, "--out", folder, *sizes, "--position", "rope", "--set", "norm=rms"), folder


def test_a_text_becomes_a_folder_that_is_a_model(trained: tuple[Ended, Path]) -> None:
    ended, folder = trained
    assert (ended.code, ended.err) == (0, "")
    rows = list(csv.DictReader((folder / "losses.csv").read_text().splitlines()))
    first, last = (float(row["held_out"]) for row in (rows[0], rows[-1]))
    assert ended.out == f"{folder}: loss on held-out data {first:.3f} -> {last:.3f} nats per token in 8 steps\n"
    assert [row["step"] for row in rows if row["held_out"]] == ["0", "4", "8"]
    files = {"config.json", "model.safetensors", "tokenizer.json", "recipe.json", "losses.csv", "losses.png"}
    assert {p.name for p in folder.iterdir()} == files
    config = json.loads((folder / "config.json").read_text())
    assert {k: config[k] for k in ("n_layers", "d_model", "max_positions", "position", "norm")} == {
        "n_layers": 1,
        "d_model": 16,
        "max_positions": 128,
        "position": "rope",
        "norm": "rms",
    }
    subject = probe.load(folder)
    assert len(subject.encode("Ben was late.")) == 1 + 13


def test_a_trained_model_can_be_studied(trained: tuple[Ended, Path], tmp_path: Path) -> None:
    _, folder = trained
    ended = command("run", "coreference", "--model", folder, "--out", tmp_path / "out")
    assert ended.code == 0, ended.err
    (page,) = (tmp_path / "out" / "coreference").glob("cats-*/report.html")
    assert page.stat().st_size > 10_000


def test_byte_pairs_have_the_vocabulary_asked_for(text: Path, tmp_path: Path) -> None:
    ended = command("train", text, "--out", tmp_path / "m", *SMALL, "--tokenizer", "bpe", "--vocab-size", 270)
    assert ended.code == 0, ended.err
    assert json.loads((tmp_path / "m" / "config.json").read_text())["vocab_size"] == 270
    assert len(probe.load(tmp_path / "m").encode("Ben ß 東")) > 4


def test_the_folder_by_default_has_the_texts_name(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("train", text, *SMALL).code == 0
    assert (tmp_path / "models" / "cats" / "model.safetensors").is_file()


def test_a_recipe_by_name_reports_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Named("a test", Recipe(steps=3, batch_size=4), {"n_layers": 1, "d_model": 16, "max_positions": 64})
    monkeypatch.setitem(RECIPES, "small", small)
    ended = command("train", "--recipe", "small", "--out", tmp_path / "m")
    assert ended.code == 0, ended.err
    record = json.loads((tmp_path / "m" / "recipe.json").read_text())
    assert record["recipe"] == "small"
    lines = ended.out.splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == list(probe.data.language.tasks())
    agreement = record["accuracy"]["agreement"]
    assert f"    agreement: {agreement['accuracy']:.1%} of {agreement['n']} held-out questions" in lines


def test_the_same_command_gives_the_same_losses(text: Path, tmp_path: Path) -> None:
    for name in "ab":
        assert command("train", text, "--out", tmp_path / name, *SMALL, "--seed", 3).code == 0
    a, b = ((tmp_path / name / "losses.csv").read_bytes() for name in "ab")
    assert a == b


def test_ctrl_c_keeps_the_last_checkpoint_and_the_same_command_goes_on(text: Path, tmp_path: Path) -> None:
    """In a process of its own, with a real signal."""
    options = [*SMALL[:-6], "--steps", "100000", "--every", "5", "--batch-size", "4", "--out", tmp_path / "m"]
    words = [sys.executable, "-m", "probe", "train", *map(str, (text, *options))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "m" / CHECKPOINT).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until, "no checkpoint in two minutes"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    (line,) = err.splitlines()
    assert line.startswith("interrupted; the checkpoint after step ")
    assert line.endswith(" is kept: the same command with --resume goes on from there.")
    step = int(line.split("step ")[1].split()[0].replace(",", ""))
    assert step % 5 == 0
    assert [p.name for p in (tmp_path / "m").iterdir()] == [CHECKPOINT]
    again = command("train", text, *options)
    assert one_error(again).startswith(f"{tmp_path / 'm'} holds the checkpoint of an unfinished training: resume it")
    other = command("train", text, *options, "--resume", "--seed", 1)
    assert "another recipe: seed was 0 and is now 1" in one_error(other)


def test_an_interrupted_command_resumes_to_the_same_losses(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probe.models import train as training

    whole = command("train", text, "--out", tmp_path / "whole", *SMALL)
    update = training._update

    def stops(state, *rest: object) -> None:
        if len(state.losses) == 6:
            raise KeyboardInterrupt
        update(state, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_update", stops)
        cut = command("train", text, "--out", tmp_path / "cut", *SMALL)
    assert (cut.code, cut.out) == (130, "")
    assert "the checkpoint after step 4 is kept" in cut.err
    resumed = command("train", text, "--out", tmp_path / "cut", *SMALL, "--resume")
    assert resumed.code == 0, resumed.err
    assert resumed.out.replace("cut", "whole") == whole.out
    for name in ("losses.csv", "losses.png", "model.safetensors"):
        cut_bytes, whole_bytes = ((tmp_path / n / name).read_bytes() for n in ("cut", "whole"))
        assert name == "losses.png" or cut_bytes == whole_bytes


def test_ctrl_c_before_the_first_checkpoint_says_that_nothing_is_kept(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probe.models.train._update", stops)
    ended = command("train", text, "--out", tmp_path / "m", *SMALL)
    assert ended.code == 130
    assert ended.err == (
        "interrupted; there was no checkpoint yet (--every sets how often one is kept), so nothing is.\n"
    )


# errors


def failed(*words: object) -> str:
    ended = command("train", *words)
    assert ended.code in (1, 2)
    return one_error(ended)


def test_what_to_train_on_must_be_one_thing(text: Path) -> None:
    assert failed() == "train on one thing: a text file, or a --recipe by name (tiny)."
    assert failed(text, "--recipe", "tiny") == failed()
    assert failed("--recipe", "tiny", "--steps", 5) == (
        "a recipe fixes everything; steps cannot be given with --recipe."
    )


def test_an_unknown_recipe_tokenizer_or_setting_is_met_with_the_nearest(text: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "m")
    assert failed("--recipe", "tin", *out) == "no recipe named 'tin'. Did you mean 'tiny'? Known: tiny."
    assert "no tokenizer named 'bpee'. Did you mean 'bpe'?" in failed(text, "--tokenizer", "bpee", *out)
    assert "no setting of a training named 'norms'. Did you mean 'norm'?" in failed(text, "--set", "norms=rms", *out)
    assert "no position of a tiny GPT named 'roop'. Did you mean 'rope'?" in failed(text, "--position", "roop", *out)
    assert not (tmp_path / "m").exists()


def test_settings_are_read_as_the_types_they_have(text: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "m")
    assert failed(text, "--set", "window", *out) == "--set 'window' is not of the form name=value."
    assert failed(text, "--set", "window=many", *out).startswith("--set 'window=many': Input should be a valid integer")
    given = ("--set", "tied=false", "--set", "warmup=2", "--set", "visible=sliding", "--set", "window=8")
    assert command("train", text, *SMALL, *given, *out).code == 0
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["tied"], config["visible"], config["window"]) == (False, "sliding", 8)
    recipe = json.loads((tmp_path / "m" / "recipe.json").read_text())
    assert (recipe["warmup"], recipe["gradients"]) == (2, "by_hand")
    assert command("train", text, *SMALL, "--set", "gradients=torch", "--out", tmp_path / "n").code == 0
    assert json.loads((tmp_path / "n" / "recipe.json").read_text())["gradients"] == "torch"


def test_a_vocabulary_size_is_of_byte_pairs_only(text: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "m")
    assert "give --tokenizer bpe as well" in failed(text, "--vocab-size", 300, *out)
    assert "need 259 at least" in failed(text, "--vocab-size", 50, "--tokenizer", "bpe", *out)


def test_a_text_that_is_missing_empty_or_too_short_is_named(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "m")
    missing, empty, short = (tmp_path / f"{name}.txt" for name in ("missing", "empty", "short"))
    empty.write_text("\n\n")
    short.write_text(TEXT[:400])
    assert failed(missing, *out) == f"the text file {missing} does not exist."
    assert failed(empty, *out) == f"{empty} is empty: there is nothing to train on."
    assert failed(short, *out) == (
        "short.txt is too short: it has 400 tokens, of which the last tenth (40) is held out and must fill a window of "
        "128 positions. That needs about 1,280 tokens: give a longer text, or fewer positions."
    )
    assert not (tmp_path / "m").exists()


def test_a_folder_that_holds_anything_else_is_kept(text: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    assert failed(text, "--out", tmp_path, *SMALL) == (
        f"{tmp_path} holds 'thesis.tex', which is not of a training. Choose another folder."
    )
    assert failed(text, "--out", tmp_path / "new", *SMALL, "--resume") == (
        f"{tmp_path / 'new'} has no checkpoint to resume from: nothing was kept there; begin without resuming."
    )


def test_the_help_lists_the_options_and_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['probe', 'train', '--help']\nimport probe.cli\ntry:\n    probe.cli.main()\n"
    code += "except SystemExit:\n    print([m for m in ('torch', 'pandas', 'transformers') if m in sys.modules])"
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    for option in ("--recipe", "--resume", "--tokenizer", "--position", "--every", "--set"):
        assert option in done.stdout


# the figure


def test_the_loss_figure_is_a_png_of_the_house_width_and_the_same_each_time() -> None:
    table = pd.DataFrame({"step": range(301), "training": [None, *(5 / (1 + n) for n in range(300))]})
    table["held_out"] = [5 / (1 + n) if n % 100 == 0 else None for n in range(301)]
    image = loss_figure(table, "cats")
    assert image[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", image[16:24]) == (1200, 630)
    assert image == loss_figure(table, "cats")
    assert image != loss_figure(table.assign(training=table["training"] * 2), "cats")
