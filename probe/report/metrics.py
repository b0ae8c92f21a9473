"""The numbers a score map can show: their names, their colour scale and what is marked on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.report.folder import Phenomenon

METRICS = ("value", "mass", "first_mass", "entropy")
COLOURS = "viridis"
"""Perceptually even and readable with every kind of colour vision."""


@dataclass(frozen=True)
class Scale:
    """A metric of one phenomenon: its words, the ends of its colour scale, and (name, value) marks on it."""

    metric: str
    label: str
    low: float
    high: float
    marks: tuple[tuple[str, float], ...]


def label(phenomenon: Phenomenon, metric: str) -> str:
    """What a metric measures, with its unit."""
    if metric == "value":
        metric = phenomenon.statistic
    return {
        "accuracy": "accuracy (share of prompts)",
        "mass": "attention on the target (share)",
        "first_mass": "attention on the first token (share)",
        "entropy": "entropy of the attention row (nats)",
    }.get(metric, metric)


def scale(phenomenon: Phenomenon, metric: str) -> Scale:
    """The colour scale of a metric: from 0 to 1 for shares, so that maps can be compared; entropy from 0 to its top."""
    values = phenomenon.numbers[metric]
    top = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    marks: list[tuple[str, float]] = []
    if metric == "value":
        marks.append(("chance", phenomenon.middle("chance")))
        rival = phenomenon.best_rival
        if rival is not None:
            marks.append((f"best rival: {rival.name}", rival.value))
    elif metric == "mass":
        marks.append(("uniform", phenomenon.middle("mass_chance")))
    elif metric == "entropy":
        marks.append(("uniform", phenomenon.middle("entropy_max")))
    known = tuple((name, value) for name, value in marks if np.isfinite(value))
    highest = max([top, *(value for _, value in known)])
    fixed = metric != "entropy"
    return Scale(metric, label(phenomenon, metric), 0.0, 1.0 if fixed else highest or 1.0, known)
