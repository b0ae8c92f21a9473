"""How what attention and MLP write enters the residual stream: as it is, by a factor, or through a norm of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from probe.errors import UnsupportedModel
from probe.scores.tail import WATCHED, frozen_norm
from probe.subject import Subject

Linear = Callable[[Tensor], Tensor]


class Entries(NamedTuple):
    """For each layer: the norm that stands between attention and stream, and between MLP and stream, None where none
    does; and the bias that the MLP's last matrix adds, zeros where it has none. biases: (layer, d_model).
    """

    attention: tuple[nn.Module | None, ...]
    mlp: tuple[nn.Module | None, ...]
    biases: Tensor


def entries(subject: Subject) -> Entries:
    """Found by watching a short pass. Raises UnsupportedModel for post-norm blocks and others whose stream is not the
    sum of what was written to it.
    """
    layers = range(subject.n_layers)
    mid = all(layer.mid for layer in subject.anatomy.stack.layers.values())
    mlps = any(layer.mlp for layer in subject.anatomy.stack.layers.values())
    sites = ["resid_pre", "resid_post", "attn_out", *(["resid_mid"] if mid else []), *(["mlp_out"] if mlps else [])]
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # Kept as they are: the modules' own tensors are not written to.
        if isinstance(output, Tensor) and args and isinstance(args[0], Tensor) and not list(module.children()):
            calls.append((module, args[0], output))

    hooks = [m.register_forward_hook(note) for m in subject.model.modules()]
    try:
        (seen,) = (seen for _, seen in subject.captured(WATCHED, sites))
    finally:
        for hook in hooks:
            hook.remove()

    def between(layer: int, written: Tensor, entered: Tensor) -> nn.Module | None:
        rounding = 1e-6 * float(seen["resid_post", layer].abs().max())
        if _proportional(written, entered, rounding):
            return None
        for module, given, made in calls:
            if made.shape == entered.shape and _same(given, written, 0.0) and _same(made, entered, rounding):
                return module
        raise UnsupportedModel(
            f"{subject.name}: what layer {layer} writes enters its residual stream by more than a factor or a norm "
            "of its own, so its heads have no parts in the stream."
        )

    attention: list[nn.Module | None] = []
    mlp: list[nn.Module | None] = []
    biases = []
    for layer in layers:
        written, before = seen["attn_out", layer], seen["resid_pre", layer]
        entered = seen["resid_mid", layer] - before if mid else written
        attention.append(between(layer, written, entered))
        if not mlps:
            mlp.append(None)
            biases.append(before.new_zeros(subject.d_model))
            continue
        written = seen["mlp_out", layer]
        entered = seen["resid_post", layer] - seen["resid_mid", layer] if mid else written
        mlp.append(between(layer, written, entered))
        biases.append(_bias(written, calls))
    return Entries(tuple(attention), tuple(mlp), torch.stack(biases).double())


def entering(norm: nn.Module | None, written: Tensor, entered: Tensor) -> Linear:
    """What parts of `written` (d_model) become in the stream, where the whole of it became `entered`, which holds the
    norm's own bias too: a linear map of (..., d_model).
    """
    if norm is not None:
        return frozen_norm(norm, written).of
    size = float(written @ written)
    factor = float(written @ entered) / size if size else 1.0
    return lambda part: factor * part


def _proportional(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether `other` is `one` times a factor."""
    one, other = one.double().flatten(), other.double().flatten()
    size = float(one @ one)
    factor = float(one @ other) / size if size else 1.0
    return _same(factor * one, other, rounding)


def _same(one: Tensor, other: Tensor, rounding: float) -> bool:
    if one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= 1e-4 * float(other.abs().max()) + rounding


def _bias(written: Tensor, calls: list[tuple[nn.Module, Tensor, Tensor]]) -> Tensor:
    """What the module whose output is `written` adds of its own: its answer to zeros."""
    for module, given, made in calls:
        if next(module.parameters(), None) is not None and made.shape == written.shape and torch.equal(made, written):
            with torch.no_grad():
                return cast(Tensor, module.forward(torch.zeros_like(given[:1, :1]))).flatten()
    return written.new_zeros(written.shape[-1])
