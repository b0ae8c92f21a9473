"""Attention patterns, from the model's own eager function and never from arithmetic of ours.

For the query rows asked for, that function is called on those rows of the query and the mask: O(rows x keys) memory,
whatever implementation the model runs with. Its dropout's output is the pattern (`pattern @ values` is wrong for
some types, and hooking the softmax is wrong for models with attention sinks); the sum with the mask is the scores.
Half-precision models are read in float32, so that scores do not add up in half precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from probe.anatomy.interface import Call
from probe.errors import CaptureError, UnsupportedModel

READABLE = ("eager", "sdpa", "fused")  # implementations whose mask argument we know how to read
MASKED = -5000.0  # what no score comes near, where a model that never asks masks by another number than the lowest
SUMS = ("add", "__add__", "__radd__", "add_", "__iadd__")

HALF = (torch.float16, torch.bfloat16)

Link = Callable[[str, Tensor, Tensor], Tensor]
"""(site, tensor, visible) -> the tensor to go on with; visible: of its cells, those that no mask hides."""
Shown = Callable[[str, Tensor], Tensor]
"""The same, the visible cells known."""


class Rows(NamedTuple):
    """Attention rows. scores, pattern: (batch, head, row, key). visible: bool (batch or 1, 1 or head, row, key), the
    keys that each row may see. z: (batch, row, head, d_head), what the pattern makes of the values.
    """

    scores: Tensor
    pattern: Tensor
    visible: Tensor
    z: Tensor


def attention_rows(
    call: Call,
    rows: Tensor | None,
    link: Link | None = None,
    *,
    values: bool = True,
    n_keys: int | None = None,
) -> Rows:
    """The attention rows of the query positions `rows` (batch, row), or of all.

    link: shown "scores" and "pattern" as they are computed, with the visible cells; returns what to go on with.
    values: whether z is wanted. n_keys: leave out the keys after these, where no row may see them.
    Raises UnsupportedModel for implementations whose masks cannot be read, and for models in training mode with
    attention dropout, where a pattern read after the fact would be another draw.
    """
    if n_keys is not None and n_keys < call.key.shape[2]:
        call = _first_keys(call, n_keys)
    if call.implementation not in READABLE:
        raise UnsupportedModel(
            f"patterns cannot be read under the attention implementation {call.implementation!r}; "
            f"load the model with one of {', '.join(READABLE[:2])}."
        )
    if call.module.training and call.kwargs.get("dropout"):
        raise UnsupportedModel("the model is in training mode with attention dropout: call model.eval() first.")
    query = call.query if rows is None else take(call.query, rows, 2)
    key, value = call.key, call.value if values else call.value[..., :0]
    mask, visible = mask_rows(call, rows)
    if mask is None and link is not None:
        mask = query.new_zeros(1, 1, query.shape[2], key.shape[2])  # so that the scores are seen at its addition
    if any(t.dtype in HALF for t in (query, key, value)):
        query, key, value = query.float(), key.float(), value.float()
        # a hidden cell's number of half precision is no longer the lowest there is
        mask = None if mask is None else mask.float().masked_fill(~visible, torch.finfo(torch.float32).min)
    drops = _drops(call)
    kwargs = {n: _of_rows(v, call, rows) for n, v in call.kwargs.items()}
    shown = None if link is None else lambda site, tensor: link(site, tensor, visible)
    own_precision = torch.autocast(query.device.type, enabled=False)
    with own_precision, _Watch(mask, key.shape[2], drops, shown) as seen:
        result = call.own_eager(call.module, query, key, value, mask, **kwargs)
    pattern = seen.pattern if seen.pattern is not None else result[1]
    scores = seen.masked if seen.masked is not None else seen.softmaxed
    if pattern is None or scores is None:
        raise CaptureError(f"the eager attention of {type(call.module).__name__} showed no softmax over the keys.")
    if scores.shape[-1] != key.shape[2]:  # a sink's column beside those of the keys
        scores = scores[..., : key.shape[2]]
    return Rows(scores, pattern, visible, result[0])


_drop_kinds: WeakKeyDictionary[Callable[..., Any], bool] = WeakKeyDictionary()


def _drops(call: Call) -> bool:
    """Whether an eager function ends its softmax with a dropout, told by one row of one call."""
    if call.own_eager not in _drop_kinds:
        row = torch.zeros(call.query.shape[0], 1, dtype=torch.long, device=call.query.device)
        mask, _ = mask_rows(call, row)
        kwargs = {n: _of_rows(v, call, row) for n, v in call.kwargs.items()}
        with torch.no_grad(), _Watch(mask, call.key.shape[2], True, None) as seen:
            call.own_eager(call.module, call.query[:, :, :1], call.key, call.value, mask, **kwargs)
        _drop_kinds[call.own_eager] = seen.pattern is not None
    return _drop_kinds[call.own_eager]


class _Watch(TorchFunctionMode):
    """Notes, inside an eager attention function, what the mask's addition and the dropout returned, and what the
    softmax was given; shows them to `link`. drops: whether the pattern is the dropout's output or the softmax's.
    """

    def __init__(self, mask: Tensor | None, n_keys: int, drops: bool, link: Shown | None) -> None:
        super().__init__()
        self.mask, self.n_keys, self.drops = mask, n_keys, drops
        self.link: Shown = link or (lambda site, tensor: tensor)
        self.masked: Tensor | None = None
        self.softmaxed: Tensor | None = None
        self.pattern: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "softmax":
            if self.masked is None and args[0].shape[-1] == self.n_keys:
                args = (self.link("scores", args[0]), *args[1:])
            self.softmaxed = args[0]
        result = func(*args, **(kwargs or {}))
        if func is F.dropout or (name == "softmax" and not self.drops and result.shape[-1] == self.n_keys):
            result = self.pattern = self.link("pattern", result)
        elif name in SUMS and self.mask is not None and any(a is self.mask for a in args):
            result = self.masked = self.link("scores", result)
        return result


def mask_rows(call: Call, rows: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """The rows of the mask, additive as eager functions want it, and as visible cells.

    Without a mask, an eager function looks everywhere; a fused kernel looks back only if the call is causal.
    """
    mask, n_keys, n_queries = call.mask, call.key.shape[2], call.query.shape[2]
    at = torch.arange(n_queries, device=call.query.device).unsqueeze(0) if rows is None else rows
    if mask is None:
        visible = torch.ones(at.shape[0], 1, at.shape[1], 1, dtype=torch.bool, device=at.device)
        if call.implementation == "eager" or n_queries == 1 or not _is_causal(call):
            return None, visible.expand(-1, -1, -1, n_keys)
        visible = torch.arange(n_keys, device=at.device) <= at[:, None, :, None]
        return _additive(visible, call.query.dtype), visible
    chosen = _of_rows(mask, call, rows)
    if chosen.dtype == torch.bool:
        return _additive(chosen, call.query.dtype), chosen
    return chosen, chosen > torch.finfo(chosen.dtype).min / 2


def visible_cells(scores: Tensor) -> Tensor:
    """Bool, of the shape of the scores of a model that never asks, and so shows no mask: which cells it does not hide.

    Where some hold the lowest number there is, or nearly, these are the hidden ones, however low other scores are.
    """
    lowest = torch.finfo(scores.dtype).min / 2
    return scores > (lowest if bool((scores <= lowest).any()) else MASKED)


def _first_keys(call: Call, n_keys: int) -> Call:
    whole = call.key.shape[2]

    def of(given: Any) -> Any:
        cut = isinstance(given, Tensor) and given.dim() == 4 and given.shape[3] == whole
        return given[..., :n_keys] if cut else given

    return dataclasses.replace(
        call,
        key=call.key[:, :, :n_keys],
        value=call.value[:, :, :n_keys],
        mask=of(call.mask),
        kwargs={name: of(value) for name, value in call.kwargs.items()},
    )


def only(call: Call, places: Sequence[int]) -> Call:
    """The call for some prompts of its batch."""
    batch = call.query.shape[0]
    at = torch.tensor(places, device=call.query.device)

    def of(given: Any) -> Any:
        whole = isinstance(given, Tensor) and given.dim() == 4 and given.shape[0] == batch
        return given[at] if whole else given

    return dataclasses.replace(
        call,
        query=call.query[at],
        key=call.key[at],
        value=call.value[at],
        mask=of(call.mask),
        kwargs={name: of(value) for name, value in call.kwargs.items()},
    )


def _of_rows(given: Any, call: Call, rows: Tensor | None) -> Any:
    """The chosen query rows of an argument that has a row for each query: the mask, a position bias."""
    if rows is None or not isinstance(given, Tensor) or given.dim() != 4 or given.shape[2] == 1:
        return given
    if given.shape[2] != call.query.shape[2]:
        return given
    return take(given.expand(rows.shape[0], -1, -1, -1), rows, 2)


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
