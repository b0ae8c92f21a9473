"""The residual stream: what can be read off it after each block, what writes the answer, and what shape it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import probe
from probe.sites import head_names

if TYPE_CHECKING:
    import pandas as pd

    from probe.causal.written import Written
    from probe.data.texts import Dataset
    from probe.subject import Subject


# Probes: items of each template, places of each property, at most so many depths. Words that copying scores look at;
# texts whose shape is measured. Of each task: questions, clusters with minimal pairs, heads compared by either choice.
SIZES = {
    "quick": {"items": 4, "places": 400, "depths": 6, "words": 8, "texts": 6},
    "full": {"items": 8, "places": 1000, "depths": 11, "words": 20, "texts": 12},
}
ASKED = {"quick": {"items": 16, "clusters": 12, "heads": 3}, "full": {"items": 48, "clusters": 32, "heads": 6}}
SHOWN = 6
TOKENS = 48  # of a text whose shape is measured
BENT = 0.01  # nats: a residue from here on is no rounding

METHOD = (
    "Probes are ridge classifiers (a ridge regression for a number) on features of unit variance, trained on four "
    "fifths of the groups (prompts, templates), tested on the rest, five times. Control labels are random but fixed "
    "for each word type (Hewitt and Liang 2019); where the word at the place has few types a probe need only tell "
    "these apart, so the control is easy and selectivity small. Random weights: one copy, freshly initialised. "
    "Intervals: 95 % BCa bootstrap over groups.",
    "Norms and cosines are means over positions but the first, then over texts. A massive activation is larger than "
    "100 and than 1,000 times the median size of a text's numbers (Sun et al. 2024).",
    "The lens applies the final norm and the unembedding to the stream where the answer is read; attribution to each "
    "of its parts, with the norm's scale frozen.",
    "Direct and total effects are of one change: a head's z patched from the minimal pair's prompt. Direct: what it "
    "writes into the answer changes; total: the answer changes, when the model runs on. Heads are chosen on every "
    "other cluster and measured on the rest.",
    "The copying score looks at one token alone, through a head's values, output projection, final norm and "
    "unembedding: of the logits above their mean, the share on that token, times 2, minus 1 (Olsson et al. 2022).",
)
NOTES = (
    "What a probe reads off need not be what the model uses; what it does not read off may be there, but on no line.",
    "Attribution counts what is written into the answer directly; a head that only feeds others gets nothing for it.",
)


@probe.study(models=("smollm2", "tiny", "minilm"))
def residual(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """What does the residual stream hold after each block, and which component put the answer there?

    Linear probes, the logit lens, direct logit attribution beside causal effects, norms and geometry, and what heads
    write. A model without a language-model head gets the probes and the geometry.
    """
    from probe.causal.written import written_answers
    from probe.scores.properties import properties
    from probe.scores.readable import probed, spread, summary

    size = SIZES[profile]
    props = properties(subject, items=size["items"], places=size["places"], seed=seed)
    found = probed(subject, props, layers=spread(subject, size["depths"]), seed=seed)
    table = summary(found, props, seed=seed)
    sections = [read_section(found, table), number_section(found)]
    asked, wrote = {}, None
    if subject.has_logits and subject.is_causal:
        asked = tasks(subject, seed)
        wrote = written_answers(subject, asked, **ASKED[profile], seed=seed)
        sections += [lens_section(wrote), parts_section(wrote), signs_section(wrote)]
        sections += [writes_section(subject, wrote, size, seed), asked_section(subject, wrote, asked, profile)]
    sections.append(shape_section(subject, size, seed))
    return probe.Findings(
        answer=answer(subject, table, wrote),
        sections=tuple(sections),
        method=METHOD if wrote is not None else METHOD[:2],
        notes=NOTES if wrote is not None else NOTES[:1],
        data=tuple(asked.values()),
    )


def tasks(subject: Subject, seed: int) -> dict[str, Dataset]:
    """What the model is asked, by the name of the task."""
    from probe.data import language

    if subject.language == "synthetic":
        return {task: language.dataset(task, seed, 4) for task in language.tasks()}
    return {"names": probe.data.asked_names(2), "agreement": probe.data.attractors()}


def answer(subject: Subject, table: pd.DataFrame, wrote: Written | None) -> str:
    """The question's answer in one or a few sentences."""
    from probe.scores.readable import in_words

    read = "; ".join(in_words(row) for _, row in table[table["property"] != "position"].iterrows())
    text = (
        f"In {subject.name}, more can be read off the stream than words, places and random weights tell, by blocks "
        f"passed (of {subject.n_layers}): {read}."
    )
    return text if wrote is None else f"{text} {wrote.in_words()}"


