"""Lost in the middle: is the model worse at facts in the middle of its prompt, and which heads find them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from probe.causal.controls import Groups
    from probe.data.texts import Dataset
    from probe.runner.findings import Part
    from probe.subject import Subject

LISTS = {"quick": 12, "full": 40}
SIZES: dict[str, dict[int, tuple[int, ...]]] = {
    "quick": {5: (0, 1, 2, 3, 4), 15: (0, 3, 7, 11, 14)},
    "full": {5: (0, 1, 2, 3, 4), 10: (0, 2, 5, 7, 9), 20: (0, 5, 10, 14, 19)},
}
FORMS = {"plain": "market, no chat format", "system": "market, system prompt"}  # beside the chat format
FORM_SIZES = {"quick": (5,), "full": (5, 10)}
HEADS_LISTS = {"quick": 24, "full": 120}
GROUPS = {"quick": (10, 20), "full": (100, 50)}  # random groups, and questions they are knocked out on
KNOCKED = 10
SHOWN = 6
AUC = {"AUC": "auc", "AUC low": "low", "AUC high": "high", "AUC p_holm": "p_holm"}
PROMPTS = 4  # lists whose prompts are shown


class Watched(NamedTuple):
    """What heads do on one set of lists. mass: (layer, head, question). answers: `probe.causal.by_index.answers`. held:
    which questions were not used to choose heads. follows: `probe.causal.success.follows` of these. prompts: the
    questions held, one row each; tokens: those of a few, with the attention of the first heads chosen
    (`probe.causal.prompts.tokens`). questions: how many of those held heads were knocked out on.
    """

    mass: npt.NDArray[np.float64]
    answers: pd.DataFrame
    follows: pd.DataFrame
    held: npt.NDArray[np.bool_]
    chosen: list[tuple[int, int]]
    groups: Groups
    prompts: pd.DataFrame
    tokens: pd.DataFrame
    questions: int


@probe.study(models=("smollm2",))
def lost_in_the_middle(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Is what lies in the middle of a prompt lost?

    Lists of facts, one of them asked for, at every place; three phrasings. A model with a chat format is asked in it,
    and, in the first phrasing, without it and with a system prompt.
    """
    import pandas as pd

    from probe.causal import by_index

    found, effects, data = [], [], []
    for asked, absent, label in conditions(subject, profile, seed):
        answered = by_index.answers(subject, asked).assign(phrasing=label)
        found.append(answered)
        effects.append(by_index.question_effect(subject, answered, absent))
        data.append(asked)
    found, effects = pd.concat(found, ignore_index=True), pd.concat(effects, ignore_index=True)
    seen = watch(subject, profile, seed)
    ends = by_index.ends(found, seed=seed)
    return probe.Findings(
        answer=answer(subject, ends, seen),
        sections=(
            curve_section(found, ends, seed),
            effect_section(effects, seed),
            head_section(seen, seed),
        ),
        method=(
            "Forced choice among the values in the list: an answer is right if the value asked for is the likeliest of "
            "them, every token counted; chance is 1 / n. Every list is asked about at each index shown, so that "
            "indices are compared within lists. Intervals are 95 % bootstrap intervals over lists.",
            "Primacy is the first index minus the mean of the inner ones, recency the last minus those; the U-index is "
            "the smaller of the two, and its p the larger of their sign-flip p, Holm-corrected over sizes and "
            "phrasings. A U needs both.",
            "The question effect sets the log-probability of each value beside what it is when the question names "
            "someone who is not in the list: what is left is what the question retrieves, not what the model says "
            "anyway.",
            f"Heads are chosen on half of the lists by their attention from the position that answers to the value "
            f"asked for, and measured on the other half. Knocked out are {KNOCKED} of them together (z replaced by its "
            "mean), against random groups matched on the length of what they write.",
        ),
        notes=(
            "Whether there is a U depends on the prompt: these are three phrasings and three formats of one model.",
            "A head's attention may rise and fall with the index as answers do, and have nothing else to do with them; "
            "the AUC compares right and wrong answers at the same index, which position cannot explain.",
        ),
        data=tuple(data),
    )


def conditions(subject: Subject, profile: str, seed: int) -> Iterator[tuple[Dataset, Dataset, str]]:
    """The questions, the same lists with a name that is not there, and what the condition is called: every size and
    phrasing, and the first phrasing in other formats where the model has a chat format to leave out.
    """
    from functools import partial

    from probe.causal.lookups import chat, facts
    from probe.data.buried import PHRASINGS

    ways: list[tuple[int, dict[str, str], str]] = [
        (n, {"phrasing": phrasing}, phrasing) for n in SIZES[profile] for phrasing in PHRASINGS
    ]
    if chat(subject) != chat(subject, form="plain"):
        ways += [(n, {"form": form}, label) for n in FORM_SIZES[profile] for form, label in FORMS.items()]
    for n, how, label in ways:
        make = partial(facts, subject, n, lists=LISTS[profile], seed=seed, **how)
        yield make(indices=SIZES[profile][n]), make(absent=True), label


