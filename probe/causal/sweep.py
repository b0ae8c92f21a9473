"""Every head changed in turn, on every prompt: exactly, by running the model with the change.

Changes of one layer are made in one batch, each row of it with another head, and the layers below are not run again
(`probe.capture.prefix`): about half a forward pass a head and prompt.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probe.capture.batch import make_batch
from probe.capture.edit import Change, Edit, Where
from probe.capture.prefix import Prefix
from probe.causal.readout import Asked, ask, asked
from probe.errors import ProbeError, UnknownName
from probe.subject import Subject
from probe.targets import Positions, Unit
from probe.tty import progress

KINDS = {
    "patch": "the head's z is what it is on the minimal pair's other prompt; nats lost",
    "restore": "on the other prompt, the head's z is what it is on this one; nats won back",
    "pattern": "the head's attention pattern is what it is on the other prompt; nats lost",
    "mean": "the head's z is its mean over all positions of all prompts measured; nats lost",
    "resample": "the head's z is what it is on another prompt, drawn at random; nats lost",
    "edge": "the head cannot look from the query to the target; nats lost",
}
PAIRED = ("patch", "restore", "pattern")
TOKENS_PER_BATCH, ENOUGH_TOKENS = 4096, 1024

Array = npt.NDArray[np.float64]
Head = tuple[int, int]  # layer, head
Heads = Sequence[Head]


@dataclass(frozen=True)
class Effects:
    """clean, swapped: log p(right) - log p(wrong) of each unit on its prompt and on its minimal pair's, nats; NaN where
    there is none. values: kind of change -> (layer, head, unit) nats, positive where the head works for the right
    answer; NaN where it was not measured.
    """

    clean: Array
    swapped: Array
    values: dict[str, Array]


def sweep(
    subject: Subject,
    units: Sequence[Unit],
    kinds: Iterable[str] = ("patch",),
    *,
    heads: Heads | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Effects:
    """The exact effect of changing each head by itself, at all positions, on what the model answers.

    kinds: keys of `KINDS`; those of `PAIRED` are NaN for units without an aligned minimal pair. heads: (layer, head)
    of those to measure; default all. seed: draws the other prompts of "resample".
    Raises UnknownName, ProbeError if no unit has an answer, UnsupportedModel for models without heads in every layer.
    """
    kinds = tuple(kinds)
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName.of("kind of change", kind, KINDS)
    subject.anatomy.check_even()
    prompts = asked(subject, units, most=1)
    if not prompts:
        raise ProbeError("none of the units has a question, so there is no answer to watch.")
    wanted: dict[int, list[int]] = {}
    for layer, head in sorted(set(heads) if heads is not None else all_heads(subject)):
        wanted.setdefault(layer, []).append(head)
    shape = subject.n_layers, subject.n_heads, len(units)
    clean, swapped = np.full(len(units), np.nan), np.full(len(units), np.nan)
    values = {kind: np.full(shape, np.nan) for kind in kinds}
    mean = mean_z(subject, [p.ids for p in prompts]) if "mean" in kinds else None
    most_heads = max(map(len, wanted.values()), default=1)
    draws, resumes = random.Random(seed), _resumes(subject, [p.ids for p in prompts[:2]])
    for chosen in progress(list(_batches(prompts, most_heads)), f"heads of {subject.name}", quiet=quiet):
        part = _Part(subject, [prompts[i] for i in chosen], units, mean, kinds, resumes)
        part.draw([p.ids for p in prompts], draws if "resample" in kinds else None)
        _add(clean, part.numbers, part.own.contrasts)
        if part.other is not None:
            _add(swapped, part.numbers, part.other.contrasts)
        for kind in kinds:
            if kind in PAIRED and part.other is None:
                continue
            for layer, those in wanted.items():
                found = part.effects(kind, layer, those)
                for at, head in enumerate(those):
                    _add(values[kind][layer, head], part.numbers, found[:, at])
    return Effects(clean, swapped, values)


def mean_z(subject: Subject, prompts: Sequence[Positions], batch_size: int = 16) -> Tensor:
    """(layer, head, d_head): the mean of z over every position of every prompt."""
    total, n = torch.zeros(()), 0
    for batch, seen in subject.captured(prompts, ["z"], batch_size=batch_size):
        real = batch.inputs["attention_mask"].bool()
        z = torch.stack([seen["z", layer][real].double().sum(0) for layer in range(subject.n_layers)])
        total, n = total + z, n + int(real.sum())
    return (total / n).float()


def _resumes(subject: Subject, prompts: Sequence[Positions]) -> bool:
    """Whether passes can be resumed above a layer, tried on a few prompts, at every layer."""
    inputs = make_batch(subject.anatomy, prompts, range(len(prompts))).inputs
    prefix = Prefix(subject.anatomy)
    with torch.no_grad(), prefix.recorded(len(prompts)):
        subject.anatomy.backbone(**inputs)
    return prefix.check(inputs)


class _Pass:
    """A batch of prompts, run once: its z (layer by layer), patterns, contrasts, and the means to resume it."""

    def __init__(
        self,
        subject: Subject,
        prompts: Sequence[Asked],
        ids: Sequence[Positions],
        sites: Sequence[str],
        resumes: bool,
    ) -> None:
        self.ids = ids
        self.prefix = Prefix(subject.anatomy, works=resumes)
        with self.prefix.recorded(len(ids)):
            asking = ask(subject, prompts, ids, sites=sites)
        self.seen, self.contrasts = asking.seen, asking.contrasts


class _Part:
    """One batch of prompts, with what its heads can be given instead of their own."""

    def __init__(
        self,
        subject: Subject,
        prompts: Sequence[Asked],
        units: Sequence[Unit],
        mean: Tensor | None,
        kinds: Sequence[str],
        resumes: bool,
    ) -> None:
        self.subject, self.prompts, self.mean = subject, prompts, mean
        self.units = [units[p.unit] for p in prompts]
        self.numbers = [p.unit for p in prompts]
        self.own = _Pass(subject, prompts, [p.ids for p in prompts], ["z"], resumes)
        self.other: _Pass | None = None
        pairs = [p.swapped for p in prompts if p.swapped is not None]
        sites = ["z", "pattern"] if "pattern" in kinds else ["z"]
        if len(pairs) == len(prompts):  # batches hold prompts that have one, or that have none
            self.other = _Pass(subject, prompts, pairs, sites, resumes)
        self.donors: list[Tensor] = []

    def draw(self, ids: Sequence[Positions], draws: random.Random | None) -> None:
        """Choose another prompt for each, and read its z: (layer) of (prompt, pos, head, d_head)."""
        if draws is None:
            return
        others = []
        for prompt in self.prompts:
            fitting = [i for i in ids if i != prompt.ids] or [prompt.ids]
            others.append(draws.choice(fitting))
        longest = max(len(p.ids) for p in self.prompts)
        for batch, seen in self.subject.captured(others, ["z"], batch_size=len(others)):
            # Where the other prompt ends sooner, it begins again.
            at = torch.tensor([[p % n for p in range(longest)] for n in batch.lengths])
            rows = torch.arange(len(others)).unsqueeze(1)
            self.donors = [seen["z", layer][rows, at] for layer in range(self.subject.n_layers)]

    def effects(self, kind: str, layer: int, heads: Sequence[int]) -> Array:
        """(prompt, head) nats."""
        base = self.own
        if kind == "restore":
            assert self.other is not None
            base = self.other
        pairs = [(p, h) for p in range(len(self.prompts)) for h in heads]
        who, head = torch.tensor(pairs).T
        site, change = self._change(kind, layer, who, head)
        prompts, ids = [self.prompts[p] for p, _ in pairs], [base.ids[p] for p, _ in pairs]
        with base.prefix.resumed(layer, who.tolist()):
            edited = ask(self.subject, prompts, ids, edits=[Edit(site, layer, change, what=kind)]).contrasts
        edited = edited.reshape(len(self.prompts), len(heads))
        return edited - base.contrasts[:, None] if kind == "restore" else base.contrasts[:, None] - edited

    def _change(self, kind: str, layer: int, who: Tensor, head: Tensor) -> tuple[str, Change]:
        """The site, and how row i of a batch is changed: at `head[i]`, with what belongs to prompt `who[i]`."""
        if kind == "edge":
            return "scores", self._cut(who, head)
        if kind == "pattern":
            assert self.other is not None
            pattern = self.other.seen["pattern", layer]

            def look(part: Tensor, where: Where) -> Tensor:
                new, mine = part.clone(), torch.arange(len(part))
                assert where.keys is not None
                real = where.keys >= 0
                source = pattern[who[where.prompts], head[where.prompts]][:, where.rows][:, :, where.keys[real]]
                rows = new[mine, head[where.prompts]]
                rows[..., real] = source.to(new)
                new[mine, head[where.prompts]] = rows
                return new

            return "pattern", look
        given = self._given(kind, layer)

        def put(part: Tensor, where: Where) -> Tensor:
            new, mine = part.clone(), torch.arange(len(part))
            at = head[where.prompts]
            if given.dim() == 2:
                new[mine, :, at] = given[at].unsqueeze(1).to(new)
            else:
                new[mine, :, at] = given[who[where.prompts], :, at][:, where.rows].to(new)
            return new

        return "z", put

    def _given(self, kind: str, layer: int) -> Tensor:
        """(prompt, pos, head, d_head), or (head, d_head) for every prompt and position."""
        if kind == "mean":
            assert self.mean is not None
            return self.mean[layer]
        if kind == "resample":
            return self.donors[layer]
        source = self.own if kind == "restore" else self.other
        assert source is not None
        return source.seen["z", layer]

    def _cut(self, who: Tensor, head: Tensor) -> Change:
        """Scores from the query to the target become those of masked cells."""

        def change(part: Tensor, where: Where) -> Tensor:
            new = part.clone()
            assert where.keys is not None
            for i, number in enumerate(where.prompts.tolist()):
                for row in self.units[int(who[number])].rows:
                    queries = torch.isin(where.rows, torch.tensor(row.query))
                    keys = torch.isin(where.keys, torch.tensor(row.target))
                    cells = queries.unsqueeze(1) & keys.unsqueeze(0)
                    new[i, int(head[number])][cells] = torch.finfo(new.dtype).min
            return new

        return change


def all_heads(subject: Subject) -> list[Head]:
    """Every (layer, head), in order."""
    return [(layer, head) for layer in range(subject.n_layers) for head in range(subject.n_heads)]


def highest(values: Array, n: int) -> list[Head]:
    """The n heads with the largest values (layer, head), the first of equals first."""
    order = np.argsort(-values.ravel(), kind="stable")[:n]
    return [(int(i) // values.shape[1], int(i) % values.shape[1]) for i in order]


def _batches(prompts: Sequence[Asked], heads: int) -> Iterator[list[int]]:
    """Indices of prompts of like length, those with a minimal pair apart from those without. Prompts of another length
    are asked at other rows, and every row that one of a batch is asked at costs logits for all: so a batch that is
    large enough ends where the length changes.
    """
    order = sorted(range(len(prompts)), key=lambda i: (prompts[i].swapped is None, len(prompts[i].ids), i))
    batch: list[int] = []
    for i in order:
        if batch:
            first, size = prompts[batch[0]], len(prompts[i].ids) * heads
            full = (len(batch) + 1) * size > TOKENS_PER_BATCH
            longer = len(first.ids) != len(prompts[i].ids) and len(batch) * size >= ENOUGH_TOKENS
            if full or longer or (first.swapped is None) != (prompts[i].swapped is None):
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch


def _add(into: Array, units: Sequence[int], values: Array) -> None:
    """Add up the parts of each unit; NaN stands for nothing yet."""
    for unit, value in zip(units, values, strict=True):
        into[unit] = value if np.isnan(into[unit]) else into[unit] + value
