"""One pass over a subject's prompts: every head's reading of every unit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from probe.errors import CaptureError
from probe.scores.rows import Plan, Reading, read
from probe.subject import Subject
from probe.targets import Targets, Unit
from probe.tty import progress

TOKENS_PER_BATCH = 2048


@dataclass(frozen=True)
class Measured:
    """Each unit's readings, averaged over its rows: name -> float64 (layer, head, unit). Names: `Reading.FIELDS`."""

    targets: Targets
    values: dict[str, npt.NDArray[np.float64]]

    def __getitem__(self, name: str) -> npt.NDArray[np.float64]:
        return self.values[name]


def measure(subject: Subject, targets: Targets, *, quiet: bool = False, what: str = "") -> Measured:
    """Read the attention rows of every unit, in one forward pass a prompt. Raises CaptureError for NaN or inf,
    UnsupportedModel for models without heads in every layer.
    """
    subject.anatomy.check_even()
    units = targets.units
    labelled = any(r.foils for u in units for r in u.rows)
    shape = (subject.n_layers, subject.n_heads, len(units))
    values = {name: np.full(shape, np.nan) for name in Reading.FIELDS}
    batches = list(_batches(units))
    for chosen in progress(batches, what or f"{targets.phenomenon} on {subject.name}", quiet=quiet):
        picked = [units[i] for i in chosen]
        queries = [tuple(q for r in u.rows for q in r.query) for u in picked]
        for batch, seen in subject.captured([u.ids for u in picked], ["pattern"], rows=queries, batch_size=len(picked)):
            plan = Plan.of(picked, batch.shift, max(batch.lengths), words=labelled)
            for layer in range(subject.n_layers):
                pattern = seen["pattern", layer]
                if not torch.isfinite(pattern).all():
                    raise CaptureError(f"the pattern of layer {layer} of {subject.name} holds NaN or infinite values.")
                reading = read(pattern, seen.visible[layer], plan)
                for name in Reading.FIELDS:
                    values[name][layer][:, chosen] = getattr(reading, name).double().nanmean(-1).T.cpu().numpy()
    return Measured(targets, values)


def _batches(units: Sequence[Unit]) -> Iterator[Collection[int]]:
    """Indices of units of like length, about `TOKENS_PER_BATCH` tokens together."""
    order = sorted(range(len(units)), key=lambda i: (len(units[i].ids), i))
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * len(units[i].ids) > TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
