"""Retrieval heads: which heads look at what the model is about to write, and is it because they were asked to?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

    from probe.causal.calibrated import Calibrated
    from probe.causal.masking import Masked
    from probe.causal.retrieval import Retrieved
    from probe.causal.success import Success
    from probe.data.texts import Dataset
    from probe.subject import Subject

LISTS = {"quick": 16, "full": 48}
SIZES: dict[str, dict[int, tuple[int, ...]]] = {
    "quick": {5: (0, 1, 2, 3, 4)},
    "full": {5: (0, 1, 2, 3, 4), 10: (0, 5, 9)},
}
CALIBRATED = {"quick": 3, "full": 20}  # lists whose documents are replaced in turn
MASKS = {"quick": ((10,), 4, 10), "full": ((5, 20), 40, 50)}  # heads, random groups, questions
TOP = 10
SHOWN = 4
PROMPTS = 4  # lists whose prompts are shown
RETRIEVES = 0.1  # Wu et al. 2024

Head = tuple[int, int]


class Seen(NamedTuple):
    """What heads did on the lists. own, forced, absent: `probe.causal.retrieval`; absent_own: the model's own answers
    under a name that is not there. correct: forced choice, a row a question, in the order of `forced`. held: which of
    those questions choose no heads. by_score, by_value: heads chosen by Wu's score and by the value step. prompts: the
    questions held among five facts; tokens: those of a few, with the attention of the first heads by value step.
    """

    own: Retrieved
    absent_own: Retrieved
    forced: Retrieved
    absent: Retrieved
    correct: pd.DataFrame
    held: npt.NDArray[np.bool_]
    by_score: list[Head]
    by_value: list[Head]
    prompts: pd.DataFrame
    tokens: pd.DataFrame


@probe.study(models=("smollm2",))
def retrieval(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Which heads fetch an answer from the prompt, and does its place matter?

    Lists of facts, one of them asked for; heads are scored while the answer is written.
    """
    from probe.causal.calibrated import calibrated
    from probe.causal.lookups import facts, lookups
    from probe.causal.success import success

    sets = {
        n: facts(subject, n, lists=LISTS[profile], indices=indices, seed=seed) for n, indices in SIZES[profile].items()
    }
    seen = watch(subject, sets, profile, seed)
    at = seen.correct["n"] * 100 + seen.correct["index"]  # an index of a list of five is not that of a list of ten
    right, lists = list(seen.correct["correct"]), list(seen.correct["list"])
    found = success(seen.forced.mass, right, list(at), lists, seen.held, seed=seed)
    places = calibrated(subject, lookups(subject, facts(subject, 5, lists=CALIBRATED[profile], seed=seed + 1)))
    masks = without(subject, seen, sets[5], profile, seed)
    return probe.Findings(
        answer=answer(subject, seen, masks),
        sections=(
            score_section(seen),
            key_section(seen, seed),
            place_section(seen, seed),
            success_section(seen, found),
            calibrated_section(places, seen, seed),
            mask_section(masks),
        ),
        method=(
            "Retrieval score (Wu et al. 2024): of the different tokens that repeat the fact from the value asked for "
            "to the end of its sentence, the share written at a step where the head's largest weight lies on that same "
            "token in that fact; the model's own greedy text, answers that begin with the value alone; the mean over "
            "lengths and indices of the mean at each. The value step "
            "counts the value's tokens only. Forced: the fact's text is written for the model, and every question "
            "counts. Under an absent name the same text is forced after a question about someone who is not in the "
            "list.",
            f"The counts and the table of heads are over all lists. Heads that are followed further are chosen on half "
            f"of them and measured on the other half. A head counts from {RETRIEVES} on, as in the paper; with fewer "
            "than 20 answers, or fewer than three depths, the score is untestable.",
            "Calibrated attention (Hsieh et al. 2024) is the weight per token on a fact minus that on a dummy of as "
            "many tokens in its place. Masked heads have their mean output; random groups are matched one by one on "
            "the length of what they write.",
        ),
        notes=(
            "One small model, short lists: what holds here need not hold for larger ones.",
            "The retrieval score describes where heads look while text is copied; what the answer loses without them "
            "is measured apart.",
        ),
        data=tuple(sets.values()),
    )


