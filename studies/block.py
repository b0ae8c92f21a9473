"""The transformer block, taken apart: what is lost without residual connections, norms, or the feed-forward half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import probe

if TYPE_CHECKING:
    import pandas as pd

    from probe.subject import Subject

VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "no residual": {"residual": False},
    "no norm": {"norm": "none"},
    "no FFN": {"ffn": "none"},
    "post-norm": {"norm_place": "post"},
}
DEPTHS = {"quick": (4, 8), "full": (4, 16)}  # layers
SIZES = {
    "quick": {"steps": 120, "batch_size": 16, "d_model": 32, "seeds": 1, "questions": 48},
    "full": {"steps": 400, "batch_size": 16, "d_model": 64, "seeds": 2, "questions": 400},
}
POINTS = 12  # of each training curve


@probe.study(models=("tiny",))
def block(subject: Subject, *, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """What do residual connections, norms and the feed-forward half of a block do?

    Tiny GPTs are trained without each, shallow and deep; in the model given, the answer is taken apart into what
    attention and FFN write.
    """
    sizes = SIZES[profile]
    curves, final, baseline = training(sizes, DEPTHS[profile], seed)
    parts, ablations = written_by_task(subject, sizes["questions"], seed)
    return probe.Findings(
        answer=answer(final, baseline, parts, ablations, subject.name),
        sections=(
            training_section(curves, final, baseline, sizes),
            writing_section(parts, ablations, subject.name),
        ),
        method=(
            f"Every variant is trained on the synthetic language in the same way (AdamW, peak learning rate 0.001, "
            f"{sizes['steps']} steps of {sizes['batch_size']} texts, width {sizes['d_model']}, 4 heads), with nothing "
            "tuned to it. Loss is on held-out texts, in nats per token. The baseline knows only how frequent each "
            "word is.",
            "Direct logit attribution: the stream that the logits are read from is the sum of the embedding and of "
            "what attention and FFN of each layer added; the final norm's scale is frozen at its value on the prompt. "
            "Intervals are 95% BCa bootstrap intervals over clusters (templates).",
            "Ablation replaces what all attention layers, or all FFNs, write by its mean over every position of the "
            "same prompts.",
        ),
        notes=(
            "Attribution counts what a component writes into the answer directly. A component that only feeds a later "
            "one gets nothing for it; the ablation counts both.",
        ),
    )


def training(sizes: dict[str, int], depths: tuple[int, int], seed: int) -> tuple[pd.DataFrame, pd.DataFrame, float]:
    """Training curves (variant, layers, seed, step, loss), losses at the end, and the baseline's loss."""
    import pandas as pd

    from probe.data import language
    from probe.errors import ProbeError
    from probe.models.config import Config
    from probe.models.corpora import SyntheticLanguage
    from probe.models.tokenizer import word_tokenizer
    from probe.models.train import Recipe, train

    tokenizer = word_tokenizer(language.WORDS)
    corpus = SyntheticLanguage(tokenizer)
    curves, final = [], []
    steps = sizes["steps"]
    for depth in depths:
        for name, options in VARIANTS.items():
            for run in range(sizes["seeds"]):
                config = Config(len(tokenizer), n_layers=depth, d_model=sizes["d_model"], **options)
                recipe = Recipe(steps, sizes["batch_size"], warmup=steps // 10, every=steps, seed=seed + run)
                key = (name, depth, seed + run)
                try:
                    trained = train(config, recipe, corpus, tokenizer=tokenizer, quiet=True)
                except ProbeError as error:  # a loss that is no number is a result here
                    final.append((*key, float("nan"), str(error)))
                    continue
                window = steps // POINTS
                for point in range(POINTS):
                    losses = trained.losses[point * window : (point + 1) * window]
                    curves.append((*key, (point + 1) * window, sum(losses) / window))
                final.append((*key, trained.evaluations[-1][1], ""))
    key_names = ["variant", "layers", "seed"]
    return (
        pd.DataFrame(curves, columns=[*key_names, "step", "loss"]),
        pd.DataFrame(final, columns=[*key_names, "held-out loss", "note"]),
        frequency_loss(corpus, len(tokenizer), seed),
    )


def frequency_loss(corpus: Any, vocabulary: int, seed: int) -> float:
    """Loss, in nats per token, of a model that knows only how frequent each word is in training texts."""
    import random

    import numpy as np

    def counts(tensors: list[Any]) -> Any:
        ids = np.concatenate([t[:, 1:].flatten().numpy() for t in tensors])  # the first token is never predicted
        return np.bincount(ids, minlength=vocabulary)[1:]  # nor is padding, id 0

    seen = counts(corpus.batch(random.Random(seed), 2000)) + 1.0
    held_out = counts(corpus.evaluation)
    return float(-(held_out / held_out.sum()) @ np.log(seen / seen.sum()))


def written_by_task(subject: Subject, at_most: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """For each task: what each component writes of the answer, and the accuracy without it."""
    import pandas as pd

    from probe.data import coreference, language
    from probe.scores.components import accuracy_without, questions, written

    if subject.language == "synthetic":
        sets = {task: language.dataset(task, seed) for task in language.tasks()}
    else:
        sets = {"coreference": coreference()}
    parts, ablations = [], []
    for task, dataset in sets.items():
        units, prompts = questions(subject, dataset, at_most)
        parts.append(written(subject, units, seed=seed).assign(task=task))
        ablations.append(accuracy_without(subject, units, prompts, seed=seed).assign(task=task))
    return pd.concat(parts, ignore_index=True), pd.concat(ablations, ignore_index=True)


def training_section(
    curves: pd.DataFrame, final: pd.DataFrame, baseline: float, sizes: dict[str, int]
) -> probe.Section:
    """The training curves and what they come to."""
    n = sizes["seeds"]
    mean = curves.groupby(["variant", "layers", "step"], sort=False, as_index=False)["loss"].agg(["mean", "min", "max"])
    mean["depth"] = mean["layers"].astype(str) + " layers"
    ends = final.groupby(["variant", "layers"], sort=False, as_index=False)["held-out loss"].agg(["mean", "min", "max"])
    ends["below baseline"] = baseline - ends["mean"]
    return probe.Section(
        "Training without each part",
        (
            f"A model that knows only how frequent each word is has a loss of {baseline:.2f} nats per token on "
            "held-out texts. A variant that stays there has learned nothing about order.",
        ),
        (
            probe.Table("curves", mean, f"Training loss by step; mean and range of {n} seeds.", shown=False),
            probe.Plot(
                "training",
                "curves",
                "lines",
                "step",
                "mean",
                f"Training loss, mean and range of {n} {'seed' if n == 1 else 'seeds'}, in windows of "
                f"{sizes['steps'] // POINTS} steps.",
                by="variant",
                panel="depth",
                low="min",
                high="max",
                marks={"word frequencies": baseline},
                x_label="step",
                y_label="loss, nats per token",
            ),
            probe.Table(
                "losses",
                ends.rename(columns={"mean": "held-out loss", "min": "lowest", "max": "highest"}),
                f"Held-out loss at the end, nats per token: mean, lowest and highest of {n} seeds, and how far the "
                "mean lies below the loss of word frequencies. – is a training that diverged.",
                digits=2,
            ),
        ),
    )


def writing_section(parts: pd.DataFrame, ablations: pd.DataFrame, name: str) -> probe.Section:
    """Who writes the answer, and what is left without whom."""
    whole = parts[parts["layer"] == -1][["task", "component", "value", "low", "high", "share", "residue"]]
    by_layer = parts[parts["layer"] >= 0][["task", "component", "layer", "value", "low", "high"]]
    return probe.Section(
        f"Who writes the answer in {name}",
        (
            "Each bar is the part of logit(right) − logit(wrong) that a component writes into the last position's "
            "stream; the bars of a task add up to the model's own difference.",
        ),
        (
            probe.Table("written", whole, "Parts of the logit difference, nats; 95% intervals over clusters."),
            probe.Plot(
                "written_bars",
                "written",
                "bars",
                "task",
                "value",
                "What embedding, attention, FFN and the final norm's bias write of the answer, by task.",
                by="component",
                low="low",
                high="high",
                y_label="part of the logit difference, nats",
            ),
            probe.Table("layers", by_layer, "The same by layer.", shown=False),
            probe.Plot(
                "written_layers",
                "layers",
                "lines",
                "layer",
                "value",
                "What attention and FFN of each layer write.",
                by="component",
                panel="task",
                low="low",
                high="high",
                y_label="nats",
            ),
            probe.Table(
                "ablations",
                ablations[["task", "ablated", "accuracy", "low", "high", "difference", "n"]],
                "Share of questions answered right with all attention, or all FFNs, replaced by their mean; the mean "
                "logit difference (nats); n questions.",
            ),
        ),
    )


def answer(final: pd.DataFrame, baseline: float, parts: pd.DataFrame, ablations: pd.DataFrame, name: str) -> str:
    """The study in a sentence."""
    loss = final.groupby(["variant", "layers"])["held-out loss"].mean()
    shallow, deep = sorted(final["layers"].unique())

    def at(variant: str) -> str:
        return f"{loss[variant, shallow]:.2f} and {loss[variant, deep]:.2f}"

    whole = parts[parts["layer"] == -1].groupby("component")["share"].mean()
    right = ablations.groupby("ablated")["accuracy"].mean()
    return (
        f"With {shallow} and {deep} layers, held-out loss ends at {at('whole')} nats per token for the whole "
        f"block, {at('no residual')} without residual connections, {at('no norm')} without norms and {at('no FFN')} "
        f"without FFN (word frequencies alone: {baseline:.2f}); in {name}, attention writes {whole['attention']:.0%} "
        f"of the answer's logit difference and FFN {whole.get('mlp', 0.0):.0%} (mean over tasks), and of "
        f"{right['nothing']:.2f} accuracy {right['all attention']:.2f} is left without attention, "
        f"{right['all MLPs']:.2f} without FFN."
    )
