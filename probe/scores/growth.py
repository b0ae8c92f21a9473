"""Watching induction heads form: tiny GPTs trained on repeated random strings, every head read again and again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor

from probe.capture import edits
from probe.capture.edit import Edits
from probe.models.gpt import GPT, Block, Config
from probe.models.repeats import Repeats
from probe.models.train import Recipe, train
from probe.scores.induction import InductionTest, guess_among_seen
from probe.subject import Subject

Head = tuple[int, int]  # layer, head


class Grown(NamedTuple):
    """heads: one row per step and head, columns step, layer, head and those of `induction.SCORES`. losses: one row
    per step, columns step, first, later, in_context (nats; see `InductionReading`).
    """

    subject: Subject
    heads: pd.DataFrame
    losses: pd.DataFrame

    def best(self, score: str, layer: int | None = None) -> Head:
        """The head whose score is highest in the end, of one layer or of all."""
        last = self.heads[self.heads["step"] == self.heads["step"].max()]
        row = (last if layer is None else last[last["layer"] == layer]).nlargest(1, score).iloc[0]
        return int(row["layer"]), int(row["head"])

    def curve(self, score: str, head: Head) -> pd.Series:
        """A head's score by step."""
        mine = self.heads[(self.heads["layer"] == head[0]) & (self.heads["head"] == head[1])]
        return mine.set_index("step")[score]


def attention_only(n_layers: int, init_scale: float | None, corpus: Repeats) -> Config:
    """The model that is trained: no MLP, 64 wide, four heads in each layer, rotary positions, its own unembedding."""
    return Config(
        vocab_size=len(corpus.tokenizer),
        n_layers=n_layers,
        n_heads=4,
        d_model=64,
        max_positions=corpus.longest,
        position="rope",
        ffn="none",
        tied=False,
        init_scale=init_scale,
    )


def grow(config: Config, recipe: Recipe, corpus: Repeats, test: InductionTest, *, every: int) -> Grown:
    """Train a new model, and read its heads before the first step, every `every` steps, and after the last."""
    tokenizer, subjects = corpus.tokenizer, list[Subject]()
    heads, losses = list[pd.DataFrame](), list[tuple[int, float, float, float]]()

    def look(step: int, model: GPT) -> None:
        if step % every and step != recipe.steps:
            return
        if not subjects:
            subjects.append(Subject(model, tokenizer, f"{config.n_layers} layers", "synthetic"))
        found = test.read(subjects[0])
        heads.append(found.heads.assign(step=step))
        losses.append((step, found.first, found.later, found.in_context))

    train(config, recipe, corpus, tokenizer=tokenizer, quiet=True, on_step=look)
    table = pd.concat(heads, ignore_index=True)
    columns = ["step", *(c for c in table.columns if c != "step")]
    return Grown(subjects[0], table[columns], pd.DataFrame(losses, columns=["step", "first", "later", "in_context"]))


def crossing(curve: pd.Series, level: float) -> float:
    """The step at which a curve (step -> score) first reaches `level`, on a line between readings; NaN if never."""
    steps, values = curve.index.to_list(), curve.to_list()
    for n, value in enumerate(values):
        if value >= level:
            if n == 0:
                return float(steps[0])
            share = (level - values[n - 1]) / (value - values[n - 1])
            return float(steps[n - 1] + share * (steps[n] - steps[n - 1]))
    return math.nan


def half_way(curve: pd.Series) -> float:
    """The step at which a score that is not negative first reaches half of its last value."""
    return crossing(curve, curve.iloc[-1] / 2)


class Model(NamedTuple):
    """One training: its kind ("2 layers, GPT-2's scale"), seed, and what came of it."""

    kind: str
    layers: int
    seed: int
    grown: Grown

    def best_by_step(self) -> pd.DataFrame:
        """Columns step, induction (of the head that is best at that step), previous (the same, in the first layer),
        in_context.
        """
        heads = self.grown.heads
        induction = heads.groupby("step")["induction"].max()
        previous = heads[heads["layer"] == 0].groupby("step")["previous"].max()
        losses = self.grown.losses.set_index("step")["in_context"]
        return pd.concat([induction, previous, losses], axis=1).reset_index()


