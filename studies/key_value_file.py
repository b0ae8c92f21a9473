"""Keys and values in JSON as published: Liu et al.'s lists of UUIDs (2307.03172), read from the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from probe.causal.retrieval import Retrieved
    from probe.data.texts import Dataset
    from probe.runner.findings import Part
    from probe.subject import Subject

LISTS = {"quick": {5: 4, 10: 2}, "full": {10: 16, 20: 12, 40: 6}}
"""Pairs kept of each list -> how many lists, from the first line."""
PLACES = 5
SHOWN = 6
PROMPTS = 2  # lists whose prompts are shown


class Seen(NamedTuple):
    """The answers to every question, and what heads do while the value is written; the same under a key that is not
    there. held: questions of lists that chose no heads. chosen: heads, by the value step on the other half. prompts:
    the questions held of the shortest lists; tokens: those of a few, with the attention of the heads chosen, or why
    there are none.
    """

    asked: Retrieved
    absent: Retrieved
    held: npt.NDArray[np.bool_]
    chosen: list[tuple[int, int]]
    prompts: pd.DataFrame
    tokens: pd.DataFrame | str


@probe.study(models=("smollm2",), needs_data=True)
def key_value_file(subject: Subject, *, data: Path, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Does a model find a key's value wherever its pair stands, in the lists that were published?

    data: a file of Liu et al., such as kv-retrieval-75_keys.jsonl.gz; the first lists of it are cut to a few sizes.
    """
    from probe.causal.by_index import ends

    sets = {n: pairs(subject, data, n, lists) for n, lists in LISTS[profile].items()}
    seen = watch(subject, sets, {n: pairs(subject, data, n, lists, absent=True) for n, lists in LISTS[profile].items()})
    found = seen.asked.table.assign(correct=seen.asked.table["found"].astype(float))
    shape = ends(found, seed=seed)
    return probe.Findings(
        answer=answer(subject, found, shape, seen),
        sections=(answer_section(found, shape, seed), head_section(seen, found, seed)),
        method=(
            "An answer is right if the model would write the whole value, token by token, after the key (greedy "
            "decoding); the value is forced on it, so that heads are read on wrong answers too. The prompt is that of "
            "Liu et al. 2023, in the model's chat format where it has one. Each list keeps the pair asked for and the "
            f"first others; the pair stands at {PLACES} places in turn, the others stay in order.",
            "The value step is the share of the value's different tokens that are written while the head's largest "
            "weight lies on the same token of that value (Wu et al. 2024, the value alone). Heads are chosen by it on "
            "half of the lists and measured on the other half. Under an absent key the same value is forced after a "
            "key that is in no pair.",
            "Primacy is the first index minus the mean of the inner ones, recency the last minus those, the U-index "
            "the smaller of the two; intervals are 95 % bootstrap intervals over lists, p-values of sign-flip tests "
            "over them, Holm-corrected over the sizes.",
        ),
        notes=(
            "The published sizes, 75 pairs and more, are thousands of tokens; cut lists are easier than those.",
            "Few lists of each size are asked: the intervals are wide.",
        ),
        data=tuple(sets.values()),
    )


def pairs(subject: Subject, data: Path, n: int, lists: int, *, absent: bool = False) -> Dataset:
    """The first lists of the file, cut to n pairs, asked about at evenly spread indices."""
    from probe.causal.lookups import chat

    indices = sorted({round(k * (n - 1) / (PLACES - 1)) for k in range(PLACES)})
    around = chat(subject, answer="\n")
    return probe.data.key_values_file(data, n=n, lists=lists, indices=indices, chat=around, absent=absent)


def watch(subject: Subject, sets: dict[int, Dataset], without: dict[int, Dataset]) -> Seen:
    """Every head on every list, and the heads chosen on half of them."""
    import pandas as pd

    from probe.causal.lookups import lookups
    from probe.causal.prompts import tokens
    from probe.causal.retrieval import forced
    from probe.causal.sweep import highest
    from probe.errors import DataError, UnknownName

    asked = forced(subject, [one for dataset in sets.values() for one in lookups(subject, dataset)])
    absent = forced(subject, [one for dataset in without.values() for one in lookups(subject, dataset)])
    names = sorted(set(asked.table["list"]))
    held = asked.table["list"].isin(names[1::2]).to_numpy()
    chosen = highest(asked.value[..., ~held].mean(-1), SHOWN)
    shortest = asked.table[held & (asked.table["n"] == min(sets)).to_numpy()]
    prompts = pd.DataFrame(
        {"index": shortest["index"], "prompt": shortest["item"], "correct": shortest["found"].astype(float)}
    )
    few = shortest["item"][shortest["list"].isin(sorted(set(shortest["list"]))[:PROMPTS])]
    read: pd.DataFrame | str
    try:
        read = tokens(subject, sets[min(sets)], list(few), chosen)
    except (DataError, UnknownName) as error:  # a value that shares a token with what stands before it, say
        read = str(error)
    return Seen(asked, absent, held, chosen, prompts, read)


