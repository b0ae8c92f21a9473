"""Agreement in BLiMP's minimal pairs (Warstadt et al. 2020), read from the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    from probe.causal import Behaviour
    from probe.data.texts import Dataset
    from probe.scores.evidence import Evidence
    from probe.subject import Subject
    from probe.targets import Targets

SHOWN = 10
PROMPTS, HEADS = 4, 3  # sentences shown, and heads whose attention is


@probe.study(models=("minilm", "smollm2"), needs_data=True)
def agreement_blimp(subject: Subject, *, data: Path, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Do heads look from a word to the noun it agrees with?

    data: one of BLiMP's sets of reflexives or verbs (`probe.data.blimp`). The quick profile reads every fourth pair.
    """
    import dataclasses

    from probe.causal import behaviour
    from probe.scores.evidence import evidence

    pairs = probe.data.blimp(data)
    if profile == "quick":
        pairs = dataclasses.replace(pairs, items=pairs.items[::4])
    targets = subject.bind(pairs)
    gate = behaviour(subject, targets, seed=seed)
    found = evidence(subject, targets, seed=seed)
    asked = sum(u.answer is not None for u in targets.units)
    return probe.Findings(
        answer=answer(subject, found, gate),
        sections=(gate_section(subject, gate, asked, targets), head_section(subject, found, pairs)),
        method=(
            "Labels were found by rules on the words before the question: the head of the noun phrase that the "
            "sentence begins with, and in two of the sets the noun between. Sentences that no rule fits are left out.",
            "Asked: after the words that both sentences share, which of the two words, every token counted. The two "
            "share their prompt, so there is no aligned prompt with the other answer, and no patching: whether the "
            "answer depends on a head is untestable here.",
            "Heads are read on the word itself, in the acceptable sentence.",
        ),
        notes=notes(pairs, targets),
        data=(pairs,),
    )


def notes(pairs: Dataset, targets: Targets) -> tuple[str, ...]:
    """What was left out, and what the data cannot tell."""
    left = tuple(f"{n} left out for this model: {reason}." for reason, n in targets.exclusions.items())
    if targets.rivals:
        what = (
            "The noun agreed with comes first in every sentence, so no head can be told from the rule 'first', and "
            "none can pass."
        )
    else:
        what = "Only one noun could be meant, so heads are described: attention on it, beside uniform attention."
    return (f"{pairs.source}.", *left, what)


def answer(subject: Subject, found: Evidence, gate: Behaviour) -> str:
    """The question's answer in one sentence."""
    column = "selection_value" if found.measured.targets.rivals else "value"
    best = found.heads.sort_values(column, ascending=False, kind="stable").iloc[0]
    says = (
        f"untestable here, for {gate.reason}"
        if gate.n_units == 0
        else f"right in {gate.accuracy:.2f} [95% interval {gate.accuracy_interval[0]:.2f} to "
        f"{gate.accuracy_interval[1]:.2f}] of {gate.n_units} pairs"
    )
    judged = bool(found.measured.targets.rivals)
    does = "its accuracy, that noun against the one between, is" if judged else "its attention on the noun is"
    rival = (
        f"; the rule {best['best_rival']!r} {best['best_rival_value']:.2f}"
        if judged
        else f"; uniform attention {best['chance']:.2f}"
    )
    return (
        f"Head {best['layer']}.{best['head']} of {subject.name} does it most: {does} {best['value']:.2f} "
        f"[95% interval {best['low']:.2f} to {best['high']:.2f}] ({best['n_units']} sentences{rival}). The model's own "
        f"answer: {says}."
    )


def gate_section(subject: Subject, gate: Behaviour, asked: int, targets: Targets) -> probe.Section:
    """What the model answers."""
    import pandas as pd

    title = "What the model answers"
    if gate.n_units == 0:
        return probe.Section(title, (f"Untestable here, for {gate.reason}.",))
    row = {
        "accuracy": gate.accuracy,
        "low": gate.accuracy_interval[0],
        "high": gate.accuracy_interval[1],
        "chance": gate.chance,
        "pairs": gate.n_units,
        "clusters": gate.n_clusters,
    }
    text = (
        f"{asked} of {len(targets.units)} pairs can be asked of {subject.name}; in the others both words begin with "
        "the same token."
    )
    return probe.Section(title, (text,), (probe.Table("gate", pd.DataFrame([row]), "Whole words.", digits=2),))


def head_section(subject: Subject, found: Evidence, pairs: Dataset) -> probe.Section:
    """The heads that do it most."""
    judged = bool(found.measured.targets.rivals)
    table = found.heads.sort_values("selection_value" if judged else "value", ascending=False, kind="stable")
    best = table[:SHOWN]
    shown = best.assign(head=head_names(zip(best["layer"], best["head"], strict=True)))
    named = {"value": "accuracy" if judged else "attention on the noun", "mass": "on the noun", "foil_mass": "between"}
    columns = ["head", "value", "low", "high", *(["mass", "foil_mass", "word_accuracy"] if judged else ["chance"])]
    rivals = (probe.Table("rivals", found.rivals, "The rules, on the same half.", digits=2),) if judged else ()
    return probe.Section(
        "Where heads look",
        (f"Of {len(table)} heads of {subject.name}, the best on the half of the nouns that picks.",)
        if judged
        else (f"Of {len(table)} heads of {subject.name}, those with most attention on the noun.",),
        (
            probe.Table("heads", found.heads, "Every head.", shown=False),
            probe.Table("best", shown[columns].rename(columns=named), "Intervals over nouns.", digits=2),
            *rivals,
            *prompts_part(subject, found, pairs, list(zip(best["layer"], best["head"], strict=True))[:HEADS]),
        ),
    )


def prompts_part(
    subject: Subject, found: Evidence, pairs: Dataset, heads: list[tuple[int, int]]
) -> tuple[probe.Table | probe.Asked, ...]:
    """Sentences with where the best heads look, from the word that agrees."""
    import pandas as pd

    from probe.causal.prompts import looks, words_of

    tags, judged = {item.item: item.tags for item in pairs.items}, bool(found.measured.targets.rivals)
    every = found.measured.targets.units
    kept = found.measurement.nonzero()[0] if judged else range(len(every))  # not those that picked the head
    units, at = [every[i] for i in kept], (*heads[0], list(kept))
    on = found.measured["target"][at]
    right = found.measured["correct"][at] if judged else (on > found.measured["chance"][at]).astype(float)
    nouns = [tags[unit.item]["head"] for unit in units]
    items = [unit.item for unit in units]
    prompts = pd.DataFrame({"prompt": items, "correct": right, "noun": nouns, "attention on it": on})
    shown = units[:PROMPTS]
    than = "at the one between (foil)" if judged else "uniform attention would"
    tokens = looks(subject, shown, heads, words_of(subject, pairs.texts, shown))
    caption = f"The first ones. Right: {head_names(heads)[0]} looks at the noun agreed with (target) more than {than}."
    return (
        probe.Table("prompts", prompts, "Each sentence.", digits=2, shown=False),
        probe.Table("tokens", tokens, "Tokens.", shown=False),
        probe.Asked("sentences", probe.Prompts("prompts", "tokens", caption)),
    )
