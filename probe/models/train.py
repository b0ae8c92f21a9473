"""Training the tiny GPT on the synthetic language. The shipped weights come from `make_tiny()` and its recipe.

python -m probe.models.train            # writes the weights that `probe.load("tiny")` reads; about 3 minutes
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.data import language
from probe.data.texts import Labelled
from probe.models.gpt import GPT, Config
from probe.models.store import TINY, save
from probe.models.tokenizer import word_tokenizer
from probe.tty import progress


@dataclass(frozen=True)
class Recipe:
    """How to train. Loss is cross-entropy in nats per token; padding does not count."""

    steps: int = 4000
    batch_size: int = 64  # sentences
    learning_rate: float = 1e-3  # peak; AdamW with weight decay 0.01
    warmup: int = 100  # steps of linear warm-up, then a cosine to a tenth of the peak
    clip: float = 1.0  # largest gradient norm
    seed: int = 0


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then a cosine from the peak to a tenth of it."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def train(config: Config, recipe: Recipe, tokenizer: Any, *, quiet: bool = False) -> tuple[GPT, list[float], set[str]]:
    """Train on sentences drawn without end; returns the model, its losses by step, and the sentences it saw."""
    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    model = GPT(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    losses, seen = [], set()
    for step in progress(range(recipe.steps), "training", quiet=quiet):
        texts = [language.draw(rng) for _ in range(recipe.batch_size)]
        seen.update(texts)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        loss = next_token_loss(model, *_batch(tokenizer, texts))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses, seen


def next_token_loss(model: GPT, ids: Tensor, real: Tensor) -> Tensor:
    """Mean cross-entropy (nats) of each real token given those before it. ids, real: (batch, pos)."""
    # Right padding lies after every real token, so a causal model needs no mask for it.
    logits = model(ids[:, :-1]).logits
    labels = ids[:, 1:].masked_fill(~real[:, 1:], -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def answers_right(model: GPT, tokenizer: Any, seen: set[str], *, seed: int = 1) -> dict[str, float]:
    """Share of held-out items, by family, whose answer the model prefers to the other candidate."""
    right: dict[str, list[bool]] = {}
    for item in language.coreference(seed).items:
        if not isinstance(item, Labelled) or item.question is None or item.text in seen:
            continue
        ids = tokenizer(item.text[: item.question.read_at], return_tensors="pt").input_ids
        with torch.no_grad():
            last = model(ids).logits[0, -1]
        gold, other = (tokenizer.convert_tokens_to_ids(w) for w in (item.question.right, item.question.wrong[0]))
        right.setdefault(item.cluster.split("-")[0], []).append(bool(last[gold] > last[other]))
    return {family: sum(r) / len(r) for family, r in right.items()}


def make_tiny(folder: Path = TINY, recipe: Recipe = Recipe()) -> dict[str, Any]:
    """Train the shipped model and write it; returns the recipe as saved, with what it reached."""
    tokenizer = word_tokenizer(language.WORDS)
    model, losses, seen = train(Config(vocab_size=len(tokenizer), max_positions=64), recipe, tokenizer)
    made = {
        "data": "probe.data.language.draw",
        **asdict(recipe),
        "loss_first": round(losses[0], 4),
        "loss_last_100": round(sum(losses[-100:]) / 100, 4),
        "held_out_accuracy": answers_right(model, tokenizer, seen),
    }
    save(folder, model, tokenizer, made)
    return made


def _batch(tokenizer: Any, texts: list[str]) -> tuple[Tensor, Tensor]:
    made = tokenizer(texts, padding=True, return_tensors="pt")
    return made.input_ids, made.attention_mask.bool()


if __name__ == "__main__":
    print(make_tiny(Path(sys.argv[1]) if len(sys.argv) > 1 else TINY))
