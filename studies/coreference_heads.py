"""Heads that look at antecedents in running text, beside those that the answer depends on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import pandas as pd

    from probe.causal.leg import Causal
    from probe.causal.linear_readout import Readout
    from probe.scores.evidence import Evidence
    from probe.subject import Subject

BEST = 10  # heads of each kind
NAMES = {"quick": 2, "full": 4}  # prompts of each frame that asks for a name
READ = {"quick": 24, "full": 96}  # snippets that heads are ablated on
CARRIERS, LOOKERS, PROMPTS = 4, 2, 3  # heads whose attention is shown, and prompts of each kind
KINDS = ("both", "the answer depends on it", "among the best on GAP", "neither")


@probe.study(models=("minilm", "smollm2"), needs_data=True)
def coreference_heads(subject: Subject, *, data: Path, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Are the heads that look at antecedents the ones that the answer depends on?

    data: a GAP file. The quick profile reads every third snippet. A causal model is asked who is meant in sentences of
    our own (`probe.data.asked_names`); of a model that says nothing, the antecedent is read linearly.
    """
    import dataclasses

    from probe.causal.readout import unreadable
    from probe.scores.evidence import evidence

    snippets = probe.data.gap(data)
    if profile == "quick":
        snippets = dataclasses.replace(snippets, items=snippets.items[::3])
    bound = subject.bind(snippets)
    looks = evidence(subject, bound, seed=seed)
    if unreadable(subject) is None and subject.is_causal:
        asked = probe.data.asked_names(NAMES[profile])
        sections, answer = by_answer(subject, looks, asked, seed, full=profile == "full")
        used: tuple[probe.data.Dataset, ...] = (snippets, asked)
    else:
        sections, answer = by_readout(subject, looks, snippets, profile, seed)
        used = (snippets,)
    excluded = "; ".join(f"{n} for {reason}" for reason, n in bound.exclusions.items())
    return probe.Findings(
        answer=answer,
        sections=(*sections, averaging_section(subject, looks, seed)),
        method=METHOD,
        notes=(
            f"{len(bound.units)} snippets of GAP are measured" + (f"; left out: {excluded}." if excluded else "."),
            "Heads are called best by the half of the pages that picks; what is shown was measured on the other half.",
        ),
        data=used,
    )


METHOD = (
    "GAP (Webster et al. 2018): a head is right on a snippet if, from the pronoun, the antecedent's tokens together "
    "get more attention than the other name's. A head looks at the antecedent if it beats every rival rule on held-out "
    "pages (sign-flip test, Holm-corrected) and the best head of three untrained copies.",
    "An answer depends on a head if patching its output from the minimal pair's other prompt, or for a readout "
    "ablating it to its mean, costs nats (sign-flip test over clusters, Holm-corrected over the heads tested), more "
    "than the 95th percentile of heads that write as much; where a model can be asked, also only if neither ablation "
    "makes the answer better and unrelated text does not need the head. The full profile picks heads by their exact "
    "effect and compares them with all others.",
)


def by_answer(
    subject: Subject, looks: Evidence, asked: probe.data.Dataset, seed: int, *, full: bool
) -> tuple[tuple[probe.Section, ...], str]:
    """The two kinds of heads side by side, of a model that can be asked."""
    from probe.causal.leg import causal

    first = best_of(looks.heads)
    found = causal(subject, subject.bind(asked), also=first, full=full, seed=seed)
    if found.reason is not None:
        why = f"The model cannot be asked who is meant: {found.reason}."
        return (probe.Section("Who is meant", (why,)),), why
    table = side_by_side(looks.heads, found.heads.rename(columns={"patch": "lost"}), first)
    shown = asked_section(subject, asked, table, first)
    return (sides_section(subject, table, found.behaviour.paired), shown), answer_of(subject, table, found)


