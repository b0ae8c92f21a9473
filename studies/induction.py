"""Induction heads, grown from nothing: one layer against two, step by step."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import TYPE_CHECKING

import probe

if TYPE_CHECKING:
    import pandas as pd

    from probe.models.repeats import Repeated, Repeats
    from probe.scores.growth import Model
    from probe.scores.induction import InductionTest

ZEROED = "all previous-token heads zeroed"
WATCHED = 16  # prompts that every head is read on during training; others are read in the end
# Standard deviation of the first weights (None: PyTorch's own, 1 for embeddings), and steps of training.
QUICK = {"scales": {"GPT-2's scale": (0.02, 600)}, "every": 25}
FULL = {"scales": {"GPT-2's scale": (0.02, 800), "PyTorch's scale": (None, 2400)}, "every": 50}


@probe.study(models=())
def induction(*, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """When do induction heads form, and how many layers do they need?

    Attention-only models of one and two layers learn random strings that come again after gaps of random length.
    """
    import pandas as pd

    from probe.models.repeats import Repeats
    from probe.scores import growth
    from probe.scores.induction import InductionTest

    sizes, n_seeds, prompts = (FULL, 3, 64) if profile == "full" else (QUICK, 1, 32)
    corpus = Repeats()
    drawn = corpus.held_out(WATCHED + prompts)
    watched, test = InductionTest(drawn[:WATCHED]), InductionTest(drawn[WATCHED:])
    seeds = range(seed, seed + n_seeds)
    models = growth.grow_all(corpus, watched, depths=(2, 1), seeds=seeds, **sizes)
    ends, times = growth.final(models, test), growth.crossings(models, watched)
    two = [m for m in models if m.layers == 2]
    without = pd.concat([growth.dependence(m.grown, test).assign(model=m.kind, seed=m.seed) for m in two])
    lost = growth.summary_without(without, two)
    return probe.Findings(
        answer=_answer(ends, times, lost, test),
        sections=(
            _strings(corpus, test),
            _layers_needed(models, ends, test),
            _formation(models, times, sizes["every"]),
            _dependence(without, lost),
        ),
        method=_method(sizes["scales"], corpus),
        notes=(
            "In-context learning is more than induction: one layer, too, learns which symbols a prompt has shown, and "
            "that alone lowers the loss in later copies, towards that of guessing among them.",
            "The copying score of a head 16 wide is low whatever it does: among 64 symbols it raises many with the "
            "right one. How often the right one is raised most is the plainer measure here.",
            "Bands are the lowest and highest seed, not intervals: few seeds have no more to say of the spread.",
        ),
    )


def _answer(ends: pd.DataFrame, times: pd.DataFrame, lost: pd.DataFrame, test: InductionTest) -> str:
    """The question's answer in one sentence, with its numbers."""
    from probe.scores.induction import best_offset

    two = ends[ends["model"].str.startswith("2")]["prefix matching"]
    one = ends[ends["model"].str.startswith("1")]["highest of any head"]
    mass, loss = (lost.set_index("change")[column] for column in ("mass", "loss"))
    reached = int((two >= 0.5).sum())
    when = times.groupby("model", sort=False)["half of that at step"]
    steps = ", ".join(f"{_span(group, 0)} ({str(kind).partition(', ')[2]})" for kind, group in when)
    verdict = "Two" if reached == len(two) and one.max() <= 0.15 else "Two, though not in every training"
    return (
        f"{verdict}: in {reached} of {len(two)} two-layer models the best head puts at least half of its attention on "
        f"what followed earlier copies ({_span(two, 2)}), while no head of as many one-layer models puts more than "
        f"{one.max():.2f} there (best fixed offset: {best_offset(test.targets)[1]:.2f}); the head forms around step "
        f"{steps}, with previous-token heads in the layer below, and without these its mass is {mass[ZEROED]:.2f} "
        f"instead of {mass['nothing']:.2f} and the loss in later copies {loss[ZEROED]:.2f} instead of "
        f"{loss['nothing']:.2f} nats."
    )


