"""How a model writes its answers, task by task: the lens by depth, the parts of the answer, and what its heads do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from probe.causal.direct import OTHER, SAME, direct_and_total
from probe.data.texts import Dataset
from probe.errors import ProbeError
from probe.scores.components import questions, written_apart
from probe.scores.evidence import FEWEST_CLUSTERS
from probe.scores.lens import answer_lens, by_depth
from probe.subject import Subject
from probe.targets import Unit


class Written(NamedTuple):
    """Of each task (a column `task`): lens (`probe.scores.lens.by_depth`), parts (`components.written_apart`) and signs
    (`direct_and_total`). prompts: the first of each task, up to its answer. unpaired: tasks without signs: too few
    of their minimal pairs are aligned in the model's tokens.
    """

    lens: pd.DataFrame
    parts: pd.DataFrame
    signs: pd.DataFrame
    prompts: dict[str, str]
    unpaired: tuple[str, ...] = ()

    def in_words(self) -> str:
        """Which part writes most of each answer, and whether heads write with the sign of their causal effect."""
        most = self.parts.loc[self.parts.groupby("task", sort=False)["value"].idxmax()]
        parts = ", ".join(f"{row['part']} for {row['task']} ({row['share']:.0%})" for _, row in most.iterrows())
        known = self.signs["signs"].value_counts()
        same, other = int(known.get(SAME, 0)), int(known.get(OTHER, 0))
        return (
            f"The part that writes most of the answer, and its share: {parts}. Of {same + other} heads and tasks with "
            f"both effects clear of zero, {same} write into the answer with the sign of their causal effect."
        )


def written_answers(
    subject: Subject, tasks: Mapping[str, Dataset], *, items: int, clusters: int, heads: int, seed: int = 0
) -> Written:
    """Ask a model every task. items: questions of each, for lens and parts. clusters: with a minimal pair, for the
    effects. heads: as `most` of `direct_and_total`. Raises as the functions behind it.
    """
    lenses, parts, signs, prompts = [], [], [], {}
    for task, dataset in tasks.items():
        units, texts = questions(subject, dataset, items)
        prompts[task] = texts[0]
        lenses.append(by_depth(answer_lens(subject, units), seed=seed).assign(task=task))
        parts.append(written_apart(subject, units, seed=seed).assign(task=task))
        paired = one_pair_each(subject, dataset, clusters)
        if len({u.cluster for u in paired}) >= FEWEST_CLUSTERS:
            signs.append(direct_and_total(subject, paired, most=heads, seed=seed, quiet=True).assign(task=task))
    if not signs:
        raise ProbeError(
            f"none of {', '.join(tasks)} has enough aligned minimal pairs for {subject.name} to compare heads on."
        )
    lens, apart, compared = (pd.concat(tables, ignore_index=True) for tables in (lenses, parts, signs))
    without = tuple(task for task in tasks if task not in set(compared["task"]))
    return Written(lens, apart, compared, prompts, without)


def one_pair_each(subject: Subject, dataset: Dataset, clusters: int) -> list[Unit]:
    """The first aligned minimal pair of each of so many clusters, spread evenly over the dataset; fewer where some have
    none.
    """
    names = list(dict.fromkeys(item.cluster for item in dataset.items))
    chosen = {names[int(n)] for n in np.linspace(0, len(names) - 1, min(clusters, len(names))).round()}
    part = replace(dataset, items=tuple(item for item in dataset.items if item.cluster in chosen))
    found: dict[str, list[Unit]] = {}
    for unit in subject.bind(part).units:
        if unit.answer is not None and unit.swapped is not None:
            found.setdefault(unit.cluster, []).append(unit)
    return [unit for units in found.values() for unit in units[:2]]
