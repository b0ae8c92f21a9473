"""The attention leg of the evidence: which heads attend to the target, and beat every rival at it.

Clusters are split in two halves. On the selection half at most ten heads are picked; on the measurement half those
are tested: a head passes if its accuracy beats each rival rule and a fair guess (sign-flip test on clusters weighted
by their prompts, the worst of the rivals, Holm-corrected over the picked heads) and exceeds the best head of three
randomly initialised copies of the model. Phenomena without rivals are described: value, chance, interval, never a
verdict.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe import stats
from probe.errors import DataError
from probe.scores.measure import Measured, measure, measure_together
from probe.scores.rivals import rival_accuracy
from probe.subject import Subject
from probe.targets import Targets, Unit

MOST_PICKED = 10
ALPHA = 0.05
RANDOM_COPIES = 3
SIDES = ("before", "after")  # where a target lies, seen from the query
FEWEST_CLUSTERS = 4  # below this no half can be tested at all

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """What was found for one phenomenon on one subject.

    heads: one row a head; see `heads` for the columns. rivals: one row a rival, on the measurement half: phenomenon,
    rival, value, low, high, n_units, n_clusters. measured: every unit's readings. measurement: bool (unit,).
    """

    heads: pd.DataFrame
    rivals: pd.DataFrame
    measured: Measured
    measurement: npt.NDArray[np.bool_]


def heads(
    subject: Subject, targets: Targets | Sequence[Targets], *, seed: int = 0, quiet: bool = False
) -> pd.DataFrame:
    """Score every head on each of `targets`; a tidy table with one row a phenomenon and head.

    Columns: subject, phenomenon, dataset, direction (where candidates lie from the query: before, after, both, mixed),
    split (measurement half, or all), layer, head, statistic; value with its 95% interval low, high (cluster
    bootstrap); value_before, value_after (the same where the target stands before the query, and after it: an
    encoder's two directions), n_before, n_after (units of each); chance (of the statistic); mass (attention on the
    target) and mass_chance (what uniform attention over the visible keys would put there); lift = mass - mass_chance;
    foil_mass (on the best foil); first_mass (on position 0); entropy and entropy_max in nats; distance (tokens from the
    query to where it looks, mean over its attention); argmax_offset and argmax_share (the offset at which the largest
    weight lies most often, and in what share of all rows: positional from 0.9 on, Voita et al. 2019); tied (share of
    rows in which the target gets exactly as much as the best foil, which counts as half right); word_accuracy (Clark
    et al. 2019); best_rival, best_rival_value; random_max (best head of three randomly initialised copies);
    shuffled_max (best head where a candidate drawn at random is called the target); selection_value; picked; p,
    p_holm, q (Benjamini-Hochberg over all heads, exploratory); passed; n_units, n_clusters, n_excluded, excluded.

    For phenomena with rivals everything from `value` to `random_max`, but for argmax_offset and argmax_share, and
    n_units and n_clusters, are those of the measurement half; n_excluded counts what could not be measured at all, and
    excluded says why ("reason: number; ...").
    seed: the split, the resampling.
    Raises DataError if a dataset was not bound, or has too few clusters to split.
    """
    every: list[Targets] = list(targets) if isinstance(targets, list | tuple) else [targets]  # type: ignore[list-item]
    if not every:
        raise DataError("no targets were given; bind a dataset first: targets = subject.bind(dataset).")
    for given in every:
        if not isinstance(given, Targets):
            raise DataError(f"a {type(given).__name__} is not bound yet: scores take subject.bind(dataset).")
    measured = measure_together(subject, every, quiet=quiet)
    return pd.concat([evidence_of(subject, one, seed=seed, quiet=quiet).heads for one in measured], ignore_index=True)


def evidence(subject: Subject, targets: Targets, *, seed: int = 0, quiet: bool = False) -> Evidence:
    """Measure one phenomenon and, where it has rivals, test it. See `heads`."""
    return evidence_of(subject, measure(subject, targets, quiet=quiet), seed=seed, quiet=quiet)


def evidence_of(subject: Subject, measured: Measured, *, seed: int = 0, quiet: bool = False) -> Evidence:
    """The same for what has been measured already."""
    targets = measured.targets
    statistic = "correct" if targets.statistic == "accuracy" else "target"
    everything = np.ones(len(targets.units), dtype=bool)
    if not targets.rivals:
        table = _describe(subject, measured, statistic, everything, seed)
        return Evidence(table, _rival_table(targets, {}, everything, seed), measured, everything)
    test = measurement_half(targets, seed)
    table = _describe(subject, measured, statistic, test, seed)
    rivals = {name: rival_accuracy(name, targets.units) for name in (*targets.rivals, "chance")}
    _test(table, measured[statistic], rivals, targets, test, seed)
    half = replace(targets, units=tuple(u for u, t in zip(targets.units, test, strict=True) if t))
    table["random_max"] = _random_max(subject, half, statistic, quiet)
    relabelled = measure(subject, shuffled(half, seed), quiet=quiet, what="shuffled labels")
    table["shuffled_max"] = float(relabelled[statistic].mean(-1).max())
    table["passed"] = table["picked"] & (table["p_holm"] < ALPHA) & (table["value"] > table["random_max"])
    return Evidence(table, _rival_table(targets, rivals, test, seed), measured, test)


def _describe(
    subject: Subject, measured: Measured, statistic: str, chosen: npt.NDArray[np.bool_], seed: int
) -> pd.DataFrame:
    """The table without a test, over the chosen units."""
    targets = measured.targets
    clusters = _clusters(targets, chosen)
    low, high = stats.interval(stats.by_cluster(measured[statistic][..., chosen], clusters), seed=seed)

    def mean(name: str) -> Array:
        return np.asarray(measured[name][..., chosen].mean(-1)).ravel()

    layer, head = np.indices((subject.n_layers, subject.n_heads))
    side = np.array([_side(u) for u, c in zip(targets.units, chosen, strict=True) if c])
    offset, share = measured.usual_offset()
    directions = {u.direction for u, c in zip(targets.units, chosen, strict=True) if c}
    fair = rival_accuracy("chance", [u for u, c in zip(targets.units, chosen, strict=True) if c])
    return pd.DataFrame(
        {
            "subject": subject.name,
            "phenomenon": targets.phenomenon,
            "dataset": targets.dataset,
            "direction": directions.pop() if len(directions) == 1 else "mixed",
            "split": "measurement half" if targets.rivals else "all",
            "layer": layer.ravel(),
            "head": head.ravel(),
            "statistic": targets.statistic,
            "value": mean(statistic),
            "low": low.ravel(),
            "high": high.ravel(),
            **{f"value_{name}": _part_mean(measured[statistic][..., chosen], side == name) for name in SIDES},
            **{f"n_{name}": int((side == name).sum()) for name in SIDES},
            "chance": fair.mean() if targets.statistic == "accuracy" else mean("chance"),
            "mass": mean("target"),
            "mass_chance": mean("chance"),
            "lift": mean("target") - mean("chance"),
            "foil_mass": mean("foil"),
            "first_mass": mean("first"),
            "entropy": mean("entropy"),
            "entropy_max": mean("entropy_max"),
            "distance": mean("distance"),
            "argmax_offset": offset.ravel(),
            "argmax_share": share.ravel(),
            "tied": mean("tied"),
            "word_accuracy": mean("word_correct"),
            "best_rival": pd.Series([None] * low.size, dtype="str"),
            "best_rival_value": np.nan,
            "random_max": np.nan,
            "shuffled_max": np.nan,
            "selection_value": np.nan,
            "picked": False,
            "p": np.nan,
            "p_holm": np.nan,
            "q": np.nan,
            "passed": False,
            "n_units": int(chosen.sum()),
            "n_clusters": len(set(clusters)),
            "n_excluded": len(targets.excluded),
            "excluded": "; ".join(f"{reason}: {n}" for reason, n in targets.exclusions.items()),
        }
    )


def _side(unit: Unit) -> str:
    """Where the target lies, seen from the query: before or after it, in all rows alike; or ""."""
    after = {min(row.target) > row.query[-1] for row in unit.rows}
    before = {max(row.target) < row.query[0] for row in unit.rows}
    return SIDES[0] if before == {True} else SIDES[1] if after == {True} else ""


def _part_mean(values: Array, chosen: npt.NDArray[np.bool_]) -> Array:
    """(head,): the mean over the chosen units; NaN where there are none."""
    some = values.reshape(-1, values.shape[-1])[:, chosen]
    return np.asarray(some.mean(-1)) if chosen.any() else np.full(len(some), np.nan)


def _clusters(targets: Targets, chosen: npt.NDArray[np.bool_]) -> list[str]:
    return [u.cluster for u, c in zip(targets.units, chosen, strict=True) if c]


def measurement_half(targets: Targets, seed: int) -> npt.NDArray[np.bool_]:
    """Which units are in the measurement half: a random half of the clusters, minimal pairs together."""
    clusters = sorted({u.cluster for u in targets.units})
    if len(clusters) < FEWEST_CLUSTERS:
        raise DataError(
            f"{targets.dataset} has {len(clusters)} clusters that this model can be measured on; at least "
            f"{FEWEST_CLUSTERS} are needed to pick heads on one half and test them on the other (40 to test them well)."
        )
    shuffled = np.random.default_rng(seed).permutation(len(clusters))
    chosen = {clusters[i] for i in shuffled[len(clusters) // 2 :]}
    return np.array([u.cluster in chosen for u in targets.units])


def _test(
    table: pd.DataFrame,
    values: Array,
    rivals: dict[str, Array],
    targets: Targets,
    test: npt.NDArray[np.bool_],
    seed: int,
) -> None:
    """Pick on the selection half, test on the other; fills the table's columns."""
    flat = values.reshape(-1, len(targets.units))
    selection = flat[:, ~test].mean(-1)
    margin = selection - max(r[~test].mean() for r in rivals.values())
    best_first = np.argsort(-margin, kind="stable")[:MOST_PICKED]
    picked = best_first[margin[best_first] > 0]
    clusters = _clusters(targets, test)
    # (head, rival, cluster): how much better the head does than the rule, cluster by cluster
    differences = stats.by_cluster(
        flat[:, None, test] - np.stack(list(rivals.values()))[None, :, test], clusters
    ).weighted
    best = max(rivals, key=lambda name: rivals[name][test].mean())
    table["best_rival"] = best
    table["best_rival_value"] = rivals[best][test].mean()
    table["selection_value"] = selection
    table["q"] = stats.benjamini_hochberg(stats.t_test(differences).max(-1))
    if len(picked):
        p = stats.sign_flip(differences[picked], seed=seed).max(-1)
        table.loc[picked, "picked"] = True
        table.loc[picked, "p"] = p
        table.loc[picked, "p_holm"] = stats.holm(p)


