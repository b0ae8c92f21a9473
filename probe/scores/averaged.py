"""Does averaging hide the head? The attention that most figures show, a layer's or the model's mean over heads, scored
as single heads are.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from probe import stats
from probe.capture.batch import row_tensor
from probe.errors import DataError
from probe.scores.evidence import Evidence
from probe.scores.measure import Measured
from probe.scores.rows import Plan, Reading, Rows, read
from probe.subject import Subject
from probe.targets import Targets

ALL = "all heads"


def averaged(subject: Subject, targets: Targets) -> Measured:
    """Readings of head-averaged attention: values are (layers + 1, 1, unit), one row a layer (the mean over its heads)
    and then one for the mean over all heads of all layers.
    """
    subject.anatomy.check_even()
    shape = subject.n_layers + 1, 1, len(targets.units)
    values = {name: np.full(shape, np.nan) for name in Reading.FIELDS}
    order = sorted(range(len(targets.units)), key=lambda i: len(targets.units[i].ids))
    units = [targets.units[i] for i in order]
    queries = [sorted({q for r in u.rows for q in r.query}) for u in units]
    words = any(r.foils for u in units for r in u.rows)
    for batch, seen in subject.captured([u.ids for u in units], ["pattern"], rows=queries, batch_size=8):
        by_layer = [seen["pattern", n].float().mean(1, keepdim=True) for n in range(subject.n_layers)]
        visible = [seen.visible[n][:, :1] for n in range(subject.n_layers)]
        plan = Plan.of(
            [units[i] for i in batch.indices],
            [queries[i] for i in batch.indices],
            shift=batch.shift,
            n_keys=by_layer[0].shape[-1] if words else None,
        )
        whole, at = torch.stack(by_layer).mean(0), row_tensor(queries, batch)
        for row, pattern in enumerate((*by_layer, whole)):
            rows = Rows(pattern, visible[min(row, subject.n_layers - 1)], queries=at.to(pattern.device))
            reading = read(rows, plan)
            for name in Reading.FIELDS:
                found = getattr(reading, name).double().nanmean(-1).cpu().numpy()  # (unit, 1)
                values[name][row][:, [order[i] for i in batch.indices]] = found.T
    return Measured(targets, values)


def beside_the_best_head(subject: Subject, found: Evidence, *, seed: int = 0) -> pd.DataFrame:
    """Accuracy of each layer's averaged attention and of all heads', beside the head that is best on the half that
    picks; all of it on the half that measures. Returns the table and the paired differences.

    found: of `probe.scores.evidence`, with accuracy as its statistic. Columns: attention ("head 3.6", "layer 0", ...,
    `ALL`), accuracy, low, high (95 % interval over clusters), less (how much less than the best head's, paired), with
    less_low, less_high; n_units, n_clusters. Raises DataError where heads were described and not judged.
    """
    targets, test = found.measured.targets, found.measurement
    if not targets.rivals or targets.statistic != "accuracy":
        raise DataError(f"{targets.phenomenon} in {targets.dataset} has no accuracy that heads are judged by.")
    best = int(found.heads["selection_value"].to_numpy().argmax())
    layer, head = divmod(best, subject.n_heads)
    single = found.measured["correct"][layer, head][test]
    every = np.vstack([single[None], averaged(subject, targets)["correct"][:, 0][:, test]])
    clusters = [u.cluster for u, t in zip(targets.units, test, strict=True) if t]
    grouped, apart = stats.by_cluster(every, clusters), stats.by_cluster(single - every, clusters)
    low, high = stats.interval(grouped, seed=seed)
    less_low, less_high = stats.interval(apart, seed=seed, shares=False)
    names = [f"head {layer}.{head}", *(f"layer {n}" for n in range(subject.n_layers)), ALL]
    return pd.DataFrame(
        {
            "attention": names,
            "accuracy": grouped.overall,
            "low": low,
            "high": high,
            "less": apart.overall,
            "less_low": less_low,
            "less_high": less_high,
            "n_units": int(test.sum()),
            "n_clusters": len(grouped.counts),
        }
    )
