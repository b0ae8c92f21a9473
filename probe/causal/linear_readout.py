"""An answer for models that say nothing: which candidate a linear readout finds in the hidden states, and which heads
that depends on.

A logistic regression is trained to tell the antecedent from the other candidate by the states of pronoun and candidate;
each prompt is read by one that never saw its page. Then heads are ablated, and the log-odds of the right candidate are
watched. The readout is ours, not the model's: it shows what is there to be read, not that the model uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from probe import stats
from probe.capture.edit import Edit
from probe.capture.prefix import Prefix
from probe.causal.controls import matched
from probe.causal.sweep import Array, Head, all_heads, mean_z
from probe.errors import DataError
from probe.scores.evidence import ALPHA
from probe.scores.rivals import rival_accuracy
from probe.subject import Subject
from probe.targets import Positions, Row, Targets, Unit
from probe.tty import progress

FOLDS = 5
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)  # of the regression's C, chosen by pages of the training part
PERCENTILE = 95
BATCH = 8


@dataclass(frozen=True)
class Readout:
    """units: those read (one row, one foil). layer: whose output is read. weights: (fold, feature); fold: (unit,),
    which one reads each unit, trained on none of its cluster. log_odds: (unit,) nats, above zero where the right
    candidate is read. accuracy with low, high (95 % interval over clusters); rival: the best rule's name,
    rival_accuracy, and more: how much more the readout has, paired, with more_low, more_high. reason: why heads are not
    to be asked, else None.
    """

    units: tuple[Unit, ...]
    layer: int
    weights: Array
    fold: Array
    log_odds: Array
    accuracy: float
    low: float
    high: float
    rival: str
    rival_accuracy: float
    more: float
    more_low: float
    more_high: float
    reason: str | None


def read_out(subject: Subject, targets: Targets, *, layer: int | None = None, seed: int = 0) -> Readout:
    """Train and test the readout by cross-validation over clusters.

    layer: whose output is read; default the last. Features of a candidate, for a pronoun and a candidate that are the
    means of their tokens' states: their product, their distance, place by place, and the candidate itself. What is
    classified is one candidate's features minus the other's, both ways round, without intercept.
    seed: of the intervals. Raises DataError with fewer clusters than folds.
    """
    units = tuple(u for u in targets.units if len(u.rows) == 1 and len(u.rows[0].foils) == 1)
    clusters = np.array([u.cluster for u in units])
    if len(set(clusters)) < 2 * FOLDS:
        raise DataError(f"{targets.dataset} has {len(set(clusters))} clusters; a readout takes {2 * FOLDS} at least.")
    layer = subject.n_layers - 1 if layer is None else layer
    x = np.concatenate([_features(h, u) for u, h in _states(subject, units, layer)])
    weights, fold = np.zeros((FOLDS, x.shape[1])), np.zeros(len(units), dtype=int)
    for number, (train, test) in enumerate(GroupKFold(FOLDS).split(x, groups=clusters)):
        weights[number], fold[test] = _trained(x[train], clusters[train]), number
    log_odds = (x * weights[fold]).sum(1)
    return _judged(units, layer, weights, fold, log_odds, targets.rivals, seed)


def _judged(
    units: tuple[Unit, ...],
    layer: int,
    weights: Array,
    fold: Array,
    log_odds: Array,
    rivals: Sequence[str],
    seed: int,
) -> Readout:
    clusters = [u.cluster for u in units]
    correct = np.where(log_odds == 0, 0.5, log_odds > 0)
    rules = {name: rival_accuracy(name, units) for name in (*rivals, "chance")}
    best = max(rules, key=lambda name: rules[name].mean())
    low, high = stats.interval(stats.by_cluster(correct[None], clusters), seed=seed)
    apart = stats.by_cluster((correct - rules[best])[None], clusters)
    more_low, more_high = stats.interval(apart, seed=seed, shares=False)
    reason = None
    if not (low[0] > 0.5 and more_low[0] > 0):
        reason = (
            f"the antecedent cannot be read from the hidden states: accuracy {correct.mean():.2f} "
            f"[{low[0]:.2f} to {high[0]:.2f}], the rule {best!r} has {rules[best].mean():.2f}"
        )
    return Readout(
        units,
        layer,
        weights,
        fold,
        log_odds,
        float(correct.mean()),
        float(low[0]),
        float(high[0]),
        best,
        float(rules[best].mean()),
        float((correct - rules[best]).mean()),
        float(more_low[0]),
        float(more_high[0]),
        reason,
    )


def _trained(right_minus_wrong: Array, clusters: Array) -> Array:
    """Weights on the features as they are: the scaler's folded in. How small they are kept is chosen within."""
    model = make_pipeline(StandardScaler(with_mean=False), LogisticRegression(fit_intercept=False, max_iter=2000))
    search = GridSearchCV(model, {"logisticregression__C": STRENGTHS}, cv=GroupKFold(FOLDS), scoring="neg_log_loss")
    x = np.concatenate([right_minus_wrong, -right_minus_wrong])
    y = np.arange(len(x)) < len(right_minus_wrong)
    best = search.fit(x, y, groups=np.concatenate([clusters, clusters])).best_estimator_
    scaler, regression = best[0], best[1]
    return np.asarray(regression.coef_[0] / scaler.scale_)


