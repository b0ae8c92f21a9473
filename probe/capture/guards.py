"""What a capture refuses, with the reason, before the model runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from probe.anatomy.stacks import Anatomy, Stack
from probe.capture.edit import Edit
from probe.errors import CaptureError, OutOfRange, ProbeError, UnsupportedModel
from probe.sites import CROSS, KEY_SITES, WHOLE_SITES, Site, check_indices, kv_head, split


def checked_model(model: object) -> nn.Module:
    """Raises ProbeError for what is no module."""
    if not isinstance(model, nn.Module):
        raise ProbeError(f"a capture reads a torch module, not {model!r}: give probe.load(...).model.")
    return model


def checked_some(kind: str, given: int | Sequence[int], size: int) -> tuple[int, ...]:
    """`check_indices` of at least one. Raises OutOfRange."""
    chosen = check_indices(kind, given, size)
    if not chosen:
        raise OutOfRange(f"no {kind} was chosen: give at least one of 0 to {size - 1}, or leave {kind}s= out for all.")
    return chosen


def checked_rows(rows: Sequence[int] | Tensor | None) -> Tensor | None:
    """Query positions as (row,) or (batch, row). Raises OutOfRange."""
    if rows is None:
        return None
    try:
        found = torch.as_tensor(rows)
    except (TypeError, ValueError) as error:
        raise OutOfRange(f"rows are positions, a list of them or a (batch, row) tensor, not {rows!r}.") from error
    whole = not found.is_floating_point() and found.dtype != torch.bool
    if not whole or found.dim() > 2 or not found.numel():
        raise OutOfRange(
            f"rows are positions, whole numbers, at least one, as a list or a (batch, row) tensor, not {rows!r}."
        )
    return found.long().reshape(-1) if found.dim() < 2 else found.long()


def checked_device(device: str | torch.device | None) -> torch.device | None:
    """Raises ProbeError for a name that torch does not know."""
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ProbeError(f"device={device!r} is none that torch knows, such as 'cpu' or 'cuda:0'.") from error


def check_seen(edit: Edit, chosen: Tensor, visible: Tensor) -> None:
    """Raises CaptureError for an edit of cells that no mask leaves to see. chosen: the cells that it is for."""
    if bool(chosen.any()) and not bool((chosen & visible).any()):
        raise CaptureError(
            f"an edit ({edit}) changes nothing: none of its query positions can see any of its key positions."
        )


def checked_metric(value: object) -> Tensor:
    """Raises ProbeError for what is no single number that gradients can be taken of."""
    if isinstance(value, Tensor) and value.dim() == 0:
        return value
    made = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise ProbeError(f"the metric made {made}, not a tensor with one number, such as logits[-1, 3] - logits[-1, 5].")


def check_evaluating(model: nn.Module) -> None:
    """Raises ProbeError for a model whose answers are drawn, because it was put back into training mode."""
    dropouts = (getattr(m, "p" if isinstance(m, nn.Dropout) else "dropout", 0) for m in model.modules() if m.training)
    if model.training and any(isinstance(p, float) and p > 0 for p in dropouts):
        raise ProbeError(
            f"{type(model).__name__} is in training mode with dropout, so that each run is another draw: call "
            "subject.model.eval() first."
        )


def check_gradients(anatomy: Anatomy, sites: Iterable[Site]) -> None:
    """Raises UnsupportedModel for sites that are read beside the model's path, where no gradient passes."""
    for site in sites:
        attention = None if site.layer is None else anatomy.attention(site.prefix, site.layer)
        if attention is None or site.base not in ("q", "k"):
            continue
        if attention.rotary == "again" or (attention.chain is not None and attention.rotary != "none"):
            raise UnsupportedModel(
                f"{site} of {type(anatomy.model).__name__} has no gradient: it is read on the side. Ask for "
                f"rot_{site.base}."
            )


def stack_of(anatomy: Anatomy, prefix: str, name: str) -> Stack:
    """The stack a site belongs to; cross-attention belongs to the decoder's. Raises UnsupportedModel."""
    if not prefix:
        return anatomy.stack
    if not anatomy.is_encoder_decoder:
        raise UnsupportedModel(
            f"{type(anatomy.model).__name__} has no {name}: it is no encoder-decoder model. Ask for {split(name)[1]}."
        )
    if prefix == CROSS:
        return anatomy.stack
    if anatomy.encoder is None:
        raise UnsupportedModel(
            f"{type(anatomy.model).__name__} has no {name}: its encoder's attention is not over all tokens at once."
        )
    return anatomy.encoder


