"""Does a head's attention to the fact asked for go with right answers, at one index, where position is fixed?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import mannwhitneyu, rankdata

from probe import stats
from probe.errors import DataError
from probe.sites import head_names

Array = npt.NDArray[np.float64]
FEWEST = 5  # right and wrong answers at an index, for an AUC there
HEADS_AT_ONCE = 16  # of the bootstrap


def follows(
    mass: Array,
    correct: Sequence[float],
    index: Sequence[int],
    lists: Sequence[str],
    *,
    seed: int = 0,
    resamples: int = 9999,
) -> pd.DataFrame:
    """Which heads' mass on gold goes with right answers: one row a head, with layer, head, auc, low, high (95 %
    percentile bootstrap over lists), p (two-sided: the answers of whole lists are given to other lists, which keeps
    what index and list have to do with success), p_holm (over all heads), lists. NaN, and p 1, where no index has
    enough of both answers.

    auc: how well the mass tells right answers from wrong ones *at the same index*, the mean over indices with at least
    `FEWEST` of each; 0.5 says nothing. Pooled over indices it would tell the index.

    mass: (layer, head, question). Lists that are not asked about at every index are left out. Raises DataError where
    a mass is no number, or a list is asked about twice at an index.
    """
    _check(mass, index, lists)
    right, at = np.asarray(correct) > 0.5, np.asarray(index)
    numbers = pd.DataFrame({"list": list(lists), "index": at, "number": np.arange(len(at))})
    placed = numbers.pivot(index="list", columns="index", values="number").dropna().to_numpy(dtype=np.int64)
    won = right[placed]  # (list, index)
    used = (np.minimum(won.sum(0), (~won).sum(0)) >= FEWEST) if len(placed) else np.zeros(0, dtype=bool)
    layer, head = np.indices(mass.shape[:2])
    table = pd.DataFrame({"layer": layer.ravel(), "head": head.ravel()})
    if not used.any():
        return table.assign(auc=np.nan, low=np.nan, high=np.nan, p=1.0, p_holm=1.0, lists=len(placed))
    own = mass.reshape(-1, mass.shape[-1])[:, placed[:, used]]  # (head, list, index)
    won = won[:, used]
    low, high = _resampled(own, won, seed)
    auc, p = _permuted(own, won, seed, resamples)
    return table.assign(auc=auc, low=low, high=high, p=p, p_holm=stats.holm(p), lists=len(placed))


def _check(mass: Array, index: Sequence[int], lists: Sequence[str]) -> None:
    if not np.isfinite(mass).all():
        raise DataError("some of the masses are not numbers: NaN or infinite.")
    places = Counter(zip(lists, index, strict=True))
    if twice := [place for place, n in places.items() if n > 1]:
        raise DataError(f"{twice[0][0]} is asked about twice at index {twice[0][1]}; each list, at each index, once.")


def _permuted(mass: Array, won: npt.NDArray[np.bool_], seed: int, resamples: int) -> tuple[Array, Array]:
    """The area (head,) and its two-sided p, from ranks within each index: the sum of those won gives the area."""
    wins = won.sum(0)
    pairs = wins * (len(won) - wins)
    ranks = rankdata(mass, axis=1) / pairs / won.shape[1]
    least = (wins * (wins + 1) / 2 / pairs).mean()
    flat = ranks.reshape(len(mass), -1)
    rng = np.random.default_rng(seed)
    orders = np.argsort(rng.random((resamples, len(won))), axis=1)
    auc = flat @ won.reshape(-1) - least
    extreme = np.ones(len(mass))
    for some in np.array_split(orders, max(1, resamples // 500)):
        drawn = flat @ won[some].reshape(len(some), -1).T.astype(np.float64) - least
        extreme += (np.abs(drawn - 0.5) >= np.abs(auc - 0.5)[:, None] - 1e-12).sum(1)
    return np.asarray(auc), np.asarray(extreme / (resamples + 1))


def _resampled(mass: Array, won: npt.NDArray[np.bool_], seed: int, resamples: int = 2000) -> tuple[Array, Array]:
    """The interval (head,) of the area: each list counts as often as it was drawn."""
    rng = np.random.default_rng(seed)
    times = rng.multinomial(len(won), np.full(len(won), 1 / len(won)), size=resamples).astype(np.float64)
    ends = []
    for some in range(0, len(mass), HEADS_AT_ONCE):
        areas = np.full((won.shape[1], len(mass[some : some + HEADS_AT_ONCE]), resamples), np.nan)
        for at in range(won.shape[1]):
            values = mass[some : some + HEADS_AT_ONCE, :, at]
            one, other = values[:, won[:, at], None], values[:, None, ~won[:, at]]
            above = (one > other) + 0.5 * (one == other)  # (head, won, lost)
            of_won, of_lost = times[:, won[:, at]], times[:, ~won[:, at]]
            both = of_won.sum(1) * of_lost.sum(1)
            sums = ((of_won @ above) * of_lost).sum(-1)
            areas[at] = np.divide(sums, both, out=np.full_like(sums, np.nan), where=both > 0)
        drawn = (~np.isnan(areas)).sum(0)  # a draw without both answers at any index says nothing
        means = np.divide(np.nansum(areas, axis=0), drawn, out=np.full(drawn.shape, np.nan), where=drawn > 0)
        ends.append(np.nanquantile(means, [0.025, 0.975], axis=-1))
    low, high = np.concatenate(ends, axis=1)
    return np.asarray(low), np.asarray(high)


class Success(NamedTuple):
    """How well right answers are told from wrong ones, as areas under the curve; .5 says nothing. within: `follows`, by
    the mass on gold at the same index. pooled: (layer, head), by the mass, over all indices. position: by the index
    alone. NaN where there are too few of either.
    """

    within: pd.DataFrame
    pooled: Array
    position: float


def success(
    mass: Array,
    correct: Sequence[float],
    index: Sequence[int],
    lists: Sequence[str],
    held: npt.NDArray[np.bool_],
    *,
    seed: int = 0,
) -> Success:
    """What predicts success on the questions that are `held`: mass within an index, mass pooled, and position only,
    which knows how often each index is right among the other questions. mass: (layer, head, question). Raises
    DataError as `follows` does, and where no question is left beside those held.
    """
    if held.all():
        raise DataError("every question is held: none is left to know the indices by.")
    right, at = np.asarray(correct) > 0.5, np.asarray(index)
    prior = {i: right[~held & (at == i)].mean() for i in np.unique(at[~held])}
    known = np.array([prior.get(i, right[~held].mean()) for i in at[held]])
    won = right[held]
    enough = min(won.sum(), (~won).sum()) >= FEWEST
    return Success(
        follows(mass[..., held], list(won.astype(float)), list(at[held]), list(np.asarray(lists)[held]), seed=seed),
        _area(mass[..., held][..., won], mass[..., held][..., ~won]) if enough else np.full(mass.shape[:-1], np.nan),
        float(_area(known[won], known[~won])) if enough else float("nan"),
    )


def among(table: pd.DataFrame, heads: Sequence[tuple[int, int]]) -> pd.DataFrame:
    """The rows of `follows` for heads that were chosen on other lists, in that order; p_holm is over these alone."""
    mine = table.set_index(["layer", "head"]).loc[list(heads)].reset_index()
    return mine.assign(p_holm=stats.holm(mine["p"].to_numpy()))


def told(table: pd.DataFrame, which: str) -> str:
    """Sentences on `follows`: how many heads' mass goes with right answers, against them, and the farthest.

    which: what the mass is on, as in "weight on the fact".
    """
    if table["auc"].isna().all():
        return "At no index are there enough right and wrong answers to compare."
    shown = table[table["p_holm"] < 0.05]
    more, less = int((shown["auc"] > 0.5).sum()), int((shown["auc"] < 0.5).sum())
    at = int(np.nanargmax(table["auc"].to_numpy()))
    layer, head, n = (int(table[name].iloc[at]) for name in ("layer", "head", "lists"))
    auc, low, high = (float(table[name].iloc[at]) for name in ("auc", "low", "high"))
    return (
        f"Heads whose {which} was shown to go with right answers at the same index: {more} of {len(table)}; with wrong "
        f"answers: {less} (Holm-corrected over all heads, {n} lists). The highest AUC of all, chosen after the fact: "
        f"{auc:.2f} [{low:.2f} to {high:.2f}], of {layer}.{head}."
    )


def sorted_out(mine: pd.DataFrame) -> str:
    """Which of the heads of `among` go with right answers, and which were not shown to: "23.0 and 23.2 do; 18.6 was
    not shown to".
    """
    names = head_names(zip(mine["layer"], mine["head"], strict=True))
    do = (mine["p_holm"] < 0.05) & (mine["auc"] > 0.5)
    follow = [name for name, d in zip(names, do, strict=True) if d]
    rest = [name for name, d in zip(names, do, strict=True) if not d]
    said = [f"{', '.join(follow)} {'does' if len(follow) == 1 else 'do'}"] if follow else []
    said += [f"{', '.join(rest)} {'was' if len(rest) == 1 else 'were'} not shown to"] if rest else []
    return "; ".join(said)


def _area(won: Array, lost: Array) -> Array:
    """Over the last axis: the chance that a question won has the larger value, ties counted as half."""
    return np.asarray(mannwhitneyu(won, lost, axis=-1).statistic / (won.shape[-1] * lost.shape[-1]))