def grow_all(
    corpus: Repeats,
    test: InductionTest,
    *,
    depths: Sequence[int],
    scales: Mapping[str, tuple[float | None, int]],
    seeds: Sequence[int],
    every: int,
    batch_size: int = 32,
    learning_rate: float = 2e-3,
) -> list[Model]:
    """Models of every depth and initial scale (name -> `Config.init_scale`, steps of training), one for each seed."""
    models = []
    for layers, (scale, (value, steps)), seed in product(depths, scales.items(), seeds):
        recipe = Recipe(steps, batch_size, learning_rate, every=steps, seed=seed)
        grown = grow(attention_only(layers, value, corpus), recipe, corpus, test, every=every)
        models.append(Model(f"{layers} layer{'s' * (layers > 1)}, {scale}", layers, seed, grown))
    return models


def previous_heads(grown: Grown) -> tuple[int, ...]:
    """The previous-token heads of the first layer, best first: those with at least half of the best one's mass."""
    last = grown.heads[(grown.heads["step"] == grown.heads["step"].max()) & (grown.heads["layer"] == 0)]
    strong = last[last["previous"] >= last["previous"].max() / 2].sort_values("previous", ascending=False)
    return tuple(int(head) for head in strong["head"])


def dependence(grown: Grown, test: InductionTest) -> pd.DataFrame:
    """What becomes of a two-layer model's induction without each head of the first layer, and without all of its
    previous-token heads.

    One row for each change: change, heads (of the first layer, as "0", "0 2"), induction (of the head that is best
    unchanged), later, in_context. Changes: "none"; "zero": the heads' z is zero; "cut k", "cut q", "cut v": the keys,
    queries or values of the whole second layer are what they would be if the heads had written nothing, all else is as
    it was.
    """
    layer, head = grown.best("induction", 1)
    changes: list[tuple[str, tuple[int, ...], Edits]] = [("none", (), ())]
    for writers in dict.fromkeys([*((h,) for h in range(grown.subject.n_heads)), previous_heads(grown)]):
        changes.append(("zero", writers, [edits.zero("z", layer=0, heads=writers)]))
        for site, values in without_write(grown.subject, test, writers).items():
            changes.append((f"cut {site}", writers, [edits.replace(site, layer, values)]))
    rows = []
    for change, writers, made in changes:
        found = test.read(grown.subject, made)
        induction = found.heads.set_index(["layer", "head"])["induction"][layer, head]
        rows.append((change, _named(writers), float(induction), found.later, found.in_context))
    return pd.DataFrame(rows, columns=["change", "heads", "induction", "later", "in_context"])


def without_write(subject: Subject, test: InductionTest, writers: Sequence[int]) -> dict[str, Tensor]:
    """The second layer's q, k and v, (batch, pos, head, d_head), on a stream that lacks what heads `writers` of the
    first layer wrote.
    """
    n = len(test.ids)
    ((_, seen),) = subject.captured(test.ids, ["result", "resid_pre"], batch_size=n)
    block = cast(Block, cast(GPT, subject.model).base_model.blocks[1])
    with torch.no_grad():
        stream = seen["resid_pre", 1] - seen["result", 0][:, :, list(writers)].sum(2)
        widths = [n * block.attention.d_head for n in block.attention.heads]
        parts = block.attention.qkv(block.norm_attention(stream)).split(widths, dim=-1)
    return {site: part.unflatten(-1, (-1, subject.d_head)) for site, part in zip("qkv", parts, strict=True)}


