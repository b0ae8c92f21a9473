"""Prompts token by token: what each token is to the question, and how much heads look at it from where the answer
follows. What a report shows behind its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from probe.causal.sweep import Head
from probe.data.texts import Dataset, Labelled
from probe.errors import DataError, UnknownName, UnsupportedModel
from probe.subject import Subject
from probe.targets import Unit


def tokens(subject: Subject, dataset: Dataset, items: Sequence[str], heads: Sequence[Head]) -> pd.DataFrame:
    """One row a token, up to where the answer follows: prompt (the item), token (its text), role ("target", "foil 1",
    ..., "query" for the last one, or ""), and for each head "layer.head" its attention from the last one, 0 to 1.

    items: which prompts. heads: (layer, head). Raises UnknownName for an item that is not in the data set or cannot be
    measured, DataError for one that asks nothing or whose answer changes the tokens before it, UnsupportedModel for a
    model that sees later tokens.
    """
    if not subject.is_causal:
        raise UnsupportedModel(f"{subject.name} sees later tokens: it does not answer from the last one of a prompt.")
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
        looks = {
            f"{layer}.{head}": run["pattern", layer][number, head, 0, : len(encoded)].float().cpu().numpy()
            for layer, head in heads
        }
        roles = _roles(unit, len(encoded))
        parts.append(pd.DataFrame({"prompt": name, "token": encoded.pieces, "role": roles, **looks}))
    return pd.concat(parts, ignore_index=True)


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


def _roles(unit: Unit, n: int) -> list[str]:
    """What each of a prompt's first n tokens is."""
    roles = [""] * (n - 1) + ["query"]
    marked = {"target": unit.rows[0].target, **{f"foil {k}": foil for k, foil in enumerate(unit.rows[0].foils, 1)}}
    for role, positions in marked.items():
        for position in (p for p in positions if p < n):
            roles[position] = role
    return roles