def watch(subject: Subject, sets: dict[int, Dataset], profile: str, seed: int) -> Seen:
    """Every head on every list, and the heads chosen on half of them."""
    import pandas as pd

    from probe.causal import by_index
    from probe.causal.lookups import facts, lookups
    from probe.causal.prompts import asked_for, tokens
    from probe.causal.retrieval import forced, generated
    from probe.causal.sweep import highest

    asked = [one for dataset in sets.values() for one in lookups(subject, dataset)]
    everyone = {
        n: lookups(subject, facts(subject, n, lists=LISTS[profile], absent=True, seed=seed)) for n in SIZES[profile]
    }
    nobody = [one for n, indices in SIZES[profile].items() for one in everyone[n] if one.index in indices]
    own, text = generated(subject, asked), forced(subject, asked)
    answers = pd.concat([by_index.answers(subject, dataset) for dataset in sets.values()], ignore_index=True)
    correct = answers.set_index(["n", "item"]).loc[list(zip(text.table["n"], text.table["item"], strict=True))]
    names = sorted(set(text.table["list"]))
    held = text.table["list"].isin(names[1::2]).to_numpy()
    choosing = own.table["list"].isin(names[::2]).to_numpy() & own.found
    most = max(TOP, *MASKS[profile][0])
    ranked = [
        highest((own.only(choosing) if choosing.any() else text.only(~held)).by_place(name), most)
        for name in ("share", "value")
    ]
    nobody_own = generated(subject, [one for each in everyone.values() for one in each])
    nobody_text = forced(subject, nobody)
    correct = correct.reset_index()
    fives = correct[held & (correct["n"] == 5).to_numpy()]
    some = fives["item"][fives["list"].isin(names[1::2][:PROMPTS])]
    read = tokens(subject, sets[5], list(some), ranked[1][:SHOWN])
    return Seen(own, nobody_own, text, nobody_text, correct, held, *ranked, asked_for(fives, sets[5]), read)


