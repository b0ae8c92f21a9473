"""The causal leg in a study's result: its table, what the model answers, and a sentence that says what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from probe.causal.behaviour import Behaviour
from probe.causal.controls import Groups
from probe.causal.leg import CONTROLS, LOOKS, MEASURED, MOST_LOSS, PERCENTILE, Causal
from probe.causal.sweep import KINDS
from probe.causal.verdict import ATTENTION, CAUSAL, SUPPORTED, Verdicts
from probe.scores.evidence import ALPHA
from probe.sites import head_names
from probe.subject import Subject

Gate = dict[str, object]


def causal_table(found: Sequence[Verdicts]) -> pd.DataFrame:
    """The causal legs of several phenomena, one row per phenomenon and head, with the verdict."""
    parts = []
    for one in found:
        part = one.causal.heads.copy()
        part.insert(0, "phenomenon", one.attention.measured.targets.phenomenon)
        part.insert(1, "verdict", one.heads.sort_values(["layer", "head"])["verdict"].to_numpy())
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def gate_of(leg: Causal) -> Gate:
    """What the model answers, as JSON: accuracy, chance, paired (nats) with low and high; n_units, n_pairs, n_clusters;
    reason (None where heads could be asked); most_loss, the nats a token that unrelated text may lose; group, where
    heads were knocked out together.
    """
    gate: Behaviour = leg.behaviour
    numbers = {
        "accuracy": gate.accuracy,
        "accuracy_low": gate.accuracy_interval[0],
        "accuracy_high": gate.accuracy_interval[1],
        "chance": gate.chance,
        "paired": gate.paired,
        "paired_low": gate.paired_interval[0],
        "paired_high": gate.paired_interval[1],
    }
    found: Gate = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    found |= {"n_units": gate.n_units, "n_pairs": gate.n_pairs, "n_clusters": gate.n_clusters, "reason": leg.reason}
    found["most_loss"] = MOST_LOSS
    if leg.groups is not None:
        found["group"] = _group(leg.groups)
    return found


def _group(groups: Groups) -> dict[str, object]:
    return {
        "heads": head_names(groups.heads),
        "lost": groups.lost,
        "singly": groups.singly,
        "limit": groups.limit,
        "n_random": len(groups.random),
    }


def outcome(found: Verdicts, subject: Subject) -> str:
    """One sentence on the causal leg, with its numbers."""
    leg, table = found.causal, found.heads
    phenomenon = found.attention.measured.targets.phenomenon
    if leg.reason is not None:
        return f"Causal leg of {phenomenon}: untestable here, for {leg.reason}."
    gate = leg.behaviour
    asked = (
        f"swapping the cue moves the answer by {gate.paired:.2f} nats [{gate.paired_interval[0]:.2f} to "
        f"{gate.paired_interval[1]:.2f}] ({gate.n_pairs} prompts, {gate.n_clusters} clusters)"
    )
    n = {verdict: int((table["verdict"] == verdict).sum()) for verdict in (SUPPORTED, CAUSAL, ATTENTION)}
    passed = table[table["causal_passed"]].sort_values("patch", ascending=False, kind="stable")
    if passed.empty:
        tested = leg.heads[leg.heads["tested"]]
        fails = "; ".join(f"{n} for: {why}" for why, n in tested["why"].value_counts().items())
        return f"Causal leg of {phenomenon}: {asked}, but of {len(tested)} heads tested none passes ({fails})."
    best = passed.iloc[0]
    return (
        f"Causal leg of {phenomenon} in {subject.name}: {asked}; of {int(leg.heads['tested'].sum())} heads tested it "
        f"depends on {len(passed)}, most on layer {best['layer']} head {best['head']} ({best['patch']:.2f} nats "
        f"[{best['causal_low']:.2f} to {best['causal_high']:.2f}]). Verdicts: {n[SUPPORTED]} supported, {n[CAUSAL]} "
        f"causal only, {n[ATTENTION]} attention only.{_looks(table)}"
    )


def _looks(table: pd.DataFrame) -> str:
    """Of the supported heads, for how many the look itself matters."""
    mine = table[table["verdict"] == SUPPORTED]
    kinds = [kind for kind in LOOKS if mine[f"p_{kind}"].notna().any()]
    if mine.empty or not kinds:
        return ""
    n = int((mine[[f"p_{kind}" for kind in kinds]] < ALPHA).any(axis=1).sum())
    return (
        f" Of the {len(mine)} supported, changing only where they look costs the answer nats for {n} (p < .05 each, "
        "uncorrected)."
    )


def causal_method(full: bool) -> tuple[str, ...]:
    """How the causal leg was measured, in paragraphs."""
    compared = "all other heads" if full else f"{CONTROLS} heads most like those tested (all others in a model of few)"
    screened = "their exact effect" if full else "attribution patching (their exact effect in a model of few heads)"
    kinds = "; ".join(f"{name}: {what}" for name, what in KINDS.items() if name in MEASURED)
    return (
        "Causal leg. The answer is log p(right) - log p(wrong), in nats, every token of a candidate counted. First the "
        "gate: heads are asked only if the answer moves when the cue is swapped for that of the minimal pair, or if "
        f"accuracy is above chance. On the selection half, heads are picked by {screened}; on the other half these, "
        "and those that passed the attention leg, are changed one at a time, at all positions.",
        f"A head passes if patching costs the answer nats (sign-flip test over clusters, Holm-corrected over all heads "
        f"tested), more than the {PERCENTILE}th percentile of those {compared} that write vectors of the most similar "
        f"length, if neither ablation makes the answer better (its 95 % interval below zero), and if its mean ablation "
        f"makes unrelated text no harder than {MOST_LOSS} nats a token. Where fewer than 20 heads are left to compare "
        "with, their number is printed.",
        f"Changes: {kinds}. Each member of a minimal pair is patched from the other, so patching runs in both "
        "directions.",
        "Verdicts: supported, both legs hold; causal only, the answer depends on a head that was not shown to look at "
        "the target more than every rival rule; attention only, the head looks but the answer was not shown to depend "
        "on it; not supported, neither.",
    )
