"""Linear probes: what can be read off a site by a linear map, and how much of that is the probe's own doing.

    found = probes.read_off(subject, properties.properties(subject)[0])     # a property, by layer
    probes.baselines(prop)                                                  # what needs no model at all

A probe is trained on some groups of places (prompts, templates) and tested on the others. Beside its accuracy stand:
the same probe on control labels, which are random but fixed for each word type (Hewitt and Liang 2019; the difference
is its selectivity), on shuffled labels, on the token embedding alone (site "embed"), and on a randomly initialised copy
of the model (`Subject.random_copy`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from probe import stats
from probe.errors import DataError, OutOfRange, UnknownName
from probe.scores.properties import Property
from probe.sites import SQUARE_SITES, WHOLE_SITES, Site, check_indices, check_sites, split
from probe.subject import Subject

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]
Kind = Literal["ridge", "logistic"]
KINDS = ("ridge", "logistic")
STREAM = ("embed", "resid_pre", "resid_post")

FOLDS = 5
DRAWS = 5  # of control labels, and of shuffled ones; their mean is what is printed
ALPHA = 100.0  # of ridge, on features of unit variance
C = 0.01  # of logistic regression: about as strong


class _Tested(NamedTuple):
    """Predictions for every place by a probe that was not trained on its group: the labels', those of each draw of
    control labels, and of each shuffling; with the labels of those draws.
    """

    own: Labels
    control: list[tuple[Labels, Labels]]
    shuffled: list[tuple[Labels, Labels]]


def read_off(
    subject: Subject,
    prop: Property,
    sites: str | Sequence[str] = STREAM,
    *,
    layers: int | Sequence[int] | None = None,
    kind: Kind = "ridge",
    seed: int = 0,
    batch_size: int = 16,
) -> pd.DataFrame:
    """Train and test a probe on each site and layer; `resid_pre` of the first chosen layer alone, as it is the
    `resid_post` of the one before.

    sites: any with one vector a position; heads are joined. layers: default all. kind: "ridge" (regression on one-hot
    labels, the largest wins) or "logistic", slower; a number takes ridge regression whatever the kind. Features have
    unit variance on the groups trained on. seed: of control labels, shuffling, the bootstrap.
    One row for each site and layer (-1 for `embed`): property, site, layer, blocks (passed: 0 before the first block,
    -1 for `embed`), score with its 95 % interval over groups (low, high), control, selectivity (score minus control),
    shuffled (means over `DRAWS` draws), error (number: mean absolute error in its unit, with error_low and error_high;
    else NaN), places, groups, types (of words). Score: accuracy on groups not trained on; for a number R², the share of
    its variance that is explained.
    Raises UnknownName, UnsupportedModel, OutOfRange, DataError for fewer than two groups.
    """
    return read_features(
        activations(subject, prop, sites, layers=layers, batch_size=batch_size), prop, kind=kind, seed=seed
    )


def read_features(
    features: Mapping[Site, Array], prop: Property, *, kind: Kind = "ridge", seed: int = 0
) -> pd.DataFrame:
    """The same of features that are there already, as `activations` returns them: for properties of the same places."""
    if kind not in KINDS:
        raise UnknownName.of("kind of probe", kind, KINDS)
    rng = np.random.default_rng(seed)
    controls = [_control(prop, rng) for _ in range(DRAWS)]
    shuffled = [np.asarray(prop.labels)[rng.permutation(len(prop.labels))] for _ in range(DRAWS)]
    rows = []
    for site, own in features.items():
        tested = _tested(own, prop, controls, shuffled, kind)
        where = {"property": prop.name, "site": site.name, "layer": -1 if site.layer is None else site.layer}
        blocks = -1 if site.layer is None else site.layer + (site.base not in ("resid_pre", "q", "k", "v"))
        rows.append({**where, "blocks": blocks, **_summed_up(prop, tested, seed)})
    return pd.DataFrame(rows)


def activations(
    subject: Subject,
    prop: Property,
    sites: str | Sequence[str] = STREAM,
    *,
    layers: int | Sequence[int] | None = None,
    batch_size: int = 16,
) -> dict[Site, Array]:
    """What the model holds at every place of a property: site -> (place, feature), heads side by side."""
    names = check_sites(sites)
    for name in names:
        if split(name)[1] in SQUARE_SITES:
            raise OutOfRange(f"{name} has as many keys as a prompt has tokens, so no fixed width; probe z instead.")
    chosen = check_indices("layer", layers, subject.n_layers)
    if not chosen:
        raise OutOfRange(f"layers={layers} names none: allowed are 0 to {subject.n_layers - 1}, and None for all.")
    wanted = [Site(n) for n in names if n in WHOLE_SITES]
    wanted += [Site("resid_pre", chosen[0])] if "resid_pre" in names else []
    wanted += [Site(n, layer) for layer in chosen for n in names if n not in (*WHOLE_SITES, "resid_pre")]
    found: dict[Site, list[torch.Tensor]] = {site: [] for site in wanted}
    own: dict[int, list[tuple[int, int]]] = {}  # prompt -> (number of the place, position)
    for number, (prompt, position) in enumerate(prop.places):
        own.setdefault(prompt, []).append((number, position))
    order: list[int] = []
    by_length = sorted(own, key=lambda prompt: len(prop.prompts[prompt]))
    prompts = [prop.prompts[prompt] for prompt in by_length]
    for batch, seen in subject.captured(prompts, names, layers=list(chosen), batch_size=batch_size):
        for at, index in enumerate(batch.indices):
            mine = own[by_length[index]]
            order += [number for number, _ in mine]
            rows = [batch.shift[at] + position for _, position in mine]
            for site, parts in found.items():
                tensor = seen[site.name if site.layer is None else (site.name, site.layer)]
                parts.append(tensor[at, rows].flatten(1).float().cpu())
    back = np.argsort(order)
    return {site: torch.cat(parts).double().numpy()[back] for site, parts in found.items()}


def baselines(prop: Property, *, seed: int = 0) -> pd.DataFrame:
    """What needs no model: baseline ("majority": the most frequent label of the groups trained on, a number's mean;
    "place": which position it is, the first counted as 0, and no more), score, low, high, error, as `read_off`.

    "place" says whether a property could be told by how far the text has come. Of a position it knows all.
    """
    rows = []
    at = np.array([[position] for _, position in prop.places])
    features = {"majority": np.zeros((len(at), 1)), "place": OneHotEncoder(sparse_output=False).fit_transform(at)}
    for name, known in features.items():
        if name == "majority" and not prop.is_number:
            labels = np.asarray(prop.labels)
            own = np.empty_like(labels)
            for train, test in _folds(prop):
                own[test] = DummyClassifier().fit(known[train], labels[train]).predict(known[test])
            tested = _Tested(own, [], [])
        else:
            tested = _tested(known, prop, [], [], "ridge")
        kept = ("score", "low", "high", "error")
        summed = _summed_up(prop, tested, seed)
        rows.append({"property": prop.name, "baseline": name, **{k: summed[k] for k in kept}})
    return pd.DataFrame(rows)


def _control(prop: Property, rng: np.random.Generator) -> Labels:
    """A label for each word type, drawn as often as the labels come."""
    labels = np.asarray(prop.labels)
    names, at = np.unique(np.asarray(prop.words), return_inverse=True)
    return labels[rng.integers(len(labels), size=len(names))][at]


def _folds(prop: Property) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    n = len(set(prop.groups))
    if n < 2:
        raise DataError(f"{prop.name} has {n} group: a probe is trained on some groups and tested on others.")
    made = GroupKFold(n_splits=min(FOLDS, n)).split(np.zeros(len(prop.places)), groups=np.asarray(prop.groups))
    return list(made)


def _tested(
    features: Array, prop: Property, controls: Sequence[Labels], shuffled: Sequence[Labels], kind: Kind
) -> _Tested:
    every = [np.asarray(prop.labels), *controls, *shuffled]
    found = [np.empty_like(labels) for labels in every]
    for train, test in _folds(prop):
        scaler = StandardScaler().fit(features[train])
        seen, held = scaler.transform(features[train]), scaler.transform(features[test])
        trained = [labels[train] for labels in every]
        if prop.is_number:
            said = list(_ridge(seen, np.stack(trained, 1), held).T)
        elif kind == "ridge":
            said = _ridge_classes(seen, trained, held)
        else:
            said = [_logistic(seen, labels, held) for labels in trained]
        for own, one in zip(found, said, strict=True):
            own[test] = one
    pairs = list(zip(every, found, strict=True))
    return _Tested(found[0], pairs[1 : 1 + len(controls)], pairs[1 + len(controls) :])


def _ridge(features: Array, targets: Array, held: Array) -> Array:
    """Many targets share one factorisation. (place, feature), (place, target), (other place, feature)."""
    return np.asarray(Ridge(alpha=ALPHA, solver="cholesky").fit(features, targets).predict(held)).reshape(len(held), -1)


def _ridge_classes(features: Array, trained: Sequence[Labels], held: Array) -> list[Labels]:
    """The class whose indicator is predicted largest, for each of several labellings."""
    classes = [np.unique(labels) for labels in trained]
    columns = [(own[:, None] == names).astype(np.float64) for own, names in zip(trained, classes, strict=True)]
    ends = np.cumsum([c.shape[1] for c in columns])[:-1]
    said = np.split(_ridge(features, np.concatenate(columns, 1), held), ends, axis=1)
    return [names[one.argmax(1)] for names, one in zip(classes, said, strict=True)]


def _logistic(features: Array, labels: Labels, held: Array) -> Labels:
    if len(np.unique(labels)) == 1:
        return np.repeat(labels[:1], len(held))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(LogisticRegression(C=C, max_iter=200).fit(features, labels).predict(held))


def _summed_up(prop: Property, tested: _Tested, seed: int) -> dict[str, Any]:
    labels = np.asarray(prop.labels)
    score, low, high = _score(prop, labels, tested.own, seed)
    control = float(np.mean([_score(prop, a, b)[0] for a, b in tested.control])) if tested.control else float("nan")
    mixed = float(np.mean([_score(prop, a, b)[0] for a, b in tested.shuffled])) if tested.shuffled else float("nan")
    error = (float("nan"),) * 3
    if prop.is_number:
        grouped = stats.by_cluster(np.abs(tested.own - labels), prop.groups)
        ends = stats.interval(grouped, seed=seed, shares=False)
        error = float(grouped.overall), float(ends[0]), float(ends[1])
    return {
        "score": score,
        "low": low,
        "high": high,
        "control": control,
        "selectivity": score - control,
        "shuffled": mixed,
        "error": error[0],
        "error_low": error[1],
        "error_high": error[2],
        "places": len(prop.places),
        "groups": len(set(prop.groups)),
        "types": len(set(prop.words)),
    }


def _score(prop: Property, labels: Labels, said: Labels, seed: int | None = None) -> tuple[float, float, float]:
    """Accuracy, or R² of a number, with its interval over groups (NaN without a seed)."""
    if prop.is_number:
        missed = stats.by_cluster((labels - said) ** 2, prop.groups)
        spread = stats.by_cluster((labels - labels.mean()) ** 2, prop.groups)
        # A ratio of sums over groups: the mean of the first, counted in units of the second.
        grouped = stats.ByCluster(missed.sums, spread.sums)
        if seed is None:
            return 1 - float(grouped.overall), float("nan"), float("nan")
        low, high = stats.interval(grouped, seed=seed, shares=False)
        return 1 - float(grouped.overall), 1 - float(high), 1 - float(low)
    grouped = stats.by_cluster((labels == said).astype(np.float64), prop.groups)
    if seed is None:
        return float(grouped.overall), float("nan"), float("nan")
    low, high = stats.interval(grouped, seed=seed)
    return float(grouped.overall), float(low), float(high)