def _random_max(subject: Subject, half: Targets, statistic: str, quiet: bool) -> float:
    """The best head of the randomly initialised copies, on the measurement half."""
    best = -np.inf
    for seed in range(RANDOM_COPIES):
        copy = subject.random_copy(seed)
        values = measure(copy, half, quiet=quiet, what=f"random weights {seed + 1} of {RANDOM_COPIES}")[statistic]
        best = max(best, float(values.mean(-1).max()))
    return best


def shuffled(targets: Targets, seed: int = 0) -> Targets:
    """The same prompts, in each of which one of the candidates, drawn at random, is called the target: a label that
    says nothing.
    """
    rng = random.Random(seed)
    units = []
    for unit in targets.units:
        drawn = rng.randrange(1 + min(len(row.foils) for row in unit.rows))
        rows = []
        for row in unit.rows:
            candidates = [row.target, *row.foils]
            target = candidates.pop(drawn)
            rows.append(replace(row, target=target, foils=tuple(candidates)))
        units.append(replace(unit, rows=tuple(rows)))
    return replace(targets, units=tuple(units))


def _rival_table(targets: Targets, rivals: dict[str, Array], chosen: npt.NDArray[np.bool_], seed: int) -> pd.DataFrame:
    columns = ["phenomenon", "rival", "value", "low", "high", "n_units", "n_clusters"]
    if not rivals:
        return pd.DataFrame(columns=columns)
    clusters = _clusters(targets, chosen)
    grouped = stats.by_cluster(np.stack([r[chosen] for r in rivals.values()]), clusters)
    low, high = stats.interval(grouped, seed=seed)
    return pd.DataFrame(
        {
            "phenomenon": targets.phenomenon,
            "rival": list(rivals),
            "value": grouped.overall,
            "low": low,
            "high": high,
            "n_units": int(chosen.sum()),
            "n_clusters": len(set(clusters)),
        },
        columns=columns,
    )