def _span(values: pd.Series, digits: int) -> str:
    """The lowest and the highest value, or the only one."""
    low, high = f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _strings(corpus: Repeats, test: InductionTest) -> probe.Section:
    """What the models read."""
    from probe.scores.induction import best_offset

    offset, mass = best_offset(test.targets)
    rows = sum(len(u.rows) for u in test.targets.units)
    return probe.Section(
        "What is learned",
        (
            f"Each prompt is a string of {corpus.sizes[0]} to {corpus.sizes[1]} different symbols out of "
            f"{corpus.symbols}, said again and again after gaps of {corpus.gaps[0]} to {corpus.gaps[1]} other symbols. "
            "The first copy cannot be predicted. A later one can, by whoever finds the earlier copy of the last symbol "
            "and reads what followed it.",
            "Lengths are drawn anew for every prompt and every gap, so the place of the answer has to be found: the "
            f"best fixed offset ({offset}) is right for {mass:.3f} of {rows} queries in {len(test.ids)} held-out "
            "prompts.",
        ),
        (probe.Listing(_shown(corpus.draw(random.Random("shown")), corpus), "One prompt: its copies and its gaps."),),
    )


def _shown(prompt: Repeated, corpus: Repeats) -> str:
    """A prompt's symbols, a line for each copy and each gap."""
    words = corpus.tokenizer.convert_ids_to_tokens(list(prompt.ids))
    cuts = sorted({0, 1, *prompt.copies, *(c + prompt.size for c in prompt.copies), len(words)})
    label = {0: "start", **dict.fromkeys(prompt.copies, "copy")}
    return "\n".join(f"{label.get(a, 'rest'):>5}  {' '.join(words[a:b])}" for a, b in pairwise(cuts))


def _layers_needed(models: list[Model], ends: pd.DataFrame, test: InductionTest) -> probe.Section:
    """One layer against two, in the end and over training."""
    import pandas as pd

    by_seed = pd.concat([m.best_by_step().assign(model=m.kind, seed=m.seed) for m in models], ignore_index=True)
    return probe.Section(
        "One layer or two",
        (
            "An induction head has to know, at every earlier token, which token stood before it. Attention reads what "
            "a position holds, so a layer below must have put that there, and a one-layer model has none.",
        ),
        (
            *_curves(by_seed, ends, test),
            probe.Table(
                "models",
                ends,
                f"The trained models on {len(test.ids)} other held-out prompts: masses (0 to 1), copying (-1 to 1), "
                "copied (share of symbols that the head raises above all others), losses (nats). Heads are layer.head, "
                "chosen on the prompts watched during training.",
                digits=2,
            ),
        ),
    )


def _curves(by_seed: pd.DataFrame, ends: pd.DataFrame, test: InductionTest) -> tuple[probe.Table | probe.Plot, ...]:
    """Masses and the in-context-learning score over training."""
    from probe.scores.growth import band
    from probe.scores.induction import guess_among_seen

    named = {"induction": "best head: on what followed", "previous": "best head of layer 0: on the previous token"}
    long = by_seed.melt(["model", "seed", "step"], list(named), "measure", "mass").replace({"measure": named})
    spread = (
        f"{by_seed['seed'].nunique()} seed(s) of each model: lines are means, bands go from the lowest to the highest; "
        f"n = {WATCHED} held-out prompts."
    )
    guess = guess_among_seen(test.strings) - ends["loss, first copy"].mean()
    masses, scores = band(long, ["model", "step", "measure"], "mass"), band(by_seed, ["model", "step"], "in_context")
    return (
        probe.Table("masses", masses, f"Mass of attention by training step. {spread}", shown=False),
        probe.Plot(
            "mass_by_step",
            "masses",
            "lines",
            "step",
            "value",
            f"Mass of attention. {spread}",
            by="model",
            panel="measure",
            low="low",
            high="high",
            x_label="training step",
            y_label="mass of attention",
        ),
        probe.Table("scores", scores, f"In-context-learning score by training step, nats. {spread}", shown=False),
        probe.Plot(
            "in_context_by_step",
            "scores",
            "lines",
            "step",
            "value",
            f"In-context-learning score: loss in later copies minus loss in the first, nats. {spread}",
            by="model",
            low="low",
            high="high",
            marks={"guessing among the symbols seen": guess, "all of it known": -math.log(64)},
            x_label="training step",
            y_label="nats per token",
        ),
    )


