"""The contenders: ways of reading a model during one forward pass, each under its name in `CONTENDERS`.

@contender("probe-sites", "probe: q, k, v, z, residual stream")
def _probe_sites(loaded):
    def read(ids):
        with Capture(loaded.model, SITES) as seen:
            forward(loaded.model, ids)
        return seen
    return read

A function that is registered gets a freshly loaded model and returns a `Pass`. It raises `CannotRun` where the
contender does not read such a model or its package is not installed; the message is what the table says.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from probe.anatomy.stacks import Anatomy, dissect
from probe.capture.capture import Capture
from probe.capture.streams import Statistics
from probe.errors import ProbeError
from probe.models.gpt import GPT
from probe.models.loading import Loaded

SITES = ("q", "k", "v", "z", "resid_pre", "resid_mid", "resid_post")
PLAIN = "plain"
FLOAT = 4  # bytes; models are loaded in float32
EXTRAS = {"transformer_lens": "lens", "nnsight": "peers"}  # package -> the extra that installs it

Pass = Callable[[Tensor], object]
"""Token ids (1, pos) in, whatever was read out; held until the clock has stopped, so that nothing is freed in time."""


class CannotRun(ProbeError):
    """A contender that cannot be measured on this model or machine; the message is the reason."""


@dataclass(frozen=True)
class Contender:
    """label: what it reads, for tables and figures. prepare: from a loaded model to its `Pass`.

    attention: the implementation it needs, None for the model's own default. own_copy: whether it must not share the
    model with the plain pass, because it needs another implementation or rewires the model. needs: bytes it will
    need at once beside the model, as far as they grow with the square of the prompt, from (anatomy, tokens).
    """

    name: str
    label: str
    prepare: Callable[[Loaded], Pass]
    attention: str | None
    own_copy: bool
    needs: Callable[[Anatomy, int], int]


CONTENDERS: dict[str, Contender] = {}


def contender(
    name: str,
    label: str,
    *,
    attention: str | None = None,
    own_copy: bool = False,
    needs: Callable[[Anatomy, int], int] = lambda anatomy, n: 0,
) -> Callable[[Callable[[Loaded], Pass]], Callable[[Loaded], Pass]]:
    """Register a contender; the fields are those of `Contender`."""

    def register(prepare: Callable[[Loaded], Pass]) -> Callable[[Loaded], Pass]:
        CONTENDERS[name] = Contender(name, label, prepare, attention, own_copy or attention is not None, needs)
        return prepare

    return register


def forward(model: nn.Module, ids: Tensor, **options: Any) -> Any:
    """A plain forward pass; transformers' models are told not to keep keys and values for decoding."""
    return model(ids) if isinstance(model, GPT) else model(input_ids=ids, use_cache=False, **options)


