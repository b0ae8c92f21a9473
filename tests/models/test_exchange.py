"""Tiny GPTs in transformers' layouts: the same logits there, back, from a folder, and in TransformerLens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import probe
from probe.capture.capture import Capture
from probe.data import language
from probe.errors import ProbeError, UnsupportedModel
from probe.models.exchange import from_transformers, to_transformers
from probe.models.gpt import GPT, Config
from probe.models.tokenizer import word_tokenizer

SIZES = {"vocab_size": 40, "n_layers": 3, "n_heads": 4, "d_model": 32, "max_positions": 24, "init_scale": 0.2}
LLAMA = {"position": "rope", "norm": "rms", "ffn": "swiglu"}
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2, no biases": {"bias": False},
    "gpt2, untied": {"tied": False},
    "gpt2, narrow MLP, eager": {"d_mlp": 20, "attention": "eager"},
    "gpt2, PyTorch's initial weights": {"init_scale": None},
    "llama": LLAMA,
    "llama, no biases": {**LLAMA, "bias": False},
    "llama, untied": {**LLAMA, "tied": False},
    "llama, grouped": {**LLAMA, "n_kv_heads": 2},
    "llama, one key-value head, wide heads": {**LLAMA, "n_kv_heads": 1, "d_head": 12},
    "llama, narrow MLP, eager": {**LLAMA, "d_mlp": 20, "attention": "eager"},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
IDS = torch.randint(0, 40, (2, 24), generator=torch.Generator().manual_seed(0))


def made(**options: Any) -> GPT:
    """A tiny GPT none of whose weights has a value that another could stand for: norms and biases are drawn as well."""
    torch.manual_seed(0)
    model = GPT(Config(**{**SIZES, **options})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if name.endswith("weight") else 0.0))
    return model


def logits(model: Any, ids: torch.Tensor = IDS, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits


@every_option
def test_the_logits_are_the_same_there_and_back(options: dict[str, Any]) -> None:
    model = made(**options)
    there = to_transformers(model)
    back = from_transformers(there)
    assert type(there).__name__ == ("LlamaForCausalLM" if "norm" in options else "GPT2LMHeadModel")
    assert not there.training
    assert not back.training
    assert (logits(there) - logits(model)).abs().max() <= 1e-5
    assert (logits(back) - logits(model)).abs().max() <= 1e-5
    assert logits(model).std() > 0.1
    weights = back.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    for name in ("n_heads", "kv_heads", "head_width", "mlp_width", "max_positions", "tied", "attention", *LLAMA):
        assert getattr(back.config, name) == getattr(model.config, name), name


@every_option
def test_the_logits_are_the_same_from_a_folder(options: dict[str, Any], tmp_path: Path) -> None:
    model = made(**options)
    to_transformers(model).save_pretrained(tmp_path)
    opened = tf.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert (logits(opened) - logits(model)).abs().max() <= 1e-5
    assert (logits(from_transformers(opened)) - logits(model)).abs().max() <= 1e-5


@pytest.mark.parametrize("options", [{}, LLAMA], ids=["gpt2", "llama"])
def test_padded_prompts_too(options: dict[str, Any]) -> None:
    model = made(**options)
    mask = torch.ones_like(IDS)
    mask[1, 15:] = 0
    apart = logits(to_transformers(model), mask=mask) - logits(model, mask=mask)
    assert apart[mask.bool()].abs().max() <= 1e-5


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_models_of_transformers_become_tiny_gpts(kind: str) -> None:
    """Weights as transformers' own classes draw them: nothing here comes from a tiny GPT."""
    config = {
        "gpt2": lambda: tf.GPT2Config(vocab_size=40, n_positions=24, n_embd=32, n_layer=2, n_head=4),
        "llama": lambda: tf.LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=44,
            max_position_embeddings=24,
        ),
    }[kind]()
    torch.manual_seed(1)
    config.initializer_range = 0.2
    model = tf.AutoModelForCausalLM.from_config(config).eval()
    assert (logits(from_transformers(model)) - logits(model)).abs().max() <= 1e-5


def test_nothing_is_shared_between_the_copies() -> None:
    model = made()
    before = logits(model)
    there = to_transformers(model)
    back = from_transformers(there)
    with torch.no_grad():
        for copied in (there, back):
            for parameter in copied.parameters():
                parameter.zero_()
    assert torch.equal(logits(model), before)