def final(models: list[Model], test: InductionTest) -> pd.DataFrame:
    """One row per model: its best heads, chosen on the prompts watched during training, read on the others."""
    rows = []
    for model in models:
        found, grown = test.read(model.grown.subject), model.grown
        heads = found.heads.set_index(["layer", "head"])
        best, previous = grown.best("induction"), grown.best("previous", 0)
        rows.append(
            {
                "model": model.kind,
                "seed": model.seed,
                "induction head": "{}.{}".format(*best),
                "prefix matching": heads.loc[best, "induction"],
                "copying": heads.loc[best, "copying"],
                "copied": heads.loc[best, "copied"],
                "highest of any head": heads["induction"].max(),
                "previous-token head": "{}.{}".format(*previous),
                "previous token": heads.loc[previous, "previous"],
                "loss, first copy": found.first,
                "loss, later copies": found.later,
                "in-context score": found.in_context,
            }
        )
    return pd.DataFrame(rows)


def crossings(models: list[Model], test: InductionTest) -> pd.DataFrame:
    """One row per two-layer model: the steps at which its heads were half of what they are in the end, and at which the
    loss in later copies fell below that of guessing among the symbols seen. test: what was watched during training.
    """
    guess = guess_among_seen(test.strings)
    rows = []
    for model in models:
        if model.layers != 2:
            continue
        grown = model.grown
        induction, previous = grown.best("induction", 1), grown.best("previous", 0)
        rows.append(
            {
                "model": model.kind,
                "seed": model.seed,
                "previous-token head": "{}.{}".format(*previous),
                "half of it at step": half_way(grown.curve("previous", previous)),
                "induction head": "{}.{}".format(*induction),
                "half of that at step": half_way(grown.curve("induction", induction)),
                "loss below guessing at step": crossing(-grown.losses.set_index("step")["later"], -guess),
            }
        )
    return pd.DataFrame(rows)


def summary_without(without: pd.DataFrame, models: Sequence[Model]) -> pd.DataFrame:
    """One row per change, over two-layer models: columns change, and mean, lowest and highest of the mass on what
    followed and of the loss in later copies. Another head: of those that are no previous-token head, the one whose
    zeroing costs most.
    """
    rows = []
    for model in models:
        mine = without[(without["model"] == model.kind) & (without["seed"] == model.seed)]
        previous = previous_heads(model.grown)
        best, every = _named(previous[:1]), _named(previous)
        chosen = {
            "nothing": mine[mine["change"] == "none"],
            "the best previous-token head zeroed": mine[(mine["change"] == "zero") & (mine["heads"] == best)],
            "all previous-token heads zeroed": mine[(mine["change"] == "zero") & (mine["heads"] == every)],
        }
        others = [str(h) for h in range(model.grown.subject.n_heads) if h not in previous]
        other = mine[(mine["change"] == "zero") & mine["heads"].isin(others)].nlargest(1, "later")
        if others:
            chosen["another head of their layer zeroed"] = other
        for site, name in (("k", "keys"), ("q", "queries"), ("v", "values")):
            cut = mine[(mine["change"] == f"cut {site}") & (mine["heads"] == every)]
            chosen[f"what they wrote kept from the second layer's {name}"] = cut
        for name, row in chosen.items():
            rows.append({"change": name, "mass": row["induction"].iloc[0], "loss": row["later"].iloc[0]})
    parts = []
    for column in ("mass", "loss"):
        named = {"value": column, "low": f"lowest {column}", "high": f"highest {column}"}
        parts.append(band(pd.DataFrame(rows), ["change"], column).rename(columns=named).set_index("change"))
    return pd.concat(parts, axis=1).reset_index()


def band(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Mean, lowest and highest of a column over the rest, usually seeds: columns `by`, value, low, high."""
    found = table.groupby(list(by), sort=False)[value].agg(["mean", "min", "max"]).reset_index()
    return found.rename(columns={"mean": "value", "min": "low", "max": "high"})


def _named(heads: Sequence[int]) -> str:
    return " ".join(map(str, sorted(heads)))
