"""What a model itself says its attention weights are, to hold against what `probe` reads.

The oracle is a second copy of the model, loaded with explicit (eager) attention and never touched by a capture. It is
asked with `output_attentions=True`; where that is not the truth, this file says so and what is done instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probe.compatibility.parts import tensors
from probe.sites import CROSS, ENCODER

# These return what goes into the softmax instead of what comes out of it.
RETURNS_SCORES = {("squeezebert", ""), ("prophetnet", ENCODER)}

FIELDS = {"": ("decoder_attentions", "attentions"), ENCODER: ("encoder_attentions",), CROSS: ("cross_attentions",)}


class Answer(NamedTuple):
    """What a model says of itself. own: by prefix, the weights it returns, one entry a layer as it has them (empty
    where it returns none; None for an entry that is no weights); spare: what its attention modules return, in the order
    of their calls, which `output_attentions` may leave out; output: all other tensors it returns.
    """

    own: dict[str, list[Tensor | None]]
    spare: list[Tensor]
    output: dict[str, Tensor]


def ask(model: nn.Module, inputs: Mapping[str, Any]) -> Answer:
    """Run an eager model that no capture has touched."""
    spare: list[Tensor] = []

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor) and output[1].dim() == 4:
            weights = output[1]
            if not any(weights is f for f in spare) and are_weights(weights):
                spare.append(weights)

    handles = [m.register_forward_hook(hook) for m in model.modules() if "Attention" in type(m).__name__]
    try:
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    return Answer(_own(model.config.model_type, output), spare, tensors(output))  # type: ignore[union-attr,arg-type]


def _own(kind: str, output: Any) -> dict[str, list[Tensor | None]]:
    found: dict[str, list[Tensor | None]] = {}
    for prefix, names in FIELDS.items():
        entries = next((e for n in names if (e := getattr(output, n, None))), ())
        given = [e if isinstance(e, Tensor) and e.dim() == 4 else None for e in entries]
        if (kind, prefix) in RETURNS_SCORES:
            given = [None if t is None else t.softmax(-1) for t in given]
        found[prefix] = [t if t is None or are_weights(t) else None for t in given]
    return found


def are_weights(tensor: Tensor) -> bool:
    """Whether rows could be attention weights: none negative, no sum above 1. Gates and states are neither."""
    sums = tensor.nan_to_num().sum(-1)
    return bool((tensor.nan_to_num() >= 0).all() and (sums < 1 + 1e-3).all())


def by_layer(entries: Sequence[Tensor | None], layers: Sequence[int], n_layers: int) -> dict[int, Tensor] | None:
    """The entries by layer, told by how many there are: one for each layer, or for each with heads; None if neither."""
    if len(entries) == n_layers:
        return {i: e for i, e in enumerate(entries) if e is not None}
    given = [e for e in entries if e is not None]
    return dict(zip(layers, given, strict=True)) if len(given) == len(layers) else None
