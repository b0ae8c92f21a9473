"""Attention patterns, from the model's own eager function and never from arithmetic of ours.

For the query rows asked for, that function is called on those rows of the query and the mask: O(rows x keys) memory,
whatever implementation the model runs with. Its dropout's output is the pattern (`pattern @ values` is wrong for
some types, and hooking the softmax is wrong for models with attention sinks); the sum with the mask is the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from probe.capture.interface import Call
from probe.errors import CaptureError, UnsupportedModel

READABLE = ("eager", "sdpa", "fused")  # implementations whose mask argument we know how to read


class Rows(NamedTuple):
    """Attention rows. scores, pattern: (batch, head, row, key). visible: bool (batch or 1, 1 or head, row, key), the
    keys that each row may see.
    """

    scores: Tensor
    pattern: Tensor
    visible: Tensor


def attention_rows(call: Call, rows: Tensor | None) -> Rows:
    """The attention rows of the query positions `rows` (batch, row), or of all.

    Raises UnsupportedModel for implementations whose masks cannot be read, and for models in training mode with
    attention dropout, where a pattern read after the fact would be another draw.
    """
    if call.implementation not in READABLE:
        raise UnsupportedModel(
            f"patterns cannot be read under the attention implementation {call.implementation!r}; "
            f"load the model with one of {', '.join(READABLE[:2])}."
        )
    if call.module.training and call.kwargs.get("dropout"):
        raise UnsupportedModel("the model is in training mode with attention dropout: call model.eval() first.")
    query = call.query if rows is None else take(call.query, rows, 2)
    mask, visible = _mask_rows(call, rows)
    with _Watch(mask) as seen:
        result = call.own_eager(call.module, query, call.key, call.value, mask, **call.kwargs)
    pattern = seen.dropped if seen.dropped is not None else result[1]
    scores = seen.masked if seen.masked is not None else seen.softmaxed
    if pattern is None or scores is None:
        raise CaptureError(f"the eager attention of {type(call.module).__name__} showed no softmax over the keys.")
    return Rows(scores[..., : call.key.shape[2]], pattern, visible)


class _Watch(TorchFunctionMode):
    """Notes, inside an eager attention function, what the mask's addition and the dropout returned, and what the
    softmax was given.
    """

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.mask = mask
        self.masked: Tensor | None = None
        self.softmaxed: Tensor | None = None
        self.dropped: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if func is F.dropout:
            self.dropped = result
        elif name == "softmax":
            self.softmaxed = args[0]
        elif name in ("add", "__add__") and self.mask is not None and any(a is self.mask for a in args):
            self.masked = result
        return result


def _mask_rows(call: Call, rows: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """The rows of the mask, additive as eager functions want it, and as visible cells.

    Without a mask, an eager function looks everywhere; a fused kernel looks back only if the call is causal.
    """
    mask, n_keys = call.mask, call.key.shape[2]
    at = torch.arange(call.query.shape[2], device=call.query.device).unsqueeze(0) if rows is None else rows
    if mask is None:
        causal = call.implementation != "eager" and call.query.shape[2] > 1 and _is_causal(call)
        visible = torch.ones(at.shape[0], 1, at.shape[1], n_keys, dtype=torch.bool, device=at.device)
        if not causal:
            return None, visible
        visible = torch.arange(n_keys, device=at.device) <= at[:, None, :, None]
        return _additive(visible, call.query.dtype), visible
    chosen = mask if rows is None else take(mask.expand(rows.shape[0], -1, call.query.shape[2], -1), rows, 2)
    if chosen.dtype == torch.bool:
        return _additive(chosen, call.query.dtype), chosen
    return chosen, chosen > torch.finfo(chosen.dtype).min / 2


def _is_causal(call: Call) -> bool:
    given = call.kwargs.get("is_causal")
    return bool(getattr(call.module, "is_causal", True) if given is None else given)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill(~visible, torch.finfo(dtype).min)


def take(tensor: Tensor, rows: Tensor, dim: int) -> Tensor:
    """tensor[b, ..., rows[b], ...] along `dim` for each prompt b."""
    shape = [1] * tensor.dim()
    shape[0], shape[dim] = rows.shape
    sizes = list(tensor.shape)
    sizes[dim] = rows.shape[1]
    return tensor.gather(dim, rows.view(shape).expand(sizes))
