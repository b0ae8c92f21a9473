"""What attention and MLPs as a whole do for an answer: what they write of it, and what is left of it without them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from probe import stats
from probe.capture import edits
from probe.capture.edit import Edit
from probe.data.texts import Dataset, Labelled
from probe.errors import OutOfRange, PromptError
from probe.scores.attribution import direct_logit_attribution
from probe.subject import Subject
from probe.targets import Unit

ABLATED = {"nothing": (), "all attention": ("attn_out",), "all MLPs": ("mlp_out",)}


def questions(subject: Subject, dataset: Dataset, at_most: int) -> tuple[list[Unit], list[str]]:
    """The units of a dataset that ask something, spread evenly over it, and each one's text up to the answer.

    Raises PromptError if there is none, OutOfRange for `at_most` below 1.
    """
    OutOfRange.check_count("at_most", at_most)
    texts = {i.item: i for i in dataset.items if isinstance(i, Labelled)}
    units = [u for u in subject.bind(dataset).units if u.answer is not None and texts[u.item].question is not None]
    if not units:
        raise PromptError(f"{dataset.name} asks nothing that {subject.name} could answer.")
    kept = np.unique(np.linspace(0, len(units) - 1, min(at_most, len(units))).round().astype(int))
    units = [units[i] for i in kept]
    prompts = []
    for unit in units:
        question = texts[unit.item].question
        assert question is not None
        prompts.append(texts[unit.item].text[: question.read_at])
    return units, prompts


def written(subject: Subject, units: Sequence[Unit], *, seed: int) -> pd.DataFrame:
    """Mean part of the logit difference (nats) that each component wrote, by layer and in all (layer -1).

    Columns: component, layer, value, low, high (95% bootstrap over clusters), share of the whole difference, residue
    (the largest of any item).
    """
    table = direct_logit_attribution(subject, units)
    summed = table.groupby(["component", "item"], as_index=False)["value"].sum().assign(layer=-1)
    clusters = {u.item: u.cluster for u in units}
    whole = float(table.groupby("item")["difference"].first().mean())
    rows = []
    for (component, layer), part in pd.concat([summed, table[table["layer"] >= 0]]).groupby(["component", "layer"]):
        grouped = stats.by_cluster(part["value"].to_numpy(dtype=np.float64), [clusters[i] for i in part["item"]])
        low, high = stats.interval(grouped, seed=seed, shares=False)
        value = float(part["value"].mean())
        rows.append((component, layer, value, float(low), float(high), value / whole))
    made = pd.DataFrame(rows, columns=["component", "layer", "value", "low", "high", "share"])
    return made.assign(residue=float(table["residue"].abs().max()))


def accuracy_without(subject: Subject, units: Sequence[Unit], prompts: Sequence[str], *, seed: int) -> pd.DataFrame:
    """Share of questions answered right with what all attention, or all MLPs, write replaced by its mean.

    Mean ablation; the reference set is every position of the same prompts. Columns: ablated, accuracy, low, high (95%
    bootstrap over clusters), difference (mean logit difference, nats), n. Without MLPs there is no row of them.
    """
    layers = range(subject.n_layers)
    has_mlp = any(layer.mlp for layer in subject.anatomy.stack.layers.values())
    ablated = {name: parts for name, parts in ABLATED.items() if has_mlp or "mlp_out" not in parts}
    plain = subject.run(prompts, sorted({site for parts in ablated.values() for site in parts}))
    rows = []
    for name, parts in ablated.items():
        changes: list[Edit] = [edits.mean(site, layer, plain) for site in parts for layer in layers]
        logits = subject.run(prompts, ["logits"], rows=[-1], edits=changes)["logits"][:, 0].double()
        right, difference = [], []
        for unit, row in zip(units, logits, strict=True):
            assert unit.answer is not None
            rivals = [float(row[wrong[0]]) for wrong in unit.answer.wrong]
            gold = float(row[unit.answer.right[0]])
            right.append(float(gold > max(rivals)))
            difference.append(gold - rivals[0])
        low, high = stats.interval(stats.by_cluster(np.array(right), [u.cluster for u in units]), seed=seed)
        rows.append((name, float(np.mean(right)), float(low), float(high), float(np.mean(difference)), len(units)))
    return pd.DataFrame(rows, columns=["ablated", "accuracy", "low", "high", "difference", "n"])


def written_apart(subject: Subject, units: Sequence[Unit], *, seed: int) -> pd.DataFrame:
    """The same by embedding, head, MLP and bias: mean part of the logit difference (nats) of each, the largest first.

    Columns: component, layer, head (-1 where it has none), part (its name, "head 3.1"), value, low, high (95% bootstrap
    over clusters), share of the whole difference, residue (the largest of any item).
    """
    table = direct_logit_attribution(subject, units, heads=True)
    whole = float(table.groupby("item")["difference"].first().mean())
    keys = ["component", "layer", "head"]
    wide = table.pivot(index=keys, columns="item", values="value")[[u.item for u in units]]
    grouped = stats.by_cluster(wide.to_numpy(dtype=np.float64), [u.cluster for u in units])
    low, high = stats.interval(grouped, seed=seed, shares=False)
    made = wide.index.to_frame(index=False).assign(value=grouped.overall, low=low, high=high)
    made = made.assign(share=made["value"] / whole, residue=float(table["residue"].abs().max()))
    made["part"] = [_name(*key) for key in wide.index]
    return made.sort_values("value", key=np.abs, ascending=False, kind="stable", ignore_index=True)


def _name(component: str, layer: int, head: int) -> str:
    return component if layer < 0 else f"{component} {layer}" if head < 0 else f"{component} {layer}.{head}"
