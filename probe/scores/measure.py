"""One pass over a subject's prompts: every head's reading of every unit, of one phenomenon or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from probe.capture.batch import alike, row_tensor
from probe.errors import CaptureError
from probe.scores.rows import Plan, Reading, Rows, read
from probe.subject import Subject
from probe.targets import Positions, Targets
from probe.tty import progress


@dataclass(frozen=True)
class Measured:
    """Each unit's readings, averaged over its rows: name -> float64 (layer, head, unit). Names: `Reading.FIELDS`.

    offsets: (layer, head, offset) how often the largest weight lies at each offset from the query, the middle one being
    the query itself; a prompt's rows together count as one. None where that was not read.
    """

    targets: Targets
    values: dict[str, npt.NDArray[np.float64]]
    offsets: npt.NDArray[np.float64] | None = None

    def usual_offset(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """(layer, head): the offset at which a head's largest weight lies most often, and the share of its rows (Voita
        et al. 2019 call a head positional from 0.9 on). NaN where it was not read.
        """
        if self.offsets is None:
            nothing = np.full(next(iter(self.values.values())).shape[:2], np.nan)
            return nothing, nothing
        at = self.offsets.argmax(-1)
        return at - self.offsets.shape[-1] // 2.0, self.offsets.max(-1) / self.offsets.sum(-1)

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
    longest = max(map(len, prompts), default=1)
    offsets = [np.zeros((subject.n_layers, subject.n_heads, 2 * longest - 1)) for _ in many]
    names = ", ".join(dict.fromkeys(t.phenomenon for t in many))
    for chosen in progress(list(alike([len(p) for p in prompts])), what or f"{names} on {subject.name}", quiet=quiet):
        ids = [prompts[i] for i in chosen]
        asked = [sorted({q for t, u in places[p] for r in many[t].units[u].rows for q in r.query}) for p in ids]
        for batch, seen in subject.captured(ids, ["pattern"], rows=asked, batch_size=len(ids)):
            parts = [_Part.of(many[t], t, ids, asked, places, batch.shift) for t in range(len(many))]
            queries = row_tensor(asked, batch)
            for layer in range(subject.n_layers):
                pattern = seen["pattern", layer]
                if not torch.isfinite(pattern.sum()):  # one pass over it, and no copy
                    raise CaptureError(f"the pattern of layer {layer} of {subject.name} holds NaN or infinite values.")
                rows = Rows(pattern, seen.visible[layer], queries=queries.to(pattern.device))
                for part in (p for p in parts if p is not None):
                    reading = read(rows, part.plan)
                    for name in Reading.FIELDS:
                        found = getattr(reading, name).double().nanmean(-1).T.cpu().numpy()
                        values[part.number][name][layer][:, part.units] = found
                    _count(reading.offset, offsets[part.number][layer])
    return [Measured(t, v, o) for t, v, o in zip(many, values, offsets, strict=True)]


def _count(offset: torch.Tensor, counts: npt.NDArray[np.float64]) -> None:
    """Add offsets (unit, head, row) to counts (head, offset); a unit's rows weigh one together."""
    real = ~offset[:, 0].isnan()
    weights = (real / real.sum(-1, keepdim=True)).double()[real].cpu().numpy()
    found = offset.transpose(1, 2)[real].long().cpu().numpy()  # (row, head)
    n_heads, n = counts.shape
    cells = (found + n // 2 + n * np.arange(n_heads)).ravel()
    counts += np.bincount(cells, np.repeat(weights, n_heads), minlength=counts.size).reshape(counts.shape)


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
