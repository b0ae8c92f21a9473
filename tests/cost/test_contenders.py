"""Every contender has a name, runs or says why not, and reads what its label says."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
import torch

from probe.cost import contenders, harness, worker
from probe.cost.contenders import CONTENDERS, PLAIN, SITES, CannotRun, forward, labelled_rows, squares
from probe.models.loading import Loaded, load_model


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load_model("tiny")


@pytest.fixture
def ids(loaded: Loaded) -> torch.Tensor:
    return worker.random_ids(loaded, 12, seed=0)


def test_the_plain_pass_and_every_peer_are_registered() -> None:
    peers = {"output-attentions", "bridge-sites", "bridge-cache", "nnsight-sites"}
    assert {PLAIN, "probe-sites", "probe-rows"} | peers <= set(CONTENDERS)
    assert [c.name for c in CONTENDERS.values()] == list(CONTENDERS)
    assert len({c.label for c in CONTENDERS.values()}) == len(CONTENDERS)


@pytest.mark.parametrize("name", ["output-attentions", "bridge-sites", "bridge-cache", "nnsight-sites"])
def test_what_needs_eager_attention_or_rewires_the_model_gets_a_copy(name: str) -> None:
    assert CONTENDERS[name].own_copy
    assert not CONTENDERS["probe-sites"].own_copy


def test_a_new_contender_is_one_decorated_function(monkeypatch: pytest.MonkeyPatch, loaded: Loaded) -> None:
    monkeypatch.setattr(contenders, "CONTENDERS", known := {})

    @contenders.contender("nothing", "reads nothing", attention="eager", needs=squares(lambda anatomy: 1))
    def _nothing(loaded: Loaded) -> contenders.Pass:
        return lambda ids: None

    (mine,) = known.values()
    assert (mine.name, mine.label, mine.own_copy) == ("nothing", "reads nothing", True)
    assert mine.prepare(loaded)(torch.zeros(1, 1)) is None


def test_probe_keeps_the_named_sites_of_every_layer(loaded: Loaded, ids: torch.Tensor) -> None:
    with torch.no_grad():
        seen = CONTENDERS["probe-sites"].prepare(loaded)(ids)
    shapes = {site: tuple(seen[site, 3].shape) for site in SITES}
    assert shapes == dict.fromkeys(("q", "k", "v", "z"), (1, 12, 4, 32)) | dict.fromkeys(SITES[4:], (1, 12, 128))


def test_probe_reads_the_rows_of_four_queries(loaded: Loaded, ids: torch.Tensor) -> None:
    with torch.no_grad():
        seen = CONTENDERS["probe-rows"].prepare(loaded)(ids)
    assert tuple(seen["pattern", 0].shape) == (1, 4, 4, 12)
    assert labelled_rows(12) == [3, 6, 9, 11]


def test_the_plain_pass_is_the_model_itself(loaded: Loaded, ids: torch.Tensor) -> None:
    with torch.no_grad():
        out = CONTENDERS[PLAIN].prepare(loaded)(ids)
    assert torch.equal(out.logits, forward(loaded.model, ids).logits)


@pytest.mark.parametrize("name", ["output-attentions", "bridge-sites", "bridge-cache"])
def test_what_reads_transformers_models_only_says_so_of_the_tiny_gpt(name: str, loaded: Loaded) -> None:
    with pytest.raises(CannotRun, match=r"is for transformers' models, and tiny is none\."):
        CONTENDERS[name].prepare(loaded)


def test_a_package_that_is_not_installed_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, loaded: Loaded
) -> None:
    monkeypatch.setattr(contenders.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotRun, match=r"nnsight is not installed: pip install 'headprobe\[peers\]'\."):
        CONTENDERS["nnsight-sites"].prepare(loaded)


def test_what_would_not_fit_in_memory_is_skipped_before_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "free", lambda: 100_000)
    worker.main(["tiny", "64", "output-attentions", "--measure", "time"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer == {"skipped": "(head, query, key) tensors would need about 0 GB, and 0 GB were free."}


def test_every_pattern_at_8192_tokens_is_counted_in_full() -> None:
    class Smollm2:
        n_layers, n_heads = 30, 9

    needed = CONTENDERS["output-attentions"].needs(Smollm2(), 8192)  # type: ignore[arg-type]
    assert needed == (30 + 3) * 9 * 8192**2 * 4


def test_token_ids_are_the_same_for_every_contender(loaded: Loaded) -> None:
    first, again, other = (worker.random_ids(loaded, 64, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (1, 64)
    assert int(first.max()) < loaded.model.config.vocab_size


def test_the_worker_answers_with_paired_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    worker.main(["tiny", "8", "probe-rows", "--measure", "time", "--repeats", "2"])
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: len(seconds) for name, seconds in answer.items()} == {"plain": 3, "contender": 2}
    assert all(math.isfinite(s) and s > 0 for seconds in answer.values() for s in seconds)


def test_peak_memory_sees_what_a_pass_holds_at_once() -> None:
    # In a process of its own, as in the study: this one may have held far more before.
    code = (
        "import torch; from probe.cost.memory import peak_mb; "
        "print(peak_mb(lambda: torch.ones(1)), peak_mb(lambda: torch.ones(50_000_000)))"  # 200 MB
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    small, large = map(float, done.stdout.split())
    assert 190 < large - small < 260


def test_peak_memory_is_not_that_of_the_process_that_asked() -> None:
    ballast = b"x" * 800_000_000
    asked = harness.ask_worker(["tiny", "8", PLAIN, "--measure", "memory"])
    assert asked["peak_mb"] < len(ballast) / 1e6
