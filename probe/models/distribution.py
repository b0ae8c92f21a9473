"""What the next token is drawn from: the probabilities after temperature, top-k and top-p, and their entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.models.sampling import check


def distribution(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """The probabilities from which `sampling.choose` draws with the same options: (..., vocab) -> (..., vocab).

    What is left out has probability 0; the rest add up to 1. Temperature 0 puts everything on the likeliest token.
    Raises ProbeError for numbers out of range.
    """
    check(temperature, top_k, top_p)
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    ordered, ids = torch.sort(logits / temperature, dim=-1, descending=True, stable=True)
    if top_k is not None:
        ordered[..., top_k:] = -torch.inf
    kept = ordered.softmax(-1)
    if top_p is not None:
        before = kept.cumsum(-1) - kept
        kept = kept.masked_fill(before >= top_p, 0)
        kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, ids, kept)


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats, (..., vocab) -> (...): 0 for a certain token, log n for n equally likely ones."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(-1)
