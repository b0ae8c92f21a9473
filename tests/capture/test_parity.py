"""The check at load: it lets good models pass in four short passes, and stops each kind of bad one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.capture import parity, passed
from probe.errors import UnsupportedModel
from probe.models import gpt, store
from probe.models.gpt import GPT, Config
from probe.subject import Subject


def model(attention: str = "eager") -> GPT:
    torch.manual_seed(0)
    return GPT(Config(vocab_size=400, n_layers=2, d_model=32, n_heads=4, init_scale=0.3, attention=attention)).eval()


@pytest.mark.parametrize("attention", ["eager", "fused"])
def test_looking_and_checking_take_four_short_passes(attention: str, tiny: Subject) -> None:
    made, lengths = model(attention), []
    made.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    probe.load(made, tiny.tokenizer)
    assert len(lengths) == 4
    assert max(lengths) <= 64


def test_the_check_can_be_left_out(tiny: Subject) -> None:
    passes: list[int] = []
    made = model()
    made.register_forward_pre_hook(lambda *_: passes.append(1))
    probe.load(made, tiny.tokenizer, check=False)
    assert len(passes) == 1


def test_a_model_that_is_random_in_evaluation_mode_is_refused(tiny: Subject) -> None:
    made = model()
    made.base_model.norm.register_forward_hook(lambda _, args, out: out + torch.randn_like(out))
    with pytest.raises(UnsupportedModel, match="failed the check at load: its output is not the same while it is read"):
        probe.load(made, tiny.tokenizer)


def test_a_model_whose_answer_ignores_its_heads_is_refused(tiny: Subject) -> None:
    made = model()
    for block in made.base_model.blocks:
        nn.init.zeros_(block.attention.out.weight)
    with pytest.raises(UnsupportedModel, match="does not change when what its heads found is set to zero"):
        probe.load(made, tiny.tokenizer)


def spoiled(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Eager attention with another pattern, as a model with a mistake in its own code would have."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, Tensor]:
        scores = query @ key.transpose(2, 3) * scaling
        pattern = change((scores if mask is None else scores + mask).softmax(-1)).softmax(-1)
        return (pattern @ value).transpose(1, 2), pattern

    return attend


def test_a_pattern_that_looks_behind_its_mask_is_refused(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt, "eager_attention", spoiled(lambda pattern: pattern))  # a second softmax: nothing is 0
    with pytest.raises(UnsupportedModel, match="pattern of layer 0 looks at keys that its mask hides"):
        probe.load(model(), tiny.tokenizer)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny model, and a cache of its own."""
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(store.TINY, tmp_path / "model"))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every check."""
    made: list[object] = []
    real = parity.check
    monkeypatch.setattr(parity, "check", lambda anatomy: (made.append(anatomy), real(anatomy))[1])
    return made


def test_files_that_passed_are_not_tried_again(folder: Path, checks: list[object]) -> None:
    for _ in range(3):
        probe.load(folder)
    assert len(checks) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_file_is_tried_again(name: str, folder: Path, checks: list[object]) -> None:
    probe.load(folder)
    (folder / name).write_bytes((folder / name).read_bytes())
    probe.load(folder)
    assert len(checks) == 2


def test_another_precision_or_attention_is_tried_too(folder: Path, checks: list[object]) -> None:
    for how in ({}, {"dtype": "float64"}, {"attention": "eager"}):
        probe.load(folder, **how)
        probe.load(folder, **how)
    assert len(checks) == 3


def test_what_was_not_checked_or_failed_is_not_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(anatomy: object) -> None:
        raise UnsupportedModel("it failed")

    probe.load(folder, check=False)
    monkeypatch.setattr(parity, "check", fails)
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="it failed"):
            probe.load(folder)


def test_a_cache_that_cannot_be_written_only_means_checking_again(
    folder: Path, checks: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PROBE_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        probe.load(folder)
    assert len(checks) == 2


def test_a_model_in_memory_is_always_tried(tiny: Subject, checks: list[object]) -> None:
    for _ in range(2):
        probe.load(tiny.model, tiny.tokenizer)
    assert len(checks) == 2


def test_a_file_with_its_old_time_is_tried_again_and_a_link_to_nowhere_is_no_matter(
    folder: Path, checks: list[object]
) -> None:
    weights = folder / "model.safetensors"
    probe.load(folder)
    was = weights.stat()
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the last bit of the last weight
    weights.write_bytes(content)
    os.utime(weights, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert weights.stat().st_mtime_ns == was.st_mtime_ns
    probe.load(folder)
    assert len(checks) == 2
    (folder / "extra.json").symlink_to(folder / "gone.json")
    probe.load(folder)
    probe.load(folder)
    assert len(checks) == 3


def test_the_code_that_reads_and_the_libraries_are_part_of_what_passed(
    folder: Path, checks: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    real = passed._facts
    monkeypatch.setattr(passed, "_facts", lambda path: (read.append(path), real(path))[1])
    probe.load(folder)
    names = {f"{path.parent.name}/{path.name}" for path in read}
    assert {"anatomy/look.py", "capture/heads.py", "models/gpt.py", "probe/sites.py"} <= names
    monkeypatch.setattr(passed, "version", lambda name: "another")
    probe.load(folder)
    assert len(checks) == 2
