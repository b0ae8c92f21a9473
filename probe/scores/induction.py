"""Induction: from a token to what followed it before (Elhage et al. 2021; Olsson et al. 2022).

    test = InductionTest(Repeats().held_out(32))
    test.read(subject).heads              # layer, head, induction, previous, first, copying, copied
    test.read(subject, [probe.edits.zero("z", layer=0, heads=1)]).later

induction, the prefix-matching score: mass from a token to the tokens that follow its earlier occurrences; first: mass
from there to <bos>. previous: mass from any token to the one before. copying, copied: how far the head raises the
logit of the token it looks at, and how often above all others. The gaps are of random length, so no fixed offset is a
rival (`best_offset`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.capture.edit import Edits
from probe.errors import UnsupportedModel
from probe.models.gpt import GPT, Block
from probe.models.repeats import Repeated
from probe.models.tokenizer import SPECIAL
from probe.scores.rows import Plan, Rows, read
from probe.subject import Subject
from probe.targets import Row, Targets, Unit

SCORES = ("induction", "previous", "first", "copying", "copied")


class InductionReading(NamedTuple):
    """heads: one row per head, columns layer, head, induction, previous, first (masses), copying (-1 to 1), copied.
    first, later: loss (nats) on a string's symbols after its first one, where it comes first, and in its later copies.
    """

    heads: pd.DataFrame
    first: float
    later: float

    @property
    def in_context(self) -> float:
        """The in-context-learning score: loss in later copies minus loss in the first, nats; the lower, the more."""
        return self.later - self.first


def followers(ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Query -> the positions, up to its own, that follow earlier occurrences of its token. Queries whose token is new
    are left out, as are special tokens.
    """
    seen: dict[int, list[int]] = {}
    found = {}
    for query, token in enumerate(ids):
        if token < len(SPECIAL):
            continue
        if token in seen:
            found[query] = tuple(seen[token])
        seen.setdefault(token, []).append(query + 1)
    return found


def induction_targets(prompts: Sequence[Sequence[int]]) -> Targets:
    """Each token that was there before looks at what followed it."""
    return _targets("induction", [(ids, followers(ids)) for ids in prompts])


def previous_targets(prompts: Sequence[Sequence[int]]) -> Targets:
    """Each token looks at the one before it; the special token at the front is neither query nor target."""
    return _targets("previous token", [(ids, {q: (q - 1,) for q in range(2, len(ids))}) for ids in prompts])


def _targets(phenomenon: str, prompts: Iterable[tuple[Sequence[int], Mapping[int, tuple[int, ...]]]]) -> Targets:
    units = [
        Unit(f"string-{n}", f"string-{n}", tuple(ids), tuple(Row((q,), to) for q, to in looked.items()))
        for n, (ids, looked) in enumerate(prompts)
        if looked
    ]
    return Targets(phenomenon, "random strings, repeated", "mass", (), tuple(units))


def best_offset(targets: Targets) -> tuple[int, float]:
    """The fixed offset that is right most often, and the mass it would get: a positional head can have no more."""
    hits: dict[int, float] = defaultdict(float)
    for unit in targets.units:
        for row in unit.rows:
            for key in row.target:
                hits[key - row.query[0]] += 1 / (len(unit.rows) * len(targets.units))
    offset = max(sorted(hits), key=hits.__getitem__)
    return offset, hits[offset]


def guess_among_seen(strings: Sequence[Repeated]) -> float:
    """The loss (nats) in later copies of a model that knows which symbols the prompt has shown, but not their order,
    and takes each for as likely as the others.
    """
    by_prompt = [
        [math.log(len(set(s.ids[1:at]))) for start in s.copies[1:] for at in range(start + 1, start + s.size)]
        for s in strings
    ]
    return sum(sum(prompt) / len(prompt) for prompt in by_prompt) / len(by_prompt)


