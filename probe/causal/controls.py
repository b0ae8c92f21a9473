"""What a head's effect is measured against: other heads that write as much, and text that has nothing to do with it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from probe import data
from probe.capture.batch import copies
from probe.capture.edit import Edit, Where
from probe.causal.readout import Asked, Asking, ask, asked, unreadable
from probe.causal.sweep import Array, Head, Heads, all_heads, mean_z
from probe.errors import ProbeError
from probe.subject import Subject
from probe.targets import Positions, Unit

MATCHED = 20  # heads that a head is compared with
NORM_PROMPTS = 64
UNRELATED_TEXTS = 24
MASK_EVERY = 7  # tokens of unrelated text, in a masked model


def output_norms(subject: Subject, units: Sequence[Unit]) -> Array:
    """(layer, head): the mean length of what each head writes to the stream at the rows where answers are read, over at
    most `NORM_PROMPTS` prompts.
    """
    prompts = asked(subject, units, most=1)[:NORM_PROMPTS]
    rows = [[p.rows[0]] for p in prompts]
    total = np.zeros((subject.n_layers, subject.n_heads))
    for _, seen in subject.captured([p.ids for p in prompts], ["result"], rows=rows, batch_size=16):
        for layer in range(subject.n_layers):
            total[layer] += seen["result", layer].float().norm(dim=-1).sum((0, 1)).cpu().numpy()
    return np.asarray(total / len(prompts))


def matched(norms: Array, head: Head, others: Heads, n: int = MATCHED) -> list[Head]:
    """The n of the other heads whose output norm is nearest to the head's, by ratio."""
    with np.errstate(divide="ignore"):
        logs = np.log(norms)
    own = logs[head]
    # Heads that write nothing are as far from one that writes as can be.
    return sorted(others, key=lambda h: (abs(logs[h] - own) if np.isfinite(logs[h] - own) else np.inf, h))[:n]


def unrelated(subject: Subject, task: str, seed: int = 0) -> list[Positions]:
    """Token ids of texts that do not ask what the task asks: plain English, or the synthetic language's other tasks."""
    if subject.language != "synthetic":
        return [subject.encode(text).ids for text in data.PLAIN[:UNRELATED_TEXTS]]
    rng = random.Random(seed)
    others = [t for t in data.language.tasks() if t != task]
    return [subject.encode(data.language.draw(rng, others)).ids for _ in range(UNRELATED_TEXTS)]


def losses_without(subject: Subject, heads: Heads, texts: Sequence[Positions]) -> dict[Head, float]:
    """How much the loss on the texts (nats per token) grows when a head's z is its mean over those texts: on the next
    token, or, in a masked model, on every `MASK_EVERY`th token, masked. Empty for a model that cannot be asked. Raises
    ProbeError where the texts hold no token to predict.
    """
    if unreadable(subject) is not None:
        return {}
    given, rows = list(texts), [range(len(t) - 1) for t in texts]
    wanted = [t[1:] for t in texts]
    if not subject.is_causal:
        mask = int(subject.tokenizer.mask_token_id)
        rows = [range(MASK_EVERY, len(t) - 1, MASK_EVERY) for t in texts]  # neither the first token nor the last
        wanted = [tuple(t[i] for i in mine) for t, mine in zip(texts, rows, strict=True)]
        pairs = zip(texts, rows, strict=True)
        given = [tuple(mask if i in mine else token for i, token in enumerate(t)) for t, mine in pairs]
    if not any(wanted):
        raise ProbeError(f"the texts are too short to predict anything in: {max(map(len, texts), default=0)} tokens.")
    mean = mean_z(subject, given)

    def loss(edits: Sequence[Edit]) -> float:
        total = 0.0
        for batch, seen in subject.captured(given, ["logits"], edits=edits, batch_size=len(given)):
            for at, number in enumerate(batch.indices):
                logits = seen["logits"][at, [r + batch.shift[at] for r in rows[number]]].float()
                right = torch.tensor(wanted[number], dtype=torch.long, device=logits.device)
                total += float(F.cross_entropy(logits, right, reduction="sum"))
        return total / sum(map(len, wanted))

    plain = loss(())
    found = {}
    for layer, head in heads:
        value = mean[layer, head]
        edit = Edit("z", layer, lambda part, _, value=value: value.to(part).expand_as(part), heads=(head,), what="mean")
        found[layer, head] = loss([edit]) - plain
    return found