def read_section(found: pd.DataFrame, table: pd.DataFrame) -> probe.Section:
    """Probes by depth."""
    import pandas as pd

    from probe.scores.readable import TRAINED

    drawn = found[(found["blocks"] >= 0) & (found["property"] != "position")]
    control = drawn[drawn["weights"] == TRAINED]
    control = control.assign(weights="control labels", **dict.fromkeys(("score", "low", "high"), control["control"]))
    table_of = pd.concat([drawn, control])[["property", "weights", "blocks", "score", "low", "high"]]
    names = {"at": "best after", "most_from": "most from"}
    whole = {c: ["–" if v != v else f"{v:.0f}" for v in table[c]] for c in ("from", "most_from")}  # NaN: none
    baselines = ["majority", "place", "embedding", "random"]
    shown = ["property", *baselines, "best", "low", "high", "at", "above", "from", "most_from"]
    others = ["property", "best", "control", "selectivity", "shuffled", "types", "groups", "places"]
    return probe.Section(
        "What can be read, and from where on",
        (
            "Properties that the word at the place does not tell by itself: where it stands among random words, which "
            "word stood before it, at a pronoun whether the first or the second candidate is its antecedent, and what "
            "name that has, before a verb its subject's number, between brackets how many are open. Score: accuracy "
            "on templates or prompts not trained on; of position as a number, R².",
        ),
        (
            probe.Table(
                "readable",
                table.assign(**whole)[shown].rename(columns=names),
                "Baselines: majority label; place (knows the token's position alone); embedding (the token's own); "
                "random (the best of random weights). Best: trained, with its interval and depth. Above: at how many "
                f"of {table['depths'].max()} depths its interval lies above all of these (not corrected for their "
                "number). From: the first number of blocks passed from which on it always does (– is none). Most from: "
                "the first with 0.9 of the best one's lead.",
                digits=2,
            ),
            probe.Table("controls", table[others].rename(columns=names), "Controls at the best depth.", digits=2),
            probe.Table("probes", found, "Every probe.", shown=False),
            probe.Table("drawn", table_of, "As drawn.", shown=False),
            lines(
                "readable_by_block", "drawn", "score", "Accuracy on held-out groups.", by="weights", panel="property"
            ),
        ),
    )


def number_section(found: pd.DataFrame) -> probe.Section:
    """Position as a number."""
    from probe.scores.readable import TRAINED

    table = found[(found["property"] == "position") & (found["blocks"] >= 0)]
    shown = ["weights", "blocks", "score", "low", "high", "error", "error_low", "error_high", "control", "shuffled"]
    trained = table[table["weights"] == TRAINED]
    best = trained.loc[trained["error"].idxmin()]
    return probe.Section(
        "Position as a number",
        (
            f"A ridge regression on the word's number in its text is off by {best['error']:.1f} words on average at "
            f"best (after {best['blocks']} blocks). Random weights show what the architecture gives away by itself.",
        ),
        (
            probe.Table(
                "position",
                table[shown].rename(columns={"score": "R²"}),
                "R² and mean absolute error (words), each with its 95 % interval over prompts; R² of control labels "
                "and of shuffled ones.",
            ),
            lines("position_error", "position", "error", "Mean absolute error, words.", by="weights", low="error_low"),
        ),
    )


def lens_section(wrote: Written) -> probe.Section:
    """The right answer and its rival by depth."""
    from probe.scores.lens import ahead_from, sides

    first = ahead_from(wrote.lens).rename(columns={"ahead_from": "ahead from", "ahead": "ahead in the end"})
    return probe.Section(
        "What it would answer if it stopped",
        ("A depth of 3.5 lies between attention and MLP of the fourth block.",),
        (
            probe.Table(
                "lens_from",
                first,
                "Ahead from: the first depth at which the right answer is ahead of its rival in more than half of the "
                "questions, by the 95 % interval over clusters (– is none); and the share of questions in the end.",
                digits=2,
            ),
            probe.Table("lens", wrote.lens, "Every depth.", shown=False),
            lines(
                "lens_difference", "lens", "difference", "Logit difference; 95 % intervals.", x="depth", panel="task"
            ),
            probe.Table("lens_sides", sides(wrote.lens), "Both answers, by depth.", shown=False),
            lines(
                "lens_rank",
                "lens_sides",
                "rank",
                "Median rank of the right answer and of its rival among all tokens; 1 is first.",
                x="depth",
                by="answer",
                panel="task",
                low=None,
                log="y",
            ),
        ),
    )


