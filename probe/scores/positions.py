"""What a tiny GPT's way of telling positions does: to order, to distance, and beyond the length it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from probe.capture.capture import Capture
from probe.errors import ProbeError
from probe.models.gpt import GPT, alibi, apply_rotary, rotary_angles, sinusoids
from probe.models.tokenizer import SPECIAL
from probe.scores.measure import measure
from probe.subject import Subject
from probe.targets import Row, Targets, Unit


@torch.no_grad()
def permuted_change(model: GPT, ids: Tensor, order: Sequence[int]) -> float:
    """Largest |f(x in another order) - f(x) in that order| over a prompt's last hidden states: 0 for a model that is
    equivariant to permutations, which knows nothing of order. ids: (1, pos); order: a permutation of its positions.
    """
    order = list(order)
    return _largest(_hidden(model, ids[:, order]), _hidden(model, ids)[:, order])


@torch.no_grad()
def last_change(model: GPT, one: Tensor, other: Tensor) -> float:
    """Largest difference of the last token's hidden state between two prompts, (1, pos) each, whose last tokens are the
    same.
    """
    return _largest(_hidden(model, one)[:, -1], _hidden(model, other)[:, -1])


@torch.no_grad()
def shifted_change(model: GPT, ids: Tensor, by: int) -> tuple[float, float]:
    """Largest change of any visible attention score, and of any logit, when all positions are `by` later. ids: (batch,
    pos). Raises ProbeError where learned positions end before.
    """
    place = torch.arange(ids.shape[1])[None]
    if model.config.position == "learned" and ids.shape[1] + by > model.config.max_positions:
        raise ProbeError(f"there are {model.config.max_positions} learned positions, not {ids.shape[1] + by}.")
    scores, logits = [], []
    for start in (0, by):
        with Capture(model, ["scores", "logits"]) as seen:
            model(ids, position_ids=place + start)
        layers = range(model.config.n_layers)
        scores.append(torch.stack([seen["scores", i].masked_fill(~seen.visible[i], 0) for i in layers]))
        logits.append(seen["logits"])
    return _largest(*scores), _largest(*logits)


def lengthened(model: GPT, positions: int) -> GPT:
    """The same weights, allowed to read `positions` tokens. Raises ProbeError for learned positions, which end where
    their table ends.
    """
    if model.config.position == "learned" and positions > model.config.max_positions:
        raise ProbeError(
            f"this model has learned {model.config.max_positions} positions and has no vector for the others up to "
            f"{positions}; sinusoidal, rope, alibi and none can be computed for any length."
        )
    longer = GPT(replace(model.config, max_positions=positions))
    longer.load_state_dict(model.state_dict())
    return longer.eval()


@torch.no_grad()
def loss_by_position(model: GPT, windows: Tensor, *, batch_size: int = 16) -> Tensor:
    """Mean loss (nats) of the token predicted from position 0, 1, ..., (pos - 1,). windows: ids (row, pos)."""
    losses = []
    for start in range(0, len(windows), batch_size):
        ids = windows[start : start + batch_size]
        logits = cast(Tensor, model(ids[:, :-1]).logits)
        losses.append(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    return torch.cat(losses).double().mean(0)


def heads_by_position(subject: Subject, windows: Tensor) -> pd.DataFrame:
    """One row per head: layer, head, previous (mass on the token before), first (mass on position 0, the sink), over
    every query with a token before it that is not <bos>. windows: ids (row, pos).
    """
    units = [
        Unit(f"window-{n}", f"window-{n}", tuple(ids), tuple(Row((q,), (q - 1,)) for q in range(2, len(ids))))
        for n, ids in enumerate(windows.tolist())
    ]
    found = measure(subject, Targets("previous token", "windows", "mass", (), tuple(units)), quiet=True)
    rows = [
        (layer, head, found["target"][layer, head].mean(), found["first"][layer, head].mean())
        for layer in range(subject.n_layers)
        for head in range(subject.n_heads)
    ]
    return pd.DataFrame(rows, columns=["layer", "head", "previous", "first"])


def likeness_by_distance(width: int, distances: Sequence[int], start: int = 0) -> pd.DataFrame:
    """How alike two positions are to a scheme, by their distance: columns distance, sinusoidal (dot product of the two
    vectors), rope (dot product of one vector turned to both positions); 1 at distance 0. Neither depends on `start`.
    width: of the vectors.
    """
    places = torch.tensor([start, *(start + d for d in distances)])[None]
    waves = sinusoids(places, width)[0].double()
    vector = torch.ones(1, 1, places.shape[1], width)
    turned = apply_rotary(vector, vector, *rotary_angles(places, width))[0][0, 0].double()
    alike = {name: (v[1:] @ v[0]) / (v[0] @ v[0]) for name, v in (("sinusoidal", waves), ("rope", turned))}
    return pd.DataFrame({"distance": list(distances), **{name: a.numpy() for name, a in alike.items()}})


def alibi_by_distance(n_heads: int, distances: Sequence[int]) -> pd.DataFrame:
    """What ALiBi adds to each head's scores: columns head, distance, bias."""
    bias = alibi(n_heads, torch.tensor([list(distances)]))[:, 0]  # (head, distance)
    rows = [(head, d, float(b)) for head in range(n_heads) for d, b in zip(distances, bias[head], strict=True)]
    return pd.DataFrame(rows, columns=["head", "distance", "bias"])


def random_ids(config_vocab: int, shape: tuple[int, int], seed: int) -> Tensor:
    """Ids that are no special tokens, drawn alike."""
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL), config_vocab, shape, generator=draws)


def _hidden(model: GPT, ids: Tensor) -> Tensor:
    return cast(Tensor, model(ids).last_hidden_state)


def _largest(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
