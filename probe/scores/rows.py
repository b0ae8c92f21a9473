"""The one reader of attention rows: how much of each row lands on the target, the foils, the first key, each word.

Every head score is a small statistic of what `read` returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from probe.targets import Positions, Unit


@dataclass(frozen=True)
class Reading:
    """Attention rows of one layer, read. Shapes (unit, head, row); rows a unit does not have hold NaN.

    target: mass on the target's tokens, summed. correct: 1 where the target gets more than every foil, 1/2 for a tie
    shared with the best foil (1/n among n), 0 otherwise; NaN without foils. foil: mass on the best foil.
    word_correct: 1 where the word that gets most attention, the query's own word and special tokens left out, is a
    word of the target (Clark et al. 2019). first: mass on position 0. entropy: nats over visible keys, and
    entropy_max its largest possible value. chance: the mass uniform attention would put on the target.
    """

    target: Tensor
    foil: Tensor
    correct: Tensor
    word_correct: Tensor
    first: Tensor
    entropy: Tensor
    entropy_max: Tensor
    chance: Tensor

    FIELDS = ("target", "foil", "correct", "word_correct", "first", "entropy", "entropy_max", "chance")


@dataclass(frozen=True)
class Plan:
    """Where the rows of a batch of units lie, as tensors; made once and used for every layer.

    queries: each unit's query positions, in order: the rows to capture. average: (unit, row, query), how the captured
    queries are averaged into measured rows; None where each row has one query.
    """

    queries: tuple[Positions, ...]
    average: Tensor | None
    target: Tensor  # (unit, row, n) key positions, -1 where there are fewer
    foils: Tensor  # (unit, row, foil, n)
    word_of: Tensor  # (unit, key) index of the key's word, 0 for keys without one
    own_word: Tensor  # (unit, row) the query's word
    hit: Tensor  # (unit, row, word) whether the word is one of the target's
    real: Tensor  # (unit, row)
    with_words: bool

    @classmethod
    def of(cls, units: Sequence[Unit], shift: Sequence[int], n_keys: int, *, words: bool) -> Plan:
        """shift: padding before each unit's prompt; n_keys: keys of the padded batch; words: whether to score words."""
        rows = max(len(u.rows) for u in units)
        queries = tuple(tuple(q for r in u.rows for q in r.query) for u in units)
        average = None
        if any(len(r.query) > 1 for u in units for r in u.rows) or len({len(u.rows) for u in units}) > 1:
            average = torch.zeros(len(units), rows, max(map(len, queries)))
            for i, unit in enumerate(units):
                at = 0
                for j, row in enumerate(unit.rows):
                    average[i, j, at : at + len(row.query)] = 1 / len(row.query)
                    at += len(row.query)
        shape = len(units), rows
        n_foils = max((len(r.foils) for u in units for r in u.rows), default=0)
        foils = _filled(
            (*shape, n_foils),
            (
                ((i, j, f), [p + s for p in foil])
                for i, (u, s) in enumerate(zip(units, shift, strict=True))
                for j, r in enumerate(u.rows)
                for f, foil in enumerate(r.foils)
            ),
        )
        target = _filled(
            shape,
            (
                ((i, j), [p + s for p in r.target])
                for i, (u, s) in enumerate(zip(units, shift, strict=True))
                for j, r in enumerate(u.rows)
            ),
        )
        real = torch.tensor([[j < len(u.rows) for j in range(rows)] for u in units])
        return cls(queries, average, target, foils, *_words(units, shift, n_keys, rows), real, words)


