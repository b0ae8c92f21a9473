"""The common half of studies of heads: measure, judge, choose example prompts, put the answer in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from probe import stats
from probe.causal.leg import Causal
from probe.causal.verdict import verdicts
from probe.data.texts import Dataset
from probe.runner.legs import causal_method, causal_table, gate_of, outcome
from probe.runner.results import Example, Result
from probe.scores.evidence import ALPHA, MOST_PICKED, RANDOM_COPIES, Evidence, evidence
from probe.scores.rivals import DESCRIBED
from probe.subject import Subject
from probe.targets import Targets, Unit

N_EXAMPLES = 12
GROUPS = {False: 0, True: 100}  # random groups to compare the picked heads with, by whether all heads are measured


def attention_result(
    subject: Subject,
    main: Dataset,
    described: Sequence[Dataset] = (),
    *,
    seed: int,
    asked: Sequence[Dataset] = (),
    full: bool = False,
    notes: Sequence[str] = (),
    show: Sequence[str] = (),
) -> Result:
    """Judge the heads on `main` and on each of `asked`, describe them on `described`, gather what a report shows.

    asked: data sets with questions, where `main` has none. full: measure every head's effect exactly. show: items that
    must be among the examples if they can be measured; the rest are spread over clusters.
    """
    targets = subject.bind(main)
    bound = [targets, *(subject.bind(d) for d in asked)]
    judged = [verdicts(subject, t, full=full, groups=GROUPS[full], seed=seed) for t in bound]
    tested = judged[0].attention
    rest = [(d, subject.bind(d)) for d in described]
    more = [evidence(subject, t, seed=seed) for _, t in rest]
    chosen = choose_examples(targets, tested.measurement, show)
    texts = {i.item: i for i in main.items}
    examples = tuple(_example(subject, texts[u.item].text, u, dict(getattr(texts[u.item], "tags", {}))) for u in chosen)
    excluded = {t.phenomenon: t.exclusions for t in (*bound, *(t for _, t in rest)) if t.excluded}
    return Result(
        answer=" ".join([answer(tested, subject), *(outcome(v, subject) for v in judged if v.causal.reason is None)]),
        heads=pd.concat([*(v.attention.heads for v in judged), *(e.heads for e in more)], ignore_index=True),
        rivals=pd.concat([v.attention.rivals for v in judged], ignore_index=True),
        examples=examples,
        rows=example_rows(subject, chosen),
        patch=example_effects(targets, chosen, judged[0].causal),
        method=(*method(tested), *(causal_method(full) if any(v.causal.reason is None for v in judged) else ())),
        notes=(*notes, *_power_note(tested), *_sink_note(targets)),
        excluded=excluded,
        data=(main, *asked, *described),
        causal=causal_table(judged),
        gates={v.attention.measured.targets.phenomenon: gate_of(v.causal) for v in judged},
    )


def answer(found: Evidence, subject: Subject) -> str:
    """The question's answer in one sentence, with its number and interval.

    The head it names is the best of the *selection* half: the best of the half that tests would look better than it is.
    """
    table, targets = found.heads, found.measured.targets
    passed = table[table["passed"]].sort_values("selection_value", ascending=False, kind="stable")
    first, n_tested = table.iloc[0], int(table["picked"].sum())
    on = f"{first['n_units']} held-out prompts from {first['n_clusters']} clusters of {targets.dataset}"
    rival = f"the best rival rule ({first['best_rival']}) has {first['best_rival_value']:.2f}"
    if passed.empty:
        none = f"No head of {subject.name} was shown to look at the right candidate"
        return f"{none}: {_closest(table)} on {on}; {rival}."
    best = passed.iloc[0]
    return (
        f"{len(passed)} of the {n_tested} heads tested ({len(table)} in all) in {subject.name} do, better than every "
        f"rival rule: {_name(best)}, the best on the half of the data that picks, looks at the right candidate with an "
        f"accuracy of {_number(best)} on {on}; {rival}."
    )


def method(found: Evidence) -> tuple[str, ...]:
    """How it was measured, in paragraphs."""
    targets = found.measured.targets
    rules = "; ".join(f"{name}: {DESCRIBED[name]}" for name in (*targets.rivals, "chance"))
    return (
        "A head is right on a prompt if, from the query word (its pieces averaged), the target's tokens together get "
        "more attention than each other candidate's; a tie counts as a fair share. Accuracy is the mean over prompts.",
        f"Clusters were split in two at random. On the selection half at most {MOST_PICKED} heads that beat the rivals "
        "were picked; everything shown as a value was measured on the other half. A picked head passes if it beats "
        "every rival there (sign-flip test on clusters, each weighted by its prompts; the largest p of the rivals, "
        f"Holm-corrected over the picked heads, below {ALPHA}) and its value exceeds the best head of {RANDOM_COPIES} "
        "randomly initialised copies.",
        f"Rivals, scored in the same way: {rules}.",
        "Intervals are 95% BCa bootstrap intervals over clusters (with 20 clusters they cover nearer 91%). q is "
        "Benjamini-Hochberg's over all heads (t-tests on clusters) and exploratory. Word accuracy asks for more: the "
        "most attended of all other words must be one of the target's. Entropy is in nats.",
        "That is the attention leg of the evidence. Attention by itself explains nothing: whether the model's answer "
        "depends on a head is the causal leg's question.",
    )


def choose_examples(targets: Targets, measurement: npt.NDArray[np.bool_], show: Sequence[str]) -> list[Unit]:
    """The items asked for, then minimal pairs of held-out prompts spread evenly over the clusters."""
    units = {u.item: u for u in targets.units}
    chosen = [units[name] for name in show if name in units]
    held = [u for u, m in zip(targets.units, measurement, strict=True) if m and u not in chosen]
    by_cluster: dict[str, list[Unit]] = {}
    for unit in held:
        by_cluster.setdefault(unit.cluster, []).append(unit)
    clusters = sorted(by_cluster)
    n = max(0, N_EXAMPLES - len(chosen))
    pairs = [clusters[i] for i in np.linspace(0, len(clusters) - 1, min(len(clusters), (n + 1) // 2)).astype(int)]
    spread = [u for c in dict.fromkeys(pairs) for u in by_cluster[c][:2]]
    return [*chosen, *spread][:N_EXAMPLES]


def example_rows(subject: Subject, units: Sequence[Unit]) -> npt.NDArray[np.float32]:
    """Attention from each unit's query, its pieces averaged: (example, layer, head, key), NaN past the prompt."""
    longest = max(len(u.ids) for u in units)
    rows = np.full((len(units), subject.n_layers, subject.n_heads, longest), np.nan, dtype=np.float32)
    for i, unit in enumerate(units):
        for _, seen in subject.captured([unit.ids], ["pattern"], rows=[unit.rows[0].query], batch_size=1):
            layers = torch.stack([seen["pattern", layer][0].mean(1) for layer in range(subject.n_layers)])
            rows[i, :, :, : len(unit.ids)] = layers.float().cpu().numpy()
    return rows