def test_dtype_is_kept() -> None:
    there = to_transformers(made().to(torch.float64))
    assert there.dtype == torch.float64
    assert from_transformers(there).base_model.embed.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"position": "alibi"}, "position='alibi' has no layout in transformers; the nearest is GPT2LMHeadModel."),
        ({"position": "sinusoidal"}, "position='sinusoidal' has"),
        ({"position": "none"}, "position='none' has"),
        ({"norm_place": "post"}, "norm_place='post' has"),
        ({"residual": False}, "residual=False has"),
        ({"visible": "bidirectional"}, "visible='bidirectional' has"),
        ({"visible": "sliding", "window": 4}, "visible='sliding' has"),
        ({"ffn": "none"}, "ffn='none' has"),
        ({"norm": "none"}, "norm='none' has"),
        ({"n_kv_heads": 2}, "n_kv_heads=2 has"),
        ({"d_head": 16}, "d_head=16 has"),
        ({**LLAMA, "norm": "layer"}, "norm='layer' has no layout in transformers; the nearest is LlamaForCausalLM."),
        ({**LLAMA, "n_heads": 3, "d_head": 8}, "d_head=8 has no layout in transformers; the nearest is Llama"),
    ],
)
def test_parts_that_no_layout_has_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ProbeError) as error:
        to_transformers(made(**options))
    block = "norm_place='pre', residual=True, visible='causal'"
    assert str(error.value).startswith(f"a tiny GPT with {said}")
    assert f"Allowed: GPT2LMHeadModel: position='learned', norm='layer', ffn='gelu', {block}; " in str(error.value)
    assert f"LlamaForCausalLM: position='rope', norm='rms', ffn='swiglu', {block}; " in str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"activation_function": "gelu"},
            r"^activation_function='gelu': a tiny GPT computes .*='gelu_new' and nothing",
        ),
        ({"layer_norm_epsilon": 1e-6}, r"^layer_norm_epsilon=1e-06: .*=1e-05 and"),
        ({"scale_attn_weights": False}, r"^scale_attn_weights=False: .*=True and"),
        ({"rms_norm_eps": 1e-5}, r"^rms_norm_eps=1e-05: .*=1e-06 and"),
        ({"hidden_act": "gelu"}, r"^hidden_act='gelu': .*='silu' and"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, r"^rope_parameters=\{.*500000"),
        ({"attention_bias": True}, r"^attention_bias=True with mlp_bias=False: a tiny GPT has biases in all of its"),
    ],
)
def test_settings_that_a_tiny_gpt_does_not_compute_are_named(settings: dict[str, Any], said: str) -> None:
    small = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if {"rms_norm_eps", "hidden_act", "rope_parameters", "attention_bias"} & settings.keys():
        model = tf.LlamaForCausalLM(tf.LlamaConfig(**small, intermediate_size=32, **settings))
    else:
        model = tf.GPT2LMHeadModel(tf.GPT2Config(**small, **settings))
    with pytest.raises(ProbeError, match=said):
        from_transformers(model)


def test_other_architectures_are_refused() -> None:
    small = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**small, intermediate_size=32))
    with pytest.raises(UnsupportedModel, match=r"^a GPTNeoXForCausalLM cannot become .* GPT2LMHeadModel and LlamaForC"):
        from_transformers(model)


def test_adapted_weights_are_refused() -> None:
    there = to_transformers(made())
    there.transformer.h[1].attn.c_attn = torch.nn.Sequential(there.transformer.h[1].attn.c_attn)
    with pytest.raises(
        UnsupportedModel, match=r"has no transformer\.h\.1\.attn\.c_attn\.weight: its weights are adapted"
    ):
        from_transformers(there)


@pytest.mark.parametrize("options", [{}, LLAMA], ids=["gpt2", "llama"])
def test_probe_reads_both_homes_alike(options: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = word_tokenizer(language.WORDS)
    model = made(**options, vocab_size=len(tokenizer))
    to_transformers(model).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    sites = ["rot_q", "rot_k", "v", "z", "pattern", "resid_post", "attn_out", "mlp_out", "logits"]
    text = "Anna thanked Ben because she Anna was late ."
    ours, theirs = probe.load(model, tokenizer).run(text, sites), probe.load(tmp_path).run(text, sites)
    assert ours.values.keys() == theirs.values.keys()
    for key, tensor in ours.values.items():
        assert (tensor - theirs.values[key]).abs().max() <= 1e-5, key


@pytest.mark.filterwarnings("ignore")  # of transformer-lens and what it imports
@pytest.mark.parametrize("options", [{}, {**LLAMA, "n_kv_heads": 2}], ids=["gpt2", "llama"])
def test_transformer_lens_opens_it(options: dict[str, Any], tmp_path: Path) -> None:
    os.environ.setdefault("WANDB_MODE", "disabled")
    lens = pytest.importorskip("transformer_lens.model_bridge", reason="the [lens] extra is not installed")
    tokenizer = word_tokenizer(language.WORDS)
    model = made(**options, vocab_size=len(tokenizer))
    to_transformers(model).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened = tf.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    read = tf.AutoTokenizer.from_pretrained(tmp_path)  # the bridge asks where it came from
    bridge = lens.TransformerBridge.boot_transformers("probe/model", hf_model=opened, tokenizer=read)
    with torch.no_grad(), Capture(model, ["pattern"]) as seen:
        theirs, cache = bridge.run_with_cache(IDS)
        ours = model(IDS).logits
    assert (theirs - ours).abs().max() <= 1e-5
    for layer in range(3):
        assert (cache[f"blocks.{layer}.attn.hook_pattern"] - seen["pattern", layer]).abs().max() <= 1e-5