def parts_section(wrote: Written) -> probe.Section:
    """Which components write the answer."""
    parts = wrote.parts
    kinds = parts.pivot_table(index="task", columns="component", values="value", aggfunc="sum", sort=False)
    kinds = kinds.round(3).reset_index().rename_axis(columns=None)
    best = parts.groupby("task", sort=False).head(SHOWN)[["task", "part", "value", "low", "high", "share"]]
    heads = parts[parts["component"] == "head"].sort_values(["layer", "head"], kind="stable")
    residue = parts["residue"].max()
    rest = (
        f"those of a task add up to the model's own difference (largest residue of any question {residue:.1e} nats)."
        if residue < BENT
        else f"up to {residue:.2f} nats of a question's own difference is not among them: the model bends its logits "
        "after it has made them, as a softcap does, so shares are of the bent difference."
    )
    return probe.Section(
        "Which component writes the answer",
        (f"Parts of logit(right) − logit(wrong) at the position that answers; {rest}",),
        (
            probe.Table("kinds", kinds, "All heads, MLPs and biases of a kind together, nats.", digits=2),
            probe.Table(
                "writers",
                best,
                f"The {SHOWN} largest parts of each task, nats; 95 % intervals over clusters.",
                digits=2,
            ),
            probe.Table("parts", parts, "Every part.", shown=False),
            probe.Table("head_parts", heads, "The heads.", shown=False),
            probe.Plot(
                "parts_of_heads", "head_parts", "heat", "head", "layer", "Each head, nats.", value="value", panel="task"
            ),
        ),
    )


def signs_section(wrote: Written) -> probe.Section:
    """Direct beside total effects."""
    signs = wrote.signs.assign(name=head_names(zip(wrote.signs["layer"], wrote.signs["head"], strict=True)))
    counts = signs["signs"].value_counts()
    other = signs[signs["signs"] == "other sign"]
    told = ", ".join(f"{row['name']} ({row['task']})" for _, row in other.iterrows()) or "none"
    columns = ["task", "name", "direct", "direct_low", "direct_high", "total", "total_low", "total_high", "signs"]
    return probe.Section(
        "Written, and needed",
        (
            "A head's own part of the answer beside what the answer loses when the head is patched from the minimal "
            f"pair: {counts.get('same sign', 0)} of {len(signs)} have the same sign in both, "
            f"{counts.get('other sign', 0)} the other ({told}); in the rest an interval holds 0.",
            *(f"{task} has too few minimal pairs that are aligned in these tokens." for task in wrote.unpaired),
        ),
        (
            probe.Table(
                "signs",
                signs[[*columns, "chosen"]].rename(columns={"name": "head"}),
                "Nats, with 95 % intervals over clusters. Chosen: by what it writes, by attribution patching (needed), "
                "or by both.",
                digits=2,
            ),
            probe.Plot(
                "direct_and_total",
                "signs",
                "points",
                "direct",
                "total",
                "Each point is a head: what it writes into the answer, and what the answer loses without it.",
                by="signs",
                panel="task",
                low="total_low",
                high="total_high",
                x_label="direct effect, nats",
                y_label="total effect, nats",
            ),
        ),
    )


def writes_section(subject: Subject, wrote: Written, size: dict[str, int], seed: int) -> probe.Section:
    """Copying scores, and what the main writers write for one prompt, beside random weights."""
    from probe.scores.placement import texts
    from probe.scores.readable import RANDOM, TRAINED, beside_random
    from probe.scores.writes import copying, top_tokens

    words = texts(subject, "random words", n=1, tokens=size["words"] + 1, seed=seed)
    every = beside_random(subject, lambda model: copying(model, words, seed=seed), seed=seed)
    every["name"] = [f"{a:.0f}.{b:.0f}" for a, b in zip(every["layer"], every["head"], strict=True)]
    best = every.sort_values("among", ascending=False, kind="stable").groupby("weights", sort=False).head(SHOWN)
    chance = float(every[every["weights"] == RANDOM]["among"].max())
    above = int((every[every["weights"] == TRAINED]["among_low"] > chance).sum())
    task, prompt = next(iter(wrote.prompts.items()))
    mine = wrote.parts[(wrote.parts["component"] == "head") & (wrote.parts["task"] == task)]
    heads = [(int(row["layer"]), int(row["head"])) for _, row in mine.head(3).iterrows()]
    written = beside_random(subject, lambda model: top_tokens(model, prompt, heads, k=3), seed=seed)
    columns = ["name", "among", "among_low", "among_high", "copying", "first", "rank"]
    return probe.Section(
        "What heads write",
        (
            f"Among {every['tokens'].iloc[0]} random words, {above} of {subject.n_layers * subject.n_heads} heads have "
            f"a copying score whose interval lies above the best of the random weights ({chance:.2f}).",
            f"Below, what the heads that write most of {task} write after “{prompt}”.",
        ),
        (
            probe.Table(
                "copiers",
                best[["weights", *columns]].rename(columns={"name": "head"}),
                f"The {SHOWN} best copiers of the model and of random weights. Among: the copying score with the "
                "tokens looked at as the only rivals, and its 95 % interval over tokens; copying: with the whole "
                "vocabulary. First: share of tokens that get the highest logit of all; rank: their median place.",
                digits=2,
            ),
            probe.Table("copying", every, "Every head.", shown=False),
            probe.Plot(
                "copying_by_layer",
                "copying",
                "points",
                "layer",
                "among",
                "Copying score of every head, among the tokens looked at.",
                by="weights",
                y_label="copying score",
            ),
            probe.Table(
                "top_tokens",
                written[["head", "weights", "looked_at", "weight", "raised", "logit", "lowered", "its logit"]],
                "The tokens that each head raises and lowers most at the position that answers, in nats from the mean "
                "over the vocabulary; the token it looks at most, and with what weight.",
                digits=2,
            ),
        ),
    )