def example_effects(targets: Targets, units: Sequence[Unit], leg: Causal) -> npt.NDArray[np.float32] | None:
    """Nats that each unit's answer loses when a head is patched from its minimal pair: (example, layer, head), NaN
    where that was not measured; None where it was of no head.
    """
    if leg.effects is None or "patch" not in leg.effects:
        return None
    values = leg.effects["patch"]  # (layer, head, unit)
    place = {targets.units[number].item: column for column, number in enumerate(leg.units)}
    effects = np.full((len(units), *values.shape[:2]), np.nan, dtype=np.float32)
    for number, unit in enumerate(units):
        if unit.item in place:
            effects[number] = values[:, :, place[unit.item]]
    return effects


def _example(subject: Subject, text: str, unit: Unit, tags: dict[str, str]) -> Example:
    row = unit.rows[0]
    return Example(unit.item, unit.cluster, subject.encode(text).shown, row.query, row.target, row.foils, tags)


def _closest(table: pd.DataFrame) -> str:
    """What came of the heads that were picked, none of which passed."""
    picked = table[table["picked"]].sort_values("selection_value", ascending=False, kind="stable")
    if picked.empty:
        return f"none of its {len(table)} heads beat the rivals on the half of the data that picks"
    best = picked.iloc[0]
    above = "above" if best["value"] > best["best_rival_value"] else "not above"
    return (
        f"of {len(table)} heads {len(picked)} were tested and none passed; {_name(best)}, the best on the half that "
        f"picks, has an accuracy of {_number(best)} ({above} every rival, Holm-corrected p {best['p_holm']:.2g})"
    )


def _sink_note(targets: Targets) -> list[str]:
    """A caveat where candidates stand on position 0, which attracts attention of its own."""
    on_first = sum(any(0 in c for r in u.rows for c in (r.target, *r.foils)) for u in targets.units)
    if not on_first:
        return []
    return [
        f"In {on_first} of {len(targets.units)} prompts a candidate holds the prompt's first token, where idle heads "
        "rest their attention (no special token stands before it). That adds noise to every head; the rival rule "
        "'first' shows what it can gain."
    ]


def _power_note(found: Evidence) -> list[str]:
    """A caveat where there are too few clusters for any head to pass."""
    n, picked = int(found.heads["n_clusters"].iloc[0]), int(found.heads["picked"].sum())
    least = stats.smallest_p(n, max(picked, 1))
    if least < ALPHA:
        return []
    return [
        f"No head could have passed: with {n} clusters in the measurement half and {picked} heads tested, the smallest "
        f"corrected p possible is {least:.2g}. Forty clusters in all make the test a fair one."
    ]


def _name(row: pd.Series) -> str:
    return f"layer {row['layer']} head {row['head']}"


def _number(row: pd.Series) -> str:
    return f"{row['value']:.2f} [95% interval {row['low']:.2f} to {row['high']:.2f}]"
