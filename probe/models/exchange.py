"""The tiny GPT in the layouts of transformers, and back: the same weights and logits in other homes.

    model = to_transformers(gpt)             # a GPT2LMHeadModel or a LlamaForCausalLM
    model.save_pretrained("folder")          # opens in whatever reads transformers' models
    gpt = from_transformers(model)

Two layouts have parts that a tiny GPT can be made of: GPT-2's (learned positions, LayerNorm, GELU) and Llama's (rotary
positions, RMSNorm, SwiGLU). Logits then differ by rounding alone, by at most 1e-5 in float32.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probe.errors import ProbeError, UnsupportedModel
from probe.models.gpt import GPT, Config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GPT2, LLAMA = "GPT2LMHeadModel", "LlamaForCausalLM"

# What each layout has of the parts that a tiny GPT may be made of.
_BLOCK = {"norm_place": "pre", "residual": True, "visible": "causal"}
PARTS: dict[str, dict[str, object]] = {
    GPT2: {"position": "learned", "norm": "layer", "ffn": "gelu", **_BLOCK},
    LLAMA: {"position": "rope", "norm": "rms", "ffn": "swiglu", **_BLOCK},
}

# What a configuration of transformers has to say, for nothing else has a place in a tiny GPT.
FIXED: dict[str, dict[str, object]] = {
    GPT2: {
        "activation_function": "gelu_new",  # GELU in its tanh form; with "gelu", the exact one, logits would differ
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    LLAMA: {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}

# Size of a tiny GPT -> its name in the layout.
_SAME = {"vocab_size": "vocab_size", "tied": "tie_word_embeddings", "init_scale": "initializer_range"}
SIZES: dict[str, dict[str, str]] = {
    GPT2: {
        **_SAME,
        "max_positions": "n_positions",
        "d_model": "n_embd",
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_mlp": "n_inner",
    },
    LLAMA: {
        **_SAME,
        "max_positions": "max_position_embeddings",
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "d_head": "head_dim",
        "d_mlp": "intermediate_size",
        "bias": "attention_bias",
    },
}

# Module of a tiny GPT -> modules of the layout, one or, for the queries, keys and values of Llama, three.
MODULES: dict[str, dict[str, str]] = {
    GPT2: {
        "base_model.embed": "transformer.wte",
        "base_model.positions": "transformer.wpe",
        "base_model.blocks.N.norm_attention": "transformer.h.N.ln_1",
        "base_model.blocks.N.attention.qkv": "transformer.h.N.attn.c_attn",
        "base_model.blocks.N.attention.out": "transformer.h.N.attn.c_proj",
        "base_model.blocks.N.norm_mlp": "transformer.h.N.ln_2",
        "base_model.blocks.N.mlp.expand": "transformer.h.N.mlp.c_fc",
        "base_model.blocks.N.mlp.contract": "transformer.h.N.mlp.c_proj",
        "base_model.norm": "transformer.ln_f",
        "unembed": "lm_head",
    },
    LLAMA: {
        "base_model.embed": "model.embed_tokens",
        "base_model.blocks.N.norm_attention": "model.layers.N.input_layernorm",
        "base_model.blocks.N.attention.qkv": (
            "model.layers.N.self_attn.q_proj model.layers.N.self_attn.k_proj model.layers.N.self_attn.v_proj"
        ),
        "base_model.blocks.N.attention.out": "model.layers.N.self_attn.o_proj",
        "base_model.blocks.N.norm_mlp": "model.layers.N.post_attention_layernorm",
        "base_model.blocks.N.mlp.expand": "model.layers.N.mlp.up_proj",
        "base_model.blocks.N.mlp.gate": "model.layers.N.mlp.gate_proj",
        "base_model.blocks.N.mlp.contract": "model.layers.N.mlp.down_proj",
        "base_model.norm": "model.norm",
        "unembed": "lm_head",
    },
}
INPUT_FIRST = re.compile(r"\.(attn|mlp)\.c_\w+\.weight$")  # GPT-2's matrices are (in, out), all others (out, in)


def to_transformers(model: GPT) -> PreTrainedModel:
    """A copy as a GPT2LMHeadModel or LlamaForCausalLM, in evaluation mode, on the same device and of the same dtype.

    Fused attention becomes "sdpa". GPT-2's layout always has biases: where the tiny GPT has none, they are 0.
    Raises ProbeError, naming the fields of the configuration that neither layout has a place for.
    """
    import transformers

    config = model.config
    layout = _layout(config)
    made: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, layout).config_class(**_settings(config, layout)),
        attn_implementation="eager" if config.attention == "eager" else "sdpa",
    )
    like = model.base_model.embed.weight
    made.to(like.device, like.dtype)
    weights = {name: torch.zeros_like(tensor) for name, tensor in made.state_dict().items() if name.endswith("bias")}
    queries, keys = config.n_heads * config.head_width, config.kv_heads * config.head_width
    for name, tensor in model.state_dict().items():
        names = _names(name, layout)
        parts = tensor.split([queries, keys, keys]) if len(names) == 3 else [tensor]
        weights |= {theirs: _turned(theirs, part) for theirs, part in zip(names, parts, strict=True)}
    if config.tied:
        weights["lm_head.weight"] = like
    made.load_state_dict(weights)
    return made.eval()


def from_transformers(model: PreTrainedModel) -> GPT:
    """A copy of a GPT2LMHeadModel or LlamaForCausalLM as a tiny GPT, in evaluation mode, on the same device and of the
    same dtype. Attention is fused unless the model's is "eager". Dropout is left out: a tiny GPT has none.

    Raises UnsupportedModel for other architectures, ProbeError, naming the setting, for a model that computes what a
    tiny GPT does not, such as GPT-2 with the exact GELU, "gelu".
    """
    layout, settings = type(model).__name__, model.config
    if layout not in MODULES:
        raise UnsupportedModel(f"a {layout} cannot become a tiny GPT; only {' and '.join(MODULES)} have its parts.")
    for name, needed in FIXED[layout].items():
        if getattr(settings, name) != needed:
            raise ProbeError(
                f"{name}={getattr(settings, name)!r}: a tiny GPT computes {name}={needed!r} and nothing else, so its "
                "logits would not be those of the model."
            )
    if layout == LLAMA and settings.attention_bias != settings.mlp_bias:
        raise ProbeError(
            f"attention_bias={settings.attention_bias} with mlp_bias={settings.mlp_bias}: a tiny GPT has biases in all "
            "of its matrices or in none."
        )
    sizes: dict[str, Any] = {ours: getattr(settings, theirs) for ours, theirs in SIZES[layout].items()}
    attention = "eager" if settings._attn_implementation == "eager" else "fused"
    made = GPT(Config(**PARTS[layout], **sizes, attention=attention))  # type: ignore[arg-type]
    places = {name: _names(name, layout) for name in made.state_dict()}
    theirs = model.state_dict()
    if missing := [name for names in places.values() for name in names if name not in theirs]:
        raise UnsupportedModel(f"the {layout} has no {missing[0]}: its weights are adapted or quantised.")
    made.load_state_dict({name: torch.cat([_turned(n, theirs[n]) for n in names]) for name, names in places.items()})
    like = theirs[places["base_model.embed.weight"][0]]
    return made.to(like.device, like.dtype).eval()


def _layout(config: Config) -> str:
    """The layout that has all parts of a configuration."""
    misfits: dict[str, list[str]] = {}
    for layout, parts in PARTS.items():
        misfits[layout] = [name for name, has in parts.items() if getattr(config, name) != has]
        if layout == GPT2 and config.kv_heads != config.n_heads:
            misfits[layout].append("n_kv_heads")
        if config.d_model % config.n_heads or (layout == GPT2 and config.head_width * config.n_heads != config.d_model):
            misfits[layout].append("d_head")
    nearest = min(misfits, key=lambda layout: len(misfits[layout]))
    if misfits[nearest]:
        wrong = ", ".join(f"{name}={getattr(config, name)!r}" for name in misfits[nearest])
        allowed = "; ".join(f"{layout}: {', '.join(f'{n}={v!r}' for n, v in p.items())}" for layout, p in PARTS.items())
        raise ProbeError(
            f"a tiny GPT with {wrong} has no layout in transformers; the nearest is {nearest}. Allowed: {allowed}; "
            f"d_model divisible by n_heads, and for {GPT2} as many key-value heads, each d_model / n_heads wide."
        )
    return nearest


def _settings(config: Config, layout: str) -> dict[str, Any]:
    """What makes the layout's configuration."""
    own = {**vars(config), "n_kv_heads": config.kv_heads, "d_head": config.head_width, "d_mlp": config.mlp_width}
    settings = {theirs: own[ours] for ours, theirs in SIZES[layout].items() if own[ours] is not None}
    settings |= {"bos_token_id": None, "eos_token_id": None}  # which tokens these are is the tokenizer's to know
    if layout == GPT2:
        return settings | FIXED[layout] | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return settings | FIXED[layout] | {"mlp_bias": config.bias}


def _names(name: str, layout: str) -> list[str]:
    """Where a weight of the tiny GPT lies in the layout."""
    module, kind = name.rsplit(".", 1)
    layer = re.search(r"\d+", module)
    theirs = MODULES[layout][re.sub(r"\d+", "N", module)]
    return [f"{n.replace('.N.', f'.{layer[0]}.') if layer else n}.{kind}" for n in theirs.split()]


def _turned(name: str, tensor: Tensor) -> Tensor:
    """A weight with the axes that its place in the layout has, or back."""
    return tensor.T if INPUT_FIRST.search(name) else tensor
