"""The one reader of attention rows: how much of each row lands on the target, the foils, the first key, each word.

Every head score is a small statistic of what `read` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from probe.capture.streams import argmax
from probe.targets import Row, Unit


@dataclass(frozen=True)
class Reading:
    """Attention rows of one layer, read. Shapes (unit, head, row); rows a unit does not have hold NaN.

    target: mass on the target's tokens, summed. correct: 1 where the target gets more than every foil, 1/2 for a tie
    shared with the best foil (1/n among n), 0 otherwise; NaN without foils. tied: 1 for such a tie, else 0. foil: mass
    on the best foil.
    word_correct: 1 where the word that gets most attention, the query's own word and special tokens left out, is a
    word of the target (Clark et al. 2019). first: mass on position 0. entropy: nats over visible keys, and
    entropy_max its largest possible value. chance: the mass uniform attention would put on the target. distance: from
    the query to where it looks, in tokens, the mean over its attention (Clark et al. 2019's locality); offset: of the
    key with most attention from the query (its first piece), -1 for the token before; both NaN where the rows do not
    say which queries they are of.
    """

    target: Tensor
    foil: Tensor
    correct: Tensor
    tied: Tensor
    word_correct: Tensor
    first: Tensor
    entropy: Tensor
    entropy_max: Tensor
    chance: Tensor
    distance: Tensor
    offset: Tensor

    FIELDS = (
        "target", "foil", "correct", "tied", "word_correct", "first", "entropy", "entropy_max", "chance", "distance",
    )  # fmt: skip


class Rows:
    """Attention rows of one layer, as they were captured, and what can be said of them whatever the phenomenon: made
    once, read for several.

    pattern: (prompt, head, query, key), not changed. visible: the same shape, any axis but the last of size 1. uniform:
    what attention spread over the visible keys would be; default: each row's own. queries: (prompt, query) the key that
    each row's query is itself, where that is known.
    """

    def __init__(
        self, pattern: Tensor, visible: Tensor, uniform: Tensor | None = None, queries: Tensor | None = None
    ) -> None:
        self.pattern, self.visible, self.queries = pattern.float(), visible, queries
        self.uniform = visible / visible.sum(-1, keepdim=True) if uniform is None else uniform

    @cached_property
    def entropy(self) -> Tensor:
        """(prompt, head, query) nats."""
        pattern = self.pattern
        tiny = torch.finfo(pattern.dtype).tiny  # 0 · log 0 is 0; a clamp and a log are faster than torch's own entr
        return -pattern.clamp(min=tiny).log_().mul_(pattern).sum(-1)

    @cached_property
    def entropy_max(self) -> Tensor:
        """(prompt or 1, 1 or head, query or 1) nats."""
        return self.visible.sum(-1).log()

    @cached_property
    def distance(self) -> Tensor | None:
        """(prompt, head, query) tokens."""
        if self.queries is None:
            return None
        keys = torch.arange(self.pattern.shape[-1], device=self.pattern.device)
        later = keys > self.queries.unsqueeze(-1)  # (prompt, query, key)
        if not bool((self.visible & later.unsqueeze(1)).any()):  # one product, of all heads and rows together
            sums = self.pattern @ torch.stack([torch.ones_like(keys), keys], -1).to(self.pattern)
            return self.queries.unsqueeze(1) * sums[..., 0] - sums[..., 1]
        apart = (keys - self.queries.unsqueeze(-1)).abs().to(self.pattern.dtype)
        return torch.einsum("phqk,pqk->phq", self.pattern, apart)

    @cached_property
    def offset(self) -> Tensor | None:
        """(prompt, head, query): where the largest weight lies, seen from the query."""
        if self.queries is None:
            return None
        return (argmax(self.pattern) - self.queries.unsqueeze(1)).to(self.pattern.dtype)

    def at(self, values: Tensor, plan: Plan) -> Tensor:
        """What belongs to each row of a plan: (prompt, head, query) -> (unit, head, row)."""
        values = values.expand(self.pattern.shape[0], -1, self.pattern.shape[2])
        return values.transpose(1, 2)[plan.prompts[:, None], plan.at[..., 0]].transpose(1, 2)

    def mass(self, weights: Tensor, plan: Plan, keys: Tensor) -> Tensor:
        """Weights (prompt, head, query, key) summed over keys (unit, row, n), -1 adding nothing: (unit, head, row)."""
        weights = weights.expand(self.pattern.shape[0], -1, self.pattern.shape[2], -1)
        found = weights.permute(0, 2, 3, 1)[plan.prompts[:, None, None], plan.at, keys.clamp(min=0)]
        return (found * (keys >= 0).unsqueeze(-1)).sum(2).transpose(1, 2)

    def averaged(self, plan: Plan) -> Rows:
        """A plan's own rows, the queries of each averaged: (unit, head, row, key)."""

        def mean(values: Tensor) -> Tensor:
            values = values.expand(self.pattern.shape[0], -1, self.pattern.shape[2], -1)
            found = values.transpose(1, 2)[plan.prompts[:, None, None], plan.at]  # (unit, row, query, head, key)
            return (found * plan.share[..., None, None]).sum(2).transpose(1, 2)

        queries = None if self.queries is None else self.queries[plan.prompts[:, None], plan.at[..., 0]]
        averaged = Rows(mean(self.pattern), mean(self.visible.float()) > 0, mean(self.uniform), queries)
        if self.distance is not None:  # of each piece from itself, not of their mean from the first
            averaged.distance = mean(self.distance.unsqueeze(-1)).squeeze(-1)
        return averaged


@dataclass(frozen=True)
class Plan:
    """Where the rows of a batch of units lie, as tensors; made once and used for every layer.

    prompts: (unit,) the prompt of each among those captured. at: (unit, row, query), which of its captured rows a row
    is read from, the last repeated where it has fewer queries; share: the weight of each in the average.
    """

    prompts: Tensor
    at: Tensor
    share: Tensor
    target: Tensor  # (unit, row, n) key positions, -1 where there are fewer
    foils: tuple[Tensor, ...]  # of each foil, as target
    first: Tensor  # (unit, row, 1) the prompt's first key, which stands behind padding on the left
    real: Tensor  # (unit, row)
    words: Words | None

    @classmethod
    def of(
        cls,
        units: Sequence[Unit],
        captured: Sequence[Sequence[int]],
        *,
        prompts: Sequence[int] | None = None,
        shift: Sequence[int] | None = None,
        n_keys: int | None = None,
    ) -> Plan:
        """captured: the query positions, of each prompt, whose rows were captured, in order. prompts: of each unit,
        default its own number. shift: padding before each prompt, default none. n_keys: keys of the padded batch;
        without it, words are not scored.
        """
        prompts = range(len(units)) if prompts is None else prompts
        before = [0 if shift is None else shift[p] for p in prompts]
        places = [{q: i for i, q in enumerate(queries)} for queries in captured]
        at = [[[places[p][q] for q in r.query] for r in u.rows] for u, p in zip(units, prompts, strict=True)]
        n_rows = max(len(u.rows) for u in units)
        n_foils = max((len(r.foils) for u in units for r in u.rows), default=0)
        target, *foils = (
            _filled([[_keys(r, f, s) for r in u.rows] for u, s in zip(units, before, strict=True)], n_rows, -1)
            for f in (None, *range(n_foils))
        )
        return cls(
            torch.tensor(list(prompts)),
            _filled(at, n_rows, None),
            _filled([[[1 / len(queries)] * len(queries) for queries in rows] for rows in at], n_rows, 0.0),
            target,
            tuple(foils),
            torch.tensor(before)[:, None, None].expand(-1, n_rows, 1),
            torch.tensor([[j < len(u.rows) for j in range(n_rows)] for u in units]),
            None if n_keys is None else Words.of(units, before, n_keys, n_rows),
        )

    def alone(self) -> Plan:
        """The same rows, read from `Rows.averaged`."""
        n, rows = self.real.shape
        at = torch.arange(rows).expand(n, -1).unsqueeze(-1)
        return replace(self, prompts=torch.arange(n), at=at, share=torch.ones(n, rows, 1))

    def to(self, device: torch.device) -> Plan:
        """The same on another device."""
        return Plan(
            self.prompts.to(device),
            self.at.to(device),
            self.share.to(device),
            self.target.to(device),
            tuple(f.to(device) for f in self.foils),
            self.first.to(device),
            self.real.to(device),
            None if self.words is None else self.words.to(device),
        )


@dataclass(frozen=True)
class Words:
    """of_key: (unit, key) index of the key's word, 0 for keys without one. own: (unit, row) the query's. hit: (unit,
    row, word) whether the word is one of the target's.
    """

    of_key: Tensor
    own: Tensor
    hit: Tensor

    @classmethod
    def of(cls, units: Sequence[Unit], shift: Sequence[int], n_keys: int, rows: int) -> Words:
        """shift: padding before each unit's prompt. n_keys, rows: of the longest."""
        n_words = 1 + max(len(u.words) for u in units)
        of_key = torch.zeros(len(units), n_keys, dtype=torch.long)
        own = torch.zeros(len(units), rows, dtype=torch.long)
        hit = torch.zeros(len(units), rows, n_words, dtype=torch.bool)
        for i, (unit, s) in enumerate(zip(units, shift, strict=True)):
            for w, word in enumerate(unit.words, start=1):
                of_key[i, [p + s for p in word]] = w
            for j, row in enumerate(unit.rows):
                own[i, j] = of_key[i, row.query[0] + s]
                hit[i, j, of_key[i, [p + s for p in row.target]]] = True
        hit[..., 0] = False
        return cls(of_key, own, hit)

    def to(self, device: torch.device) -> Words:
        return Words(self.of_key.to(device), self.own.to(device), self.hit.to(device))


def read(rows: Rows, plan: Plan) -> Reading:
    """Read one layer's rows. Masked cells are told by what is visible, never by their value."""
    plan = plan.to(rows.pattern.device)
    if plan.words is not None or plan.at.shape[2] > 1:
        rows, plan = rows.averaged(plan), plan.alone().to(rows.pattern.device)
    missing = torch.where(plan.real, 0.0, torch.nan).unsqueeze(1)
    target = rows.mass(rows.pattern, plan, plan.target)
    foils = torch.stack([rows.mass(rows.pattern, plan, f) for f in plan.foils], -1) if plan.foils else None
    nothing = torch.full_like(target, torch.nan)
    return Reading(
        target=target + missing,
        foil=nothing if foils is None else foils.amax(-1) + missing,
        correct=nothing if foils is None else _correct(target, foils) + missing,
        tied=nothing if foils is None else (target == foils.amax(-1)) + missing,
        word_correct=nothing if plan.words is None else _word_correct(rows.pattern, plan.words) + missing,
        first=rows.mass(rows.pattern, plan, plan.first) + missing,
        entropy=rows.at(rows.entropy, plan) + missing,
        entropy_max=(rows.at(rows.entropy_max, plan) + missing).expand_as(target),
        chance=(rows.mass(rows.uniform, plan, plan.target) + missing).expand_as(target),
        distance=nothing if rows.distance is None else rows.at(rows.distance, plan) + missing,
        offset=nothing if rows.offset is None else rows.at(rows.offset, plan) + missing,
    )


def _correct(target: Tensor, foils: Tensor) -> Tensor:
    best = foils.amax(-1)
    ties = 1 + (foils == target.unsqueeze(-1)).sum(-1)
    return torch.where(target > best, 1.0, torch.where(target == best, 1.0 / ties, 0.0))


def _word_correct(pattern: Tensor, words: Words) -> Tensor:
    """(unit, head, row), from rows (unit, head, row, key)."""
    heads, rows = pattern.shape[1:3]
    index = words.of_key[:, None, None, :].expand(-1, heads, rows, -1)
    mass = pattern.new_zeros(*pattern.shape[:3], words.hit.shape[-1]).scatter_add(-1, index, pattern)
    mass[..., 0] = -1.0  # no word: special tokens and padding
    mass.scatter_(-1, words.own[:, None, :, None].expand(-1, heads, -1, 1), -1.0)
    return (
        words.hit.unsqueeze(1).expand(-1, heads, -1, -1).gather(-1, mass.argmax(-1, keepdim=True)).squeeze(-1).float()
    )


def _keys(row: Row, foil: int | None, shift: int) -> list[int]:
    """Key positions of the target, or of a foil; none of a foil that the row does not have."""
    keys = row.target if foil is None else row.foils[foil] if foil < len(row.foils) else ()
    return [p + shift for p in keys]


def _filled(lists: Sequence[Sequence[Sequence[float]]], rows: int, fill: float | None) -> Tensor:
    """Lists of numbers, of each unit and row, as (unit, row, n): filled up to the longest with `fill`, or, where that
    is None, with their own last; rows that a unit does not have hold `fill`, or 0.
    """
    most = max((len(numbers) for unit in lists for numbers in unit), default=1)
    blank = [0 if fill is None else fill] * most
    return torch.tensor(
        [
            [[*numbers, *[numbers[-1] if fill is None else fill] * (most - len(numbers))] for numbers in unit]
            + [blank] * (rows - len(unit))
            for unit in lists
        ]
    )