def labelled_rows(n_tokens: int) -> list[int]:
    """Four query positions, spread over the prompt, as a data set with labelled queries has them."""
    return [n_tokens // 4, n_tokens // 2, 3 * n_tokens // 4, n_tokens - 1]


def squares(count: Callable[[Anatomy], int]) -> Callable[[Anatomy, int], int]:
    """Bytes of `count(anatomy)` layers' worth of (head, query, key) tensors."""
    return lambda anatomy, n: count(anatomy) * anatomy.n_heads * n * n * FLOAT


@contender(PLAIN, "plain forward pass")
def _plain(loaded: Loaded) -> Pass:
    return lambda ids: forward(loaded.model, ids)


@contender("probe-sites", "probe: q, k, v, z, residual stream")
def _probe_sites(loaded: Loaded) -> Pass:
    anatomy = dissect(loaded.model)

    def read(ids: Tensor) -> object:
        with Capture(anatomy, SITES) as seen:
            forward(loaded.model, ids)
        return seen

    return read


@contender("probe-rows", "probe: attention of 4 labelled queries")
def _probe_rows(loaded: Loaded) -> Pass:
    anatomy = dissect(loaded.model)

    def read(ids: Tensor) -> object:
        with Capture(anatomy, ["pattern"], rows=labelled_rows(ids.shape[1])) as seen:
            forward(loaded.model, ids)
        return seen

    return read


@contender("probe-streams", "probe: statistics of every row of every pattern")
def _probe_streams(loaded: Loaded) -> Pass:
    anatomy = dissect(loaded.model)

    def read(ids: Tensor) -> object:
        with Capture(anatomy, statistics=Statistics(groups=_two_groups(ids))) as seen:
            forward(loaded.model, ids)
        return seen

    return read


def _two_groups(ids: Tensor) -> Tensor:
    """A target of two keys and a foil of three."""
    groups = torch.full_like(ids, -1)
    groups[:, 3:5], groups[:, 8:11] = 0, 1
    return groups


# An eager layer holds its scores, the masked scores, the softmax and the pattern at the same time.
@contender(
    "output-attentions",
    "transformers: output_attentions=True",
    attention="eager",
    needs=squares(lambda anatomy: anatomy.n_layers + 3),
)
def _output_attentions(loaded: Loaded) -> Pass:
    _only_transformers(loaded, "output_attentions")
    return lambda ids: forward(loaded.model, ids, output_attentions=True)


BRIDGE = (
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
    "attn.hook_z",
    "hook_resid_pre",
    "hook_resid_mid",
    "hook_resid_post",
)


# The bridge switches its model to eager attention, whatever it is asked for.
@contender(
    "bridge-sites",
    "TransformerBridge: q, k, v, z, residual stream",
    own_copy=True,
    needs=squares(lambda anatomy: 4),
)
def _bridge_sites(loaded: Loaded) -> Pass:
    layers = range(dissect(loaded.model).n_layers)
    bridge = _bridge(loaded)
    names = [f"blocks.{layer}.{place}" for layer in layers for place in BRIDGE]
    return lambda ids: bridge.run_with_cache(ids, names_filter=names)


@contender(
    "bridge-cache",
    "TransformerBridge: run_with_cache, everything",
    own_copy=True,
    needs=squares(lambda anatomy: 2 * anatomy.n_layers + 2),
)
def _bridge_cache(loaded: Loaded) -> Pass:
    bridge = _bridge(loaded)
    return lambda ids: bridge.run_with_cache(ids)


NNSIGHT = {
    "llama": (
        "input_layernorm.input",
        "self_attn.q_proj.output",
        "self_attn.k_proj.output",
        "self_attn.v_proj.output",
        "self_attn.o_proj.input",
        "post_attention_layernorm.input",
        "output",
    ),
    "tiny": ("norm_attention.input", "attention.qkv.output", "attention.out.input", "norm_mlp.input", "output"),
}
"""Where q, k, v, z and the residual stream are in a block, in the order in which they are computed, by model type."""


@contender("nnsight-sites", "nnsight: q, k, v, z, residual stream", own_copy=True)
def _nnsight_sites(loaded: Loaded) -> Pass:
    nnsight = _package("nnsight")
    kind = "tiny" if isinstance(loaded.model, GPT) else str(loaded.model.config.model_type)  # type: ignore[union-attr]
    if kind not in NNSIGHT:
        raise CannotRun(f"no list of modules to save in models of the type {kind}.")
    places = [attrgetter(path) for path in NNSIGHT[kind]]
    traced = nnsight.NNsight(loaded.model)
    blocks = traced.base_model.blocks if kind == "tiny" else traced.model.layers
    options = {} if kind == "tiny" else {"use_cache": False}

    def read(ids: Tensor) -> object:
        with traced.trace(ids, **options):
            kept = nnsight.save([])
            for block in blocks:
                for place in places:
                    kept.append(place(block))
        return kept

    return read


def _bridge(loaded: Loaded) -> Any:
    _only_transformers(loaded, "TransformerBridge")
    bridges = _package("transformer_lens.model_bridge")
    return bridges.TransformerBridge.boot_transformers(loaded.name, hf_model=loaded.model, tokenizer=loaded.tokenizer)


def _only_transformers(loaded: Loaded, what: str) -> None:
    if isinstance(loaded.model, GPT):
        raise CannotRun(f"{what} is for transformers' models, and {loaded.name} is none.")


def _package(module: str) -> Any:
    package = module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise CannotRun(f"{package} is not installed: pip install 'headprobe[{EXTRAS[package]}]'.")
    return importlib.import_module(module)
