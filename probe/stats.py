"""Statistics over clusters: thin wrappers over SciPy's, and Holm's correction, which SciPy lacks.

Arrays have one column a cluster (template, document or page): whole clusters are what was sampled, so whole clusters
are what is resampled and sign-flipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]


class ByCluster(NamedTuple):
    """Sums over each cluster's units, (..., cluster), and how many units each cluster has, (cluster,)."""

    sums: Array
    counts: Array

    @property
    def means(self) -> Array:
        """Each cluster's mean, (..., cluster)."""
        return self.sums / self.counts

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


def interval(grouped: ByCluster, *, seed: int, level: float = 0.95, resamples: int = 2000) -> tuple[Array, Array]:
    """BCa bootstrap interval of the overall mean, resampling clusters (Efron 1987); two arrays of shape (...).

    Where every cluster has the same mean there is nothing to resample. At 0 or 1 (all wrong, all right) the interval
    is then Clopper-Pearson's with one trial a cluster, elsewhere the point itself.
    """
    sums, counts = grouped
    flat = sums.reshape(-1, sums.shape[-1])
    low = np.empty(len(flat))
    high = np.empty(len(flat))
    means = flat / counts
    constant = np.ptp(means, axis=-1) < 1e-12
    for row in np.flatnonzero(constant):
        low[row], high[row] = _constant_interval(float(means[row, 0]), len(counts), level)
    if (~constant).any():
        found = stats.bootstrap(
            (flat[~constant], np.broadcast_to(counts, flat[~constant].shape)),
            lambda s, c, axis: s.sum(axis) / c.sum(axis),
            paired=True,
            vectorized=True,
            axis=-1,
            n_resamples=resamples,
            batch=50,
            confidence_level=level,
            rng=np.random.default_rng(seed),
        ).confidence_interval
        low[~constant], high[~constant] = found.low, found.high
    return low.reshape(sums.shape[:-1]), high.reshape(sums.shape[:-1])


def sign_flip(differences: Array, *, seed: int, resamples: int = 9999) -> Array:
    """One-sided p that the mean of cluster differences (..., cluster) is above zero, by flipping their signs.

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


def _constant_interval(value: float, n: int, level: float) -> tuple[float, float]:
    if abs(value) > 1e-12 and abs(value - 1) > 1e-12:
        return value, value
    found = stats.binomtest(round(value * n), n).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)