def asked_section(
    subject: Subject, asked: probe.data.Dataset, table: pd.DataFrame, first: list[tuple[int, int]]
) -> probe.Section:
    """What was asked and answered, and where the heads look from there."""
    from probe.causal.prompts import answered, first_of, tokens

    pronouns = {item.item: {"masculine": "he", "feminine": "she"}[item.tags["gender"]] for item in asked.items}
    prompts = answered(subject, asked)
    prompts.insert(0, "pronoun", prompts["prompt"].map(pronouns))
    share = prompts.groupby("pronoun")["correct"].mean()
    each = ", ".join(f"{value:.2f} after `{pronoun}`" for pronoun, value in share.items())
    heads = shown_heads(table, first)
    return probe.Section(
        "What was asked",
        (
            f"The right name is the likelier in {prompts['correct'].mean():.2f} of {len(prompts)} prompts "
            f"({each}): a model may prefer one name throughout "
            "and still move with the pronoun, which is what the nats above measure.",
        ),
        (
            probe.Table("asked", prompts, "Each prompt, and what was answered.", digits=2, shown=False),
            probe.Table(
                "asked_tokens",
                tokens(subject, asked, first_of(prompts, "pronoun", PROMPTS), heads),
                "Tokens of some, with where heads look.",
                shown=False,
            ),
            probe.Asked(
                "asked_prompts", probe.Prompts("asked", "asked_tokens", f"The first ones. {CHOSEN}"), "pronoun"
            ),
        ),
    )


