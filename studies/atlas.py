"""A map of a model's heads: which were shown to do a job, which merely look, and what describes the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from probe.causal.verdict import Verdicts
    from probe.data.texts import Dataset, Text
    from probe.subject import Subject
    from probe.targets import Targets

PAIRS = {"quick": 1, "full": 2}  # minimal pairs of each cluster; in a model of many heads, one
PICKED = {"quick": 5, "full": 10}
KINDS = {"quick": ("patch", "mean"), "full": ("patch", "pattern", "mean", "resample", "edge")}
OFFSETS = (2, 3, 4, 5, 6, 7, 8)  # before the query; in a model that sees what follows, after it too
SENTENCES = 4  # of a passage that heads are described on
PASSAGES = 12
PROMPTS = 3  # of each task, shown token by token


@probe.study(models=("tiny",))
def atlas(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """What does each head of the model do?

    Five tasks with answers, each with both legs of the evidence; and what heads attend to by position and form alone.
    """
    from probe.causal.jobs import jobs
    from probe.causal.leg import SMALL

    many = subject.n_layers * subject.n_heads > SMALL
    sets = list(tasks(subject, 1 if many else PAIRS[profile], seed))
    judged = {d.phenomenon: judge(subject, targets, profile, seed) for d, targets in sets}
    described = describe(subject, seed)
    table = jobs({name: found.heads for name, found in judged.items()}, described)
    return probe.Findings(
        answer=answer(subject, table, judged),
        sections=(
            map_section(table, subject),
            task_section(judged),
            asked_section(subject, judged, {d.phenomenon: d for d, _ in sets}),
            described_section(described),
        ),
        method=(
            "For each task, heads are judged by two legs on separate halves of its clusters: does the head look at the "
            "target, more often than every rival rule and than randomly initialised copies; and does the answer lose "
            "nats when the head's output is patched from the minimal pair, more than with heads that write as much, "
            "without harm to unrelated text. Holm-corrected within a task; `probe run coreference` shows all numbers.",
            "A head without which, by its mean or another prompt's, the answer gets better does not pass.",
            f"Here each leg picks at most {PICKED[profile]} heads a task (causal leg) and 10 (attention leg); a head "
            "that neither picked was not tested, so 'no known job' is not 'no job'.",
            "A head is described by what gets at least half of its attention, in the mean over tokens, prompt by "
            "prompt: the previous, next or own token, a fixed offset, special tokens and punctuation, earlier copies "
            "of the same token or what followed these; by the first token from 0.3 on (a sink). Prompts: passages of "
            f"{SENTENCES} sentences.",
        ),
        notes=(
            "The tasks are small worlds of short words; a head may do its job here and not in running text.",
            "Descriptions overlap: where the first token is punctuation or special, a sink is also on a delimiter.",
        ),
        data=tuple(d for d, _ in sets),
    )


def tasks(subject: Subject, pairs: int, seed: int) -> Iterator[tuple[Dataset, Targets]]:
    """The tasks the model can be asked, with the first minimal pairs of each cluster."""
    from probe.data import language

    for task in language.tasks():
        english = task == "coreference" and subject.language != "synthetic"
        dataset = probe.data.asked_names(2 * pairs) if english else language.dataset(task, seed, 4)
        yield dataset, few(subject.bind(dataset), pairs)


def few(targets: Targets, pairs: int) -> Targets:
    """The first minimal pairs of each cluster; units without one where a cluster has none."""
    import dataclasses

    kept: dict[str, list[Any]] = {}
    for unit in sorted(targets.units, key=lambda u: u.swapped is None):
        mine = kept.setdefault(unit.cluster, [])
        if len(mine) < 2 * pairs:
            mine.append(unit)
    return dataclasses.replace(targets, units=tuple(u for units in kept.values() for u in units))


def judge(subject: Subject, targets: Targets, profile: str, seed: int) -> Verdicts:
    """Both legs of one task."""
    return probe.verdicts(
        subject, targets, full=profile == "full", most=PICKED[profile], kinds=KINDS[profile], seed=seed
    )


def passages(subject: Subject, seed: int) -> list[Text]:
    """Texts that heads are described on, each a cluster."""
    import random

    from probe.data import Text, language

    rng = random.Random(seed)
    texts = []
    for n in range(PASSAGES):
        if subject.language == "synthetic":
            words = language.draw(rng)
        else:
            words = " ".join(rng.sample(probe.data.PLAIN, SENTENCES))
        texts.append(Text(f"passage-{n + 1:02}", f"passage-{n + 1:02}", words))
    return texts


def describe(subject: Subject, seed: int) -> list[pd.DataFrame]:
    """Scores of every head for each phenomenon of position and form."""
    from probe import data

    texts = passages(subject, seed)
    sets = [data.first_token(texts), data.previous_token(texts), data.own_token(texts)]
    sets += [] if subject.is_causal else [data.next_token(texts)]
    signs = (-1,) if subject.is_causal else (-1, 1)
    sets += [data.fixed_offset(texts, sign * distance) for sign in signs for distance in OFFSETS]
    sets += [data.delimiters(texts), data.duplicate_token(texts), data.after_duplicate(texts)]
    table = probe.scores.heads(subject, [subject.bind(d) for d in sets], seed=seed)
    return [part.reset_index(drop=True) for _, part in table.groupby("phenomenon", sort=False)]


def answer(subject: Subject, table: pd.DataFrame, judged: dict[str, Verdicts]) -> str:
    """The question's answer in one sentence."""
    n = table["kind"].value_counts()
    tested = [name for name, found in judged.items() if found.causal.reason is None]
    best = table.sort_values("strongest", ascending=False, kind="stable").iloc[0]
    most = (
        f" The strongest is layer {best['layer']} head {best['head']}: {best['strongest']:.2f} nats of {best['of']}."
        if best["strongest"] > 0
        else ""
    )
    return (
        f"Of {len(table)} heads in {subject.name}, {n.get('supported', 0)} were shown to do a job by both legs of the "
        f"evidence, on the {len(tested)} of {len(judged)} tasks that it does; {n.get('causal only', 0)} carry an "
        f"answer without being shown to look at the target, {n.get('attention only', 0)} only look, "
        f"{n.get('described', 0)} are described by position or form alone, and {n.get('no known job', 0)} have no "
        f"known job.{most}"
    )


