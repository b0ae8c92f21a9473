"""Heads that were published as doing something, measured again on a user's own copy of the model.

A model is told by its name: the last part of a hub id, or of the folder that it lies in. Other models have no published
heads, and their best ones are shown. The published numbers come from other texts (CoNLL-2012, the Wall Street Journal),
so what is compared is less the number than the rank: whether the same head is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe import data, stats
from probe.data.ioi import ROLES
from probe.data.syntax import RELATIONS
from probe.data.texts import Dataset, Labelled, Span, Text
from probe.errors import DataError
from probe.scores.measure import Measured, measure_together
from probe.subject import Subject
from probe.targets import Targets

CLARK, WANG = "Clark et al. 2019", "Wang et al. 2023"
ATTENTION, WORD = "target", "word_correct"
COREFERENCE_ITEMS = 4  # of each template

Head = tuple[int, int]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """A head (layer, head, from 0) of a model, what it does (a key of `MEASURES`), and the published share, if any;
    that of the simple rule it was compared with.
    """

    model: str
    does: str
    head: Head
    source: str
    number: float = float("nan")
    rule: float = float("nan")


def _wang(does: str, *heads: Head) -> tuple[Claim, ...]:
    return tuple(Claim("gpt2", does, head, WANG) for head in heads)


PUBLISHED: tuple[Claim, ...] = (
    Claim("bert-base-uncased", "coreference", (4, 3), CLARK, 0.64, 0.29),  # pronouns; all mentions: .65, .27
    Claim("bert-base-uncased", "det", (7, 10), CLARK, 0.943, 0.517),
    Claim("bert-base-uncased", "dobj", (7, 9), CLARK, 0.868, 0.400),
    Claim("bert-base-uncased", "poss", (6, 5), CLARK, 0.805, 0.477),
    Claim("bert-base-uncased", "pobj", (8, 5), CLARK, 0.763, 0.346),
    Claim("bert-base-uncased", "nsubj", (7, 1), CLARK, 0.585, 0.455),
    *_wang("name mover", (9, 9), (10, 0), (9, 6)),
    *_wang("S-inhibition", (7, 3), (7, 9), (8, 6), (8, 10)),
    *_wang("induction", (5, 5), (5, 8), (5, 9), (6, 9)),
    *_wang("duplicate token", (0, 1), (0, 10), (3, 0)),
    *_wang("previous token", (2, 2), (4, 11)),
)
LOGIT_DIFFERENCE = {"gpt2": 3.56}  # nats between indirect object and subject (Wang et al. 2023)
# Indirect effects on WinoBias type 1, by model and part of the data (Vig et al. 2020)
MEDIATORS: Mapping[str, Mapping[str, Mapping[Head, float]]] = {
    "gpt2": {"dev": {(5, 8): 0.055, (5, 10): 0.036, (4, 6): 0.032, (5, 9): 0.030}, "test": {(5, 8): 0.037}},
}


def _previous() -> Dataset:
    return data.previous_token([Text(i.item, i.cluster, i.text) for i in data.ioi().items])


# What a head does -> its data, and which reading of a row is compared.
MEASURES: Mapping[str, tuple[Callable[[], Dataset], str]] = {
    "coreference": (partial(data.coreference, COREFERENCE_ITEMS), WORD),
    **{relation: (partial(data.syntax, relation), WORD) for relation in RELATIONS},
    **{role: (partial(data.ioi, role), ATTENTION) for role in ROLES},
    "previous token": (_previous, ATTENTION),
}


@dataclass(frozen=True)
class Compared:
    """table: one row for each published head of this model, or the best head where there is none. best: one row a
    measure. left_out: measure -> why this model cannot be measured. data, measured: of each measure that it can, in the
    order of `best`.
    """

    table: pd.DataFrame
    best: pd.DataFrame
    left_out: dict[str, str]
    data: tuple[Dataset, ...]
    measured: dict[str, Measured]


def claims_of(subject: Subject) -> tuple[Claim, ...]:
    """What was published of this model, by its name; heads that it does not have are left out."""
    return tuple(
        c for c in PUBLISHED if c.model == subject.name and c.head[0] < subject.n_layers and c.head[1] < subject.n_heads
    )


def compare(subject: Subject, *, seed: int = 0, quiet: bool = False) -> Compared:
    """Measure every head for each of `MEASURES` that this model can be measured for, and set the published ones beside.

    Columns of `best`: does, reading ("word accuracy": the word that gets most attention is the right one, Clark et al.;
    or "attention on the target"), head (layer.head), value with low, high (95 % interval over clusters), offset (the
    best fixed distance in words) and its share, n_units, n_clusters, data. Columns of `table`: does, head, published,
    rule (what it was compared with there), value, low, high, rank (1 is the best of all heads; as good counts as
    better), heads (how many there are), source. `table` has no rows for a model of which nothing was published.
    seed: of the intervals.
    """
    bound: dict[str, tuple[Dataset, Targets]] = {}
    left_out: dict[str, str] = {}
    for does, (made, _) in MEASURES.items():
        dataset = made()
        try:
            bound[does] = dataset, subject.bind(dataset)
        except DataError as error:
            left_out[does] = str(error)
    measured = measure_together(subject, [t for _, t in bound.values()], quiet=quiet)
    claims, best, rows = claims_of(subject), [], []
    for (does, (dataset, targets)), found in zip(bound.items(), measured, strict=True):
        values = found[MEASURES[does][1]]
        means = values.mean(-1)
        top = divmod(int(means.argmax()), subject.n_heads)
        offset, share = best_offset(targets)
        best.append(
            {
                "does": does,
                "reading": "word accuracy" if MEASURES[does][1] == WORD else "attention on the target",
                "head": f"{top[0]}.{top[1]}",
                **_interval(found, values[top], seed),
                "offset": offset,
                "its share": share,
                "n_units": len(targets.units),
                "n_clusters": len({u.cluster for u in targets.units}),
                "data": dataset.name,
            }
        )
        for claim in (c for c in claims if c.does == does):
            rows.append(
                {
                    "does": does,
                    "head": f"{claim.head[0]}.{claim.head[1]}",
                    "published": claim.number,
                    "rule": claim.rule,
                    **_interval(found, values[claim.head], seed),
                    "rank": int((means >= means[claim.head]).sum()),
                    "heads": means.size,
                    "source": claim.source,
                }
            )
    columns = ["does", "head", "published", "rule", "value", "low", "high", "rank", "heads", "source"]
    kept = tuple(d for d, _ in bound.values())
    readings = dict(zip(bound, measured, strict=True))
    return Compared(pd.DataFrame(rows, columns=columns), pd.DataFrame(best), left_out, kept, readings)


def _interval(found: Measured, values: Array, seed: int) -> dict[str, float]:
    grouped = stats.by_cluster(values[None], [u.cluster for u in found.targets.units])
    low, high = stats.interval(grouped, seed=seed)
    return {"value": float(grouped.overall[0]), "low": float(low[0]), "high": float(high[0])}


def best_offset(targets: Targets) -> tuple[int, float]:
    """The fixed distance, in words, that leads from the query to the target most often, and how often."""
    found: dict[int, float] = {}
    for unit in targets.units:
        word_of = {p: n for n, word in enumerate(unit.words) for p in word}
        for row in unit.rows:
            if row.query[0] in word_of and row.target[0] in word_of:
                distance = word_of[row.target[0]] - word_of[row.query[0]]
                found[distance] = found.get(distance, 0.0) + 1 / (len(unit.rows) * len(targets.units))
    if not found:
        return 0, float("nan")
    distance = max(sorted(found), key=found.__getitem__)
    return distance, found[distance]


CATS = {
    "chinese": ("那只猫没跳上桌子因为它太累了", "它", "猫", "桌子"),
    "english": ("The cat didn't jump onto the table because it was too tired.", "it", "cat", "table"),
}


def cat_sentence(subject: Subject, language: str = "english") -> pd.DataFrame:
    """Where each head looks from `it` in one sentence: layer, head, cat, table, first (attention on each, summed over
    its tokens), and rank by how much more the cat gets than the table. One sentence proves nothing of a head.

    language: a key of `CATS`. Raises DataError where the tokenizer does not know the words.
    """
    text, it, cat, table = CATS[language]

    def span(words: str) -> Span:
        start = text.index(words) if language == "chinese" else Span.of(text, words).start
        return Span(start, start + len(words))

    item = Labelled("cat", "cat", text, span(it), span(cat), (span(table),))
    dataset = Dataset(f"cat-{language}", "coreference", "accuracy", (), (item,), "one sentence", "Apache-2.0")
    targets, encoded = subject.bind(dataset), subject.encode(text)
    unknown = getattr(subject.tokenizer, "unk_token_id", None)
    needed = {encoded.ids[p] for words in (it, cat, table) for p in encoded.positions(span(words))}
    if unknown in needed:
        raise DataError(f"the tokenizer of {subject.name} does not know the words of {text!r}.")
    (found,) = measure_together(subject, [targets], quiet=True)
    layer, head = np.indices((subject.n_layers, subject.n_heads))
    made = pd.DataFrame(
        {
            "layer": layer.ravel(),
            "head": head.ravel(),
            "cat": found["target"][..., 0].ravel(),
            "table": found["foil"][..., 0].ravel(),
            "first": found["first"][..., 0].ravel(),
        }
    )
    return made.assign(rank=(made["cat"] - made["table"]).rank(ascending=False, method="min").astype(int))


def logit_difference(subject: Subject, scores: Sequence[Array], clusters: Sequence[str], seed: int) -> dict[str, float]:
    """Mean of log p(right) - log p(wrong), nats, with its 95 % interval over clusters, and what was published."""
    values = np.array([float(s[0] - s[1]) for s in scores])
    grouped = stats.by_cluster(values[None], clusters)
    low, high = stats.interval(grouped, seed=seed, shares=False)
    numbers = {"value": float(grouped.overall[0]), "low": float(low[0]), "high": float(high[0])}
    published = LOGIT_DIFFERENCE.get(subject.name, float("nan"))
    return {**numbers, "right": float((values > 0).mean()), "published": published}
