"""Lost in the middle, in numbers: what is answered as the asked-for fact moves through its list (Liu et al. 2023).

Lists are the clusters, and every list is asked about at every index, so that indices are compared within lists.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logsumexp

from probe import stats
from probe.causal.behaviour import candidate_scores, share_right
from probe.data.texts import Dataset, Labelled
from probe.errors import DataError
from probe.subject import Subject


def answers(subject: Subject, dataset: Dataset) -> pd.DataFrame:
    """One row a question: item, list, n, phrasing, index, correct (1 where the value asked for is the likeliest of
    those in the list; a tie counts as a share), log_p (nats: its log-probability among those values), likeliest (which
    of them is, as text; of a tie the one asked for, or the first).
    """
    items = {i.item: i for i in dataset.items if isinstance(i, Labelled)}
    units = subject.bind(dataset).units
    rows = []
    for unit, scores in zip(units, candidate_scores(subject, units), strict=True):
        own, question = items[unit.item].tags, items[unit.item].question
        assert question is not None  # it has been asked
        likeliest = (question.right, *question.wrong)[int(scores.argmax())]
        outcome = share_right(scores), float(scores[0] - logsumexp(scores)), likeliest
        rows.append((unit.item, unit.cluster, int(own["n"]), own["phrasing"], int(own["index"]), *outcome))
    return pd.DataFrame(rows, columns=["item", "list", "n", "phrasing", "index", "correct", "log_p", "likeliest"])


def question_effect(subject: Subject, found: pd.DataFrame, absent: Dataset) -> pd.DataFrame:
    """How much the question adds: the log-probability of each value among those in the list, minus what it is when the
    question is about a name that is not there. One row a question: list, n, phrasing, index, effect (nats), bias (the
    log-probability without the name).

    found: `answers` to the questions. absent: the same lists with `absent=True`, asked once a list with candidates in
    its order (`buried`), or once at every index with the candidate asked for first (`key_values`, `needle`).
    Raises DataError where a list is in one of them only.
    """
    tags = {i.item: i.tags for i in absent.items if isinstance(i, Labelled)}
    without: dict[tuple[str, int, int], float] = {}  # list, n, index
    units = subject.bind(absent).units
    for unit, scores in zip(units, candidate_scores(subject, units), strict=True):
        n, index = int(tags[unit.item]["n"]), int(tags[unit.item]["index"])
        normal = scores - logsumexp(scores)
        for at, value in enumerate(normal) if index < 0 else [(index, normal[0])]:
            without[unit.cluster, n, at] = float(value)
    places = list(zip(found["list"], found["n"], found["index"], strict=True))
    if missing := [at for at in places if at not in without]:
        raise DataError(f"{missing[0][0]} is asked about, but not without its names.")
    bias = [without[at] for at in places]
    effect = found["log_p"] - np.array(bias)
    return found[["list", "n", "phrasing", "index"]].assign(effect=effect, bias=bias)


def curve(table: pd.DataFrame, column: str, *, shares: bool = True, seed: int = 0) -> pd.DataFrame:
    """Mean of a column by n, phrasing and index, with its 95 % interval over lists: n, phrasing, index, value, low,
    high, lists. shares: whether the values lie between 0 and 1; nats do not.
    """
    rows = []
    for (n, phrasing, index), part in table.groupby(["n", "phrasing", "index"], sort=True):
        grouped = stats.by_cluster(part[column].to_numpy(dtype=np.float64)[None], list(part["list"]))
        low, high = stats.interval(grouped, seed=seed, shares=shares)
        rows.append((n, phrasing, index, float(grouped.overall[0]), float(low[0]), float(high[0]), len(grouped.counts)))
    return pd.DataFrame(rows, columns=["n", "phrasing", "index", "value", "low", "high", "lists"])


def curves(table: pd.DataFrame, values: Mapping[str, npt.NDArray[np.float64]], *, seed: int = 0) -> pd.DataFrame:
    """`curve` of several measures of the same questions, one below the other. values: head -> (question,), from 0 to 1;
    its name is in the column `head`. Raises DataError for none.
    """
    if not values:
        raise DataError("there is no head whose curve could be drawn.")
    lines = [curve(table.assign(own=own), "own", seed=seed).assign(head=head) for head, own in values.items()]
    return pd.concat(lines, ignore_index=True)


def ends(table: pd.DataFrame, column: str = "correct", *, seed: int = 0) -> pd.DataFrame:
    """Primacy (first index minus the mean of the inner ones), recency (last minus inner) and the U-index, the smaller
    of the two, by n and phrasing; paired within lists.

    Columns: n, phrasing, primacy, primacy_low, primacy_high, recency, ..., u, u_low, u_high, p_u (both ends above the
    middle: the larger of two sign-flip p), p_holm (over the rows), lists. Raises DataError for fewer than three
    indices.
    """
    rows = []
    for (n, phrasing), part in table.groupby(["n", "phrasing"], sort=True):
        wide = part.pivot(index="list", columns="index", values=column).dropna()
        if wide.shape[1] < 3:
            raise DataError(f"n={n}: a middle takes at least three indices, there are {wide.shape[1]}.")
        inner = wide.iloc[:, 1:-1].mean(axis=1)
        both = np.stack([wide.iloc[:, 0] - inner, wide.iloc[:, -1] - inner])
        grouped = stats.by_cluster(both, list(wide.index))
        low, high = stats.interval(grouped, seed=seed, shares=False)
        p = float(stats.sign_flip(grouped.weighted, seed=seed).max())
        means = grouped.overall
        spread = [float(v) for at in (0, 1) for v in (means[at], low[at], high[at])]
        least = stats.interval_of_least(grouped, seed=seed)
        rows.append((n, phrasing, *spread, float(means.min()), *least, p, len(wide)))
    names = [f"{end}{part}" for end in ("primacy", "recency") for part in ("", "_low", "_high")]
    made = pd.DataFrame(rows, columns=["n", "phrasing", *names, "u", "u_low", "u_high", "p_u", "lists"])
    made.insert(len(made.columns) - 1, "p_holm", stats.holm(made["p_u"].to_numpy()))
    return made


def moved(found: pd.DataFrame, other: pd.DataFrame, column: str = "correct", *, seed: int = 0) -> pd.DataFrame:
    """How much a column changes from one condition to another, at each n and index, paired within lists: n, index,
    before, after, change, low, high (95 % interval over lists), p (two-sided sign-flip), p_holm (over the rows), lists.

    found, other: `answers` to the same questions under both. Raises DataError where they share none.
    """
    joined = found.merge(other, on=["list", "n", "index"], suffixes=("_before", "_after"))
    if joined.empty:
        raise DataError("the two conditions have no question in common.")
    rows = []
    for (n, index), part in joined.groupby(["n", "index"], sort=True):
        before, after = (part[f"{column}_{when}"].to_numpy(dtype=np.float64) for when in ("before", "after"))
        grouped = stats.by_cluster((after - before)[None], list(part["list"]))
        low, high = stats.interval(grouped, seed=seed, shares=False)
        sides = stats.sign_flip(np.concatenate([grouped.weighted, -grouped.weighted]), seed=seed)
        change = float(grouped.overall[0]), float(low[0]), float(high[0])
        p = min(1.0, 2 * float(sides.min()))
        rows.append((n, index, float(before.mean()), float(after.mean()), *change, p, len(grouped.counts)))
    names = ["n", "index", "before", "after", "change", "low", "high", "p", "lists"]
    made = pd.DataFrame(rows, columns=names)
    made.insert(len(names) - 1, "p_holm", stats.holm(made["p"].to_numpy()))
    return made
