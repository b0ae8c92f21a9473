"""Choosing the next token from its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from probe.errors import ProbeError


def choose(
    logits: Tensor,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    draws: torch.Generator | None = None,
) -> Tensor:
    """One token id for each row of logits, (batch, vocab) -> (batch,).

    temperature: what the logits are divided by before the softmax; 0 takes the largest (greedy), and the other
    options then change nothing. top_k: draw among the k likeliest only. top_p: draw among the fewest likeliest whose
    probabilities sum to at least p (nucleus sampling, Holtzman et al. 2020). draws: the source of chance.
    Raises ProbeError for numbers out of range.
    """
    check(temperature, top_k, top_p)
    if temperature == 0:
        return logits.argmax(-1)
    return _drawn(logits, temperature, top_k, top_p, draws)


def check(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raises ProbeError for numbers out of range."""
    if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ProbeError(
            f"cannot sample with temperature={temperature}, top_k={top_k}, top_p={top_p}: temperature is 0 or more, "
            "top_k 1 or more, top_p above 0 and at most 1."
        )


def _drawn(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, draws: torch.Generator | None
) -> Tensor:
    ordered, ids = torch.sort(logits / temperature, dim=-1, descending=True, stable=True)
    if top_k is not None:
        ordered[..., top_k:] = -torch.inf
    probabilities = ordered.softmax(-1)
    if top_p is not None:
        before = probabilities.cumsum(-1) - probabilities  # a token stays while those before it fall short of p
        probabilities = probabilities.masked_fill(before >= top_p, 0)
    picked: Tensor = torch.multinomial(probabilities, 1, generator=draws)
    return torch.gather(ids, -1, picked).squeeze(-1)