def answer(subject: Subject, found: pd.DataFrame, shape: pd.DataFrame, seen: Seen) -> str:
    """The question's answer in one sentence, with its numbers."""
    parts = [
        f"of {n} pairs {part['correct'].mean():.2f} (first {part[part['index'] == 0]['correct'].mean():.2f}, last "
        f"{part[part['index'] == part['index'].max()]['correct'].mean():.2f})"
        for n, part in found.groupby("n", sort=True)
    ]
    u = int(((shape["p_holm"] < 0.05) & (shape["u"] > 0)).sum())
    best = seen.chosen[0]
    own, nobody = seen.asked.value[best][seen.held].mean(), seen.absent.value[best].mean()
    return (
        f"{subject.name} writes the value of a key right in this share of questions: {'; '.join(parts)}; both ends "
        f"are above the middle in {u} of {len(shape)} sizes; head {best[0]}.{best[1]} looks at the value in {own:.2f} "
        f"of the steps that write it, and in {nobody:.2f} after a key that is not there."
    )


def answer_section(found: pd.DataFrame, shape: pd.DataFrame, seed: int) -> probe.Section:
    """What is answered, by index and size."""
    from probe.causal.by_index import curve

    table = curve(found, "correct", seed=seed)
    table["pairs"] = table["n"].map("{} pairs".format)
    return probe.Section(
        "By index",
        ("Index 0 is the first pair of the list. The key is asked for at the end of the prompt.",),
        (
            probe.Table("accuracy", table, "Accuracy by index.", shown=False),
            probe.Plot(
                "accuracy_by_index",
                "accuracy",
                "lines",
                "index",
                "value",
                "Share of lists in which the whole value is written, by the index of its pair.",
                panel="pairs",
                low="low",
                high="high",
                x_label="index of the pair asked for",
                y_label="accuracy",
            ),
            probe.Table("ends", shape, "Primacy, recency and the U-index, in accuracy.", digits=2),
        ),
    )


def head_section(seen: Seen, found: pd.DataFrame, seed: int) -> probe.Section:
    """Which heads look at the value while it is written, by index, and whether the key makes them."""
    from probe.causal.by_index import curves
    from probe.causal.retrieval import key_effect

    asked, rows = seen.asked.only(seen.held), found[seen.held]
    drawn = curves(rows, asked.of("value", seen.chosen), seed=seed)
    drawn["pairs"] = drawn["n"].map("{} pairs".format)
    effect = key_effect(asked, seen.absent, seen.chosen, seed=seed)
    effect.insert(0, "which", head_names(seen.chosen))
    effect = effect.drop(columns=["layer", "head"]).rename(columns={"which": "head", "asked": "value step"})
    return probe.Section(
        "Who looks at the value",
        (
            f"Heads chosen on half of the lists, measured on the other half ({len(rows)} questions). The lists are too "
            "few to compare right and wrong answers at the same index; `retrieval` and `lost_in_the_middle` do.",
        ),
        (
            probe.Table("heads", effect, "The value step after the key, and after one that is not there.", digits=2),
            probe.Table("by_place", drawn, "By index.", shown=False),
            probe.Plot(
                "by_place_lines",
                "by_place",
                "lines",
                "index",
                "value",
                f"The value step of the {SHOWN} heads with most, by the index of the pair asked for.",
                by="head",
                panel="pairs",
                low="low",
                high="high",
                x_label="index of the pair asked for",
                y_label="value step",
            ),
            *linked_view(seen, rows, drawn, seed),
        ),
    )


def linked_view(seen: Seen, rows: pd.DataFrame, drawn: pd.DataFrame, seed: int) -> tuple[Part, ...]:
    """Answers above the value step in the shortest lists, with the prompts behind both. rows: the questions held;
    drawn: the value step of each head, by index.
    """
    from probe.causal.by_index import curve
    from probe.runner.over_index import Panel, over_index

    n = int(rows["n"].min())
    mine = rows[rows["n"] == n]
    right = Panel(
        "watched",
        curve(mine, "correct", seed=seed).assign(pairs=f"{n} pairs"),
        "Accuracy of the same questions.",
        "Share of lists in which the whole value is written.",
        "accuracy",
        by="pairs",
    )
    looks = Panel(
        "steps",
        drawn[drawn["n"] == n].reset_index(drop=True),
        "The value step of the same questions.",
        "Share of the value's tokens that are written while the head's largest weight lies on them.",
        "value step",
    )
    lists = mine["list"].nunique()
    return over_index(
        (right, looks),
        seen.prompts,
        seen.tokens,
        caption=f"Answers and where heads look, by index, in the {lists} lists of {n} pairs that chose no head. "
        "Intervals are over lists.",
        shown=f"Prompts of the first {min(PROMPTS, lists)} of these lists, right or wrong, up to where the value is to "
        "follow, and where heads look from there.",
        x_label="index of the pair asked for",
    )