def watch(subject: Subject, profile: str, seed: int) -> Watched:
    """Attention to the value asked for, among five facts: which heads, and does it go with right answers?"""
    from probe.causal import by_index
    from probe.causal.controls import knock_out_group, output_norms
    from probe.causal.halves import halves
    from probe.causal.lookups import facts
    from probe.causal.prompts import asked_for, tokens
    from probe.causal.success import follows

    asked = facts(subject, 5, lists=HEADS_LISTS[profile], seed=seed + 1)
    half = halves(subject, asked, by_index.answers(subject, asked), KNOCKED)
    mine, chosen = half.shown, half.chosen
    units = [u for u, h in zip(subject.bind(asked).units, half.held, strict=True) if h]
    norms = output_norms(subject, units)
    n_groups, n_questions = GROUPS[profile]
    some = units[:: max(1, len(units) // n_questions)][:n_questions]  # of many lists
    groups = knock_out_group(subject, some, chosen, norms, groups=n_groups, seed=seed)
    told = follows(half.mass[..., half.held], list(mine["correct"]), list(mine["index"]), list(mine["list"]), seed=seed)
    prompts, read = asked_for(mine, asked), tokens(subject, asked, half.first(PROMPTS), chosen[:SHOWN])
    return Watched(half.mass, half.answers, told, half.held, chosen, groups, prompts, read, len(some))


def answer(subject: Subject, ends: pd.DataFrame, seen: Watched) -> str:
    """The question's answer in one sentence, with its numbers."""
    u = ends[(ends["p_holm"] < 0.05) & (ends["u"] > 0)]
    market = ends[ends["phrasing"] == "market"].iloc[-1]
    return (
        f"In {subject.name}, both ends are answered better than the middle in {len(u)} of {len(ends)} sizes and "
        f"phrasings; with {market['n']} facts in the first phrasing, the first is answered better than the inner ones "
        f"by {market['primacy']:.2f} [95 % interval {market['primacy_low']:.2f} to {market['primacy_high']:.2f}] and "
        f"the last by {market['recency']:.2f} [{market['recency_low']:.2f} to {market['recency_high']:.2f}] "
        f"({market['lists']} lists). Without the {KNOCKED} heads that look most at the value asked for, its answer "
        f"loses {seen.groups.lost:.2f} nats, and with random heads that write as much at most "
        f"{seen.groups.limit:.2f} in 95 % of groups."
    )


def curve_section(found: pd.DataFrame, ends: pd.DataFrame, seed: int) -> probe.Section:
    """Accuracy and log-probability by index, and whether they make a U."""
    from probe.causal.by_index import curve

    right, nats = curve(found, "correct", seed=seed), curve(found, "log_p", shares=False, seed=seed)
    for table in (right, nats):
        table["facts"] = table["n"].map("{} facts".format)
    return probe.Section(
        "By index",
        ("Index 0 is the first fact of the list. A question is asked at the end of the prompt.",),
        (
            probe.Table("accuracy", right, "Accuracy by index.", shown=False),
            probe.Plot(
                "accuracy_by_index",
                "accuracy",
                "lines",
                "index",
                "value",
                "Share of lists in which the value asked for is the likeliest of those in the list, by its index.",
                by="phrasing",
                panel="facts",
                low="low",
                high="high",
                x_label="index of the fact asked for",
                y_label="accuracy",
            ),
            probe.Table("log_p", nats, "Log-probability by index.", shown=False),
            probe.Plot(
                "log_p_by_index",
                "log_p",
                "lines",
                "index",
                "value",
                "Log-probability of the value asked for, among the values in the list.",
                by="phrasing",
                panel="facts",
                low="low",
                high="high",
                x_label="index of the fact asked for",
                y_label="nats",
            ),
            probe.Table("ends", ends, "Primacy, recency and the U-index, in accuracy.", digits=2, shown=False),
            probe.Table(
                "ends_shown",
                with_intervals(ends),
                "Primacy, recency and the U-index, in accuracy, with 95 % intervals over lists.",
                digits=3,
            ),
        ),
    )


def with_intervals(ends: pd.DataFrame) -> pd.DataFrame:
    """`ends` as it is read: each number with its interval."""
    shown = ends[["n", "phrasing"]].rename(columns={"n": "facts"})
    for name, label in (("primacy", "primacy"), ("recency", "recency"), ("u", "U-index")):
        parts = zip(ends[name], ends[f"{name}_low"], ends[f"{name}_high"], strict=True)
        shown[label] = [f"{value:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−") for value, low, high in parts]
    return shown.assign(**{"Holm p": ends["p_holm"], "lists": ends["lists"]})


def effect_section(effects: pd.DataFrame, seed: int) -> probe.Section:
    """What the question retrieves."""
    from probe.causal.by_index import curve

    table = curve(effects, "effect", shares=False, seed=seed)
    table["facts"] = table["n"].map("{} facts".format)
    return probe.Section(
        "What the question adds",
        (
            "Asked about a name that is not in the list, the model still prefers some values, often the last. The "
            "effect is what the right name adds to that.",
        ),
        (
            probe.Table("effect", table, "Question effect by index.", shown=False),
            probe.Plot(
                "effect_by_index",
                "effect",
                "lines",
                "index",
                "value",
                "Log-probability of the value asked for, minus that under a name that is not in the list.",
                by="phrasing",
                panel="facts",
                low="low",
                high="high",
                marks={"no effect": 0.0},
                x_label="index of the fact asked for",
                y_label="nats",
            ),
        ),
    )


def head_section(seen: Watched, seed: int) -> probe.Section:
    """Which heads look at the value asked for, and what that is worth."""
    import numpy as np
    import pandas as pd

    from probe.causal.by_index import curve
    from probe.causal.success import among, sorted_out, told

    held, mine = seen.answers[seen.held], among(seen.follows, seen.chosen)
    rows, lines = [], []
    for (layer, head), auc in zip(seen.chosen, mine.to_dict("records"), strict=True):
        mass = seen.mass[layer, head][seen.held]
        by = held[["list", "n", "phrasing", "index"]].assign(mass=mass)
        shown = curve(by, "mass", seed=seed).assign(head=f"{layer}.{head}")
        lines.append(shown)
        told_apart = [auc[name] for name in ("auc", "low", "high", "p_holm")]
        rows.append((f"{layer}.{head}", float(mass.mean()), *shown["value"], *told_apart))
    indices = [f"index {i}" for i in sorted(set(held["index"]))]
    aucs = ["AUC within index", "AUC low", "AUC high", "Holm p"]
    table = pd.DataFrame(rows, columns=["head", "mass", *indices, *aucs])
    groups = seen.groups
    return probe.Section(
        "Which heads find it",
        (
            f"Chosen on half of the lists (five facts, first phrasing), measured on the other half ({len(held)} "
            "questions). AUC: how well a head's attention to the value tells right answers from wrong ones at the "
            "same index, .5 says nothing. " + told(seen.follows, "attention to the value"),
            f"Of the {len(seen.chosen)} chosen (Holm-corrected over these): {sorted_out(mine)}.",
            f"Knocked out together, on {seen.questions} of these questions, the {len(groups.heads)} heads cost the "
            f"answer {groups.lost:.2f} nats, the sum of "
            f"their single costs is {groups.singly:.2f}; of {len(groups.random)} random groups matched on what they "
            f"write, the median costs {np.median(groups.random):.2f} and the 95th percentile {groups.limit:.2f}.",
        ),
        (
            probe.Table("heads", table, "Mean attention from the answering position to the value asked for.", digits=2),
            probe.Table("every_head", every_head(seen), "The same of every head, by index.", shown=False),
            *linked_view(seen, pd.concat(lines[:SHOWN], ignore_index=True), seed),
        ),
    )


def every_head(seen: Watched) -> pd.DataFrame:
    """One row for each head and index: layer, head, index, mass, AUC (within indices) with interval and Holm's p, on
    lists that chose none.
    """
    import numpy as np
    import pandas as pd

    held = seen.answers[seen.held]
    indices = sorted(set(held["index"]))
    mass = np.stack([seen.mass[..., seen.held][..., (held["index"] == i).to_numpy()].mean(-1) for i in indices], -1)
    places = np.indices(mass.shape).reshape(3, -1)
    columns = {"layer": places[0], "head": places[1], "index": np.array(indices)[places[2]], "mass": mass.ravel()}
    return pd.DataFrame(columns).assign(
        **{name: np.repeat(seen.follows[of].to_numpy(), len(indices)) for name, of in AUC.items()}
    )


def linked_view(seen: Watched, mass: pd.DataFrame, seed: int) -> tuple[Part, ...]:
    """Accuracy above attention, by index, with the prompts behind both. mass: of each head, by index."""
    from probe.causal.by_index import curve
    from probe.runner.over_index import Panel, accuracy, over_index

    held = seen.answers[seen.held]
    n_lists, n = held["list"].nunique(), int(held["n"].iloc[0])
    looks = Panel(
        "mass",
        mass,
        "Attention to the value asked for, by its index.",
        f"From the answering position to the value asked for: the {mass['head'].nunique()} heads with most.",
        "attention",
    )
    return over_index(
        (accuracy(curve(held, "correct", seed=seed), n), looks),
        seen.prompts,
        seen.tokens,
        caption=f"Accuracy and attention by index, on the same {len(held)} questions: {n_lists} lists of {n} facts "
        "that chose no head, each asked about at every index. Intervals are over lists.",
        shown=f"Prompts of the first {PROMPTS} of these lists, right or wrong. Probabilities are among the values in "
        "the list.",
    )
