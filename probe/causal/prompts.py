"""Prompts token by token: what each token is to the question, and how much heads look at it from where the answer
follows, or from the word that is measured. What a report shows behind its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import logsumexp

from probe.causal.behaviour import candidate_scores, share_right
from probe.causal.sweep import Head
from probe.data.texts import Dataset, Labelled
from probe.errors import DataError, UnknownName, UnsupportedModel
from probe.sites import head_names
from probe.subject import Subject
from probe.targets import Row, Unit


def tokens(subject: Subject, dataset: Dataset, items: Sequence[str], heads: Sequence[Head]) -> pd.DataFrame:
    """One row a token, up to where the answer follows: prompt (the item), token (its text), role ("target", "foil 1",
    ..., "query" for the last one, or ""), and for each head "layer.head" its attention from the last one, 0 to 1.

    items: which prompts. heads: (layer, head). Raises UnknownName for an item that is not in the data set or cannot be
    measured, DataError for one that asks nothing or whose answer changes the tokens before it, and where no item or no
    head is given, UnsupportedModel for a model that sees later tokens.
    """
    if not subject.is_causal:
        raise UnsupportedModel(f"{subject.name} sees later tokens: it does not answer from the last one of a prompt.")
    if not items or not heads:
        raise DataError(f"there is no {'prompt' if not items else 'head'} to show.")
    units = {unit.item: unit for unit in subject.bind(dataset).units}
    if strangers := [name for name in items if name not in units]:
        raise UnknownName.of(f"item of {dataset.name} that can be measured,", strangers[0], units)
    texts = {i.item: _asked(i) for i in dataset.items if isinstance(i, Labelled) and i.item in items}
    prompts = [texts[name] for name in items]
    run = subject.run(prompts, sites=["pattern"], layers=sorted({layer for layer, _ in heads}), rows=[-1])
    parts = []
    for number, name in enumerate(items):
        encoded, unit = subject.encode(prompts[number]), units[name]
        if unit.ids[: len(encoded)] != encoded.ids:
            raise DataError(f"the answer to {name} changes the tokens before it, so roles have no place.")
        attention = {
            head_name: run["pattern", layer][number, head, 0, : len(encoded)].float().cpu().numpy()
            for head_name, (layer, head) in zip(head_names(heads), heads, strict=True)
        }
        roles = _roles(unit.rows[0], len(encoded), (len(encoded) - 1,))
        parts.append(pd.DataFrame({"prompt": name, "token": encoded.pieces, "role": roles, **attention}))
    return pd.concat(parts, ignore_index=True)


def looks(
    subject: Subject, units: Sequence[Unit], heads: Sequence[Head], words: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """One row a token of each unit's prompt, as from `tokens`, with attention from the query of its first row (the mean
    over its pieces), which is marked, too: as these units are measured, encoders' as well.

    words: the item's name -> the text of each of its tokens (`words_of`). Raises DataError for another number of those,
    and where no unit or no head is given.
    """
    if not units or not heads:
        raise DataError(f"there is no {'prompt' if not units else 'head'} to show.")
    parts, layers = [], sorted({layer for layer, _ in heads})
    for unit in units:
        if len(words[unit.item]) != len(unit.ids):
            raise DataError(f"{unit.item} has {len(unit.ids)} tokens, and {len(words[unit.item])} words for them.")
        row = unit.rows[0]
        ((_, seen),) = subject.captured([unit.ids], ["pattern"], layers=layers, rows=[row.query], batch_size=1)
        attention = {
            name: seen["pattern", layer][0, head].mean(0)[: len(unit.ids)].float().cpu().numpy()
            for name, (layer, head) in zip(head_names(heads), heads, strict=True)
        }
        roles = _roles(row, len(unit.ids), row.query)
        parts.append(pd.DataFrame({"prompt": unit.item, "token": list(words[unit.item]), "role": roles, **attention}))
    return pd.concat(parts, ignore_index=True)


def words_of(subject: Subject, texts: Mapping[str, str], units: Iterable[Unit]) -> dict[str, tuple[str, ...]]:
    """The text of each token of these units' prompts, by item. texts: item -> its text (`Dataset.texts`)."""
    return {unit.item: subject.encode(texts[unit.item]).shown[: len(unit.ids)] for unit in units}


def answered(subject: Subject, dataset: Dataset, units: Sequence[Unit] | None = None) -> pd.DataFrame:
    """Every question of a data set that this model can be asked, one row each: prompt (the item), correct (1 where what
    is right is the likeliest of the candidates; a tie counts as a share), "asked for" and "likeliest" (as text), "its
    probability" (of what is right, among the candidates). Raises ProbeError for a model that cannot be asked.

    units: those of the data set that are asked; default every one that has a question.
    """
    questions = {i.item: i.question for i in dataset.items if isinstance(i, Labelled) and i.question is not None}
    every = subject.bind(dataset).units if units is None else units
    units = [unit for unit in every if unit.answer is not None]
    rows = []
    for unit, scores in zip(units, candidate_scores(subject, units), strict=True):
        words = questions[unit.item].right, *questions[unit.item].wrong
        probability = float(np.exp(scores[0] - logsumexp(scores)))
        rows.append((unit.item, share_right(scores), words[0], probability, words[int(scores.argmax())]))
    return pd.DataFrame(rows, columns=["prompt", "correct", "asked for", "its probability", "likeliest"])


def first_of(table: pd.DataFrame, by: str, n: int) -> list[str]:
    """The first n prompts of each value of a column."""
    return list(table.groupby(by, sort=False).head(n)["prompt"])


def asked_for(found: pd.DataFrame, dataset: Dataset) -> pd.DataFrame:
    """One row a question: index, prompt (the item), correct, "asked for" and "likeliest" (of the candidates, as text)
    and "its probability" (of what was asked for, among the candidates).

    found: `probe.causal.by_index.answers` to questions of the data set.
    """
    right = {i.item: i.question.right for i in dataset.items if isinstance(i, Labelled) and i.question is not None}
    return pd.DataFrame(
        {
            "index": found["index"],
            "prompt": found["item"],
            "correct": found["correct"],
            "asked for": found["item"].map(right),
            "its probability": np.exp(found["log_p"]),
            "likeliest": found["likeliest"],
        }
    )


def _asked(item: Labelled) -> str:
    """A prompt up to where the answer follows."""
    if item.question is None:
        raise DataError(f"{item.item} asks nothing.")
    return item.text[: item.question.read_at].rstrip()


def _roles(row: Row, n: int, query: Iterable[int]) -> list[str]:
    """What each of a prompt's first n tokens is."""
    roles = [""] * n
    marked = {"query": query, "target": row.target, **{f"foil {k}": foil for k, foil in enumerate(row.foils, 1)}}
    for role, positions in marked.items():
        for position in (p for p in positions if p < n):
            roles[position] = role
    return roles
