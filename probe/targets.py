"""What is measured: from these query positions, how much attention lands on these keys rather than on those?

Positions count a prompt's real tokens from 0, special tokens included, padding never. A `Dataset` of texts
(`probe.data`) becomes `Targets` when a subject binds it to its own tokens (`Subject.bind`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Literal

Direction = Literal["before", "after", "both"]
Where = Literal["self", "encoder", "cross"]
Positions = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One measured attention row.

    query: positions of the query; several pieces of one word are averaged (Clark et al. 2019).
    target: key positions that count as right; their attention is summed.
    foils: key positions of each other candidate.
    """

    query: Positions
    target: Positions
    foils: tuple[Positions, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What the model is asked: the logits row `read_at` should favour `right` over each of `wrong`."""

    read_at: int
    right: Positions
    wrong: tuple[Positions, ...]


@dataclass(frozen=True)
class Unit:
    """One prompt, the thing that is resampled; its rows are averaged first.

    item: its name in the dataset. cluster: template, document or page; whole clusters are resampled.
    ids: the prompt's token ids, special tokens included.
    words: the positions of each word's pieces, in order; special tokens belong to no word.
    direction: where the candidates lie, seen from the query.
    swapped: the minimal pair's ids, aligned token by token, or None.
    """

    item: str
    cluster: str
    ids: Positions
    rows: tuple[Row, ...]
    words: tuple[Positions, ...] = ()
    where: Where = "self"
    direction: Direction = "before"
    answer: Answer | None = None
    swapped: Positions | None = None


@dataclass(frozen=True)
class Excluded:
    """An item that this subject cannot be measured on, and why."""

    item: str
    reason: str


@dataclass(frozen=True, repr=False)
class Targets:
    """A phenomenon on one subject's tokens: its statistic, its rivals, its units, and what was left out.

    statistic: "accuracy" (the candidate that gets most attention is the target) or "mass" (attention on it).
    rivals: names of the rules a head must beat (`probe.scores.rivals`); empty: the phenomenon is described,
    never given a verdict.
    """

    phenomenon: str
    dataset: str
    statistic: Literal["accuracy", "mass"]
    rivals: tuple[str, ...]
    units: tuple[Unit, ...]
    excluded: tuple[Excluded, ...] = field(default=())

    def __repr__(self) -> str:
        """What it is, not its thousands of positions."""
        return f"Targets({self.phenomenon} in {self.dataset}: {len(self.units)} units, {len(self.excluded)} excluded)"

    @property
    def exclusions(self) -> dict[str, int]:
        """Reason -> number of items left out for it, most frequent first."""
        return dict(Counter(e.reason for e in self.excluded).most_common())

    @property
    def hash(self) -> str:
        """SHA-256 of everything in it: ids, rows, clusters, exclusions."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
