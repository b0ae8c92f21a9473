"""Attention to what is asked for, in lists of which half choose heads and the other half show what these do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.causal.by_index import curves
from probe.causal.sweep import Head, highest
from probe.data.texts import Dataset
from probe.scores.measure import measure
from probe.sites import head_names
from probe.subject import Subject


@dataclass(frozen=True)
class Halves:
    """answers: `probe.causal.by_index.answers`. mass: attention from the position that answers to the value asked for,
    (layer, head, question). held: (question,), whether its list chose no head. chosen: the heads with most on the lists
    that choose, from the most.
    """

    answers: pd.DataFrame
    mass: npt.NDArray[np.float64]
    held: npt.NDArray[np.bool_]
    chosen: list[Head]

    @property
    def shown(self) -> pd.DataFrame:
        """The answers to questions of lists that chose no head."""
        return self.answers[self.held]

    def curves(self, heads: int, *, seed: int = 0) -> pd.DataFrame:
        """Attention of the first `heads` chosen on these questions, by index (`probe.causal.by_index.curves`)."""
        mine = self.chosen[:heads]
        looks = {name: self.mass[at][self.held] for name, at in zip(head_names(mine), mine, strict=True)}
        return curves(self.shown, looks, seed=seed)

    def first(self, lists: int) -> list[str]:
        """The items of the first `lists` lists that chose no head."""
        return list(self.shown["item"][self.shown["list"].isin(sorted(set(self.shown["list"]))[:lists])])


def halves(subject: Subject, dataset: Dataset, answers: pd.DataFrame, heads: int) -> Halves:
    """Every head's attention on a data set of lists, asked as in `answers`; every second list chooses `heads`."""
    mass = measure(subject, subject.bind(dataset))["target"]
    held = answers["list"].isin(sorted(set(answers["list"]))[1::2]).to_numpy()
    return Halves(answers, mass, held, highest(mass[..., ~held].mean(-1), heads))