def asked_section(subject: Subject, wrote: Written, asked: dict[str, Dataset], profile: str) -> probe.Section:
    """Some of what was asked, with where the heads look that write most of each answer."""
    from probe.runner.grouped import answers

    parts = wrote.parts[wrote.parts["component"] == "head"]
    most = parts.loc[parts.groupby("task", sort=False)["value"].idxmax()]
    heads = {str(row["task"]): (int(row["layer"]), int(row["head"])) for _, row in most.iterrows()}
    text = "Where the head that writes most of each task's answer looks."
    made = answers(subject, "task", asked, heads, items=ASKED[profile]["items"])
    return probe.Section("What was asked", (text,), made)


def shape_section(subject: Subject, size: dict[str, int], seed: int) -> probe.Section:
    """Norms, massive activations, anisotropy, and one word in two contexts."""
    from probe.data import senses
    from probe.scores.contexts import by_kind, similarity
    from probe.scores.geometry import geometry
    from probe.scores.placement import texts
    from probe.scores.readable import TRAINED, beside_random

    read = texts(subject, "natural text", n=size["texts"], tokens=TOKENS, seed=seed)
    shape = beside_random(subject, lambda model: geometry(model, read, seed=seed), seed=seed)
    own = shape[shape["weights"] == TRAINED]
    times, even = own.loc[own["times"].idxmax()], own.loc[own["alike"].idxmax()]
    uses = senses.synthetic() if subject.language == "synthetic" else senses.english()
    cosines = by_kind(similarity(subject, uses), seed=seed)
    dominant = (
        f"The number that stands out most is {times['value']:.1f} in dimension {times['dimension']}, at position "
        f"{times['position']}, after {times['blocks']} blocks: {times['times']:,.0f} times the median size; it is a "
        f"massive activation in {times['massive']:.0%} of the texts."
    )
    return probe.Section(
        "Norms and geometry",
        (
            f"The stream grows from a mean norm of {own['norm'].iloc[0]:.2f} to {own['norm'].iloc[-1]:.2f}. {dominant} "
            f"Two tokens of different texts have a mean cosine of up to {even['alike']:.2f} (after {even['blocks']} "
            f"blocks), {even['alike_rest']:.2f} without the three largest dimensions.",
        ),
        (
            probe.Table("shape", shape, "Every number, by blocks passed.", shown=False),
            lines("norms", "shape", "norm", f"Mean norm, {len(read)} texts of {TOKENS} tokens.", by="weights", log="y"),
            lines("turns", "shape", "cosine", "Cosine of a block's change with the stream.", by="weights", low=None),
            lines(
                "largest", "shape", "times", "The largest number over the median size.", by="weights", low=None, log="y"
            ),
            lines("alike", "shape", "alike", "Mean cosine of tokens of different texts.", by="weights", low=None),
            probe.Table("contexts", cosines, "One word in two contexts.", shown=False),
            lines("contexts_by_block", "contexts", "cosine", "One word in two contexts: mean cosine.", by="kind"),
        ),
    )


def lines(
    name: str, table: str, y: str, caption: str, *, x: str = "blocks", low: str | None = "low", **more: Any
) -> probe.Plot:
    """Lines over blocks passed, with an interval where there is one."""
    high = None if low is None else low.replace("low", "high")
    return probe.Plot(name, table, "lines", x, y, caption, low=low, high=high, x_label="blocks passed", **more)
