"""Statistics over clusters: thin wrappers over SciPy's, and Holm's correction, which SciPy lacks.

Arrays have one column a cluster (template, document or page): whole clusters are what was sampled, so whole clusters
are what is resampled and sign-flipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]


class ByCluster(NamedTuple):
    """Sums over each cluster's units, (..., cluster), and how many units each cluster has, (cluster,)."""

    sums: Array
    counts: Array

    @property
    def weighted(self) -> Array:
        """Each cluster's share of the overall mean, (..., cluster), scaled so that their plain mean is `overall`."""
        return np.asarray(self.sums / self.counts.mean())

    @property
    def overall(self) -> Array:
        """Mean over all units, (...)."""
        return np.asarray(self.sums.sum(-1) / self.counts.sum())


def by_cluster(values: Array, clusters: Sequence[str]) -> ByCluster:
    """Group the last axis of `values` (..., unit) by each unit's cluster name, in sorted order."""
    names, index = np.unique(np.asarray(clusters), return_inverse=True)
    counts = np.bincount(index, minlength=len(names)).astype(np.float64)
    sums = np.zeros((*values.shape[:-1], len(names)))
    for cluster in range(len(names)):
        sums[..., cluster] = values[..., index == cluster].sum(-1)
    return ByCluster(sums, counts)


def interval(
    grouped: ByCluster, *, seed: int, level: float = 0.95, resamples: int = 2000, shares: bool = True
) -> tuple[Array, Array]:
    """BCa bootstrap interval of the overall mean, resampling clusters (Efron 1987); two arrays of shape (...).

    Coverage is nearer 91% than 95% with 20 clusters or fewer. Where every cluster has the same mean there is nothing to
    resample: for shares of 0 or 1 (all wrong, all right) the interval is then Clopper-Pearson's with one trial a
    cluster, elsewhere the point itself, and NaN for a single cluster, which says nothing of others. shares: whether the
    values lie between 0 and 1; nats do not.
    """
    sums, counts = grouped
    flat = sums.reshape(-1, sums.shape[-1])
    low = np.full(len(flat), np.nan)
    high = np.full(len(flat), np.nan)
    means = flat / counts
    constant = np.ptp(means, axis=-1) < 1e-12
    for row in np.flatnonzero(constant):
        low[row], high[row] = _constant_interval(float(means[row, 0]), len(counts), level, shares)
    # BCa has no answer where leaving out any one cluster changes nothing: there the percentile interval stands in.
    methods: tuple[Literal["BCa", "percentile"], ...] = ("BCa", "percentile")
    for method in methods:
        left = np.isnan(low)
        if left.any() and len(counts) > 1:
            low[left], high[left] = _bootstrap(flat[left], counts, method, seed, level, resamples)
    return low.reshape(sums.shape[:-1]), high.reshape(sums.shape[:-1])


def interval_of_least(
    grouped: ByCluster, *, seed: int, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the smallest of several overall means (row, cluster), resampling clusters: each
    time the smallest is taken anew, whichever it is. The mean of such a smallest lies below the smallest mean.
    """
    sums, counts = grouped
    drawn = np.random.default_rng(seed).integers(0, len(counts), (resamples, len(counts)))
    least = (sums[:, drawn].sum(-1) / counts[drawn].sum(-1)).min(0)
    low, high = np.quantile(least, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _bootstrap(
    sums: Array, counts: Array, method: Literal["BCa", "percentile"], seed: int, level: float, resamples: int
) -> tuple[Array, Array]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (sums, np.broadcast_to(counts, sums.shape)),
            lambda s, c, axis: s.sum(axis) / c.sum(axis),
            paired=True,
            vectorized=True,
            axis=-1,
            n_resamples=resamples,
            batch=50,
            confidence_level=level,
            method=method,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return np.asarray(found.low), np.asarray(found.high)


def sign_flip(differences: Array, *, seed: int, resamples: int = 9999) -> Array:
    """One-sided p that the mean of cluster differences (..., cluster) is above zero, by flipping their signs.

    differences: `ByCluster.weighted`, so that what is tested is the difference of the values that are printed.
    Exact where there are few clusters; with R random flips the smallest p is 1 / (R + 1).
    """
    found = stats.permutation_test(
        (differences,),
        lambda d, axis: d.mean(axis),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        axis=-1,
        n_resamples=resamples,
        batch=500,
        rng=np.random.default_rng(seed),
    )
    return np.asarray(found.pvalue)


def t_test(differences: Array) -> Array:
    """One-sided p that the mean of cluster differences (..., cluster) is above zero, by Student's t: quick, for many.

    Differences that are all alike have no spread to compare with; the p of flipping their n signs, 2^-n, stands in
    where they are positive, and 1 where not.
    """
    constant = np.ptp(differences, axis=-1) < 1e-12
    p = np.where(differences.mean(-1) > 0, 0.5 ** differences.shape[-1], 1.0)
    if (~constant).any():
        p[~constant] = stats.ttest_1samp(differences[~constant], 0.0, axis=-1, alternative="greater").pvalue
    return np.asarray(p)


def smallest_p(n_clusters: int, n_tests: int, resamples: int = 9999) -> float:
    """The smallest Holm-corrected p that `sign_flip` can give the best of `n_tests`: what no effect can beat."""
    exact = 0.5**n_clusters if 2**n_clusters <= resamples else 0.0
    return min(1.0, n_tests * max(exact, 1 / (resamples + 1)))


def holm(p: Array) -> Array:
    """Holm's (1979) step-down correction of p-values (n,); controls the chance of any false pass."""
    order = np.argsort(p)
    stepped = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(stepped, 1.0)
    return corrected


def benjamini_hochberg(p: Array) -> Array:
    """q-values (n,): the false discovery rate if everything up to here is called a discovery."""
    return np.asarray(stats.false_discovery_control(p, method="bh"))


def _constant_interval(value: float, n: int, level: float, shares: bool) -> tuple[float, float]:
    if not shares or (abs(value) > 1e-12 and abs(value - 1) > 1e-12):
        return (value, value) if n > 1 else (np.nan, np.nan)
    found = stats.binomtest(round(value * n), n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)