def _features(states: Tensor, unit: Unit) -> Array:
    """(1, feature): the right candidate's minus the wrong one's. states: (pos, d_model)."""
    row: Row = unit.rows[0]
    pronoun, right, wrong = (states[list(p)].double().mean(0) for p in (row.query, row.target, row.foils[0]))
    each = [torch.cat([pronoun * c, (pronoun - c).abs(), c]) for c in (right, wrong)]
    return np.asarray((each[0] - each[1])[None].cpu().numpy())


def _states(subject: Subject, units: Sequence[Unit], layer: int) -> Iterator[tuple[Unit, Tensor]]:
    """Each unit with its states, (pos, d_model), in order."""
    ids = [u.ids for u in units]
    for batch, seen in subject.captured(ids, ["resid_post"], layers=[layer], batch_size=BATCH):
        for at, number in enumerate(batch.indices):
            yield units[number], seen["resid_post", layer][at]


def heads_behind(
    subject: Subject, readout: Readout, *, units: int | None = None, seed: int = 0, quiet: bool = False
) -> pd.DataFrame:
    """What the readout loses without each head: its z replaced by its mean over all positions of the prompts measured.

    units: how many to measure, spread evenly; None: all. Columns, one row a head: layer, head; lost (nats of log-odds,
    mean), low, high (95 % interval over clusters); limit (95th percentile of the n_peers heads most like it in output
    norm); p (sign-flip test over clusters), p_holm (over all heads); passed (p_holm below 0.05, lost above the limit),
    and why (what it fails on, or ""); n_units, n_clusters. Heads above the layer that is read are NaN. Raises DataError
    where the readout has a reason not to be asked.
    """
    if readout.reason is not None:
        raise DataError(f"heads cannot be asked: {readout.reason}.")
    n = len(readout.units)
    kept = np.arange(n) if units is None else np.unique(np.linspace(0, n - 1, min(units, n)).round().astype(int))
    chosen = sorted(kept.tolist(), key=lambda i: (len(readout.units[i].ids), i))
    mean = mean_z(subject, [readout.units[i].ids for i in chosen])
    lost = np.full((subject.n_layers, subject.n_heads, len(chosen)), np.nan)
    works: bool | None = None
    for start in progress(range(0, len(chosen), BATCH), f"readout of {subject.name}", quiet=quiet):
        some = chosen[start : start + BATCH]
        found, works = _ablated(subject, readout, some, mean, works)
        lost[..., start : start + len(some)] = found
    norms = _norms(subject, [readout.units[i] for i in chosen])
    return _table(subject, lost, [readout.units[i].cluster for i in chosen], norms, readout.layer, seed)


