"""The causal leg: which heads the answer depends on, more than on heads that write as much.

The same halves as the attention leg: on the selection half, attribution patching (or, in full, the exact effects)
picks at most ten heads; on the other half these, and those that passed the attention leg, are measured exactly. A head
passes if patching its z from the minimal pair costs the answer nats (sign-flip test over clusters, Holm-corrected over
all heads tested), more than the 95th percentile of heads matched on output norm; if neither ablation makes the answer
better; and if ablating it makes the loss on unrelated text grow by less than `MOST_LOSS`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe import stats
from probe.causal.behaviour import Behaviour, behaviour
from probe.causal.controls import Groups, knock_out_group, losses_without, matched, output_norms, unrelated
from probe.causal.screen import screen
from probe.causal.sweep import Array, Head, all_heads, highest, sweep
from probe.scores.evidence import ALPHA, FEWEST_CLUSTERS, MOST_PICKED, measurement_half
from probe.subject import Subject
from probe.targets import Targets, Unit

MOST_LOSS = 0.1  # nats per token of unrelated text
PERCENTILE = 95
# "restore" is not among them: as each member of a pair is patched from the other, "patch" holds both directions.
MEASURED = ("patch", "pattern", "mean", "resample", "edge")
ABLATIONS = ("mean", "resample")  # a head without which the answer is better is not one that it depends on
LOOKS = ("pattern", "edge")  # changes of where a head looks, and of nothing else
CONTROLS = 60  # heads to compare with, those that write most like the heads tested, where not all are measured
SHARE = 3  # at most one head in three is knocked out with others: else few random groups are left to draw
LEAST = 1e-4  # nats: less is no effect; rounding leaves up to 1e-6, and not the same on every machine
SMALL = 64  # heads: so few are all measured exactly, for attribution is blind where attention is saturated

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Causal:
    """What was found. heads: one row a head, see `causal`. behaviour: the gate. groups: the picked heads knocked out
    together, the strongest if they are many, None where fewer than two were picked. reason: why nothing could be
    measured, or None. units: numbers of the units (of the targets) behind `effects`, kind -> (layer, head, unit) nats.
    """

    heads: pd.DataFrame
    behaviour: Behaviour
    groups: Groups | None
    reason: str | None
    units: tuple[int, ...] = ()
    effects: dict[str, Array] | None = None


def causal(
    subject: Subject,
    targets: Targets,
    measurement: Mask | None = None,
    *,
    also: Sequence[Head] = (),
    full: bool = False,
    most: int = MOST_PICKED,
    kinds: Sequence[str] = MEASURED,
    groups: int = 0,
    seed: int = 0,
    quiet: bool = False,
) -> Causal:
    """Test which heads the answers to a phenomenon's questions depend on.

    measurement: which units are in the half that tests; default that of the attention leg for this seed. also: heads to
    test whatever their effect. full: measure every head exactly, instead of those that attribution points to; always so
    for models of at most `SMALL` heads. most: how many to pick by their effect. kinds: of `MEASURED`, which to measure
    on the heads tested; "patch" and the ablations always are, for the verdict rests on them. groups: random groups to
    set beside the picked heads knocked out together; 0 leaves that out.

    Columns of `heads`, nats unless said otherwise, on the measurement half: layer, head; screen (attribution, on the
    selection half); picked; tested; one for each of `MEASURED` (see `KINDS` of `probe.causal.sweep`); low, high (95 %
    interval of patch); share (patch over the paired difference); limit (95th percentile of the patch of the heads,
    n_peers of them, that are not tested and write most like it; NaN where there is none, and then it limits nothing);
    norm (output norm, no unit); unrelated_loss (nats per token); p, p_holm; p_pattern, p_mean, p_resample, p_edge (of
    those changes costing the answer nats, uncorrected); against (ablations without which the answer is better: their
    95 % interval lies below -`LEAST`); passed, and why (what a tested head fails on, or ""); n_units, n_clusters.
    """
    gate = behaviour(subject, targets, seed=seed)
    measurement = measurement_half(targets, seed) if measurement is None else measurement
    able = [i for i, u in enumerate(targets.units) if u.answer is not None and u.swapped is not None]
    reason = gate.reason or _why_not(targets, able, measurement)
    if reason is not None:
        return Causal(_empty(subject), gate, None, reason)
    units, test = [targets.units[i] for i in able], measurement[able]
    chosen = sorted(i for i, t in enumerate(test) if t)
    held = [units[i] for i in chosen]
    norms = output_norms(subject, units)
    full = full or norms.size <= SMALL
    first = _screened(subject, units, test, full, quiet)
    picked = _best(first, most)
    tested = list(dict.fromkeys([*picked, *also]))
    others = [h for h in all_heads(subject) if h not in tested]
    if not full:
        others = _most_like(norms, tested, others)
    peers = {h: matched(norms, h, others) for h in tested}
    effects = (
        sweep(subject, held, dict.fromkeys(("patch", *ABLATIONS, *kinds)), heads=tested, seed=seed, quiet=quiet).values
        if tested
        else {}
    )
    if others and tested:
        compared = sweep(subject, held, ("patch",), heads=others, seed=seed, quiet=quiet).values["patch"]
        effects["patch"] = np.where(np.isnan(effects["patch"]), compared, effects["patch"])
    table = _table(subject, held, first, norms, effects)
    table["picked"] = [h in picked for h in _heads(table)]
    table["tested"] = [h in tested for h in _heads(table)]
    difference = float(np.mean([gate.difference[able[i]] for i in chosen]))
    _test(table, held, tested, peers, effects, losses_without(subject, tested, _texts(subject, targets, seed)), seed)
    table["share"] = table["patch"] / difference if difference > 0 else np.nan
    together, strongest = None, picked[: norms.size // SHARE]
    if groups and len(strongest) > 1:
        together = knock_out_group(subject, held, strongest, norms, groups=groups, seed=seed)
    return Causal(table, gate, together, None, tuple(able[i] for i in chosen), effects)


def _why_not(targets: Targets, able: Sequence[int], measurement: Mask) -> str | None:
    if not able:
        return "no item has a minimal pair that is aligned with it token by token"
    for half in (measurement, ~measurement):
        if len({targets.units[i].cluster for i in able if half[i]}) < FEWEST_CLUSTERS // 2:
            return "too few clusters have aligned minimal pairs to split them"
    return None


def _most_like(norms: Array, tested: Sequence[Head], others: Sequence[Head]) -> list[Head]:
    """At most `CONTROLS` of the others: the nearest of each tested head in output norm, then its second, and so on."""
    ranked = [matched(norms, head, others, CONTROLS) for head in tested]
    nearest_first = dict.fromkeys(head for place in zip(*ranked, strict=True) for head in place)
    return sorted(list(nearest_first)[:CONTROLS])


def _texts(subject: Subject, targets: Targets, seed: int) -> list[tuple[int, ...]]:
    return unrelated(subject, targets.dataset.removeprefix("synthetic-"), seed)


def _screened(subject: Subject, units: Sequence[Unit], test: Mask, full: bool, quiet: bool) -> Array:
    """(layer, head): the mean effect on the selection half, by attribution or exactly."""
    chosen = [u for u, t in zip(units, test, strict=True) if not t]
    values = sweep(subject, chosen, ("patch",), quiet=quiet).values["patch"] if full else screen(subject, chosen)
    return np.asarray(values.mean(-1))


def _best(first: Array, most: int) -> list[Head]:
    """The heads with the largest effect, at most so many, all above `LEAST`."""
    return [head for head in highest(first, most) if first[head] > LEAST]


def _heads(table: pd.DataFrame) -> list[Head]:
    return list(zip(table["layer"], table["head"], strict=True))


def _table(
    subject: Subject, held: Sequence[Unit], first: Array, norms: Array, effects: dict[str, Array]
) -> pd.DataFrame:
    table = _empty(subject)
    table["screen"], table["norm"] = first.ravel(), norms.ravel()
    for kind, values in effects.items():
        table[kind] = values.mean(-1).ravel()
    table["n_units"], table["n_clusters"] = len(held), len({u.cluster for u in held})
    return table


def _empty(subject: Subject) -> pd.DataFrame:
    layer, head = np.indices((subject.n_layers, subject.n_heads))
    also = [f"p_{kind}" for kind in MEASURED[1:]]
    numbers = ("screen", *MEASURED, "low", "high", "share", "limit", "norm", "unrelated_loss", "p", "p_holm", *also)
    return pd.DataFrame(
        {
            "layer": layer.ravel(),
            "head": head.ravel(),
            **dict.fromkeys(numbers, np.nan),
            **dict.fromkeys(("against", "why"), ""),
            **dict.fromkeys(("picked", "tested", "passed"), False),
            "n_peers": 0,
            "n_units": 0,
            "n_clusters": 0,
        }
    )


def _test(
    table: pd.DataFrame,
    held: Sequence[Unit],
    tested: Sequence[Head],
    peers: dict[Head, list[Head]],
    effects: dict[str, Array],
    losses: dict[Head, float],
    seed: int,
) -> None:
    """Fill in the columns of the test for the heads that are tested."""
    if not tested:
        return
    rows = [head[0] * (int(table["head"].max()) + 1) + head[1] for head in tested]
    clusters = [u.cluster for u in held]
    grouped = stats.by_cluster(np.stack([effects["patch"][head] for head in tested]), clusters)
    table.loc[rows, "low"], table.loc[rows, "high"] = stats.interval(grouped, seed=seed, shares=False)
    p = np.atleast_1d(stats.sign_flip(grouped.weighted, seed=seed))
    table.loc[rows, "p"], table.loc[rows, "p_holm"] = p, stats.holm(p)
    means = effects["patch"].mean(-1)
    limits = [np.percentile([means[o] for o in peers[h]], PERCENTILE) if peers[h] else np.nan for h in tested]
    table.loc[rows, "limit"], table.loc[rows, "n_peers"] = limits, [len(peers[h]) for h in tested]
    table.loc[rows, "unrelated_loss"] = [losses.get(h, np.nan) for h in tested]
    against: list[list[str]] = [[] for _ in tested]
    for kind in (k for k in effects if k != "patch"):
        grouped = stats.by_cluster(np.stack([effects[kind][head] for head in tested]), clusters)
        table.loc[rows, f"p_{kind}"] = stats.sign_flip(grouped.weighted, seed=seed)
        if kind in ABLATIONS:
            better = stats.interval(grouped, seed=seed, shares=False)[1] < -LEAST
            for names in (n for n, b in zip(against, better, strict=True) if b):
                names.append(kind)
    table.loc[rows, "against"] = [", ".join(names) for names in against]
    table.loc[rows, "why"] = [_fails(row) for row in table.loc[rows].to_dict("records")]
    table["passed"] = table["tested"] & (table["why"] == "")


def _fails(row: dict[Hashable, Any]) -> str:
    """The first thing that a head tested fails on, or ""."""
    if not row["p_holm"] < ALPHA:
        return "patching it was not shown to cost the answer nats"
    if row["patch"] <= row["limit"]:  # not where there is no limit
        return "it costs no more than heads that write as much"
    if row["against"]:
        return f"without it the answer is better ({row['against']})"
    if row["unrelated_loss"] > MOST_LOSS:
        return "unrelated text needs it too"
    return ""
