"""Every scheme of positions measured in the same way: order before and after training, length, heads."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probe.data import language
from probe.models import order
from probe.models.corpora import TextFile
from probe.models.gpt import GPT, Config
from probe.models.tokenizer import word_tokenizer
from probe.models.train import Recipe, train
from probe.scores.positions import (
    heads_by_position,
    last_change,
    lengthened,
    loss_by_position,
    permuted_change,
    random_ids,
    shifted_change,
)
from probe.subject import Subject

SCHEMES = ("none", "sinusoidal", "learned", "rope", "alibi")
KINDS: dict[str, dict[str, Any]] = {
    "encoder, 2 layers": {"visible": "bidirectional", "n_layers": 2},
    "decoder, 1 layer": {"visible": "causal", "n_layers": 1},
    "decoder, 2 layers": {"visible": "causal", "n_layers": 2},
}
SIZES: dict[str, Any] = {"n_heads": 4, "d_model": 64}
RANDOM_MODELS = 5
LENGTH, LONGEST = 64, 256  # tokens: trained on, and read in the end
BUCKETS = ((0, 16), (16, 32), (32, 64), (64, 96), (96, 128), (128, 192), (192, 256))


def new_model(config: Config, seed: int) -> GPT:
    """A random model; the caller's own random numbers go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT(config).eval()


def order_untrained(seed: int) -> pd.DataFrame:
    """Largest changes of a hidden state over random models (PyTorch's initial scale). Columns positions, kind,
    permuted: all tokens of `<bos> cat chases dog :` in another order, outputs put back; swapped: the last token's, when
    cat and dog change places.
    """
    one, other = (torch.tensor([order.sentence(*pair)]) for pair in (("cat", "dog"), ("dog", "cat")))
    rows = []
    for scheme, (kind, parts) in product(SCHEMES, KINDS.items()):
        config = Config(len(order.IDS), position=scheme, max_positions=8, init_scale=None, **parts, **SIZES)
        models = [new_model(config, seed + n) for n in range(RANDOM_MODELS)]
        rng = random.Random(seed)
        permuted = max(permuted_change(m, one, rng.sample(range(5), 5)) for m in models)
        rows.append((scheme, kind, permuted, max(last_change(m, one, other) for m in models)))
    return pd.DataFrame(rows, columns=["positions", "kind", "permuted", "swapped"])


def order_learned(steps: int, seeds: Sequence[int]) -> pd.DataFrame:
    """Accuracy at who chases whom after a short training: columns positions, kind, seed, accuracy."""
    rows = []
    for scheme, (kind, parts), seed in product(SCHEMES, KINDS.items(), seeds):
        config = Config(len(order.IDS), position=scheme, max_positions=8, **parts, **SIZES)
        model = order.learn_order(config, steps=steps, seed=seed)
        rows.append((scheme, kind, seed, order.tells_order(model, order.HELD_OUT)))
    return pd.DataFrame(rows, columns=["positions", "kind", "seed", "accuracy"])


def shifts(by: Sequence[int], seed: int) -> pd.DataFrame:
    """What moves when all positions of 4 random prompts of 32 tokens are later: columns positions, by, scores, logits
    (largest changes in an untrained causal model of two layers).
    """
    rows = []
    for scheme in SCHEMES:
        config = Config(64, 2, position=scheme, max_positions=32 + max(by), init_scale=None, **SIZES)
        model, ids = new_model(config, seed), random_ids(64, (4, 32), seed)
        rows += [(scheme, shift, *shifted_change(model, ids, shift)) for shift in by]
    return pd.DataFrame(rows, columns=["positions", "by", "scores", "logits"])


def beyond_length(steps: int, seeds: Sequence[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train each scheme (causal, two layers) on windows of `LENGTH` tokens of sentences in a row.

    Returns the loss by range of positions up to `LONGEST`, without the ranges that a model cannot read (columns
    positions, seed, from, to, place, loss), and the heads at the trained length (positions, seed, layer, head,
    previous, first).
    """
    text = sentences()
    tokenizer = word_tokenizer(sorted(set(text.split())))
    corpus, long = (TextFile(text, tokenizer, positions=n, name="sentences") for n in (LENGTH, LONGEST))
    (windows,) = long.evaluation
    losses, heads = [], []
    for scheme, seed in product(SCHEMES, seeds):
        config = Config(len(tokenizer), 2, position=scheme, max_positions=LENGTH, **SIZES)
        recipe = Recipe(steps=steps, batch_size=16, every=steps, seed=seed)
        model = train(config, recipe, corpus, tokenizer=tokenizer, quiet=True).model
        losses += [(scheme, seed, *row) for row in by_range(model, windows)]
        found = heads_by_position(Subject(model, tokenizer, scheme, "synthetic"), windows[:16, :LENGTH])
        heads.append(found.assign(positions=scheme, seed=seed))
    columns = ["positions", "seed", "from", "to", "place", "loss"]
    return pd.DataFrame(losses, columns=columns), pd.concat(heads, ignore_index=True)


def sentences(per_frame: int = 160) -> str:
    """Sentences of the synthetic language in random order, as one text."""
    found = [item.text for item in language.coreference(seed=0, per_frame=per_frame).items]
    random.Random(0).shuffle(found)
    return " ".join(found)


def by_range(model: GPT, windows: Tensor) -> list[tuple[int, int, float, float]]:
    """First and last position, their middle, and the mean loss, of each range of `BUCKETS` that the model can read."""
    limit = LENGTH if model.config.position == "learned" else LONGEST
    loss = loss_by_position(lengthened(model, limit), windows[:, : limit + 1])
    return [(a, b - 1, (a + b - 1) / 2, float(loss[a:b].mean())) for a, b in BUCKETS if b <= limit]
