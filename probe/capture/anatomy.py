"""Where a model keeps its parts. A `Kind` names places only; no arithmetic of a model is written again here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from probe.errors import UnsupportedModel


@dataclass(frozen=True)
class Kind:
    """One way of laying out a transformer, as attribute paths.

    blocks: the list of blocks, in the backbone. attention: in a block, the module that calls the attention function.
    project: in a block, the output projection of attention. mlp: in a block, the module that ends the MLP half; None
    where it flattens batch and positions into one axis.
    mid: in a block, the module at whose input or output the residual stream stands between attention and MLP; None
    where it is not known. never: attributes of a block that rule this kind out, though the paths exist.
    """

    name: str
    blocks: str
    attention: str
    project: str
    mlp: str | None
    mid: tuple[str, Literal["input", "output"]] | None
    never: tuple[str, ...] = ()


KINDS = (
    Kind("tiny", "blocks", "attention", "attention.out", "mlp", ("norm_mlp", "input")),
    # Gemma-2 and 3 norm what attention writes before adding it: between the halves the stream enters the next norm.
    Kind("gemma", "layers", "self_attn", "self_attn.o_proj", "mlp", ("pre_feedforward_layernorm", "input")),
    # Llama, Mistral, Qwen, Phi-3, SmolLM: pre-norm, one half after the other.
    Kind(
        "llama",
        "layers",
        "self_attn",
        "self_attn.o_proj",
        "mlp",
        ("post_attention_layernorm", "input"),
        never=("post_feedforward_layernorm",),
    ),
    # BERT, RoBERTa, ELECTRA: post-norm; the stream between the halves is what the attention module returns.
    Kind("bert", "encoder.layer", "attention.self", "attention.output.dense", "output.dense", ("attention", "output")),
    Kind("gpt2", "h", "attn", "attn.c_proj", "mlp", ("ln_2", "input"), never=("crossattention",)),
    # Same places, another order of norms (OLMo-2) or both halves in parallel (Cohere): everything but resid_mid.
    Kind("decoder", "layers", "self_attn", "self_attn.o_proj", "mlp", None),
    Kind("phi", "layers", "self_attn", "self_attn.dense", "mlp", None),
    Kind("neox", "layers", "attention", "attention.dense", "mlp", None),
    Kind("opt", "decoder.layers", "self_attn", "self_attn.out_proj", None, None),
    Kind("distilbert", "transformer.layer", "attention", "attention.out_lin", "ffn", ("sa_layer_norm", "output")),
    Kind("modernbert", "layers", "attn", "attn.Wo", "mlp", ("mlp_norm", "input")),
)


@dataclass(frozen=True)
class Anatomy:
    """A model's parts and sizes, as found by `dissect`.

    backbone: the model without its language-model head. embedding: the token embedding. blocks, attentions, projects
    (output projections of attention), mlps (None where their output cannot be placed): one module a layer, in order.
    mid: the module at which `resid_mid` stands in each layer, and on which side; None where it cannot be had.
    first_position: the position id of a prompt's first token (RoBERTa's is not 0). has_logits: whether the model has a
    language-model head. has_rotary: whether its configuration names rotary embeddings.
    max_positions: the longest prompt in tokens, or None where nothing bounds it.
    """

    kind: str
    model: nn.Module
    backbone: nn.Module
    embedding: nn.Module
    blocks: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    projects: tuple[nn.Module, ...]
    mlps: tuple[nn.Module, ...] | None
    mid: tuple[tuple[nn.Module, Literal["input", "output"]], ...] | None
    n_heads: int
    n_kv_heads: int
    d_model: int
    first_position: int
    has_logits: bool
    has_rotary: bool
    max_positions: int | None

    @property
    def n_layers(self) -> int:
        return len(self.blocks)


def dissect(model: nn.Module) -> Anatomy:
    """Find the parts of a tiny GPT or a transformers model. Raises UnsupportedModel, naming what was looked for."""
    backbone = _backbone(model)
    kind = next((k for k in KINDS if _fits(backbone, k)), None)
    if kind is None:
        known = "; ".join(f"{k.name}: {k.blocks}.<n>.{k.attention}" for k in KINDS)
        raise UnsupportedModel(
            f"{type(model).__name__} has no attention heads where probe looks for them ({known}). "
            "State-space and convolution models have none at all."
        )
    blocks = tuple(_at(backbone, kind.blocks))
    attentions = tuple(_at(b, kind.attention) for b in blocks)
    sizes = _sizes(model, backbone)
    mid = tuple((_at(b, kind.mid[0]), kind.mid[1]) for b in blocks) if kind.mid else None
    projects = tuple(_at(b, kind.project) for b in blocks)
    mlps = tuple(_at(b, kind.mlp) for b in blocks) if kind.mlp else None
    embedding = _embedding(backbone)
    if sizes["n_heads"] % sizes["n_kv_heads"]:
        raise UnsupportedModel(
            f"the configuration of {type(model).__name__} is not one that can attend: {sizes['n_heads']} heads cannot "
            f"share {sizes['n_kv_heads']} key-value heads."
        )
    return Anatomy(kind.name, model, backbone, embedding, blocks, attentions, projects, mlps, mid, **sizes)


def _backbone(model: nn.Module) -> nn.Module:
    inner = getattr(model, "base_model", model)
    decoder = getattr(inner, "language_model", None)
    return decoder if isinstance(decoder, nn.Module) else inner


def _embedding(backbone: Any) -> nn.Module:
    embedding: nn.Module = (
        backbone.get_input_embeddings() if hasattr(backbone, "get_input_embeddings") else backbone.embed
    )
    return embedding


def _fits(backbone: nn.Module, kind: Kind) -> bool:
    if not _has(backbone, kind.blocks):
        return False
    blocks = _at(backbone, kind.blocks)
    return (
        isinstance(blocks, nn.ModuleList)
        and len(blocks) > 0
        and all(_has(b, path) for b in blocks for path in (kind.attention, kind.project, kind.mlp) if path)
        and all(kind.mid is None or _has(b, kind.mid[0]) for b in blocks)
        and not any(hasattr(b, name) for b in blocks for name in kind.never)
    )


def _sizes(model: nn.Module, backbone: nn.Module) -> dict[str, Any]:
    config = model.config
    get = getattr(config, "get_text_config", None)
    config = get() if get else config

    def first(*names: str) -> Any:
        return next((v for n in names if (v := getattr(config, n, None)) is not None), None)

    n_heads = first("num_attention_heads", "n_heads")
    d_model = first("hidden_size", "d_model")
    head = getattr(model, "get_output_embeddings", None)
    longest = first("max_position_embeddings", "max_positions")
    # RoBERTa's table keeps its first rows for padding.
    path = "embeddings.position_embeddings"
    padding = _at(backbone, path).padding_idx if _has(backbone, path) else None
    first_position = 0 if padding is None else padding + 1
    if longest is not None:
        longest -= first_position
    return {
        "n_heads": n_heads,
        "n_kv_heads": first("num_key_value_heads") or n_heads,
        "d_model": d_model,
        "first_position": first_position,
        "has_logits": head() is not None if head else hasattr(model, "base_model"),
        "has_rotary": first("rope_parameters", "rope_theta", "rotary_pct", "rotary_dim") is not None,
        "max_positions": longest,
    }


def _has(module: nn.Module, path: str) -> bool:
    try:
        return isinstance(_at(module, path), nn.Module)
    except AttributeError:
        return False


def _at(module: nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