class InductionTest:
    """Prompts of the same length that heads are measured on, made ready once for many readings."""

    def __init__(self, strings: Sequence[Repeated]) -> None:
        self.strings = tuple(strings)
        self.ids = [s.ids for s in strings]
        self.targets = induction_targets(self.ids)
        length = len(self.ids[0])
        self._plans = [
            Plan.of(t.units, [range(length)] * len(strings)) for t in (self.targets, previous_targets(self.ids))
        ]
        self._first, self._later = torch.zeros(2, len(strings), length, dtype=torch.bool)
        for n, string in enumerate(strings):
            for copy, start in enumerate(string.copies):
                (self._later if copy else self._first)[n, start + 1 : start + string.size] = True

    def read(self, subject: Subject, edits: Edits = ()) -> InductionReading:
        """Every head of a tiny GPT, and its losses, while `edits` are made. Raises UnsupportedModel for others."""
        model = subject.model
        if not isinstance(model, GPT):
            raise UnsupportedModel(f"{subject.name} is no tiny GPT: its symbols are not those of the random strings.")
        ((_, seen),) = subject.captured(self.ids, ["pattern", "v", "logits"], edits=edits, batch_size=len(self.ids))
        ids, rows = torch.tensor(self.ids), []
        for layer in range(subject.n_layers):
            every = Rows(seen["pattern", layer], seen.visible[layer])
            induction, previous = (read(every, plan) for plan in self._plans)
            masses = (induction.target, previous.target, induction.first)
            per_head = [m.double().nanmean(-1).mean(0).tolist() for m in masses]
            per_head += [score.tolist() for score in copying(model, layer, seen["v", layer], ids)]
            rows += [(layer, head, *values) for head, values in enumerate(zip(*per_head, strict=True))]
        heads = pd.DataFrame(rows, columns=["layer", "head", *SCORES])
        loss = F.cross_entropy(seen["logits"][:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
        return InductionReading(heads, *(_mean(loss, part[:, 1:]) for part in (self._first, self._later)))


def copying(model: GPT, layer: int, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """What each head would write if it looked at one token alone, through the final norm's gain and the unembedding:
    its copying score (Olsson et al. 2022), from -1 to 1, and how often the token looked at gets the highest logit.

    The score is, of the logits above their mean, the share on the token looked at, times 2, minus 1. It is near 1 only
    for a head wide enough to tell all symbols apart: a narrow one raises others with the right one.
    values: site `v` of the layer, (batch, pos, head, d_head); ids (batch, pos). Means over all symbols of all prompts,
    (head,) each.
    """
    config, norm = model.config, model.base_model.norm
    matrix = cast(Block, model.base_model.blocks[layer]).attention.out.weight
    project = matrix.view(config.d_model, config.n_heads, config.head_width)
    per_query_head = values.repeat_interleave(config.n_heads // config.kv_heads, dim=2)
    with torch.no_grad():
        written = torch.einsum("bthd,chd->bthc", per_query_head, project)
        if isinstance(norm, nn.LayerNorm):
            written = written - written.mean(-1, keepdim=True)
        gain = getattr(norm, "weight", None)
        written = written if gain is None else written * gain
        logits = written @ (model.base_model.embed.weight if config.tied else model.unembed.weight).T
        raised = (logits - logits.mean(-1, keepdim=True)).relu()
        own = ids[:, :, None, None].expand(-1, -1, raised.shape[2], 1)
        share = raised.gather(-1, own).squeeze(-1) / raised.sum(-1).clamp(min=1e-12)
        top = raised.argmax(-1) == own.squeeze(-1)
    symbols = ids >= len(SPECIAL)
    return (2 * share[symbols] - 1).double().mean(0), top[symbols].double().mean(0)


def _mean(loss: Tensor, chosen: Tensor) -> float:
    """Mean over each prompt's chosen positions, then over prompts."""
    return float(((loss * chosen).sum(1) / chosen.sum(1)).mean())