def _ablated(
    subject: Subject, readout: Readout, some: Sequence[int], mean: Tensor, works: bool | None
) -> tuple[Array, bool]:
    """(layer, head, unit) nats lost; and whether layers below an edit need not be run again (None: not known)."""
    units, layer = [readout.units[i] for i in some], readout.layer
    weights = readout.weights[readout.fold[list(some)]]
    prefix = Prefix(subject.anatomy, works=works is True)
    with prefix.recorded(len(units)):
        clean = _log_odds(subject, units, weights, layer, [])
    if works is None:
        for batch, _ in subject.captured([u.ids for u in units], ["resid_post"], layers=[layer], batch_size=BATCH):
            prefix.check(batch.inputs)
    found = np.full((subject.n_layers, subject.n_heads, len(units)), np.nan)
    for at in range(layer + 1):
        with prefix.resumed(at, range(len(units))):
            for head in range(subject.n_heads):
                value = mean[at, head]
                edit = Edit("z", at, lambda part, _, v=value: v.to(part).expand_as(part), heads=(head,), what="mean")
                found[at, head] = clean - _log_odds(subject, units, weights, layer, [edit])
    return found, prefix.works


def _log_odds(subject: Subject, units: Sequence[Unit], weights: Array, layer: int, edits: Sequence[Edit]) -> Array:
    """(unit,) nats, of one batch."""
    ids: list[Positions] = [u.ids for u in units]
    ((_, seen),) = subject.captured(ids, ["resid_post"], layers=[layer], edits=edits, batch_size=len(ids))
    states = seen["resid_post", layer]
    return np.array([float((_features(h, u)[0] * w).sum()) for h, u, w in zip(states, units, weights, strict=True)])


def _norms(subject: Subject, units: Sequence[Unit]) -> Array:
    """(layer, head): the mean length of what each head writes at the pronoun."""
    total, rows = np.zeros((subject.n_layers, subject.n_heads)), [[u.rows[0].query[0]] for u in units]
    for _, seen in subject.captured([u.ids for u in units], ["result"], rows=rows, batch_size=BATCH):
        for layer in range(subject.n_layers):
            total[layer] += seen["result", layer].float().norm(dim=-1).sum((0, 1)).cpu().numpy()
    return np.asarray(total / len(units))


def _table(subject: Subject, lost: Array, clusters: Sequence[str], norms: Array, layer: int, seed: int) -> pd.DataFrame:
    heads: list[Head] = all_heads(subject)
    grouped = stats.by_cluster(lost.reshape(len(heads), -1), clusters)
    asked = np.array([at <= layer for at, _ in heads])
    columns = {name: np.full(len(heads), np.nan) for name in ("low", "high", "limit", "n_peers", "p", "p_holm")}
    part = stats.ByCluster(grouped.sums[asked], grouped.counts)
    columns["low"][asked], columns["high"][asked] = stats.interval(part, seed=seed, shares=False)
    columns["p"][asked] = stats.sign_flip(part.weighted, seed=seed)
    columns["p_holm"][asked] = stats.holm(columns["p"][asked])
    means = dict(zip(heads, grouped.overall, strict=True))
    for n in np.flatnonzero(asked):
        others = [h for h, a in zip(heads, asked, strict=True) if a and h != heads[n]]
        peers = [means[h] for h in matched(norms, heads[n], others)]
        columns["limit"][n], columns["n_peers"][n] = np.percentile(peers, PERCENTILE), len(peers)
    table = pd.DataFrame({"layer": [a for a, _ in heads], "head": [b for _, b in heads], "lost": grouped.overall})
    table = table.assign(**columns)
    dear, more = table["p_holm"] < ALPHA, table["lost"] > table["limit"]
    why = np.where(dear, "it costs no more than heads that write as much", "ablating it was not shown to cost nats")
    table["passed"], table["why"] = dear & more, np.where((dear & more) | ~asked, "", why)
    return table.assign(n_units=len(clusters), n_clusters=len(grouped.counts))