def map_section(table: pd.DataFrame, subject: Subject) -> probe.Section:
    """The map and the heads with a job."""
    from probe.causal.jobs import KINDS as ORDER

    table = table.sort_values(
        ["kind", "strongest"], key=lambda c: c.map(ORDER.index) if c.name == "kind" else -c, kind="stable"
    )
    shown = table[table["kind"].isin(ORDER[:3])]
    shown = shown.assign(head=head_names(zip(shown["layer"], shown["head"], strict=True)))
    names = {"causal_only": "causal only", "attention_only": "attention only", "strongest": "nats", "of": "on"}
    shown = shown.drop(columns=["layer", "kind"]).rename(columns=names)
    return probe.Section(
        "The map",
        ("A head stands under the strongest thing that was shown of it; the table has all of it.",),
        (
            probe.Table("map", table, "Every head.", shown=False),
            probe.Plot(
                "map_points",
                "map",
                "points",
                "layer",
                "head",
                f"What was shown of each head of {subject.name}.",
                by="kind",
            ),
            probe.Table(
                "with_a_job",
                shown,
                "Heads with a verdict, those supported first, by their largest effect on an answer (nats).",
                digits=2,
            ),
        ),
    )


def task_section(judged: dict[str, Verdicts]) -> probe.Section:
    """What the model answers, and what came of its heads, task by task."""
    import pandas as pd

    rows = []
    for name, found in judged.items():
        gate, verdict = found.causal.behaviour, found.heads["verdict"]
        passed = found.heads[found.heads["causal_passed"]].sort_values("patch", ascending=False)
        best = "–" if passed.empty else f"{passed.iloc[0]['layer']}.{passed.iloc[0]['head']}"
        rows.append(
            {
                "task": name,
                "accuracy": gate.accuracy,
                "chance": gate.chance,
                "paired difference, nats": gate.paired,
                "low": gate.paired_interval[0],
                "high": gate.paired_interval[1],
                "supported": int((verdict == "supported").sum()),
                "causal only": int((verdict == "causal only").sum()),
                "attention only": int((verdict == "attention only").sum()),
                "most for the answer": best,
                "its effect, nats": float("nan") if passed.empty else float(passed.iloc[0]["patch"]),
                "prompts": gate.n_units,
                "clusters": gate.n_clusters,
            }
        )
    every = pd.concat([f.heads.assign(task=n) for n, f in judged.items()], ignore_index=True)
    return probe.Section(
        "Task by task",
        (
            "The paired difference is how many nats the answer moves when the cue is swapped; low and high are its "
            "95 % interval over clusters.",
            *(f"{n}: untestable here, for {f.causal.reason}." for n, f in judged.items() if f.causal.reason),
        ),
        (
            probe.Table(
                "tasks", pd.DataFrame(rows), "What the model answers, and the verdicts on its heads.", digits=2
            ),
            probe.Table("verdicts", every, "Every number of both legs.", shown=False),
        ),
    )


