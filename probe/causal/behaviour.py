"""The behaviour gate: does the model do the task at all, so that a head can be asked for its part in it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe import stats
from probe.causal.readout import ask, asked, unreadable
from probe.causal.sweep import Array
from probe.errors import ProbeError
from probe.subject import Subject
from probe.targets import Targets, Unit


@dataclass(frozen=True)
class Behaviour:
    """What the model answers. correct: 1 where the right answer is likelier than every wrong one, 1/n where n are
    equally likely, else 0; NaN for units without a question. difference: how many nats log p(right) - log p(first
    wrong) falls when the cue is swapped; NaN without an aligned minimal pair. Both (unit,).

    accuracy, chance, paired, and their 95% intervals (low, high), over clusters. reason: why nothing was asked, or why
    the gate is shut; None where it is open.
    """

    correct: Array
    difference: Array
    accuracy: float
    accuracy_interval: tuple[float, float]
    chance: float
    paired: float
    paired_interval: tuple[float, float]
    n_units: int
    n_pairs: int
    n_clusters: int
    reason: str | None

    @property
    def passed(self) -> bool:
        return self.reason is None


def behaviour(subject: Subject, targets: Targets, *, seed: int = 0, batch_size: int = 16) -> Behaviour:
    """Ask the model every question. The gate opens where the paired difference has its interval above zero, or the
    accuracy above chance: a fair guess among the candidates.

    seed: of the bootstrap over clusters.
    """
    units = targets.units
    reason = unreadable(subject) or ("no item has a question" if all(u.answer is None for u in units) else None)
    correct, difference = np.full(len(units), np.nan), np.full(len(units), np.nan)
    if reason is None:
        _ask(subject, units, correct, difference, batch_size)
    has, pairs = ~np.isnan(correct), ~np.isnan(difference)
    chance = [1 / (1 + len(u.answer.wrong)) for u in units if u.answer is not None]
    accuracy, right = _mean(correct, has, units, seed)
    paired, apart = _mean(difference, pairs, units, seed, shares=False)
    if reason is None and not (right[0] > np.mean(chance) or apart[0] > 0):
        reason = (
            f"the model does not do the task: accuracy {accuracy:.2f} [{right[0]:.2f} to {right[1]:.2f}] with chance "
            f"{np.mean(chance):.2f}" + (f", paired difference {paired:.2f} nats" if pairs.any() else "")
        )
    clusters = {u.cluster for u, h in zip(units, has, strict=True) if h}
    return Behaviour(
        correct,
        difference,
        accuracy,
        right,
        float(np.mean(chance)) if chance else float("nan"),
        paired,
        apart,
        int(has.sum()),
        int(pairs.sum()),
        len(clusters),
        reason,
    )


def candidate_scores(subject: Subject, units: Sequence[Unit], *, batch_size: int = 16) -> list[Array]:
    """Log-probability (nats) of every candidate of each unit's question, the right one first.

    Raises ProbeError where a unit has no question or the subject cannot be asked.
    """
    if (reason := unreadable(subject)) is not None:
        raise ProbeError(f"{subject.name} cannot be asked: {reason}.")
    if silent := [u.item for u in units if u.answer is None]:
        raise ProbeError(f"{silent[0]} asks nothing.")
    found: list[dict[int, float]] = [{} for _ in units]
    prompts = sorted(asked(subject, units), key=lambda p: len(p.ids))
    for start in range(0, len(prompts), batch_size):
        chosen = prompts[start : start + batch_size]
        for prompt, scores in zip(chosen, ask(subject, chosen, [p.ids for p in chosen]).scores, strict=True):
            found[prompt.unit].update({c: float(s) for c, s in scores.items()})
    return [np.array([scores[c] for c in sorted(scores)]) for scores in found]


def _mean(
    values: Array, chosen: np.ndarray, units: Sequence[Unit], seed: int, *, shares: bool = True
) -> tuple[float, tuple[float, float]]:
    """Mean and interval over clusters of the chosen units; NaN where there are none."""
    if not chosen.any():
        return float("nan"), (float("nan"), float("nan"))
    grouped = stats.by_cluster(values[None, chosen], [u.cluster for u, c in zip(units, chosen, strict=True) if c])
    low, high = stats.interval(grouped, seed=seed, shares=shares)
    return float(grouped.overall[0]), (float(low[0]), float(high[0]))


def share_right(scores: Array) -> float:
    """Of one question: 1 where the right answer, the first, is the likeliest, a share where others are as likely."""
    best = scores.max()
    return float(scores[0] == best) / int((scores == best).sum())


def _ask(subject: Subject, units: Sequence[Unit], correct: Array, difference: Array, batch_size: int) -> None:
    """Fill in both arrays, for the units that have what they need."""
    able = [i for i, u in enumerate(units) if u.answer is not None]
    own = candidate_scores(subject, [units[i] for i in able], batch_size=batch_size)
    for i, scores in zip(able, own, strict=True):
        correct[i] = share_right(scores)
        if units[i].swapped is not None:
            difference[i] = scores[0] - scores[1]
    prompts = [(p, p.swapped) for p in asked(subject, units, most=1) if p.swapped is not None]
    prompts.sort(key=lambda pair: len(pair[1]))
    for start in range(0, len(prompts), batch_size):
        chosen = prompts[start : start + batch_size]
        theirs = ask(subject, [p for p, _ in chosen], [ids for _, ids in chosen]).contrasts
        for (prompt, _), other in zip(chosen, theirs, strict=True):
            difference[prompt.unit] -= other
