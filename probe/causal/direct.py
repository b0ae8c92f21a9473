"""Of what a head does for an answer, how much it writes into the answer itself, and how much works through others.

Patched from the minimal pair, a head changes the answer in two ways: its own part of the logit difference is another
(direct), and whatever reads it further up writes something else. The sweep measures both together (total). Where the
two have different signs, what a head writes is not what it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from probe import stats
from probe.causal.screen import screen
from probe.causal.sweep import Array, Head, all_heads, highest, sweep
from probe.errors import OutOfRange, ProbeError
from probe.scores.attribution import direct_logit_attribution
from probe.scores.evidence import FEWEST_CLUSTERS
from probe.subject import Subject
from probe.targets import Unit

SAME, OTHER, OPEN = "same sign", "other sign", "open"


def direct_and_total(
    subject: Subject, units: Sequence[Unit], *, most: int = 8, seed: int = 0, quiet: bool = False
) -> pd.DataFrame:
    """The heads that write most and those the answer depends on most: both effects of patching each, in nats.

    units: with an answer and an aligned minimal pair; others are left out. most: how many heads to take by what they
    write, and as many by attribution patching, both chosen on every other cluster and measured on the rest; all heads
    where the model has no more. seed: of the bootstrap.
    Columns: layer, head, chosen ("writes", "needed", "both" or "all"), direct (the head's part of logit(right) -
    logit(wrong), less the same on the pair's prompt) and total (logit difference lost when its z is patched from
    there), each with its 95 % interval over clusters (direct_low, ...), signs ("same sign", "other sign", or "open"
    where an interval holds 0), n_units. The largest total first. Raises ProbeError for fewer than four clusters with a
    pair, OutOfRange for `most` below 1; as `direct_logit_attribution` and `sweep`.
    """
    OutOfRange.check_count("most", most)
    paired = [u for u in units if u.answer is not None and u.swapped is not None]
    clusters = sorted({u.cluster for u in paired})
    if len(clusters) < FEWEST_CLUSTERS:
        raise ProbeError(
            f"{len(clusters)} clusters have aligned minimal pairs; to choose heads on half of them takes "
            f"{FEWEST_CLUSTERS}."
        )
    choosing = set(clusters[::2])
    first = [u for u in paired if u.cluster in choosing]
    held = [u for u in paired if u.cluster not in choosing]
    chosen = _chosen(subject, first, most)
    direct = direct_effects(subject, held)
    total = sweep(subject, held, ("patch",), heads=list(chosen), seed=seed, quiet=quiet).values["patch"]
    at = tuple(np.array(list(chosen)).T)
    rows: dict[str, Any] = {"layer": at[0], "head": at[1], "chosen": list(chosen.values())}
    for name, values in (("direct", direct[at]), ("total", total[at])):
        grouped = stats.by_cluster(values, [u.cluster for u in held])
        low, high = stats.interval(grouped, seed=seed, shares=False)
        rows |= {name: grouped.overall, f"{name}_low": low, f"{name}_high": high}
    table = pd.DataFrame(rows)
    table["signs"] = [_signs(row) for row in table.to_dict("records")]
    table["n_units"] = len(held)
    return table.sort_values("total", ascending=False, key=np.abs, kind="stable", ignore_index=True)


def direct_effects(subject: Subject, units: Sequence[Unit]) -> Array:
    """(layer, head, unit): what each head writes of the logit difference, less what it writes on the minimal pair's
    prompt; nats. Raises ProbeError where a unit has no aligned minimal pair.
    """
    pairs = [replace(u, ids=u.swapped) for u in units if u.swapped is not None]
    if not pairs or len(pairs) < len(units):
        raise ProbeError(f"{len(pairs)} of {len(units)} units have an aligned minimal pair; all need one.")
    return _written(subject, units) - _written(subject, pairs)


def _written(subject: Subject, units: Sequence[Unit]) -> Array:
    table = direct_logit_attribution(subject, units, heads=True)
    values = table[table["component"] == "head"]["value"].to_numpy(dtype=np.float64)
    return np.moveaxis(values.reshape(len(units), subject.n_layers, subject.n_heads), 0, -1)


def _chosen(subject: Subject, units: Sequence[Unit], most: int) -> dict[Head, str]:
    """Heads, and what each was chosen by."""
    if subject.n_layers * subject.n_heads <= 2 * most:
        return dict.fromkeys(all_heads(subject), "all")
    chosen: dict[Head, str] = {}
    for name, values in (("writes", direct_effects(subject, units)), ("needed", screen(subject, units))):
        for head in highest(np.abs(values.mean(-1)), most):
            chosen[head] = "both" if head in chosen else name
    return chosen


def _signs(row: dict[Any, Any]) -> str:
    ends = [(float(row[f"{name}_low"]), float(row[f"{name}_high"])) for name in ("direct", "total")]
    if any(low <= 0 <= high for low, high in ends):
        return OPEN
    return SAME if (ends[0][0] > 0) == (ends[1][0] > 0) else OTHER
