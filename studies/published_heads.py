"""Heads that were published as doing something, beside what is measured on the user's own copy of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import pandas as pd

    from probe.scores.published import Compared
    from probe.subject import Subject

SHOWN = 8  # heads, for one sentence
PROMPTS = 2  # of each measure


@probe.study(models=("minilm", "smollm2"))
def published_heads(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Are the heads that were published for a model the ones that are found in it?

    Of bert-base-uncased the coreference and syntax heads, of gpt2 the circuit of indirect objects (a folder or hub id
    of that name); of any other model the best heads for the same are shown. The profiles are the same. The mediators of
    gender are in `gender_bias`, which reads WinoBias.
    """
    from probe.scores.published import compare

    found = compare(subject, seed=seed)
    circuit, asked = circuit_section(subject, seed)
    cats, read = cat_section(subject)
    sections = (*published_sections(subject, found), prompts_section(subject, found), *circuit, *cats)
    return probe.Findings(
        answer=answer(subject, found),
        sections=sections,
        method=(
            "Word accuracy (Clark et al. 2019): attention to a word is summed over its pieces, from a word averaged "
            "over its pieces; a head is right if, of all other words (special tokens left out), the right one gets "
            "most. Attention on the target: the mean share of a row that lies on it.",
            "Syntax: sentences of our own in which a determiner's noun, a noun's verb or preposition, and a "
            "possessive's noun are known, at changing distances. Indirect objects: sentences of our own like those of "
            "Wang et al. 2023. Coreference: the project's balanced sentences. The published numbers come from other "
            "texts, so ranks say more than the numbers do.",
        ),
        notes=(
            *(f"{does}: not measured, {reason}." for does, reason in found.left_out.items()),
            *asked,
            *read,
        ),
        data=found.data,
    )


def answer(subject: Subject, found: Compared) -> str:
    """The question's answer in one sentence."""
    table = found.table
    if table.empty:
        best = found.best.set_index("does")
        named = ", ".join(f"{does} {row['head']} ({row['value']:.2f})" for does, row in best.iterrows())
        return f"Nothing was published of {subject.name} that is compared here; its best heads are: {named}."
    top = table[table["rank"] <= 3]
    firsts = ", ".join(f"{r['head']} ({r['does']}, rank {r['rank']} of {r['heads']})" for _, r in top.iterrows())
    return (
        f"Of {len(table)} published heads of {subject.name}, {len(top)} are among the best three of all heads for what "
        f"they were published for{': ' + firsts if len(top) else ''}; the median rank is {table['rank'].median():.0f}."
    )


def published_sections(subject: Subject, found: Compared) -> list[probe.Section]:
    """Published beside measured, and the best head for each measure."""
    shown = found.best.rename(columns={"n_units": "prompts", "n_clusters": "clusters", "offset": "best offset, words"})
    best = probe.Section(
        "The best head for each",
        (
            f"Of {subject.n_layers * subject.n_heads} heads of {subject.name}, the one with the highest mean, which is "
            "chosen on the data it is shown on. Beside it the fixed distance that is right most often.",
        ),
        (probe.Table("best", shown, "Intervals over clusters of sentences.", digits=2),),
    )
    if found.table.empty:
        return [best]
    text = "Published: the share of cases, and that of the best simple rule, where the paper has them. Rank 1 is best."
    table = probe.Table("published", found.table, "Published heads, measured on our data.", digits=2)
    return [probe.Section("Published beside measured", (text,), (table,)), best]


def prompts_section(subject: Subject, found: Compared) -> probe.Section:
    """Prompts of each measure, with where its head looks."""
    from dataclasses import replace

    import numpy as np

    from probe.runner.grouped import Group, grouped
    from probe.scores.measure import measure

    published = found.table.drop_duplicates("does").set_index("does")["head"]
    heads, groups = [], []
    for dataset, (_, row) in zip(found.data, found.best.iterrows(), strict=True):
        does, name = str(row["does"]), str(published.get(row["does"], row["head"]))
        layer, head = map(int, name.split("."))
        heads.append((layer, head))
        measured = found.measured[does]
        if any(len(unit.rows) > 1 for unit in measured.targets.units):  # one row can be shown: that in the middle
            units = tuple(replace(u, rows=(u.rows[len(u.rows) // 2],)) for u in measured.targets.units)
            measured = measure(subject, replace(measured.targets, units=units), quiet=True)
        on, most = measured["target"][layer, head], measured["word_correct"][layer, head]
        facts = {"head": [name] * len(on), "on the target": on}
        correct = np.where(np.isnan(most), (on > 0.5).astype(float), most)  # tokens, not words: there is no most
        groups.append(Group(does, dataset.texts, measured.targets.units, correct, facts))
    whose = "the head that was published for it, else the best one" if len(found.table) else "the best head"
    return probe.Section(
        "Where they look",
        (
            f"For each, {whose}. Right: of all other words, the target gets most of its attention; of tokens (the "
            "previous one), more than half.",
        ),
        grouped(
            subject,
            "does",
            groups,
            heads,
            caption="The first ones; the previous token is seen from the middle of each.",
            most=PROMPTS,
        ),
    )


def circuit_section(subject: Subject, seed: int) -> tuple[list[probe.Section], list[str]]:
    """Whether the model says the indirect object at all."""
    import pandas as pd

    from probe.causal.behaviour import candidate_scores
    from probe.causal.readout import unreadable
    from probe.scores.published import logit_difference

    reason = unreadable(subject)
    if reason is not None or not subject.is_causal:
        return [], [f"Indirect objects are not asked for: {reason or 'the model sees later tokens'}."]
    units = [u for u in subject.bind(probe.data.ioi()).units if u.answer is not None]
    if not units:
        return [], ["Indirect objects are not asked for: their names share their first token."]
    numbers = logit_difference(subject, candidate_scores(subject, units), [u.cluster for u in units], seed)
    table = pd.DataFrame([{"logit difference, nats": numbers.pop("value"), **numbers, "prompts": len(units)}])
    text = "After `... John handed a map to`, log p(indirect object) minus log p(subject)."
    shown = probe.Table("circuit", table, "right: share of prompts with the indirect object likelier.", digits=2)
    return [probe.Section("Does the model say the indirect object?", (text,), (shown,))], []


def cat_section(subject: Subject) -> tuple[list[probe.Section], list[str]]:
    """The sentence about the cat, in the languages that the model reads."""
    from probe.errors import ProbeError
    from probe.scores.published import CATS, cat_sentence

    parts, notes = [], []
    for language, (text, it, cat, table) in CATS.items():
        try:
            found = cat_sentence(subject, language)
        except ProbeError as error:
            notes.append(f"The {language} sentence is left out: {error}")
            continue
        shown = found.sort_values("rank", kind="stable")[:SHOWN]
        shown = shown.assign(head=head_names(zip(shown["layer"], shown["head"], strict=True)))
        columns: pd.DataFrame = shown[["head", "cat", "table", "first"]]
        n = int((found["cat"] > found["table"]).sum())
        parts.append(
            probe.Table(
                f"cat_{language}",
                columns.rename(columns={"cat": f"on {cat}", "table": f"on {table}", "first": "on the first token"}),
                f"{text} Attention from {it}, the heads that look most at {cat} rather than {table}; {n} of "
                f"{len(found)} heads look more at the first.",
                digits=3,
            )
        )
    if not parts:
        return [], notes
    text = "One sentence, the one that textbooks show. It says nothing of what heads do elsewhere."
    return [probe.Section("The cat and the table", (text,), tuple(parts))], notes