def _formation(models: list[Model], times: pd.DataFrame, every: int) -> probe.Section:
    """Which of the two heads comes first; every head of one model."""
    import pandas as pd

    gap = times["half of that at step"] - times["half of it at step"]
    first, later = int((gap >= every).sum()), int((gap <= -every).sum())
    model = models[0]
    named = {"induction": "on what followed", "previous": "on the previous token", "copied": "symbols it raises most"}
    heads = model.grown.heads
    one = heads.assign(name=heads["layer"].astype(str) + "." + heads["head"].astype(str))
    one = one.melt(["name", "step"], list(named), "measure").replace({"measure": named})
    whole = pd.concat([m.grown.heads.assign(model=m.kind, seed=m.seed) for m in models], ignore_index=True)
    return probe.Section(
        "When they form",
        (
            f"Of {len(times)} two-layer models, the previous-token head reached half of its final mass at least "
            f"{every} steps (one reading) before the induction head in {first}, as much after it in {later}, and "
            f"closer to it in {len(times) - first - later}; the median is {gap.median():.0f} steps before it. In "
            "random strings the token before tells nothing of itself: a previous-token head pays only once another "
            "head reads what it writes.",
        ),
        (
            probe.Table(
                "crossings",
                times,
                "Steps at which a head first had half of its final mass, and at which the loss in later copies first "
                "fell below that of guessing among the symbols seen.",
                digits=0,
            ),
            probe.Table("heads_of_one", one, "Every head of one model by step.", shown=False),
            probe.Plot(
                "heads_by_step",
                "heads_of_one",
                "lines",
                "step",
                "value",
                f"Every head (layer.head) of one model ({model.kind}, seed {model.seed}) over its training; "
                f"n = {WATCHED} prompts.",
                by="name",
                panel="measure",
                x_label="training step",
                y_label="score",
            ),
            probe.Table("heads", whole, "Every head of every model by step.", shown=False),
        ),
    )


def _dependence(without: pd.DataFrame, lost: pd.DataFrame) -> probe.Section:
    """What is left without the previous-token heads, and through which input it is read."""
    n = without.groupby(["model", "seed"]).ngroups
    return probe.Section(
        "Without the previous-token heads",
        (
            "Zeroing a head's output takes away everything it does. A finer cut: the second layer's keys alone (or "
            "queries, or values) are what they would be if the previous-token heads had written nothing. If induction "
            "is composed through keys (K-composition, Elhage et al. 2021), the keys must matter, and the queries and "
            "values must not.",
        ),
        (
            probe.Table(
                "without",
                lost,
                f"Mass of the induction head on what followed, and loss (nats) in later copies: mean, lowest and "
                f"highest of {n} two-layer models.",
                digits=2,
            ),
            probe.Table("without_each", without, "The same for each head of the first layer.", shown=False),
        ),
    )


def _method(scales: dict[str, tuple[float | None, int]], corpus: Repeats) -> tuple[str, ...]:
    return (
        "Attention-only GPTs (width 64, 4 heads a layer, rotary positions, LayerNorm, embedding and unembedding apart) "
        f"were trained with AdamW, peak rate 2e-3, on 32 prompts of {corpus.longest} tokens a step, every next token. "
        "Their first weights have a standard deviation of 0.02 (GPT-2's scale), or PyTorch's own (1 for embeddings). "
        f"Steps: {', '.join(f'{name}, {steps:,}' for name, (_, steps) in scales.items())}.",
        "Prefix matching (Olsson et al. 2022): attention from a symbol that was there before to the tokens that "
        "followed its earlier occurrences; mean over a prompt's queries, then over prompts. Previous token: from any "
        "token to the one before. A previous-token head is one of layer 0 that has at least half of the best one's "
        "mass.",
        "Copying (Olsson et al. 2022): what a head would write if it looked at one token alone, through the final "
        "norm's gain and the unembedding; of the logits above their mean, the share on that token, rescaled to -1 to "
        "1. Copied: how often that token gets the highest logit.",
        "In-context-learning score: Olsson et al. compare token 500 of a text with token 50; here, loss on the symbols "
        "of later copies minus loss in the first copy, the first symbol of each copy left out.",
    )
