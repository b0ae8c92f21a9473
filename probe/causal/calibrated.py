"""Attention to a document less what its place would get anyway (Hsieh et al. 2406.16008).

The weight on a document is taken to be what its place gets and what its text gets. A dummy document of as many tokens
in the same place shows the first; the rest is the calibrated attention.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.capture.batch import copies
from probe.causal.lookups import Lookup
from probe.causal.sweep import Heads
from probe.data.plain import PLAIN
from probe.errors import DataError
from probe.subject import Subject
from probe.targets import Positions

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Calibrated:
    """Weight per token on each document, from the position that answers: (layer, head, question, document). raw: as it
    is. dummy: on the dummy in the document's place. gold: (question,) which document is asked for. table: a row a
    question: item, list, n, phrasing, index.
    """

    table: pd.DataFrame
    raw: Array
    dummy: Array
    gold: npt.NDArray[np.int64]

    @property
    def difference(self) -> Array:
        """The calibrated attention."""
        return self.raw - self.dummy

    def finds(self, weights: Array, heads: Heads | None = None) -> Array:
        """(question,): 1 where the document asked for has most of `weights` (raw or difference), a share for ties.
        heads: those to average over; default all.
        """
        chosen = weights.mean((0, 1)) if heads is None else np.mean([weights[at] for at in heads], axis=0)
        best = chosen.max(-1, keepdims=True)
        own = np.take_along_axis(chosen, self.gold[:, None], -1)
        return np.asarray(((own == best) / (chosen == best).sum(-1, keepdims=True))[:, 0])


def calibrated(subject: Subject, asked: Sequence[Lookup], *, dummy: Sequence[str] = PLAIN) -> Calibrated:
    """One pass a question, and one for each of its documents with the dummy in its place.

    dummy: text whose tokens, from the first on, stand in for a document, as many as it has. Raises DataError where
    questions have different numbers of documents, or the dummy has no tokens.
    """
    numbers = {len(one.documents) for one in asked}
    if len(numbers) != 1:
        raise DataError(f"questions have {sorted(numbers)} documents; calibration compares as many of each.")
    ids = subject.tokenizer(" ".join(dummy), add_special_tokens=False).input_ids
    if not ids:
        raise DataError("the dummy document has no tokens.")
    n = numbers.pop()
    shape = subject.n_layers, subject.n_heads, len(asked), n
    raw, plain = np.empty(shape), np.empty(shape)
    for q, one in enumerate(asked):
        prompts = [one.ids, *(_without(one.ids, d, ids) for d in one.documents)]
        found = _weights(subject, prompts, one.documents)
        raw[:, :, q] = found[:, :, 0]
        plain[:, :, q] = found[:, :, np.arange(1, n + 1), np.arange(n)]
    columns = {name: [getattr(one, name) for one in asked] for name in ("item", "list", "n", "phrasing", "index")}
    return Calibrated(pd.DataFrame(columns), raw, plain, np.array([one.gold for one in asked]))


def _without(prompt: Positions, document: Positions, dummy: Sequence[int]) -> Positions:
    """The prompt with the dummy's tokens in the document's place."""
    changed = list(prompt)
    for position, token in zip(document, itertools.cycle(dummy), strict=False):
        changed[position] = token
    return tuple(changed)


def _weights(subject: Subject, prompts: Sequence[Positions], documents: Sequence[Positions]) -> Array:
    """(layer, head, prompt, document): mean weight on a document's tokens from the last position of each prompt."""
    length = len(prompts[0])
    found = np.empty((subject.n_layers, subject.n_heads, len(prompts), len(documents)))
    rows = [[length - 1]] * len(prompts)
    size = len(copies(len(prompts), length)[0])
    for batch, seen in subject.captured(prompts, ["pattern"], rows=rows, batch_size=size):
        for layer in range(subject.n_layers):
            pattern = seen["pattern", layer][:, :, 0].double().cpu().numpy()  # (prompt, head, key)
            for d, document in enumerate(documents):
                found[layer][:, list(batch.indices), d] = pattern[..., list(document)].mean(-1).T
    return found
