"""The ledger counts what models have: every sum here is held against real parameters, or against sums done anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from probe.by_hand import ledger
from probe.by_hand.ledger import GPT3, LLAMA_7B, SMOLLM2_135M, Sizes, parameters, sizes_of, total
from probe.errors import ProbeError, UnknownName, UnsupportedModel
from probe.models.gpt import GPT, Config
from probe.subject import Subject


def counted(model: nn.Module) -> int:
    """Parameters; one that is used twice is one."""
    return sum(p.numel() for p in model.parameters())


def by_part(sizes: Sizes) -> dict[str, int]:
    return {line.part: line.parameters for line in parameters(sizes)}


def built(config: Any) -> nn.Module:
    with torch.device("meta"):  # shapes alone
        return transformers.AutoModelForCausalLM.from_config(config)


SMALL = {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
GATED = {**SMALL, "intermediate_size": 40, "num_key_value_heads": 2}
WIDE = {**GATED, "head_dim": 8}  # wider heads than 24 / 4
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=99, n_embd=24, n_layer=3, n_head=4, n_positions=32),
    "gpt2, its own inner width": lambda: transformers.GPT2Config(
        vocab_size=99, n_embd=24, n_layer=3, n_head=4, n_inner=50, tie_word_embeddings=False
    ),
    "llama": lambda: transformers.LlamaConfig(**WIDE, tie_word_embeddings=False),
    "llama with biases": lambda: transformers.LlamaConfig(
        **WIDE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "mistral": lambda: transformers.MistralConfig(**WIDE),
    "qwen2": lambda: transformers.Qwen2Config(**GATED),
    "qwen3": lambda: transformers.Qwen3Config(**WIDE),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_total_is_what_transformers_builds(name: str) -> None:
    config = CONFIGS[name]()
    assert total(sizes_of(config)) == counted(built(config))


def test_the_total_of_smollm2_is_what_the_model_has(smollm2: Subject) -> None:
    assert sizes_of(smollm2.model.config) == SMOLLM2_135M
    assert total(SMOLLM2_135M) == counted(smollm2.model) == 134_515_008


def test_the_total_of_the_tiny_gpt_is_what_the_model_has(tiny: Subject) -> None:
    assert total(sizes_of(tiny.model.config)) == counted(tiny.model)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_kv_heads": 2, "d_head": 6, "position": "rope"},
        {"ffn": "swiglu", "norm": "rms", "bias": False, "tied": False},
        {"ffn": "none", "norm_place": "post", "position": "alibi"},
        {"norm": "none", "d_mlp": 20, "position": "sinusoidal"},
    ],
)
def test_the_total_follows_every_choice_of_a_tiny_gpt(options: dict[str, Any]) -> None:
    config = Config(vocab_size=30, n_layers=3, n_heads=4, d_model=16, max_positions=12, **options)
    assert total(sizes_of(config)) == counted(GPT(config))


def test_each_part_is_the_modules_of_a_llama() -> None:
    config = CONFIGS["llama"]()
    model, parts = built(config), by_part(sizes_of(config))

    def of(*names: str) -> int:
        return sum(p.numel() for n, p in model.named_parameters() if any(name in n for name in names))

    assert parts["token embedding"] == of("embed_tokens")
    assert parts["queries"] == of("q_proj") == 2 * of("k_proj")
    assert parts["keys"] == of("k_proj")
    assert parts["values"] == of("v_proj")
    assert parts["output of attention"] == of("o_proj")
    assert parts["MLP"] == of("gate_proj", "up_proj", "down_proj")
    assert parts["norms"] == of("norm")
    assert parts["output head"] == of("lm_head")
    assert parts["positions"] == parts["biases"] == 0


def test_each_part_is_the_modules_of_a_gpt2() -> None:
    config = CONFIGS["gpt2"]()
    model, parts = built(config), by_part(sizes_of(config))
    named = dict(model.named_parameters())
    biases = sum(p.numel() for n, p in named.items() if n.endswith("bias") and "ln_" not in n)
    assert parts["positions"] == named["transformer.wpe.weight"].numel() == 32 * 24
    assert parts["biases"] == biases
    assert parts["queries"] + parts["keys"] + parts["values"] == 3 * named["transformer.h.0.attn.c_attn.weight"].numel()
    assert parts["norms"] == sum(p.numel() for n, p in named.items() if "ln_" in n)
    assert parts["output head"] == 0


# published models


def test_gpt3_has_174_billion_in_its_blocks_and_175_in_all() -> None:
    parts = by_part(GPT3)
    blocks = sum(parts[p] for p in ("queries", "keys", "values", "output of attention", "MLP"))
    assert blocks == 12 * 96 * 12288**2 == 173_946_175_488
    assert round(total(GPT3) / 1e9, 1) == 174.6
    assert parts["token embedding"] + parts["positions"] == (50257 + 2048) * 12288


def test_a_7b_llama_has_its_published_parameters() -> None:
    assert total(LLAMA_7B) == 6_738_415_616


def test_lora_of_rank_8_on_two_matrices_is_a_sixteenth_of_a_per_cent() -> None:
    assert ledger.lora(LLAMA_7B, 8) == 32 * 2 * (8 * 4096 + 8 * 4096) == 4_194_304
    assert round(100 * ledger.lora(LLAMA_7B, 8) / total(LLAMA_7B), 2) == 0.06


# peft asks transformers for a name it has deprecated
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_counts_what_peft_would_train() -> None:
    peft = pytest.importorskip("peft")
    config = CONFIGS["llama"]()
    model = transformers.AutoModelForCausalLM.from_config(config)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=["q_proj", "v_proj", "o_proj"]))
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert ledger.lora(sizes_of(config), 3, on=("q", "v", "o")) == trained


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ledger.lora(LLAMA_7B, 8, on=("w",)), UnknownName, "no matrix of attention named 'w'. .*k, o, q, v"),
        (lambda: ledger.lora(LLAMA_7B, 0), ProbeError, "rank must be at least 1, not 0"),
        (lambda: ledger.tokens_fed(0, 5), ProbeError, "a prompt of 0 and 5 generated tokens: both must be at least 1"),
        (lambda: ledger.attention_work(5, 10, 4), ProbeError, "d_model=10 cannot be cut into n_heads=4"),
        (lambda: Sizes(1, 3, 10, 5, 5), ProbeError, "d_model=10 cannot be cut into n_heads=3 equal heads"),
        (
            lambda: Sizes(1, 6, 12, 5, 5, n_kv_heads=4),
            ProbeError,
            r"n_kv_heads=4: allowed are \[1, 2, 3, 6\]",
        ),
        (
            lambda: sizes_of(transformers.BertConfig()),
            UnsupportedModel,
            "'bert': it knows the tiny GPT's and .*gpt2",
        ),
        (lambda: sizes_of(7), UnsupportedModel, "no configuration of type 'int'"),
    ],
)
def test_what_cannot_be_counted_is_refused(call: Any, error: type[ProbeError], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# cache and comparisons


def test_the_cache_is_the_bytes_a_model_keeps() -> None:
    config = CONFIGS["llama"]()
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.zeros(1, 7, dtype=torch.long), use_cache=True).past_key_values
    kept = sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))
    assert ledger.cache_bytes(sizes_of(config), 7, bytes_per_number=4) == kept


def test_a_7b_keeps_half_a_mebibyte_a_token_and_two_gibibytes_at_4096() -> None:
    assert ledger.cache_bytes(LLAMA_7B) == 2**19
    assert ledger.cache_bytes(LLAMA_7B, 4096) == 2**31


def test_sharing_keys_makes_the_cache_of_smollm2_three_times_smaller() -> None:
    unshared = Sizes(n_layers=30, n_heads=9, d_model=576, d_mlp=1536, vocab_size=49152, gated=True)
    assert ledger.cache_bytes(SMOLLM2_135M) == 23_040
    assert ledger.cache_bytes(unshared) == 3 * 23_040


@pytest.mark.parametrize(("prompt", "generated"), [(1000, 500), (1, 1), (3, 7)])
def test_tokens_fed_are_those_a_loop_of_passes_feeds(prompt: int, generated: int) -> None:
    text, without, with_cache, cached = prompt, 0, 0, 0
    for _ in range(generated):
        without += text
        with_cache += text - cached
        cached = text
        text += 1
    assert ledger.tokens_fed(prompt, generated) == (without, with_cache)


def test_a_cache_saves_417_times_the_work_of_a_long_answer() -> None:
    fed = ledger.tokens_fed(1000, 500)
    assert fed == (624_750, 1_499)
    assert round(fed.without_cache / fed.with_cache) == 417


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_comparisons_are_the_pairs(n: int) -> None:
    assert ledger.comparisons(n) == sum(1 for _ in range(n) for _ in range(n))
    assert ledger.comparisons(n, causal=True) == sum(1 for q in range(n) for k in range(n) if k <= q)