def read(pattern: Tensor, visible: Tensor, plan: Plan) -> Reading:
    """Read one layer's rows. pattern (unit, head, query, key), visible (unit or 1, 1 or head, query, key).

    The pattern is not changed. Masked cells are told by `visible`, never by their value.
    """
    pattern = pattern.float()
    seen = visible.expand(pattern.shape[0], -1, -1, -1).float()
    uniform = seen / seen.sum(-1, keepdim=True)
    if plan.average is not None:
        average = plan.average.to(pattern.device).unsqueeze(1)
        pattern, uniform = average @ pattern, average @ uniform
        seen = ((average @ seen) > 0).float()
    missing = torch.where(plan.real, 0.0, torch.nan).unsqueeze(1)
    n_seen = seen.sum(-1)
    target = _mass(pattern, plan.target)
    n_foils = plan.foils.shape[2]
    foils = torch.stack([_mass(pattern, plan.foils[:, :, f]) for f in range(n_foils)], -1) if n_foils else None
    return Reading(
        target=target + missing,
        foil=(foils.amax(-1) if foils is not None else torch.full_like(target, torch.nan)) + missing,
        correct=_correct(target, foils) + missing,
        word_correct=(_word_correct(pattern, plan) if plan.with_words else torch.full_like(target, torch.nan))
        + missing,
        first=pattern[..., 0] + missing,
        entropy=torch.special.entr(pattern.clamp(min=0)).sum(-1) + missing,
        entropy_max=(n_seen.log() + missing).expand_as(target),
        chance=(_mass(uniform, plan.target) + missing).expand_as(target),
    )


def _mass(pattern: Tensor, positions: Tensor) -> Tensor:
    """Attention summed over key positions (unit, row, n); -1 adds nothing."""
    index = positions.clamp(min=0).unsqueeze(1).expand(-1, pattern.shape[1], -1, -1)
    return (pattern.gather(-1, index) * (positions >= 0).unsqueeze(1)).sum(-1)


def _correct(target: Tensor, foils: Tensor | None) -> Tensor:
    if foils is None:
        return torch.full_like(target, torch.nan)
    best = foils.amax(-1)
    ties = 1 + (foils == target.unsqueeze(-1)).sum(-1)
    return torch.where(target > best, 1.0, torch.where(target == best, 1.0 / ties, 0.0))


def _word_correct(pattern: Tensor, plan: Plan) -> Tensor:
    heads, rows = pattern.shape[1:3]
    n_words = plan.hit.shape[-1]
    index = plan.word_of[:, None, None, :].expand(-1, heads, rows, -1)
    mass = pattern.new_zeros(*pattern.shape[:3], n_words).scatter_add(-1, index, pattern)
    mass[..., 0] = -1.0  # no word: special tokens and padding
    mass.scatter_(-1, plan.own_word[:, None, :, None].expand(-1, heads, -1, 1), -1.0)
    return plan.hit.unsqueeze(1).expand(-1, heads, -1, -1).gather(-1, mass.argmax(-1, keepdim=True)).squeeze(-1).float()


def _words(units: Sequence[Unit], shift: Sequence[int], n_keys: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    n_words = 1 + max(len(u.words) for u in units)
    word_of = torch.zeros(len(units), n_keys, dtype=torch.long)
    own = torch.zeros(len(units), rows, dtype=torch.long)
    hit = torch.zeros(len(units), rows, n_words, dtype=torch.bool)
    for i, (unit, s) in enumerate(zip(units, shift, strict=True)):
        for w, word in enumerate(unit.words, start=1):
            word_of[i, [p + s for p in word]] = w
        for j, row in enumerate(unit.rows):
            own[i, j] = word_of[i, row.query[0] + s]
            hit[i, j, word_of[i, [p + s for p in row.target]]] = True
    hit[..., 0] = False
    return word_of, own, hit


def _filled(shape: tuple[int, ...], entries: Iterable[tuple[tuple[int, ...], list[int]]]) -> Tensor:
    """Lists of positions at indices of `shape`, filled up with -1 to the longest."""
    found = list(entries)
    full = torch.full((*shape, max((len(p) for _, p in found), default=1)), -1, dtype=torch.long)
    for at, positions in found:
        full[at][: len(positions)] = torch.tensor(positions)
    return full
