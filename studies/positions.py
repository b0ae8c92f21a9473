"""Word order: what a mask gives away, what each scheme of positions adds, and where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import probe

if TYPE_CHECKING:
    import pandas as pd

EXACT = 1e-6  # differences up to here are rounding
QUICK = {"order": 120, "language": 200}  # steps of training
FULL = {"order": 300, "language": 1000}
CLAIM = "Word order comes entirely from positional encoding"


@probe.study(models=())
def positions(*, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """Where does a transformer get word order from?

    Tiny GPTs with every scheme of positions, untrained and trained, as encoders and as decoders.
    """
    from probe.scores import schemes

    steps, n_seeds = (FULL, 3) if profile == "full" else (QUICK, 1)
    seeds = range(seed, seed + n_seeds)
    untrained = schemes.order_untrained(seed)
    learned = schemes.order_learned(steps["order"], seeds)
    losses, heads = schemes.beyond_length(steps["language"], seeds)
    return probe.Findings(
        answer=_answer(untrained, learned, losses),
        sections=(
            _order(untrained, learned, steps["order"]),
            _claim(untrained, learned),
            _distance(schemes.shifts((1, 16, 128), seed)),
            _beyond(losses, steps["language"]),
            _heads(heads),
        ),
        method=(
            "All models are tiny GPTs: width 64, 4 heads, pre-norm, GELU, tied embeddings. An encoder's tokens see all "
            "others, a decoder's those before. Positions are none at all, sinusoidal (added), learned (added), rope "
            "(turns queries and keys) or alibi (lowers scores by distance).",
            "Differences are the largest absolute difference of any number in the last hidden state, which the final "
            "norm keeps at a size of about 1.",
        ),
        notes=(
            "What one of these models cannot do without positions, a deeper or longer trained one may: the exact zeros "
            "hold for any weights, the accuracies and losses for these sizes and trainings alone.",
            "The texts of the length test are sentences of about 17 words in a row, so that nothing needs to be "
            "remembered for long: a loss that rises beyond the trained length is the scheme's, not the task's.",
        ),
    )


def _answer(untrained: pd.DataFrame, learned: pd.DataFrame, losses: pd.DataFrame) -> str:
    """The question's answer in one sentence, with its numbers."""
    from probe.scores.schemes import BUCKETS, KINDS, LENGTH, LONGEST, SCHEMES

    none = untrained[untrained["positions"] == "none"].set_index("kind")
    right = learned[learned["positions"] == "none"].groupby("kind")["accuracy"].mean()
    loss = losses.groupby(["positions", "from"])["loss"].mean()
    last = BUCKETS[-1][0]
    rise = {s: loss[s, last] - loss[s, LENGTH // 2] for s in SCHEMES if (s, last) in loss.index}
    best, worst = min(rise, key=rise.__getitem__), max(rise, key=rise.__getitem__)
    encoder, one, two = KINDS
    return (
        "An encoder gets it from its positions alone (without them another order changes nothing but rounding, "
        f"{none.loc[encoder, 'permuted']:.0e}, and its accuracy at who chases whom is {right[encoder]:.2f}); a decoder "
        f"gets it from its mask, too (without positions {right[two]:.2f} with two layers, {right[one]:.2f} with one). "
        f"Trained on {LENGTH} tokens, the loss from positions {LENGTH // 2} to {LENGTH - 1} to positions {last} to "
        f"{LONGEST - 1} changes by {rise[best]:+.2f} nats with {best} and {rise[worst]:+.2f} with {worst}; learned "
        f"positions end at {LENGTH - 1}."
    )


def _order(untrained: pd.DataFrame, learned: pd.DataFrame, steps: int) -> probe.Section:
    """The same words in another order, before and after training."""
    from probe.models.order import HELD_OUT
    from probe.scores.growth import band
    from probe.scores.schemes import RANDOM_MODELS

    n = f"{2 * len(HELD_OUT)} sentences about {len(HELD_OUT)} pairs of animals that no training met"
    trained = (
        f"Accuracy at who chases whom after {steps} steps: mean and range of {learned['seed'].nunique()} seed(s); {n}."
    )
    return probe.Section(
        "cat chases dog, dog chases cat",
        (
            "Without positions, attention sees a set. Whatever the weights, an encoder that reads the words in another "
            "order gives each of them the same vector as before: permute the input, and the output is permuted alike.",
            "A decoder's mask breaks the tie. Its first token sees one token, its second two, and so on: what a "
            "position sees says where it is. One layer cannot use this at the end of the sentence, where all words are "
            "in sight and their order is not; a second layer reads positions that have seen different things.",
        ),
        (
            probe.Table(
                "untrained",
                _powers(untrained.rename(columns={"permuted": "any order", "swapped": "cat and dog swapped"})),
                f"Untrained models: largest change of a hidden state in {RANDOM_MODELS} random models. Any order: all "
                "five tokens of “<bos> cat chases dog :” permuted, outputs put back. Swapped: the last token's, for "
                "“dog chases cat :”.",
            ),
            probe.Table("learned", band(learned, ["positions", "kind"], "accuracy"), trained, digits=2, shown=False),
            probe.Plot(
                "order_learned",
                "learned",
                "bars",
                "positions",
                "value",
                trained,
                by="kind",
                low="low",
                high="high",
                marks={"a guess": 0.5},
                x_label="positions",
                y_label="accuracy",
            ),
        ),
    )


def _powers(table: pd.DataFrame) -> pd.DataFrame:
    """The table with its decimal numbers as 1.2e-07: differences from rounding to whole ones have no common digits."""
    return table.assign(**{c: table[c].map("{:.1e}".format) for c in table.select_dtypes("float").columns})


def _claim(untrained: pd.DataFrame, learned: pd.DataFrame) -> probe.Section:
    """The textbooks' sentence beside what was found."""
    import pandas as pd

    from probe.scores.schemes import KINDS

    none = untrained[untrained["positions"] == "none"].set_index("kind")
    accuracy = learned[learned["positions"] == "none"].groupby("kind")["accuracy"].mean()
    rows = []
    for kind in KINDS:
        change = none.loc[kind, "permuted" if kind.startswith("encoder") else "swapped"]
        told = change > EXACT
        verdict = "wrong" if told else "right" if kind.startswith("encoder") else "right for its last token"
        rows.append((kind, verdict, f"{change:.1e}{'' if told else ', rounding'}", accuracy[kind]))
    columns = ["without positions", "the claim", "change of the output with the order", "accuracy at who chases whom"]
    return probe.Section(
        f"“{CLAIM}”",
        (
            "Right for encoders such as BERT. Wrong for decoders such as GPT: from the second layer on, the causal "
            "mask alone gives order away, and training finds it.",
        ),
        (probe.Table("claim", pd.DataFrame(rows, columns=columns), f"“{CLAIM}”: where it holds.", digits=2),),
    )


def _distance(shifted: pd.DataFrame) -> probe.Section:
    """What a scheme says of how far apart two tokens are."""
    from probe.scores.positions import alibi_by_distance, likeness_by_distance

    names = {"by": "all positions later by", "scores": "largest change of a score", "logits": "of a logit"}
    alike = likeness_by_distance(64, range(129)).melt("distance", var_name="positions", value_name="likeness")
    bias = alibi_by_distance(4, range(129))
    return probe.Section(
        "What each scheme says of distance",
        (
            "rope turns queries and keys by angles in proportion to their positions, so that their dot product depends "
            "on the distance alone; alibi adds a function of the distance. Move the whole prompt, and nothing changes. "
            "Positions added to the embedding are absolute: the model has to learn that distances are alike.",
            "The dot product of two sinusoidal vectors, too, depends on the distance alone, and is the very curve by "
            "which rope's score falls; but a model sees it through weights, added to the words.",
        ),
        (
            probe.Table(
                "shifted",
                _powers(shifted.rename(columns=names)),
                "All positions of 4 random prompts of 32 tokens moved; untrained decoders, 2 layers.",
            ),
            probe.Table("likeness", alike, "Likeness of two positions by distance.", shown=False),
            probe.Plot(
                "likeness_by_distance",
                "likeness",
                "lines",
                "distance",
                "likeness",
                "How alike two positions are: dot product of two sinusoidal vectors, and of one vector turned by rope "
                "to both places; 64 wide, 1 at distance 0.",
                by="positions",
                x_label="distance, tokens",
                y_label="dot product, relative",
            ),
            probe.Table("alibi", bias.assign(head=bias["head"].map("head {}".format)), "Alibi's biases.", shown=False),
            probe.Plot(
                "alibi_by_distance",
                "alibi",
                "lines",
                "distance",
                "bias",
                "What alibi adds to the scores of each of four heads: the last sees far, the first hardly beyond its "
                "neighbours.",
                by="head",
                x_label="distance, tokens",
                y_label="added to the score",
            ),
        ),
    )


def _beyond(losses: pd.DataFrame, steps: int) -> probe.Section:
    """Loss within and beyond the trained length."""
    from probe.scores.growth import band
    from probe.scores.schemes import LENGTH, LONGEST, SCHEMES

    wide = losses.assign(where=losses["from"].astype(str) + " to " + losses["to"].astype(str))
    wide = wide.pivot_table("loss", "positions", "where", sort=False).reindex(SCHEMES).reset_index()
    wide.columns.name = None
    n = f"{losses['seed'].nunique()} seed(s), 64 held-out windows"
    return probe.Section(
        "Beyond the trained length",
        (
            f"Each scheme was trained on windows of {LENGTH} tokens for {steps} steps and then read windows of "
            f"{LONGEST}, with the same weights. The model with learned positions cannot: its table ends at position "
            f"{LENGTH - 1}, and there is no vector for the next.",
        ),
        (
            probe.Table("loss_by_range", wide, f"Mean loss (nats) by position; {n}.", digits=2),
            probe.Table("loss_by_place", band(losses, ["positions", "place"], "loss"), "With its range.", shown=False),
            probe.Plot(
                "beyond",
                "loss_by_place",
                "lines",
                "place",
                "value",
                f"Loss by position; trained on positions 0 to {LENGTH - 1}. Mean, and lowest to highest, of {n}.",
                by="positions",
                low="low",
                high="high",
                x_label="position (middle of its range), tokens",
                y_label="loss, nats per token",
            ),
        ),
    )


def _heads(heads: pd.DataFrame) -> probe.Section:
    """What the trained heads look at."""
    from probe.scores.schemes import LENGTH

    by_scheme = heads.groupby("positions", sort=False)
    rows = by_scheme.agg(
        **{
            "best head: mass on the previous token": ("previous", "max"),
            "mean over heads": ("previous", "mean"),
            "mean mass on <bos>": ("first", "mean"),
            "share of sink heads": ("first", lambda mass: float((mass > 0.3).mean())),
        }
    )
    return probe.Section(
        "What the heads look at",
        (
            "What was trained above, at the trained length. A previous-token head needs to know what distance 1 is; a "
            "sink is a head that rests on the first token (mean mass above 0.3, Gu et al. 2024).",
        ),
        (
            probe.Table(
                "heads",
                rows.reset_index(),
                f"{by_scheme.size().iloc[0]} heads of each scheme; 16 held-out windows of {LENGTH} tokens.",
                digits=2,
            ),
            probe.Table("heads_each", heads, "Every head.", shown=False),
        ),
    )
