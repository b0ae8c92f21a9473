"""Two recorded results side by side: the fields of their manifests that differ, and the metrics that differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probe.runner.findings import FINDINGS
from probe.runner.manifest import DataInfo, Inputs, Manifest
from probe.verify.differences import (
    CHANGED,
    CLOSE,
    EXACT,
    SKIPPED,
    Metric,
    Outcome,
    Tolerance,
    compare_files,
    is_timed,
)
from probe.verify.recorded import Recorded

AROUND = ("versions", "code", "device", "threads", "machine")
"""Fields that say how a result was computed, not of what; numbers may agree although these differ."""


@dataclass(frozen=True)
class Field:
    """A field of the manifest with two values. around: it says how the result was computed, not of what."""

    name: str
    was: str
    now: str
    around: bool


@dataclass(frozen=True)
class Comparison:
    """fields: those that differ. metrics: all of them, also those that are the same."""

    fields: tuple[Field, ...]
    metrics: tuple[Metric, ...]
    tolerance: Tolerance

    def of(self, outcome: Outcome) -> list[Metric]:
        return [metric for metric in self.metrics if metric.outcome == outcome]

    @property
    def other_experiment(self) -> list[Field]:
        """The fields that make it another experiment: another model, seed, parameter or item."""
        return [field for field in self.fields if not field.around]

    @property
    def agrees(self) -> bool:
        """The same experiment, and every metric exact or within tolerance."""
        return not self.other_experiment and not self.of(CHANGED)

    @property
    def summary(self) -> str:
        """How many metrics came out how, in a line."""
        n = {outcome: len(self.of(outcome)) for outcome in (EXACT, CLOSE, CHANGED, SKIPPED)}
        skipped = f", {n[SKIPPED]} not compared" if n[SKIPPED] else ""
        return f"{n[EXACT]} exact, {n[CLOSE]} within tolerance ({self.tolerance}), {n[CHANGED]} changed{skipped}"


def compare(a: Recorded, b: Recorded, tolerance: Tolerance | None = None) -> Comparison:
    """Compare the files that both results have at hand, the rest by their hashes, and the manifests.

    A page carries no attention rows, a manifest by itself no numbers: then equal hashes are exact, others cannot be
    judged, or, where no number is at hand at all, are changed.
    """
    tolerance = tolerance or Tolerance()
    known = [
        {name: data for name, data in r.files.items() if name not in other.absent} for r, other in ((a, b), (b, a))
    ]
    metrics = (*compare_files(known[0], known[1], tolerance), *_by_hash(a, b))
    return Comparison(tuple(differing(a.manifest, b.manifest)), metrics, tolerance)


def _by_hash(a: Recorded, b: Recorded) -> list[Metric]:
    """The outputs of which only the hashes are known."""
    found = []
    for name in dict.fromkeys([*a.absent, *b.absent]):
        was, now = (r.manifest.outputs.get(name, "not there") for r in (a, b))
        judged: Outcome = CHANGED if not a.files or not b.files else SKIPPED
        if is_timed(name) or (name == FINDINGS and any(map(is_timed, a.manifest.outputs))):
            judged = SKIPPED
        found.append(Metric(name, "SHA-256", EXACT if was == now else judged, 1, int(was != now), was=was, now=now))
    return found


def differing(a: Manifest, b: Manifest) -> list[Field]:
    """The fields of two manifests that differ, nested names joined by dots; what only one kept is left out."""
    found = []
    for name in (*Inputs.model_fields, "machine"):
        was, now = (dict(_flat(name, getattr(m, name))) for m in (a, b))
        for key in dict.fromkeys([*was, *now]):
            before, after = was.get(key), now.get(key)
            # an older schema kept no machine, and fewer versions
            unknown = name in ("machine", "versions") and not (before and after)
            if before != after and not unknown:
                found.append(Field(key, _words(before), _words(after), around=name in AROUND))
    return [*found, *_data(a.data, b.data)]


def _data(a: tuple[DataInfo, ...], b: tuple[DataInfo, ...]) -> list[Field]:
    """Data sets that differ, with the first items that do."""
    was, now = ({d.name: d for d in data} for data in (a, b))
    found = []
    for name in dict.fromkeys([*was, *now]):
        x, y = was.get(name), now.get(name)
        if x is None or y is None:
            before, after = ("none" if d is None else f"{d.n_items} items" for d in (x, y))
            found.append(Field(f"data.{name}", before, after, around=False))
        elif x.sha256 != y.sha256:
            before, after = (f"sha256 {d.sha256[:12]}…, {d.n_items} items" for d in (x, y))
            found.append(Field(f"data.{name}", before, f"{after}{_items(x.items, y.items)}", around=False))
    return found


def _items(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    if not a or not b:
        return ""
    kinds = {
        "changed": [name for name in a if name in b and a[name] != b[name]],
        "gone": [name for name in a if name not in b],
        "new": [name for name in b if name not in a],
    }
    parts = [
        f"{len(names)} {kind} ({names[0]}{', …' if len(names) > 1 else ''})" for kind, names in kinds.items() if names
    ]
    return f": {', '.join(parts)}" if parts else ""


def _flat(name: str, value: Any) -> list[tuple[str, Any]]:
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(f"{name}.{key}", inner)]
    return [(name, value)]


def _words(value: Any) -> str:
    """A value in words; of a hash, enough to tell it from another."""
    text = "none" if value is None else str(value)
    return f"{text[:12]}…" if len(text) == 64 and not set(text) - set("0123456789abcdef") else text
