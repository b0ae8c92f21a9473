"""Tiny random models of every architecture that transformers maps to language modelling and that runs on tokens.

    for pair in pairs():
        model = tiny_model(pair, "eager")
        model(**tiny_inputs(model, pair, padding="left"))

Everything is made from a configuration and a seed; nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import inspect
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from probe.compatibility.composites import COMPOSITES, NOTES, TWINS, without_tower
from probe.compatibility.sizes import DECODER_LENGTH, IF_SET, LENGTH, SIZES, SPECIAL
from probe.compatibility.table import NOT_TEXT, TABLE, TASK_TABLE
from probe.errors import UnknownName, UnsupportedModel

Task = Literal["causal", "masked", "seq2seq"]
Padding = Literal["left", "right"]


class Pair(NamedTuple):
    """A model type, as configurations name it, and the task whose language-model head it wears."""

    model_type: str
    task: Task

    def __str__(self) -> str:
        return f"{self.model_type} ({self.task})"


@functools.cache
def mapped() -> dict[Pair, str]:
    """Every pair that transformers maps, text or not, and the name of its model class."""
    from transformers.models.auto import modeling_auto as auto

    tasks: tuple[tuple[Task, dict[str, str]], ...] = (
        ("causal", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("masked", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("seq2seq", auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
    )
    return {Pair(kind, task): name for task, names in tasks for kind, name in names.items()}


def pairs() -> tuple[Pair, ...]:
    """Every pair that runs on token ids; `probe.compatibility.table.NOT_TEXT` says why the others do not."""
    return tuple(p for p in mapped() if p.model_type not in NOT_TEXT)


def note(pair: Pair) -> str:
    """What has to be said of how the pair's tiny model was run, where it is more than a text model; else nothing."""
    return NOTES.get(pair.model_type, "")


def tiny_config(pair: Pair) -> Any:
    """A small configuration of the pair's type.

    Raises UnknownName for a pair that transformers does not map, UnsupportedModel for one that does not run on
    token ids.
    """
    _check(pair)
    extra = _extra(pair.model_type) | TASK_TABLE.get(pair, {})
    config = _config(_model_class(pair).config_class, extra)
    if pair.task == "causal" and hasattr(config, "is_decoder"):
        config.is_decoder = True
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def tiny_model(pair: Pair, attention: str | None, seed: int = 0) -> Any:
    """The pair's model in float32 and evaluation mode, with weights drawn from `seed` alone.

    attention: "eager", "sdpa" ..., or None for what the type uses by default. Raises as `tiny_config` does, and
    transformers' own ValueError for an implementation that the type does not have.
    """
    options = {} if attention is None else {"attn_implementation": attention}
    with torch.random.fork_rng(devices=[]), without_tower(pair.model_type):
        torch.manual_seed(seed)
        model = _model_class(pair)._from_config(tiny_config(pair), dtype=torch.float32, **options)
        redraw(model)
    return model.eval()


@torch.no_grad()
def redraw(model: nn.Module) -> None:
    """Draw every weight anew, wide enough that a wrong mask, sink, bias or cap would change what comes out.

    As made, models are almost blind: matrices of 0.02 attend evenly, and biases, sinks and gates start at nothing.
    Vectors (norms, biases, decay rates) are moved about where they start, since only their type knows where.
    """
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    norms = {p for m in model.modules() if "Norm" in type(m).__name__ for p in m.parameters(recurse=False)}
    for name, parameter in model.named_parameters():
        if "sink" in name:
            parameter.normal_(0.0, 1.0)
        elif parameter in tables:
            parameter.normal_(0.0, 0.6)
        elif parameter.dim() > 1 and parameter not in norms:
            parameter.normal_(0.0, 0.25 * min(1.0, (32 / parameter.shape[-1]) ** 0.5))
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)


def tiny_inputs(model: Any, pair: Pair, padding: Padding | None = None, seed: int = 0) -> dict[str, Any]:
    """Inputs for two prompts of `LENGTH` random ordinary tokens, the first shorter by three where padded.

    A model with a decoder of its own also gets `decoder_input_ids` of `DECODER_LENGTH`.
    """
    config = model.config
    accepted = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(seed)
    ids = _ordinary(config, LENGTH, generator)
    inputs: dict[str, Any] = {"input_ids": ids}
    if padding is not None:
        mask = torch.ones_like(ids)
        hidden = slice(0, 3) if padding == "left" else slice(LENGTH - 3, LENGTH)
        mask[0, hidden] = 0
        ids[0, hidden] = getattr(config, "pad_token_id", None) or 0
        inputs["attention_mask"] = mask
    if "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = _ordinary(config, DECODER_LENGTH, generator)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return inputs


def _ordinary(config: Any, length: int, generator: torch.Generator) -> Tensor:
    """(2, length) token ids that mean nothing special to the model."""
    text = config.get_text_config()
    given = [v for c in (config, text) for n, v in c.to_dict().items() if n.endswith(("token_id", "token_index"))]
    special = {i for v in given for i in (v if isinstance(v, list) else [v])}
    size = getattr(text, "vocab_size", None) or config.vocab_size
    allowed = torch.tensor([i for i in range(4, size) if i not in special])
    return allowed[torch.randint(len(allowed), (2, length), generator=generator)]


def _check(pair: Pair) -> None:
    if pair not in mapped():
        known = [str(p) for p in pairs()]
        near = difflib.get_close_matches(str(pair), known, n=5, cutoff=0.5)
        raise UnknownName.of("text model", str(pair), near, f"pairs() lists all {len(known)}.")
    if pair.model_type in NOT_TEXT:
        raise UnsupportedModel(f"{pair} does not run on token ids: {NOT_TEXT[pair.model_type]}.")


def _extra(model_type: str) -> dict[str, Any]:
    """What a type's configuration needs beyond sizes."""
    return TABLE.get(TWINS.get(model_type, model_type), {}) | COMPOSITES.get(model_type, {})


def _model_class(pair: Pair) -> Any:
    return getattr(importlib.import_module("transformers"), mapped()[pair])


def _config(kind: Any, extra: dict[str, Any]) -> Any:
    """A configuration of class `kind` with the sizes it has names for, then with `extra` on top."""
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    chosen = {name: value for name, value in SIZES.items() if name in defaults}
    chosen |= {name: value for name, value in IF_SET.items() if defaults.get(name) is not None}
    if "kv_lora_rank" in defaults:  # latent attention expands one latent to all heads
        chosen |= {"num_key_value_heads": SIZES["num_attention_heads"], "head_dim": SIZES["qk_rope_head_dim"]}
    size = extra.get("vocab_size", SIZES["vocab_size"])
    for name, value in SPECIAL.items():
        default = defaults.get(name)
        if default is not None and not (isinstance(default, int) and default < size):
            chosen[name] = value
    subs = getattr(kind, "sub_configs_defaults", {})
    for name, value in extra.items():
        chosen[name] = _sub_config(subs[name], value) if name in subs else value
    return kind(**chosen)


def _sub_config(spec: Any, extra: dict[str, Any]) -> Any:
    """A sub-configuration of the class that `spec` names, or of the model type that `extra` or `spec` name."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    extra = dict(extra)
    named = extra.pop("model_type", None) or spec.model_type
    kind = CONFIG_MAPPING[named] if named else spec.config_class
    return _config(kind, _extra(named) | extra if named else extra)
