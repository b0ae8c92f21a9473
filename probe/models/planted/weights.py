"""From a circuit to the weights of a tiny GPT without norms and MLPs, in which nothing but the written heads acts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from probe.models.gpt import GPT, Block, Config
from probe.models.planted.circuit import POSITIONS, TOKENS, Circuit, Head, Match, Move, Pairs, place

SHARPNESS = 20.0  # what a strength of 1 adds to a score: 127 other keys then share 127·exp(-20) = 3e-7 of the attention
CERTAINTY = 20.0  # the logit of what a head has written to `answer`, where all other tokens have 0


def write(circuit: Circuit, *, n_layers: int, n_heads: int, noise: float, seed: int, attention: str) -> GPT:
    """The model of a circuit, in evaluation mode; see `planted.build` for the options."""
    widths = circuit.widths
    config = Config(
        vocab_size=TOKENS,
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=sum(widths.values()),
        max_positions=POSITIONS,
        d_head=max(max(_rank(head.matches, widths), _rank(head.moves, widths)) for head in circuit.heads),
        norm="none",
        ffn="none",
        bias=False,
        tied=False,
        attention=attention,
    )
    draws = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = GPT(config)  # draws weights, all of which are overwritten
        for parameter in model.parameters():
            parameter.normal_(std=noise, generator=draws)
        stream = _slices(widths)
        _write_embeddings(model, circuit, stream)
        for head in circuit.heads:
            _write_head(model, head, stream, widths)
    return model.eval()


def _slices(widths: dict[str, int]) -> dict[str, slice]:
    """Part -> where it lies in the stream."""
    found, start = {}, 0
    for name, width in widths.items():
        found[name] = slice(start, start := start + width)
    return found


def _write_embeddings(model: GPT, circuit: Circuit, stream: dict[str, slice]) -> None:
    """What a token is, its features, where it stands; and how `answer` is read."""
    words, positions = model.base_model.embed.weight, model.base_model.positions.weight
    words[:, stream["token"]] += torch.eye(TOKENS)
    words[:, stream["constant"]] += 1
    for part, places in circuit.features.items():
        for at, having in enumerate(places):
            words[[place(word) for word in having], stream[part].start + at] += 1
    positions[:, stream["position"]] += torch.eye(POSITIONS)
    model.unembed.weight[:, stream["answer"]] += CERTAINTY * torch.eye(TOKENS)


def _write_head(model: GPT, head: Head, stream: dict[str, slice], widths: dict[str, int]) -> None:
    """Each match takes some of the head's width for itself, and so does each move."""
    config, attention = model.config, cast(Block, model.base_model.blocks[head.layer]).attention
    own = slice(head.head * config.head_width, (head.head + 1) * config.head_width)
    q, k, v = (part[own] for part in attention.qkv.weight.chunk(3))  # (d_head, d_model)
    out = attention.out.weight[:, own]  # (d_model, d_head)
    at = 0
    for match in head.matches:
        query, key = _factors(match.pairs, widths[match.query], widths[match.key])
        rows = slice(at, at := at + len(query))
        # Scores are divided by the root of d_head; what is to be left of the strength is shared by query and key.
        root = math.sqrt(abs(match.strength) * SHARPNESS * math.sqrt(config.head_width))
        q[rows, stream[match.query]] += root * query
        k[rows, stream[match.key]] += math.copysign(root, match.strength) * key
    at = 0
    for move in head.moves:
        source, into = _factors(move.pairs, widths[move.source], widths[move.into])
        rows = slice(at, at := at + len(source))
        v[rows, stream[move.source]] += source
        out[stream[move.into], rows] += into.T


def _factors(pairs: Pairs | None, n: int, m: int) -> tuple[Tensor, Tensor]:
    """An n x m table of pairs, factored: for each place i that has partners a row that picks it, and one of these."""
    left = sorted({i for i, _ in pairs}) if pairs is not None else range(n)
    table = torch.eye(n, m)
    if pairs is not None:
        table.zero_()[tuple(torch.tensor(pairs).T)] = 1
    return torch.eye(n)[left], table[left]


def _rank(terms: Sequence[Match | Move], widths: dict[str, int]) -> int:
    """How much of a head's width its matches, or its moves, take."""
    total = 0
    for term in terms:
        part = term.query if isinstance(term, Match) else term.source
        total += widths[part] if term.pairs is None else len({i for i, _ in term.pairs})
    return total
