"""One pass over a subject's prompts: every head's reading of every unit, of one phenomenon or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from probe.capture.batch import alike
from probe.errors import CaptureError
from probe.scores.rows import Plan, Reading, Rows, read
from probe.subject import Subject
from probe.targets import Positions, Targets
from probe.tty import progress


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
    (measured,) = measure_together(subject, [targets], quiet=quiet, what=what)
    return measured


def measure_together(
    subject: Subject, many: Sequence[Targets], *, quiet: bool = False, what: str = ""
) -> list[Measured]:
    """The same for several phenomena: prompts that they share are run once for all of them."""
    subject.anatomy.check_even()
    places: dict[Positions, list[tuple[int, int]]] = {}  # a prompt's ids -> (which targets, which unit)
    for t, targets in enumerate(many):
        for u, unit in enumerate(targets.units):
            places.setdefault(unit.ids, []).append((t, u))
    prompts = list(places)
    values = [
        {name: np.full((subject.n_layers, subject.n_heads, len(t.units)), np.nan) for name in Reading.FIELDS}
        for t in many
    ]
    names = ", ".join(dict.fromkeys(t.phenomenon for t in many))
    for chosen in progress(list(alike([len(p) for p in prompts])), what or f"{names} on {subject.name}", quiet=quiet):
        ids = [prompts[i] for i in chosen]
        asked = [sorted({q for t, u in places[p] for r in many[t].units[u].rows for q in r.query}) for p in ids]
        for batch, seen in subject.captured(ids, ["pattern"], rows=asked, batch_size=len(ids)):
            parts = [_Part.of(many[t], t, ids, asked, places, batch.shift) for t in range(len(many))]
            for layer in range(subject.n_layers):
                pattern = seen["pattern", layer]
                if not torch.isfinite(pattern.sum()):  # one pass over it, and no copy
                    raise CaptureError(f"the pattern of layer {layer} of {subject.name} holds NaN or infinite values.")
                rows = Rows(pattern, seen.visible[layer])
                for part in (p for p in parts if p is not None):
                    reading = read(rows, part.plan)
                    for name in Reading.FIELDS:
                        found = getattr(reading, name).double().nanmean(-1).T.cpu().numpy()
                        values[part.number][name][layer][:, part.units] = found
    return [Measured(t, v) for t, v in zip(many, values, strict=True)]


@dataclass(frozen=True)
class _Part:
    """One phenomenon's units among a batch of prompts. number: which phenomenon. units: which of its units."""

    number: int
    units: list[int]
    plan: Plan

    @classmethod
    def of(
        cls,
        targets: Targets,
        number: int,
        ids: Sequence[Positions],
        asked: Sequence[Sequence[int]],
        places: dict[Positions, list[tuple[int, int]]],
        shift: Sequence[int],
    ) -> _Part | None:
        """None where the batch has none of its units."""
        mine = [(row, u) for row, p in enumerate(ids) for t, u in places[p] if t == number]
        if not mine:
            return None
        words = any(r.foils for u in targets.units for r in u.rows)
        n_keys = max(s + len(p) for s, p in zip(shift, ids, strict=True))
        units = [targets.units[u] for _, u in mine]
        prompts = [row for row, _ in mine]
        plan = Plan.of(units, asked, prompts=prompts, shift=shift, n_keys=n_keys if words else None)
        return cls(number, [u for _, u in mine], plan)
