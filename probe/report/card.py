"""The card of one head: every number of a phenomenon beside its control. The page's script fills the same fields."""

from __future__ import annotations

from dataclasses import dataclass

from probe.report import metrics
from probe.report.causal import limit
from probe.report.folder import Phenomenon, Results
from probe.report.numbers import NONE, fixed, interval, p_value, signed
from probe.report.tables import verdict

ATTENTION = (
    ("value", ""),
    ("selection_value", "the same, on the half that picks"),
    ("mass", "attention on the target"),
    ("value_before", "the value, target before the query"),
    ("value_after", "the value, target after the query"),
    ("first_mass", "attention on the first token"),
    ("distance", "tokens from the query to where it looks"),
    ("argmax_share", "rows whose largest weight is at its most frequent offset"),
    ("entropy", "entropy, nats"),
    ("word_accuracy", "the target’s word is the most attended"),
    ("p_holm", "Holm p"),
    ("q", "q, over all heads"),
)
CAUSAL = (
    ("patch", "patched from the minimal pair, nats"),
    ("share", "share of the paired difference"),
    ("pattern", "its pattern alone patched"),
    ("mean", "mean-ablated"),
    ("resample", "resampled"),
    ("edge", "cannot look at the target"),
    ("unrelated_loss", "unrelated text, mean-ablated, nats a token"),
    ("why", "fails on"),
    ("causal_p_holm", "Holm p"),
    ("screen", "estimated effect, on the half that picks"),
    ("norm", "length of what it writes"),
)


@dataclass(frozen=True)
class Line:
    """One number and what it is to be compared with, as text; shown: whether the phenomenon has it."""

    field: str
    words: str
    value: str
    control: str
    shown: bool


def outcome(results: Results, phenomenon: Phenomenon, index: int) -> str:
    """The head's verdict, from one leg or both."""
    looks = verdict(phenomenon, index)
    if not phenomenon.tested:
        return looks
    leg = results.legs.get(phenomenon.name)
    if leg is None:
        return f"attention leg: {looks}; causal leg: not measured"
    if leg.reason is not None:
        return f"attention leg: {looks}; causal leg: untestable here"
    return f"{leg.verdicts[index]} (attention leg: {looks}, causal leg: {leg.outcome(index)})"


def attention(phenomenon: Phenomenon, index: int) -> list[Line]:
    """Where the head looks, on the half of the data that tests."""
    at = {name: float(values[index]) for name, values in phenomenon.numbers.items()}
    rival = phenomenon.best_rivals[index]
    against = [
        ("chance", at["chance"]),
        (rival, at["best_rival_value"]),
        ("best random head", at["random_max"]),
        ("best under shuffled labels", at["shuffled_max"]),
    ]
    known = [f"{name} {fixed(value)}" for name, value in against if name and fixed(value) != NONE]
    value = f"{fixed(at['value'])} {interval(at['low'], at['high'])}".removesuffix(f" {NONE}")
    controls = {
        "value": " · ".join(known) or NONE,
        "mass": f"if uniform {fixed(at['mass_chance'])}",
        "entropy": f"if uniform {fixed(at['entropy_max'])}",
        "argmax_share": f"offset {signed(at['argmax_offset'])}",
        "p_holm": f"uncorrected {p_value(at['p'])}",
    }
    lines = []
    for field, words in ATTENTION:
        text = value if field == "value" else p_value(at[field]) if field in ("p_holm", "q") else fixed(at[field])
        control = controls.get(field, NONE)
        shown = text != NONE and not (field == "mass" and phenomenon.statistic == "mass")
        lines.append(Line(field, words or metrics.label(phenomenon, "value"), text, control, shown))
    return lines


def causal(results: Results, phenomenon: Phenomenon, index: int) -> list[Line]:
    """What the answer loses when the head is changed; hidden where that was not measured."""
    leg = results.legs.get(phenomenon.name)
    there = leg is not None and leg.reason is None
    at = {name: float(values[index]) for name, values in leg.numbers.items()} if leg is not None else {}
    lines = []
    for field, words in CAUSAL:
        text, control = NONE, NONE
        if leg is not None and there:
            value = at.get(field.removeprefix("causal_"), float("nan"))
            text = p_value(value) if field == "causal_p_holm" else fixed(value, 3 if field == "unrelated_loss" else 2)
            if field == "why":
                text = leg.whys[index] or NONE
            if f"p_{field}" in at:
                control = f"p {p_value(at[f'p_{field}'])}"
            if field == "patch":
                text = f"{text} {interval(at['low'], at['high'])}".removesuffix(f" {NONE}")
                among = limit(at["limit"], at["n_peers"]) if leg.tested[index] else ""
                control = f"heads that write as much, 95th percentile {among}" if among else NONE
            elif field == "share":
                control = f"paired difference {fixed(leg.paired, 2)} nats"
            elif field == "unrelated_loss" and leg.most_loss is not None:
                control = f"allowed {leg.most_loss:g}"
            elif field == "causal_p_holm":
                control = f"uncorrected {p_value(at['p'])}"
        lines.append(Line(field, words, text, control, text != NONE))
    return lines