def without(subject: Subject, seen: Seen, dataset: Dataset, profile: str, seed: int) -> list[tuple[str, Masked]]:
    """How heads were chosen, and what is answered without them, on lists that chose none."""
    from probe.causal.controls import output_norms
    from probe.causal.masking import masked

    sizes, groups, questions = MASKS[profile]
    units = subject.bind(dataset).units
    names = sorted({u.cluster for u in units})
    held = [u for u in units if u.cluster in names[1::2]]
    held = held[:: max(1, len(held) // questions)][:questions]  # of many lists
    norms = output_norms(subject, held)
    return [
        (f"{k} by {chosen}", masked(subject, held, heads[:k], norms, groups=groups, seed=seed))
        for k in sizes
        for chosen, heads in (("retrieval score", seen.by_score), ("value step", seen.by_value))
    ]


def answer(subject: Subject, seen: Seen, masks: list[tuple[str, Masked]]) -> str:
    """The question's answer in one sentence, with its numbers."""
    import numpy as np

    from probe.causal.sweep import highest

    if (reason := seen.own.untestable()) is not None:
        return f"Untestable in {subject.name}: {reason}."
    said = []
    for what in ("share", "value"):
        score, text, nobody = seen.own.score(what), seen.forced.by_place(what), seen.absent.by_place(what)
        (best,) = highest(score, 1)
        said.append(
            f"{int((score >= RETRIEVES).sum())} {{}}, led by {best[0]}.{best[1]} with {score[best]:.2f} (in forced "
            f"text {text[best]:.2f}, and {nobody[best]:.2f} after a question about someone absent)"
        )
    name, last = masks[-1]
    plain, lost, random = last.accuracy
    nats, theirs = last.nats
    limit = float(np.percentile(theirs, 95))
    verdict = "more" if nats > limit else "not shown to be more"
    return (
        f"Of {score.size} heads in {subject.name}, {said[0].format(f'have a retrieval score of {RETRIEVES} or more')}; "
        f"{said[1].format('look as often at the value itself when it is written')}; without the {name} the share of "
        f"right answers is {lost:.2f} instead of {plain:.2f}, without random heads that write as much "
        f"{np.median(random):.2f} ({random.min():.2f} to {random.max():.2f} in {len(random)} groups; "
        f"{last.correct.shape[1]} questions); they cost the answer {nats:.2f} nats, {verdict} than the 95th percentile "
        f"of these groups ({limit:.2f})."
    )


def score_section(seen: Seen) -> probe.Section:
    """The retrieval score and its variants."""
    from probe.causal.fetching import counted, variants

    every = variants(seen.own, seen.forced, seen.absent_own, seen.absent)
    best = every.sort_values("value step", ascending=False, kind="stable").head(TOP)
    best.insert(0, "which", head_names(zip(best["layer"], best["head"], strict=True)))
    best = best.drop(columns=["layer", "head", "score, absent name", "value step, absent name"])
    found, nobody = seen.own.found, seen.absent_own.found
    reasons = {"": seen.own.untestable(), "under an absent name, ": seen.absent_own.untestable()}
    return probe.Section(
        "Who looks at what is written",
        (
            f"The model's own answer began with the value in {int(found.sum())} of {len(found)} questions; under an "
            f"absent name it named some value of the list in {int(nobody.sum())} of {len(nobody)}.",
            *(f"Untestable {which}for {reason}." for which, reason in reasons.items() if reason),
        ),
        (
            probe.Table(
                "counts", counted(every), f"Heads that score {RETRIEVES} or more, by what is measured.", digits=2
            ),
            probe.Table(
                "best",
                best.rename(columns={"which": "head"}),
                f"The {TOP} heads with the highest value step.",
                digits=2,
            ),
            probe.Table("heads", every, "Every head.", shown=False),
            probe.Plot(
                "score_and_value",
                "heads",
                "points",
                "score",
                "value step",
                "Each head: its retrieval score, and how often it looks at the value when the value is written.",
                marks={f"{RETRIEVES}": RETRIEVES},
                x_label="retrieval score",
                y_label="value step",
            ),
        ),
    )


def key_section(seen: Seen, seed: int) -> probe.Section:
    """What the question adds to where a head looks."""
    import pandas as pd

    from probe.causal.retrieval import key_effect

    effect = key_effect(seen.forced.only(seen.held), seen.absent, seen.by_value[:TOP], seed=seed)
    passed = int(((effect["p_holm"] < 0.05) & (effect["difference"] > 0)).sum())
    effect["head"] = head_names(zip(effect["layer"], effect["head"], strict=True))
    effect = effect.drop(columns="layer")
    parts = [
        effect[["head"]].assign(share=effect[which], question=label)
        for which, label in (("asked", "name in the list"), ("absent", "absent name"))
    ]
    return probe.Section(
        "Because they were asked?",
        (
            f"The same text forced on the model, after the question and after one about an absent name, for the {TOP} "
            "heads that half of the lists chose by the value step. Those that look at the value more often when it is "
            f"asked for: {passed} (sign-flip test over the other lists, Holm-corrected).",
        ),
        (
            probe.Table("key_effect", effect, "Value step, forced: with the name asked for, and without it."),
            probe.Table("key_bars", pd.concat(parts, ignore_index=True), "The same.", shown=False),
            probe.Plot(
                "key_effect_bars",
                "key_bars",
                "bars",
                "head",
                "share",
                "How often the value gets the head's largest weight where it is to be written.",
                by="question",
                x_label="head",
                y_label="value step",
            ),
        ),
    )


def place_section(seen: Seen, seed: int) -> probe.Section:
    """Do different places have different heads?"""
    from probe.causal.by_index import curve, curves
    from probe.causal.fetching import by_place, every_place
    from probe.runner.over_index import Panel, accuracy, over_index

    five = seen.held & (seen.forced.table["n"] == 5).to_numpy()
    fives, best = seen.forced.only(five), seen.by_value[:SHOWN]
    places = by_place(seen.forced, 5, TOP).rename(
        columns={"heads": f"heads from {RETRIEVES} on", "shared": f"of its best {TOP}, also of index 0's"}
    )
    looks = [
        Panel(what, curves(fives.table, fives.of(what, best), seed=seed), f"{about}, by index.", f"{about}.", unit)
        for what, about, unit in (
            ("value", "How often the value gets the head's largest weight when it is written", "value step"),
            ("first", "Weight on the value, before it is written", "weight"),
            ("mass", "Weight on the fact, while it is written", "weight"),
        )
    ]
    return probe.Section(
        "By place",
        ("Forced text, so that every place has as many answers as any other; lines are of lists that chose no heads.",),
        (
            probe.Table("places", places, "The value step by index, five facts.", digits=2),
            probe.Table("every_place", every_place(seen.forced.only(seen.held)), "Every head, by index.", shown=False),
            *over_index(
                (accuracy(curve(seen.correct[five], "correct", seed=seed), 5), *looks),
                seen.prompts,
                seen.tokens,
                caption=f"Answers, and the {SHOWN} heads with the highest value step on the other lists, by the index "
                f"of the fact asked for; {seen.prompts['prompt'].nunique()} questions. Intervals are over lists.",
                shown=f"Prompts of the first {PROMPTS} of these lists, right or wrong, up to where the value is to "
                "follow, and where heads look from there. Probabilities are among the values in the list.",
            ),
        ),
    )


def success_section(seen: Seen, found: Success) -> probe.Section:
    """Does looking at the fact go with a right answer?"""
    from probe.causal.success import among, sorted_out, told

    table = found.within.assign(pooled=found.pooled.ravel())
    mine = among(table, seen.by_value[:TOP])
    mine.insert(0, "which", head_names(zip(mine["layer"], mine["head"], strict=True)))
    shown = mine.drop(columns=["layer", "head", "p"]).rename(
        columns={"which": "head", "auc": "AUC within an index", "p_holm": "Holm p", "pooled": "AUC pooled"}
    )
    best = table["pooled"].max()
    pooled = f" Pooled over indices the best has {best:.2f}." if best > 0 else ""
    return probe.Section(
        "Does it go with right answers?",
        (
            "How well the weight on the fact, while it is written, tells right answers (forced choice) from wrong ones "
            f"on lists that chose no heads. The index alone has an AUC of {found.position:.2f}.{pooled}",
            f"{told(found.within, 'weight on the fact')} Of the {TOP} that half of the lists chose by the value step "
            f"(Holm-corrected over these): {sorted_out(mine)}.",
        ),
        (
            probe.Table("auc", shown, "AUC of success; .5 says nothing. Pooled, telling the index helps.", digits=2),
            probe.Table("auc_of_all", table, "The same of every head.", shown=False),
        ),
    )


def calibrated_section(places: Calibrated, seen: Seen, seed: int) -> probe.Section:
    """Is the fact asked for the one with most attention, before and after what its place gets is taken off?"""
    import pandas as pd

    from probe.causal.by_index import curve

    asked = places.table[["list", "n", "phrasing", "index"]]
    lines = [
        curve(asked.assign(found=places.finds(weights, heads)), "found", seed=seed).assign(heads=which, attention=label)
        for which, heads in (("all heads", None), (f"{TOP} by value step", seen.by_value[:TOP]))
        for label, weights in (("raw", places.raw), ("calibrated", places.difference))
    ]
    drawn = pd.concat(lines, ignore_index=True)
    wide = drawn.pivot(index=["heads", "attention"], columns="index", values="value").add_prefix("index ")
    wide["mean"] = wide.mean(axis=1)
    return probe.Section(
        "What its place would get anyway",
        (
            "Share of questions in which the fact asked for has more weight per token than any other, by its index "
            f"({drawn['lists'].iloc[0]} lists of five, chance .2). Calibrated: minus the weight on a dummy there.",
        ),
        (
            probe.Table("calibrated", wide.reset_index(), "How often attention points to the right fact.", digits=2),
            probe.Table("calibrated_by_index", drawn, "The same with intervals.", shown=False),
            probe.Plot(
                "calibrated_lines",
                "calibrated_by_index",
                "lines",
                "index",
                "value",
                "Share of questions in which the fact asked for has most weight per token.",
                by="attention",
                panel="heads",
                low="low",
                high="high",
                marks={"chance": 0.2},
                x_label="index of the fact asked for",
                y_label="share of questions",
            ),
        ),
    )


def mask_section(masks: list[tuple[str, Masked]]) -> probe.Section:
    """What is answered without them."""
    from probe.causal.masking import compared

    sets, questions = masks[0][1].correct.shape
    return probe.Section(
        "Without them",
        (
            f"Forced choice among five values, {questions} questions on lists that chose no heads; {sets - 2} random "
            "groups for each, matched on the length of what the heads write.",
        ),
        (probe.Table("masks", compared(masks), "Answers without groups of heads (z replaced by its mean).", digits=2),),
    )