def check_available(anatomy: Anatomy, sites: Iterable[Site], edits: Mapping[Site, Sequence[Edit]]) -> None:
    """Raises UnsupportedModel for a site that this model does not have, or where an edit would not reach the output."""
    for site in sites:
        if why := missing(anatomy, site):
            raise UnsupportedModel(f"{type(anatomy.model).__name__} has no {site} that probe can find: {why}")
        if site in edits and (why := _uneditable(anatomy, site)):
            raise UnsupportedModel(f"{site} of {type(anatomy.model).__name__} cannot be edited: {why}")


def missing(anatomy: Anatomy, site: Site) -> str | None:
    """Why a model does not have a site; None where it has it."""
    stack = stack_of(anatomy, site.prefix, site.name)
    if site.base == "logits":
        return (
            None
            if anatomy.has_logits
            else ("it has no language-model head; its last hidden state is resid_post of the last layer.")
        )
    if site.base == "embed":
        return None if stack.embedding else "no embedding is given the token ids."
    if site.layer not in stack.layers:
        return f"that layer has no attention heads; layers that have: {', '.join(map(str, stack.layers))}."
    layer, attention = stack.layers[site.layer], anatomy.attention(site.prefix, site.layer)
    if attention is None:
        return "that layer has no cross-attention."
    if site.base in ("q", "k") and attention.rotary == "lost":
        return f"its rotary embedding could not be followed. Ask for rot_{site.base}."
    if attention.chain is not None and (name := _rotated(site.base)) not in attention.chain.layouts:
        return f"{name} is not laid out by heads in its attention."
    if site.base == "result" and attention.project is None:
        return "no module is handed z as it is, so no head has a part of its own. Ask for z or attn_out."
    if site.base == "attn_out" and attention.writer is None:
        return "what its attention writes was not found. Ask for resid_pre and resid_post."
    if site.base in ("resid_mid", "mlp_out") and layer.mlp is None and attention.added is not None:
        return "it has no MLP. Ask for resid_post or attn_out."
    if site.base == "resid_mid" and layer.mid is None:
        return "its attention and MLP run in parallel, or do not add up to the stream. Ask for resid_pre or resid_post."
    if site.base == "mlp_out" and layer.mlp is None:
        return "what its MLP writes was not found. Ask for resid_post."
    if site.base in ("resid_pre", "resid_post") and layer.block is None:
        return "its layers are not modules of their own."
    return None


def _rotated(base: str) -> str:
    """The link of a chain that a site stands at."""
    return f"rot_{base}" if base in ("q", "k") else base if base in ("rot_q", "rot_k", "v", "scores") else "z"


def _uneditable(anatomy: Anatomy, site: Site) -> str | None:
    attention = None if site.layer is None else anatomy.attention(site.prefix, site.layer)
    if attention is not None and site.base in attention.shared:
        return "more than the attention is computed from it." + (
            f" Edit rot_{site.base}, what meets in the dot product." if site.base in ("q", "k") else ""
        )
    if attention is not None and site.base in ("q", "k") and attention.rotary == "again":
        return f"its rotation joins it to other parts. Edit rot_{site.base}."
    return None


def checked_edits(edits: Sequence[Edit], anatomy: Anatomy) -> dict[Site, list[Edit]]:
    """Edits by site, with indices from 0 and the key-value heads that query heads read. Raises OutOfRange."""
    by_site: dict[Site, list[Edit]] = {}
    for edit in edits:
        if not isinstance(edit, Edit):
            raise ProbeError(
                f"an edit is made by probe.edits, for example edits.zero('z', 0); not {type(edit).__name__}."
            )
        prefix, base = split(edit.site)
        stack = stack_of(anatomy, prefix, edit.site)
        layer = edit.layer
        if base not in WHOLE_SITES and layer is not None:
            (layer,) = check_indices("layer", layer, stack.n_layers)
        heads = edit.heads
        attention = None if layer is None else anatomy.attention(prefix, layer)
        if heads is not None and attention is not None:
            heads = check_indices("head", heads, attention.n_heads)
            if base in KEY_SITES:
                kv = (kv_head(h, attention.n_heads, attention.n_kv_heads) for h in heads)
                heads = tuple(dict.fromkeys(kv))
        by_site.setdefault(Site(edit.site, layer), []).append(dataclasses.replace(edit, layer=layer, heads=heads))
    return by_site


def check_running(model: nn.Module) -> None:
    """Raises UnsupportedModel where blocks would run more than once a pass."""
    if model.training and any(getattr(m, "gradient_checkpointing", False) for m in model.modules()):
        raise UnsupportedModel(
            f"{type(model).__name__} checkpoints gradients, which runs each block twice: call "
            "model.gradient_checkpointing_disable() or model.eval() first."
        )


def free_bytes(model: Any) -> int:
    """What memory is free where the model lies."""
    device = next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
