"""The tiny GPT and the GPT-2 beside it compute the same, so that only their speed differs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
import torch

from probe.cost import tiny_gpt
from probe.cost.harness import TINY_COLUMNS, ask_tiny, measure_tiny
from probe.cost.tiny_gpt import SIZES, TASKS
from probe.cost.write import tiny_answer, tiny_markdown
from probe.errors import ProbeError
from probe.models import gradients


def test_the_sizes_are_those_that_were_agreed() -> None:
    assert (SIZES.d_model, SIZES.n_layers, SIZES.n_heads, SIZES.max_positions) == (128, 4, 4, 128)
    assert (tiny_gpt.BATCH, tiny_gpt.LENGTH) == (32, 128)
    tokens = {name: task.tokens for name, task in TASKS.items()}
    assert tokens == {"training": 4096, "training-autograd": 4096, "training-fused-gelu": 4096, "decoding": 112}


@pytest.mark.parametrize("task", ["training", "training-autograd", "training-fused-gelu"])
def test_both_take_the_same_training_steps(task: str) -> None:
    twin, tiny = TASKS[task].make(3)
    theirs, ours = ([float(run()) for _ in range(3)] for run in (twin, tiny))
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[0] == pytest.approx(math.log(SIZES.vocab_size), abs=0.2)
    assert ours[2] < ours[0]


@pytest.mark.parametrize(("task", "times"), [("training", 4), ("training-fused-gelu", 4), ("training-autograd", 0)])
def test_gradients_are_those_that_the_row_names(task: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen = gradients.mlp, []
    monkeypatch.setattr(gradients, "mlp", lambda x, *layers: seen.append(x.shape) or own(x, *layers))
    TASKS[task].make(0)[1]()
    assert len(seen) == times  # layers


def test_both_write_the_same_tokens_until_the_context_is_full() -> None:
    twin, tiny = tiny_gpt.decoding(seed=3)
    assert torch.equal(twin(), tiny())
    assert tiny().shape == (1, 128)


def test_the_worker_answers_with_the_seconds_of_both() -> None:
    answer = ask_tiny(["decoding", "--repeats", "2", "--threads", "1", "--seed", "1"])
    assert {name: len(seconds) for name, seconds in answer.items()} == {"plain": 3, "contender": 2}
    assert all(math.isfinite(s) and s > 0 for seconds in answer.values() for s in seconds)


def test_the_first_of_a_pair_is_gpt2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []

    def make(seed: int) -> tuple[Any, Any]:
        return lambda: ran.append("gpt2"), lambda: ran.append("tiny")

    monkeypatch.setitem(TASKS, "training", tiny_gpt.Task("training", 1, make))
    tiny_gpt.main(["training", "--repeats", "1", "--threads", str(torch.get_num_threads())])
    assert ran == ["gpt2", "tiny", "gpt2", "tiny", "gpt2"]
    assert set(json.loads(capsys.readouterr().out)) == {"plain", "contender"}


def fake(words: Sequence[str]) -> dict[str, Any]:
    """GPT-2 takes 2 s, the tiny GPT 1 s and 0.5 s; for decoding ten times less."""
    assert words[1:] == ["--repeats", "2", "--threads", "2", "--seed", "0"]
    scale = 0.1 if words[0] == "decoding" else 1.0
    return {"plain": [2.0 * scale] * 3, "contender": [1.0 * scale, 0.5 * scale]}


@pytest.fixture
def table() -> pd.DataFrame:
    return measure_tiny(2, ask=fake)


def test_a_speedup_of_two_is_half_the_time(table: pd.DataFrame) -> None:
    assert tuple(table.columns) == TINY_COLUMNS
    first = table.iloc[0]
    assert (first["task"], first["repeats"], first["tokens"]) == ("training", 2, 4096)
    assert [first[f"speedup_{kind}"] for kind in ("min", "median", "max")] == [2.0, 3.0, 4.0]
    assert (first["gpt2_seconds"], first["tiny_seconds"]) == (2.0, 0.75)


def test_the_pairs_of_several_processes_are_one_row() -> None:
    seconds = iter([1.0, 0.5, 1.0, 0.5] * len(TASKS))  # of the tiny GPT, a process after the other

    def ask(words: Sequence[str]) -> dict[str, Any]:
        return {"plain": [2.0, 2.0], "contender": [next(seconds)]}

    pooled = measure_tiny(1, processes=4, ask=ask)
    assert list(pooled["repeats"]) == [4] * len(TASKS)
    assert pooled[["speedup_min", "speedup_median", "speedup_max"]].iloc[0].tolist() == [2.0, 3.0, 4.0]
    assert pooled["tiny_seconds"].iloc[0] == 0.75
    assert next(seconds, None) is None


def test_a_task_that_fails_ends_the_study() -> None:
    with pytest.raises(ProbeError, match="training of the tiny GPT beside GPT-2 failed: no memory"):
        measure_tiny(2, ask=lambda words: {"failed": "no memory"})


def test_the_page_gives_tokens_a_second(table: pd.DataFrame) -> None:
    lines = tiny_markdown(table).splitlines()
    assert "| training step, 32 x 128 tokens | 2,048 | 5,461 | 3.00 (2.00–4.00) | 2 |" in lines
    assert len(lines) == 2 + len(TASKS)
    text = tiny_answer(table)
    assert (
        "training step, 32 x 128 tokens, 3.00 (2.00–4.00); training step, the tiny GPT with torch's gradients" in text
    )
    assert "training step, GPT-2 with a fused activation, 3.00 (2.00–4.00)" in text
