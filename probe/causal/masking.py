"""Heads taken away together, and what is still answered: the most of a kind against random heads that write as much.

Wu et al. (2404.15574) mask retrieval heads and random ones. Taking random heads away often makes answers better, so
these are matched on output norm, and all of their spread is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from probe.causal.behaviour import share_right
from probe.causal.controls import asked_without, random_groups
from probe.causal.readout import asked
from probe.causal.sweep import Array, Heads, mean_z
from probe.errors import ProbeError
from probe.subject import Subject
from probe.targets import Unit


@dataclass(frozen=True)
class Masked:
    """Answers without groups of heads. correct: 1 where the right answer is the likeliest, a tie counts as a share;
    log_p: nats, its log-probability among the candidates. Both (2 + groups, unit): with all heads, without `heads`,
    without each random group.
    """

    heads: tuple[tuple[int, int], ...]
    correct: Array
    log_p: Array

    @property
    def accuracy(self) -> tuple[float, float, Array]:
        """With all heads, without the chosen ones, and without each random group."""
        means = self.correct.mean(-1)
        return float(means[0]), float(means[1]), np.asarray(means[2:])

    @property
    def nats(self) -> tuple[float, Array]:
        """What the right answer loses without the chosen heads, and without each random group."""
        lost = self.log_p[0].mean() - self.log_p.mean(-1)
        return float(lost[1]), np.asarray(lost[2:])


def masked(
    subject: Subject, units: Sequence[Unit], heads: Heads, norms: Array, *, groups: int = 50, seed: int = 0
) -> Masked:
    """Mean-ablate heads together (z is its mean over all positions of these prompts), and `groups` random groups.

    norms: `output_norms`. Raises ProbeError where no unit has a question.
    """
    prompts = asked(subject, units)
    if not prompts:
        raise ProbeError("none of the units has a question, so there is no answer to watch.")
    sets: list[Heads] = [(), tuple(heads), *random_groups(subject, heads, norms, groups, seed)]
    mean = mean_z(subject, [p.ids for p in prompts])
    found: dict[int, list[dict[int, float]]] = {p.unit: [{} for _ in sets] for p in prompts}
    for prompt in prompts:
        for numbers, asking in asked_without(subject, prompt, sets, mean):
            for at, own in zip(numbers, asking.scores, strict=True):
                found[prompt.unit][at].update({c: float(s) for c, s in own.items()})
    correct, log_p = np.empty((len(sets), len(found))), np.empty((len(sets), len(found)))
    for u, each in enumerate(found.values()):
        for at, scores in enumerate(each):
            ordered = np.array([scores[c] for c in sorted(scores)])
            correct[at, u], log_p[at, u] = share_right(ordered), ordered[0] - logsumexp(ordered)
    return Masked(tuple(heads), correct, log_p)


def compared(masks: Sequence[tuple[str, Masked]]) -> pd.DataFrame:
    """Named groups of heads, a row each: accuracy with all heads, without these, and without random groups (median,
    lowest, highest); nats lost, and without random groups (median, 95th percentile).
    """
    rows = []
    for name, found in masks:
        (plain, own, random), (nats, theirs) = found.accuracy, found.nats
        rows.append(
            {
                "heads taken away": name,
                "accuracy with all": plain,
                "without them": own,
                "without random: median": float(np.median(random)),
                "lowest": float(random.min()),
                "highest": float(random.max()),
                "nats lost": nats,
                "random: median nats": float(np.median(theirs)),
                "95th percentile": float(np.percentile(theirs, 95)),
            }
        )
    return pd.DataFrame(rows)
