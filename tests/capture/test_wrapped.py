"""Big, wrapped, half-precision and compiled models, and captures that would not fit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.errors import CaptureError, UnsupportedModel
from probe.subject import Subject

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18]])
SITES = ["q", "k", "v", "z", "pattern", "scores", "result", "resid_pre", "resid_mid", "resid_post", "mlp_out"]


def llama(dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        **more,
    )
    return tf.LlamaForCausalLM(config).eval().to(dtype)


def seen(model: Any, ids: torch.Tensor = IDS, **options: Any) -> tuple[torch.Tensor, Capture]:
    with torch.no_grad(), Capture(model, SITES, **options) as capture:
        output = model(input_ids=ids, use_cache=False).logits
    return output, capture


def test_a_model_that_accelerate_spreads_over_devices_is_read_the_same(tmp_path: Path) -> None:
    from accelerate import cpu_offload, disk_offload, dispatch_model

    plain, expected = seen(llama())
    for spread in (
        lambda m: dispatch_model(
            m,
            {
                "model.embed_tokens": "cpu",
                "model.layers.0": "disk",
                "model.layers.1": "cpu",
                "model.layers.2": "disk",
                "model.norm": "cpu",
                "model.rotary_emb": "cpu",
                "lm_head": "cpu",
            },
            main_device="cpu",
            offload_dir=str(tmp_path / "part"),
        ),
        lambda m: disk_offload(m, str(tmp_path / "all"), execution_device=torch.device("cpu")),
        lambda m: cpu_offload(m, execution_device=torch.device("cpu")),
    ):
        model = spread(llama())
        output, capture = seen(model, device="cpu")
        assert torch.equal(output, plain)
        for site in SITES:
            for layer in range(3):
                assert torch.equal(capture[site, layer], expected[site, layer]), (site, layer)
        with torch.no_grad(), Capture(model, edits=[edits.zero("result", 2, heads=-1)]):
            edited = model(input_ids=IDS, use_cache=False).logits
        assert not torch.equal(edited, plain)


def test_an_offloaded_model_is_a_subject(tiny: Subject, tmp_path: Path) -> None:
    from accelerate import disk_offload

    text = "Anna thanked Ben ."
    expected = probe.load(llama(), tiny.tokenizer).run(text, ["pattern", "logits"])
    model = disk_offload(llama(), str(tmp_path), execution_device=torch.device("cpu"))
    run = probe.load(model, tiny.tokenizer).run(text, ["pattern", "logits"])
    assert torch.equal(run["pattern", 2], expected["pattern", 2])
    assert torch.equal(run["logits"], expected["logits"])


def test_half_precision_scores_are_accumulated_in_single_precision() -> None:
    """Against attention written out in float64 on the captured half-precision queries and keys."""
    for dtype in (torch.bfloat16, torch.float16):
        model = llama(dtype)
        with torch.no_grad(), Capture(model, ["rot_q", "rot_k", "scores", "pattern", "z"]) as capture:
            model(input_ids=IDS, use_cache=False)
        for layer in range(3):
            q = capture["rot_q", layer].double().transpose(1, 2)
            k = capture["rot_k", layer].double().transpose(1, 2).repeat_interleave(2, 1)
            scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
            assert capture["pattern", layer].dtype == torch.float32
            assert (capture["pattern", layer].double() - scores.softmax(-1)).abs().max() <= 1e-5
            assert capture["z", layer].dtype == dtype


def test_half_precision_models_can_be_edited_and_pass_the_check_at_load(tiny: Subject) -> None:
    subject = probe.load(llama(torch.bfloat16), tiny.tokenizer)
    text = "Anna thanked Ben ."
    plain = subject.run(text, "logits")["logits"]
    for change in (edits.scale("pattern", 1, 0.5), edits.zero("v", 2), edits.scale("resid_mid", 0, 2.0)):
        assert not torch.equal(subject.run(text, "logits", edits=[change])["logits"], plain)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft asks transformers by an older name
def test_a_model_with_an_adapter_is_read_with_it() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    model = peft.get_peft_model(llama(), config).eval()
    with torch.no_grad():
        plain = model(input_ids=IDS, use_cache=False).logits
    output, capture = seen(model)
    assert torch.equal(output, plain)
    with torch.no_grad():
        merged = model.merge_and_unload()
    _, expected = seen(merged)
    for site in SITES:
        for layer in range(3):
            a, b = capture[site, layer], expected[site, layer]
            hidden = b < -1e30
            assert torch.allclose(a.masked_fill(hidden, 0), b.masked_fill(hidden, 0), atol=1e-3, rtol=1e-3), site


def test_a_compiled_model_is_run_as_it_was_written() -> None:
    plain, expected = seen(llama())
    for compiled in (torch.compile(llama(), backend="eager"), _compiled_in_place(llama())):
        with torch.no_grad():
            compiled(input_ids=IDS, use_cache=False)
        output, capture = seen(compiled)
        assert torch.allclose(output, plain, atol=1e-5)
        for site in SITES:
            assert torch.allclose(capture[site, 2], expected[site, 2], atol=1e-5), site


def _compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def test_a_capture_that_does_not_fit_says_what_it_would_take_before_it_takes_it(smollm2: Subject) -> None:
    ids = torch.tensor([[7] * 200])
    whole = 9 * 200 * 200 * 4 * 30 / 1e6
    with (
        pytest.raises(CaptureError, match=rf"scores would take {whole:.2f} MB over 30 layers.*max_bytes is 20\.00 MB"),
        torch.no_grad(),
        Capture(smollm2.model, ["scores"], max_bytes=20_000_000) as capture,
    ):
        smollm2.model(input_ids=ids, use_cache=False)
    assert not list(capture.store)
    with torch.no_grad(), Capture(smollm2.model, ["scores"], rows=[-1], max_bytes=20_000_000) as capture:
        smollm2.model(input_ids=ids, use_cache=False)
    assert capture["scores", 29].shape == (1, 9, 1, 200)
    with pytest.raises(CaptureError, match="resid_post would take"):
        smollm2.run("A cat sat.", "resid_post", max_bytes=1000)


@pytest.mark.parametrize("site", ["scores", "pattern", "result"])
def test_what_does_not_fit_is_not_computed(site: str, smollm2: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("computed before it was refused")

    monkeypatch.setattr("probe.capture.heads.attention_rows", never)
    monkeypatch.setattr("probe.capture.residual.head_writes", never)
    for options in ({}, {"gradients": True}):
        with (
            pytest.raises(CaptureError, match=rf"{site} would take .* over 2 layers.*max_bytes is 1\.00 kB"),
            Capture(smollm2.model, [site], layers=[0, 29], max_bytes=1000, **options),
        ):
            smollm2.model(input_ids=torch.tensor([[7] * 20]), use_cache=False)
    if site != "result":
        with (
            pytest.raises(CaptureError, match=rf"{site} would take"),
            torch.no_grad(),
            Capture(smollm2.model, edits=[probe.edits.scale(site, 3, 0.5)], max_bytes=1000),
        ):
            smollm2.model(input_ids=torch.tensor([[7] * 20]), use_cache=False)


def test_a_capture_may_take_what_memory_is_free(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(available=2000)
    monkeypatch.setattr("probe.capture.guards.psutil.virtual_memory", lambda: free)
    with pytest.raises(CaptureError, match=r"resid_post would take .* max_bytes is 2\.00 kB"):
        tiny.run("Anna thanked Ben .", "resid_post")
    free.available = 10**9
    tiny.run("Anna thanked Ben .", "resid_post")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # newer transformers say "activation checkpointing"
def test_gradient_checkpointing_in_training_is_refused() -> None:
    model = llama().train()
    model.gradient_checkpointing_enable()
    with (
        pytest.raises(UnsupportedModel, match="checkpoints gradients, which runs each block twice"),
        Capture(model, "z"),
    ):
        pass
    _, capture = seen(model.eval())
    assert capture["z", 2].shape == (2, 7, 4, 8)


def test_captures_do_not_pile_up_in_memory(smollm2: Subject) -> None:
    """Repeated captures, and captures of bigger batches, take what they keep and no more."""
    import gc

    def held() -> int:
        gc.collect()
        return sum(t.numel() for t in gc.get_objects() if issubclass(type(t), torch.Tensor))

    ids = torch.tensor([[7] * 32])
    seen(smollm2.model, ids)
    before = held()
    for _ in range(3):
        seen(smollm2.model, ids)
    assert held() <= before
    sizes = [seen(smollm2.model, ids.repeat(n, 1))[1].store.bytes for n in (1, 2, 4)]
    assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]
