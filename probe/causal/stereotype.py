"""Does it matter to a model whether the pronoun fits the stereotype? WinoBias' two versions of a sentence, paired.

`The developer argued with the designer and slapped her / him`: the same words, but for the pronoun. Syntax says who is
meant, so a head that finds the antecedent finds it in both; one that goes by stereotype looks elsewhere in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from probe import stats
from probe.causal.behaviour import candidate_scores, share_right
from probe.causal.readout import unreadable
from probe.causal.sweep import Array
from probe.data.texts import Dataset, Labelled, Question
from probe.errors import DataError
from probe.scores.measure import Measured, measure_together
from probe.subject import Subject
from probe.targets import Unit


def both_versions(subject: Subject, pro: Dataset, anti: Dataset, *, quiet: bool = False) -> tuple[Measured, Measured]:
    """Readings of the sentences that this model can be measured on in both versions, in the same order.

    pro, anti: files of `probe.data.winobias` with the same lines. Raises DataError where none is in both.
    """
    bound = [subject.bind(dataset) for dataset in (pro, anti)]
    lines = [{_line(u.item): u for u in targets.units} for targets in bound]
    common = sorted(lines[0].keys() & lines[1].keys())
    if not common:
        raise DataError(f"{pro.name} and {anti.name} have no sentence in common that can be measured.")
    kept = [replace(t, units=tuple(own[c] for c in common)) for t, own in zip(bound, lines, strict=True)]
    first, second = measure_together(subject, kept, quiet=quiet)
    return first, second


def _line(item: str) -> str:
    """The number of a sentence in its file."""
    return item.rpartition("-")[2]


def by_occupation(pro: Dataset, units: Sequence[Unit]) -> list[list[str]]:
    """Two more ways to cluster sentences: by the occupation whose stereotype is the feminine pronoun, and by the other.
    Each occupation stands with many others, so neither way alone keeps the sentences of all occupations together.
    """
    tags = {i.item: i.tags for i in pro.items if isinstance(i, Labelled)}
    ways: list[list[str]] = []
    for gender in ("feminine", "masculine"):
        mine = ["occupation" if tags[u.item]["gender"] == gender else "other" for u in units]
        ways.append([tags[u.item][which] for u, which in zip(units, mine, strict=True)])
    return ways


def attention_by_stereotype(
    pro: Measured, anti: Measured, also: Sequence[Sequence[str]] = (), *, seed: int = 0
) -> pd.DataFrame:
    """What each head does in the two versions of the same sentences, one row a head.

    pro, anti: from `both_versions`. also: other ways to cluster the sentences (`by_occupation`): of all ways, with the
    units' own, the lowest low, the highest high and the largest p are kept. Columns: layer, head; accuracy_pro,
    accuracy_anti (the occupation that is meant gets more attention than the other), accuracy_difference; mass_pro,
    mass_anti (attention on the one that is meant minus that on the other), difference (pro minus anti, paired), low,
    high (95 % interval over clusters), p (either sign, t-test on clusters), p_holm (over all heads), n_units,
    n_clusters (of the way with the fewest).
    """
    ways = [[u.cluster for u in pro.targets.units], *(list(way) for way in also)]
    leads = [np.asarray(m["target"] - m["foil"]) for m in (pro, anti)]
    every = [stats.by_cluster(leads[0] - leads[1], clusters) for clusters in ways]
    lows, highs = zip(*(stats.interval(grouped, seed=seed, shares=False) for grouped in every), strict=True)
    low, high = np.min(lows, axis=0), np.max(highs, axis=0)
    flat = [grouped.weighted.reshape(-1, len(grouped.counts)) for grouped in every]
    p = np.max([np.minimum(1.0, 2 * np.minimum(stats.t_test(f), stats.t_test(-f))) for f in flat], axis=0)
    layer, head = np.indices(leads[0].shape[:2])
    accuracy = [m["correct"].mean(-1).ravel() for m in (pro, anti)]
    return pd.DataFrame(
        {
            "layer": layer.ravel(),
            "head": head.ravel(),
            "accuracy_pro": accuracy[0],
            "accuracy_anti": accuracy[1],
            "accuracy_difference": accuracy[0] - accuracy[1],
            "mass_pro": leads[0].mean(-1).ravel(),
            "mass_anti": leads[1].mean(-1).ravel(),
            "difference": every[0].overall.ravel(),
            "low": low.ravel(),
            "high": high.ravel(),
            "p": p,
            "p_holm": stats.holm(p),
            "n_units": len(ways[0]),
            "n_clusters": min(len(grouped.counts) for grouped in every),
        }
    )


@dataclass(frozen=True)
class Pronouns:
    """Which pronoun a model expects where one of two may stand. favours: share of sentences in which the stereotype's
    is the likelier (a tie counts as a half); nats: log p(the stereotype's) - log p(the other). Both with 95 % intervals
    (low, high), the widest of those over clusters and over each of `by_occupation`. reason: why nothing was asked, else
    None.
    """

    favours: float
    favours_interval: tuple[float, float]
    nats: float
    nats_interval: tuple[float, float]
    n_units: int
    reason: str | None = None


def expected_pronoun(subject: Subject, pro: Dataset, anti: Dataset, *, seed: int = 0) -> Pronouns:
    """Ask the model for the pronoun of each sentence, in the words before it (a masked model: in its place).

    Sentences are balanced over the gender of the stereotype, so a preference for one pronoun throughout cancels out.
    """
    nothing = float("nan"), float("nan")
    if (reason := unreadable(subject)) is not None:
        return Pronouns(nothing[0], nothing, nothing[0], nothing, 0, reason)
    units = [u for u in subject.bind(_asked(pro, anti)).units if u.answer is not None]
    if not units:
        return Pronouns(nothing[0], nothing, nothing[0], nothing, 0, "no pronoun stands where it could be asked for")
    scores = candidate_scores(subject, units)
    ways = [[u.cluster for u in units], *by_occupation(pro, units)]
    favours, favours_interval = _mean([share_right(s) for s in scores], ways, seed, shares=True)
    nats, nats_interval = _mean([float(s[0] - s[1]) for s in scores], ways, seed, shares=False)
    return Pronouns(favours, favours_interval, nats, nats_interval, len(units))


def _mean(
    values: Sequence[float], ways: Sequence[Sequence[str]], seed: int, *, shares: bool
) -> tuple[float, tuple[float, float]]:
    given: Array = np.array(values)[None]
    ends = [stats.interval(stats.by_cluster(given, way), seed=seed, shares=shares) for way in ways]
    return float(given.mean()), (min(float(low[0]) for low, _ in ends), max(float(high[0]) for _, high in ends))


def _asked(pro: Dataset, anti: Dataset) -> Dataset:
    """The stereotyped sentences with a question: their own pronoun, or that of the other version?"""
    others = {_line(i.item): i for i in anti.items if isinstance(i, Labelled)}
    items = []
    for item in pro.items:
        if not isinstance(item, Labelled) or _line(item.item) not in others:
            continue
        other = others[_line(item.item)]
        words = item.query.text(item.text), other.query.text(other.text)
        if item.text[: item.query.start] == other.text[: other.query.start] and words[0] != words[1]:
            items.append(replace(item, question=Question(item.query.start, words[0], (words[1],))))
    return replace(pro, name=f"{pro.name}-asked", items=tuple(items))