@dataclass(frozen=True)
class Groups:
    """Heads knocked out together. lost: nats of the answer, mean over units; random: the same for random groups of as
    many heads, matched one by one on output norm; singly: the sum of what each head costs by itself.
    """

    heads: tuple[Head, ...]
    lost: float
    random: Array
    singly: float

    @property
    def limit(self) -> float:
        """The 95th percentile of random groups."""
        return float(np.percentile(self.random, 95))


def knock_out_group(
    subject: Subject, units: Sequence[Unit], heads: Heads, norms: Array, *, groups: int = 100, seed: int = 0
) -> Groups:
    """Mean-ablate heads together, and `groups` random groups matched on output norm, none of the heads among them."""
    drawn = random_groups(subject, heads, norms, groups, seed)
    sets = [tuple(heads), *drawn, *((h,) for h in heads)]
    lost = _losses(subject, units, sets)
    return Groups(tuple(heads), lost[0], np.array(lost[1 : 1 + groups]), float(sum(lost[1 + groups :])))


def random_groups(subject: Subject, heads: Heads, norms: Array, groups: int, seed: int = 0) -> list[tuple[Head, ...]]:
    """Groups of as many heads, each drawn among those whose output norm is nearest to one of `heads`, none of which is
    in them.
    """
    rng = random.Random(seed)
    others = [h for h in all_heads(subject) if h not in heads]
    drawn: list[tuple[Head, ...]] = []
    for _ in range(groups):
        group: list[Head] = []
        for head in heads:
            left = [h for h in others if h not in group]
            if left:
                group.append(rng.choice(matched(norms, head, left)))
        drawn.append(tuple(group))
    return drawn


def _losses(subject: Subject, units: Sequence[Unit], groups: Sequence[Heads]) -> list[float]:
    """Nats of the answer that each group of heads costs when its z are their means, mean over units."""
    prompts = sorted(asked(subject, units, most=1), key=lambda p: len(p.ids))
    mean = mean_z(subject, [p.ids for p in prompts])
    sets: list[Heads] = [(), *groups]  # the first: nothing knocked out
    totals = np.zeros(len(sets))
    for prompt in prompts:
        for numbers, asking in asked_without(subject, prompt, sets, mean):
            totals[numbers] += asking.contrasts
    n = len({p.unit for p in prompts})
    return [float((totals[0] - t) / n) for t in totals[1:]]


def asked_without(
    subject: Subject, prompt: Asked, sets: Sequence[Heads], mean: Tensor
) -> Iterator[tuple[range, Asking]]:
    """One prompt asked once with each set of heads at their mean z, in batches: the numbers of the sets, and what the
    model answers without them. mean: of `mean_z`.
    """
    for numbers in copies(len(sets), len(prompt.ids)):
        some = [sets[i] for i in numbers]
        n_times = [prompt] * len(some), [prompt.ids] * len(some)
        yield numbers, ask(subject, *n_times, edits=mean_edits(some, mean))


def mean_edits(groups: Sequence[Heads], mean: Tensor) -> list[Edit]:
    """One edit a layer: in row i of a batch, the heads of group i have their mean z. mean: `mean_z`."""
    edits = []
    for layer in sorted({layer for group in groups for layer, _ in group}):
        hit = torch.zeros(len(groups), mean.shape[1], dtype=torch.bool)
        for row, group in enumerate(groups):
            for at, head in group:
                if at == layer:
                    hit[row, head] = True

        def change(part: Tensor, where: Where, hit: Tensor = hit, value: Tensor = mean[layer]) -> Tensor:
            return torch.where(hit[where.prompts][:, None, :, None], value.to(part), part)

        edits.append(Edit("z", layer, change, what="mean"))
    return edits