def shown_heads(table: pd.DataFrame, first: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The heads that the answer depends on most, then the best on GAP."""
    carry = table[table["kind"].isin(KINDS[:2])][:CARRIERS]
    heads = list(zip(carry["layer"].astype(int), carry["head"].astype(int), strict=True))
    return list(dict.fromkeys([*heads, *first[:LOOKERS]]))


CHOSEN = f"Heads: up to {CARRIERS} that the answer depends on, by nats lost; then the best {LOOKERS} on GAP."


def best_of(heads: pd.DataFrame) -> list[tuple[int, int]]:
    """The heads with the best accuracy on the half that picks."""
    best = heads.sort_values("selection_value", ascending=False, kind="stable")[:BEST]
    return list(zip(best["layer"].astype(int), best["head"].astype(int), strict=True))


def side_by_side(looks: pd.DataFrame, depends: pd.DataFrame, first: list[tuple[int, int]]) -> pd.DataFrame:
    """One row for each head that was tested: its accuracy on GAP with the rank among all heads, the nats lost without
    it, and which of `KINDS` it is. first: the heads that are best by accuracy.
    """
    at = ["layer", "head"]
    gap = looks[[*at, "value", "low", "high", "passed", "selection_value"]].assign(
        rank=looks["selection_value"].rank(ascending=False, method="min").astype(int)
    )
    columns = [*at, "lost", "low", "high", "limit", "n_peers", "p_holm", "passed", "why"]
    table = gap.merge(depends[columns], on=at, suffixes=("", "_lost"), validate="one_to_one")
    table = table[table["p_holm"].notna()].reset_index(drop=True)
    places = list(zip(table["layer"], table["head"], strict=True))
    best = [(int(layer), int(head)) in first for layer, head in places]
    named = {(True, True): KINDS[0], (False, True): KINDS[1], (True, False): KINDS[2], (False, False): KINDS[3]}
    kinds = [named[b, bool(d)] for b, d in zip(best, table["passed_lost"], strict=True)]
    table.insert(0, "name", head_names(places))
    order = table.assign(kind=kinds).sort_values("lost", ascending=False, kind="stable")
    return order.reset_index(drop=True)


def sides_section(subject: Subject, table: pd.DataFrame, whole: float) -> probe.Section:
    """Both kinds of heads in one table and one figure."""
    called = {
        "name": "head",
        "kind": "kind",
        "value": "accuracy on GAP",
        "low": "low",
        "high": "high",
        "rank": "rank of all heads",
        "passed": "passes on GAP",
        "lost": "nats lost",
        "low_lost": "low, nats",
        "high_lost": "high, nats",
        "limit": "heads that write as much, 95th pct",
        "p_holm": "Holm p",
        "why": "fails on",
    }
    shown = table[table["kind"] != KINDS[3]][list(called)].rename(columns=called)
    n = {kind: int((table["kind"] == kind).sum()) for kind in KINDS}
    return probe.Section(
        "Side by side",
        (
            f"The {BEST} heads of {subject.name} with the best accuracy on GAP, and those with the largest effect on "
            f"the answer, were all tested for both: {n[KINDS[0]]} are among the best and the answer depends on them, "
            f"on {n[KINDS[1]]} others it depends, on {n[KINDS[2]]} of the best it was not shown to depend.",
        ),
        (
            probe.Table("sides", table, "Every number of the heads tested.", shown=False),
            probe.Plot(
                "sides_figure",
                "sides",
                "points",
                "value",
                "lost",
                f"Accuracy on GAP (measurement half) and nats lost without the head; {whole:.2f} nats in all move with "
                "the pronoun. Bars: 95 % intervals over clusters.",
                by="kind",
                low="low_lost",
                high="high_lost",
                x_label="accuracy on GAP",
                y_label="nats of the answer lost",
            ),
            probe.Table(
                "sides_shown",
                shown,
                "Those of some kind, sorted by what the answer loses; `neither` is in the file alone.",
                digits=2,
            ),
        ),
    )


def answer_of(subject: Subject, table: pd.DataFrame, found: Causal) -> str:
    """The question's answer in one sentence."""
    both, only = (table[table["kind"] == kind] for kind in KINDS[:2])
    looks = table[table["kind"] == KINDS[2]]
    names = ", ".join(
        f"{row['name']} ({row['value']:.2f} on GAP, {row['lost']:.2f} nats)" for _, row in both.iterrows()
    )
    start = f"Some are: {names}" if len(both) else "None was shown to be both"
    gate = found.behaviour
    return (
        f"{start}. In {subject.name}, of the {BEST} heads with the best accuracy on GAP, {len(both)} also carry the "
        f"answer to who is meant, {len(looks)} were not shown to; the answer depends on {len(only)} others. Swapping "
        f"the pronoun moves it by {gate.paired:.2f} nats [95% interval {gate.paired_interval[0]:.2f} to "
        f"{gate.paired_interval[1]:.2f}]."
    )


def by_readout(
    subject: Subject, looks: Evidence, snippets: probe.data.Dataset, profile: str, seed: int
) -> tuple[tuple[probe.Section, ...], str]:
    """The same for a model that says nothing, through a linear readout."""
    from probe.causal.linear_readout import heads_behind, read_out

    readout = read_out(subject, looks.measured.targets, seed=seed)
    section = readout_section(subject, readout)
    if readout.reason is not None:
        return (section,), f"It cannot be told for {subject.name}: {readout.reason}."
    first = best_of(looks.heads)
    depends = heads_behind(subject, readout, units=READ[profile], seed=seed)
    table = side_by_side(looks.heads, depends, first)
    both, only = (table[table["kind"] == kind] for kind in KINDS[:2])
    answer = (
        f"{'Some are' if len(both) else 'None was shown to be both'}: of the {BEST} heads of {subject.name} with the "
        f"best accuracy on GAP, a linear readout of the antecedent (right in {readout.accuracy:.2f} [95% interval "
        f"{readout.low:.2f} to {readout.high:.2f}] of {len(readout.units)} snippets; the rule {readout.rival!r}: "
        f"{readout.rival_accuracy:.2f}) depends on {len(both)}"
        + (f" ({', '.join(both['name'])})" if len(both) else "")
        + f", and on {len(only)} others."
    )
    shown = read_section(subject, snippets, readout, shown_heads(table, first))
    return (section, sides_section(subject, table, float(readout.log_odds.mean())), shown), answer


def read_section(
    subject: Subject,
    snippets: probe.data.Dataset,
    readout: Readout,
    heads: list[tuple[int, int]],
) -> probe.Section:
    """What was read of each snippet, and where the heads look from its pronoun."""
    import pandas as pd

    from probe.causal.prompts import first_of, looks, words_of

    named = {item.item: item.tags["right"] for item in snippets.items}
    units = {unit.item: unit for unit in readout.units}
    prompts = pd.DataFrame(
        {
            "antecedent": [f"the {named[item]} name" for item in units],
            "prompt": list(units),
            "correct": [0.5 if value == 0 else float(value > 0) for value in readout.log_odds],
            "log-odds, nats": readout.log_odds,
        }
    ).sort_values("antecedent", kind="stable", ignore_index=True)
    shown = [units[item] for item in first_of(prompts, "antecedent", PROMPTS)]
    return probe.Section(
        "What was read",
        (),
        (
            probe.Table("read", prompts, "Each snippet, and what the readout says.", digits=2, shown=False),
            probe.Table(
                "read_tokens",
                looks(subject, shown, heads, words_of(subject, snippets.texts, shown)),
                "Tokens of some, with where heads look from the pronoun.",
                shown=False,
            ),
            probe.Asked(
                "read_prompts",
                probe.Prompts("read", "read_tokens", f"The first ones, right where the readout is. {CHOSEN}"),
                "antecedent",
            ),
        ),
    )


def readout_section(subject: Subject, readout: Readout) -> probe.Section:
    """How well the antecedent is read from the hidden states."""
    import pandas as pd

    rows = [
        ("linear readout", readout.accuracy, readout.low, readout.high),
        (f"rule: {readout.rival}", readout.rival_accuracy, float("nan"), float("nan")),
        ("readout minus rule, paired", readout.more, readout.more_low, readout.more_high),
    ]
    table = pd.DataFrame(rows, columns=["what", "accuracy", "low", "high"])
    text = (
        f"{subject.name} has no head for words, so it cannot be asked. A logistic regression reads which of the two "
        f"names is meant from the states after layer {readout.layer}: of pronoun and name, their product, their "
        "distance and the name itself. Each snippet is read by one that was trained without its page."
    )
    why = () if readout.reason is None else (f"Heads are untestable here: {readout.reason}.",)
    caption = f"n = {len(readout.units)} snippets; intervals over pages."
    return probe.Section("A linear readout", (text, *why), (probe.Table("readout", table, caption, digits=2),))


def averaging_section(subject: Subject, looks: Evidence, seed: int) -> probe.Section:
    """Whether the mean over heads shows what one head does."""
    from probe.scores.averaged import ALL, beside_the_best_head

    table = beside_the_best_head(subject, looks, seed=seed)
    head, last = table.iloc[0], table[table["attention"] == f"layer {subject.n_layers - 1}"].iloc[0]
    layers = table[table["attention"].str.startswith("layer")]
    best, whole = layers.loc[layers["accuracy"].idxmax()], table[table["attention"] == ALL].iloc[0]
    hides = best["less_low"] > 0

    def said(row: pd.Series) -> str:
        return f"{row['accuracy']:.2f} [{row['low']:.2f} to {row['high']:.2f}]"

    return probe.Section(
        "Does averaging hide the head?",
        (
            f"{head['attention'].capitalize()}, chosen on the half that picks, is right in {said(head)} of "
            f"{head['n_units']} held-out snippets. The attention of the last layer, averaged over its heads, in "
            f"{said(last)}; that of the best layer ({best['attention']}) in {said(best)}; that of all heads of all "
            f"layers in {said(whole)}.",
            f"{'Averaging hides it' if hides else 'That averaging hides it was not shown'}: even the best layer's "
            f"average is right {best['less']:.2f} [{best['less_low']:.2f} to {best['less_high']:.2f}] less often, "
            "snippet by snippet."
            + ("" if hides else " The interval reaches zero, and the best of the layers was chosen after the fact."),
        ),
        (
            probe.Plot(
                "averaged_figure",
                "averaged",
                "bars",
                "attention",
                "accuracy",
                "Accuracy on GAP (measurement half) of one head and of averages. Bars: 95 % intervals over pages.",
                low="low",
                high="high",
                marks={"a fair guess": 0.5},
            ),
            probe.Table("averaged", table, "less: how much less often right than the head, paired.", digits=2),
        ),
    )