def asked_section(subject: Subject, judged: dict[str, Verdicts], sets: dict[str, Dataset]) -> probe.Section:
    """Prompts of each task, with where the best head of every task looks."""
    from probe.runner.grouped import Group, grouped

    heads = {name: best_of(found.heads) for name, found in judged.items()}
    asks = any(found.causal.behaviour.n_units for found in judged.values())
    groups = []
    for name, found in judged.items():
        measured, at = found.attention.measured, heads[name]
        units = measured.targets.units
        facts = {"head": head_names([at] * len(units)), "on the target": measured["target"][at]}
        correct = found.causal.behaviour.correct if asks else measured["correct"][at]
        groups.append(Group(name, sets[name].texts, units, correct, facts))
    right = (
        "Right: of the answers to choose from, the model finds the right one likeliest."
        if asks
        else "The model cannot be asked; right: the head gives the target more attention than any other candidate."
    )
    return probe.Section(
        "What was asked",
        (
            "Of each task, the head that carries most of its answer, a supported one where there is one; where none "
            "carries it, the head that looks best on the half that picks. Below, where all of these look.",
        ),
        grouped(
            subject,
            "task",
            groups,
            list(heads.values()),
            caption=f"The first of the first {PROMPTS} worlds. {right}",
            most=PROMPTS,
        ),
    )


def best_of(heads: pd.DataFrame) -> tuple[int, int]:
    """The head to show of a task: of those supported, else of those that carry the answer, the one that carries most;
    where there is none, the one that looks best, as the picking half says.
    """
    from probe.causal.verdict import SUPPORTED

    ranked = heads.assign(
        supported=heads["verdict"] == SUPPORTED,
        most=heads["patch"].where(heads["causal_passed"], heads["selection_value"]),
    ).sort_values(["supported", "causal_passed", "most"], ascending=False, kind="stable")
    return int(ranked["layer"].iloc[0]), int(ranked["head"].iloc[0])


def described_section(described: list[pd.DataFrame]) -> probe.Section:
    """How many heads each description fits, and where."""
    import pandas as pd

    from probe.causal.jobs import DESCRIBED, OFFSET

    rows = []
    for table in described:
        name = str(table["phenomenon"].iloc[0])
        least = DESCRIBED.get(name, (OFFSET, ""))[0]
        best = table.sort_values("value", ascending=False, kind="stable").iloc[0]
        rows.append(
            {
                "attends to": name,
                "heads": int((table["value"] >= least).sum()),
                "from": least,
                "best head": f"{best['layer']}.{best['head']}",
                "its attention": best["value"],
                "low": best["low"],
                "high": best["high"],
                "uniform": best["chance"],
            }
        )
    every = pd.concat(described, ignore_index=True)
    return probe.Section(
        "By position and form",
        (),
        (
            probe.Table("described", pd.DataFrame(rows), f"On {PASSAGES} passages; intervals over passages.", digits=2),
            probe.Table("described_heads", every, "Every head.", shown=False),
        ),
    )
