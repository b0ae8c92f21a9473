"""Induction heads of a trained model: found by where they look, confirmed by what copying costs without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    from probe.causal.repeated import Confirmed
    from probe.subject import Subject

HEADS = 8
STRINGS, LOOKERS = 4, 4  # shown, and the heads whose attention is
SIZES = {"quick": (4, 20), "full": (24, 100)}  # strings in each half, random groups


@probe.study(models=("smollm2",))
def induction_heads(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Does a trained model's copying depend on the heads that look like induction heads?

    Strings of random words of the model's own vocabulary come again after gaps of random length.
    """
    from probe.causal.repeated import confirm

    strings, groups = SIZES[profile]
    found = confirm(subject, heads=HEADS, strings=strings, groups=groups, seed=seed, quiet=False)
    return probe.Findings(
        answer=answer(subject, found),
        sections=(score_section(subject, found), cost_section(found), strings_section(subject, found, strings, seed)),
        method=(
            "Prefix matching (Olsson et al. 2022): attention from a word that was there before to the words that "
            "followed its earlier occurrences, mean over a string's queries, then over strings. Heads are picked by it "
            "on one half of the strings; scores and losses shown are those of the other.",
            "Ablation: a head's z is replaced by its mean over all positions of the strings measured. Random groups "
            "have as many heads, each drawn from the 20 that write vectors of the most similar length at words of "
            "later copies; none is one of the heads picked.",
            "Losses are nats per word on a string's words after its first, which nothing tells in advance.",
        ),
        notes=(
            f"Strings are {strings} and {strings}: intervals are over strings, and wide.",
            "A head that looks like an induction head is called one here only where copying costs more without it and "
            "its like than without heads that write as much. What it copies, and through which heads below, is not "
            "shown.",
        ),
    )


def answer(subject: Subject, found: Confirmed) -> str:
    """The question's answer in one sentence."""
    whole = found.cost.iloc[-1]
    names = ", ".join(head_names(found.heads))
    verdict = "It does" if found.passed else "That was not shown"
    more = "more" if found.passed else "not more"
    return (
        f"{verdict}: without the {len(found.heads)} heads of {subject.name} that look most at what followed before "
        f"({names}), each word of a repeated string costs {found.lost:.2f} nats more [95% interval {whole['low']:.2f} "
        f"to {whole['high']:.2f}], {more} than the 95th percentile of {len(found.random)} random groups that write as "
        f"much ({found.limit:.2f}; {int((found.random >= found.lost).sum())} of them cost as much or more); with all "
        f"heads a word costs {found.first:.2f} nats where the string comes first "
        f"and {found.later:.2f} in later copies ({found.n_strings} strings)."
    )


def score_section(subject: Subject, found: Confirmed) -> probe.Section:
    """Where heads look."""
    import numpy as np
    import pandas as pd

    layer, head = np.indices(found.scores.shape)
    table = pd.DataFrame(
        {"layer": layer.ravel(), "head": head.ravel(), "prefix matching": found.scores.ravel()}
    ).assign(picked=[(int(a), int(b)) in found.heads for a, b in zip(layer.ravel(), head.ravel(), strict=True)])
    best = table[table["picked"]].sort_values("prefix matching", ascending=False, kind="stable")
    shown = best.assign(head=head_names(zip(best["layer"], best["head"], strict=True)))
    return probe.Section(
        "Where heads look",
        (
            f"Uniform attention would put {found.chance:.3f} on the words that followed before; "
            f"{int((table['prefix matching'] >= 0.5).sum())} of {len(table)} heads put at least half of theirs there.",
        ),
        (
            probe.Plot(
                "scores_map",
                "scores",
                "heat",
                "head",
                "layer",
                f"Prefix matching of every head of {subject.name}, on the {found.n_strings} strings that did not pick.",
                value="prefix matching",
            ),
            probe.Table("scores", table, "Every head.", shown=False),
            probe.Table("picked", shown[["head", "prefix matching"]], "The heads picked on the other half.", digits=2),
        ),
    )


def cost_section(found: Confirmed) -> probe.Section:
    """What copying costs without them."""
    import pandas as pd

    shown = found.cost.rename(columns={"heads": "of the best heads", "lost": "nats per word"})
    sorted_random = sorted(found.random)
    drawn = pd.DataFrame({"group": range(1, len(sorted_random) + 1), "nats per word": sorted_random})
    return probe.Section(
        "What copying costs without them",
        (
            f"Random groups of {len(found.heads)} heads matched on output norm cost between {min(found.random):.2f} "
            f"and {max(found.random):.2f} nats; 95 % of them less than {found.limit:.2f}.",
        ),
        (
            probe.Table("cost", shown, f"Loss added in later copies; n = {found.n_strings} strings.", digits=2),
            probe.Table("random_groups", drawn, "Random groups, sorted.", shown=False),
            probe.Plot(
                "random_groups_figure",
                "random_groups",
                "points",
                "group",
                "nats per word",
                f"Each of {len(drawn)} random groups, sorted by what it costs, and the heads picked.",
                marks={"the heads picked": found.lost, "95th percentile": found.limit},
                x_label="random group",
                y_label="nats per word of a later copy",
            ),
        ),
    )


def strings_section(subject: Subject, found: Confirmed, strings: int, seed: int) -> probe.Section:
    """Some of the strings, read where the last word but one of their last copy calls for the last."""
    import dataclasses

    import pandas as pd

    from probe.causal.prompts import looks
    from probe.causal.repeated import own_strings
    from probe.scores.induction import induction_targets

    drawn = own_strings(subject, 2 * strings, seed=seed)[strings:]
    rows, units = [], []
    for string, unit in zip(drawn, induction_targets([s.ids for s in drawn]).units, strict=True):
        at = string.copies[-1] + string.size - 2
        row = next(row for row in unit.rows if row.query == (at,))
        ((_, seen),) = subject.captured([string.ids[: at + 1]], ["logits"], batch_size=1)
        p = seen["logits"][0, at].float().softmax(-1)
        wanted, best = string.ids[at + 1], int(p.argmax())
        texts = [subject.tokenizer.decode([i]) for i in (wanted, best)]
        rows.append((unit.item, float(wanted == best), texts[0], float(p[wanted]), texts[1]))
        units.append(dataclasses.replace(unit, ids=string.ids[: at + 1], rows=(row,)))
    prompts = pd.DataFrame(rows, columns=["prompt", "correct", "what followed before", "its probability", "likeliest"])
    shown, heads = units[:STRINGS], list(found.heads[:LOOKERS])
    words = {unit.item: spaced([subject.tokenizer.decode([i]) for i in unit.ids]) for unit in shown}
    return probe.Section(
        "What is copied",
        (
            f"At the end of the last copy, the word that followed before is the likeliest of all in "
            f"{prompts['correct'].mean():.2f} of {len(prompts)} strings.",
        ),
        (
            probe.Table("strings", prompts, "Each string that did not pick heads.", digits=2, shown=False),
            probe.Table("strings_tokens", looks(subject, shown, heads, words), "Tokens.", shown=False),
            probe.Asked(
                "strings_prompts",
                probe.Prompts(
                    "strings",
                    "strings_tokens",
                    "The first ones; target: what followed the same word before. The heads with the highest scores.",
                ),
            ),
        ),
    )


def spaced(words: list[str]) -> list[str]:
    """Words with a space before each, which some tokenizers leave out of a token that is decoded alone."""
    return [word if word.startswith(" ") else f" {word}" for word in words]
