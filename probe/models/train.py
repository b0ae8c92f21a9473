"""Training a tiny GPT to predict the next token: AdamW, a warm-up and a cosine, evaluations, checkpoints.

    tokenizer = character_tokenizer(text)
    corpus = TextFile(text, tokenizer, positions=64)
    trained = train(Config(len(tokenizer), max_positions=64), Recipe(steps=500), corpus, tokenizer=tokenizer)
    trained.losses[-1], trained.evaluations[-1]        # nats per token; (500, nats per token on held-out data)

The same call gives the same losses bit for bit on one machine with one number of threads, in one go or resumed.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.errors import ProbeError, UnknownName
from probe.models import store
from probe.models.checkpoints import CHECKPOINT, LOSSES, Training, claim, keep, restore
from probe.models.corpora import Corpus
from probe.models.gpt import GPT, Config
from probe.models.gradients import by_hand
from probe.models.tokenizer import PAD_ID
from probe.tty import progress

GRADIENTS = ("torch", "by_hand")


@dataclass(frozen=True)
class Recipe:
    """How to train. Loss is cross-entropy in nats per token; padding does not count. Raises ProbeError, UnknownName."""

    steps: int = 2000
    batch_size: int = 64  # rows: texts, or windows of a text
    learning_rate: float = 1e-3  # the peak
    warmup: int = 100  # steps of linear warm-up, then a cosine to a tenth of the peak
    weight_decay: float = 0.01  # AdamW's, on every parameter
    beta2: float = 0.999  # AdamW's memory of squared gradients; less forgets a loss that has fallen sooner
    clip: float = 1.0  # largest norm of the gradient
    every: int = 250  # steps from one evaluation, and checkpoint, to the next
    seed: int = 0  # of the first weights and of the order of the data
    gradients: str = "torch"  # torch: autograd's | by_hand: of `probe.models.gradients`, faster; same but for rounding

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "every"):
            if getattr(self, name) < 1:
                raise ProbeError(f"{name}={getattr(self, name)} must be at least 1.")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise ProbeError(f"{name}={getattr(self, name)} must be above 0.")
        for name in ("warmup", "weight_decay"):
            if getattr(self, name) < 0:
                raise ProbeError(f"{name}={getattr(self, name)} must be at least 0.")
        if self.gradients not in GRADIENTS:
            raise UnknownName.of("gradients of a training", self.gradients, GRADIENTS)
        if not 0 <= self.beta2 < 1:
            raise ProbeError(f"beta2={self.beta2} must be at least 0 and below 1.")


class Trained(NamedTuple):
    """losses: of each step's batch before its update. evaluations: (steps done, loss on all held-out data), from 0
    steps on. record: what recipe.json says. Losses are in nats per token; the model is in evaluation mode.
    """

    model: GPT
    losses: list[float]
    evaluations: list[tuple[int, float]]
    record: dict[str, Any]


OnStep = Callable[[int, GPT], None]


def train(
    config: Config,
    recipe: Recipe,
    corpus: Corpus,
    *,
    tokenizer: Any,
    folder: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    on_step: OnStep | None = None,
) -> Trained:
    """Train a new model.

    folder: where checkpoints are kept while it lasts, and in the end the model and losses.csv (columns step, training,
    held_out). resume: go on from the checkpoint there. on_step(done, model): called after each step, and with 0 before
    the first, on the model in evaluation mode; it must leave the weights alone.
    Raises ProbeError for a model that sees what it is to predict and for a loss that is no number, ResultsError for a
    folder that holds something else or has no fitting checkpoint, PromptError for texts longer than the model reads.
    """
    if config.visible == "bidirectional":
        raise ProbeError("a bidirectional model sees the token it is to predict; train one that is causal or sliding.")
    inputs = _inputs(config, recipe, corpus, tokenizer)
    if resume and folder is None:
        raise ProbeError("there is nothing to resume without a folder.")
    if folder is not None:
        claim(folder, resume=resume)
    training = _new(config, recipe)
    if resume and folder is not None:
        restore(folder, training, inputs)
    else:
        training.evaluations.append((0, evaluation_loss(training.model, corpus)))
        _show(on_step, 0, training.model)
    for step in progress(range(len(training.losses), recipe.steps), "training", quiet=quiet):
        _update(training, recipe, corpus.batch(training.rng, recipe.batch_size, step))
        done = step + 1
        _show(on_step, done, training.model)
        if done % recipe.every == 0 or done == recipe.steps:
            training.evaluations.append((done, evaluation_loss(training.model, corpus)))
            if folder is not None:
                keep(folder, training, inputs)
    trained = Trained(training.model.eval(), training.losses, training.evaluations, _record(training, recipe, corpus))
    if folder is not None:
        _finish(folder, trained, tokenizer)
    return trained


def learning_rate(recipe: Recipe, step: int) -> float:
    """Of step 0, 1, ...: linear warm-up to the peak, then a cosine from it to a tenth of it."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def summed_loss(model: GPT, ids: Tensor) -> Tensor:
    """Cross-entropy (nats) of each real token given those before it, summed over rows and positions. ids: (row, pos).

    Padding lies to the right of every real token, so a causal model needs no mask for it.
    """
    logits = model(ids[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD_ID, reduction="sum")


def predicted(rows: list[Tensor]) -> int:
    """How many tokens are predicted: all real ones but the first of each row."""
    return sum(int((ids[:, 1:] != PAD_ID).sum()) for ids in rows)


@torch.no_grad()
def evaluation_loss(model: GPT, corpus: Corpus) -> float:
    """Mean loss (nats per token) on the corpus' held-out data."""
    model.eval()
    return sum(float(summed_loss(model, ids)) for ids in corpus.evaluation) / predicted(corpus.evaluation)


def _new(config: Config, recipe: Recipe) -> Training:
    """The first weights, from the recipe's seed; the caller's own random numbers go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = GPT(config)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=(0.9, recipe.beta2),
        weight_decay=recipe.weight_decay,
        fused=True,
    )
    return Training(model, optimizer, random.Random(recipe.seed))


def _update(training: Training, recipe: Recipe, rows: list[Tensor]) -> None:
    """One step: gradients of the batch's mean loss, clipped, and AdamW's update."""
    step, n = len(training.losses), predicted(rows)
    for group in training.optimizer.param_groups:
        group["lr"] = learning_rate(recipe, step)
    training.model.train()
    training.optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for ids in rows:
        with by_hand(recipe.gradients == "by_hand"):
            loss = summed_loss(training.model, ids) / n
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    if not math.isfinite(total):
        raise ProbeError(
            f"the loss of step {step + 1} is {total}: the training has diverged. Its learning rate, "
            f"{recipe.learning_rate:g}, is too high for this model; try {recipe.learning_rate / 3:.1g}."
        )
    torch.nn.utils.clip_grad_norm_(training.model.parameters(), recipe.clip)
    training.optimizer.step()
    training.losses.append(total)


def _show(on_step: OnStep | None, done: int, model: GPT) -> None:
    if on_step is not None:
        on_step(done, model.eval())


def _inputs(config: Config, recipe: Recipe, corpus: Corpus, tokenizer: Any) -> dict[str, Any]:
    """What decides the losses."""
    vocabulary = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
    return {"config": asdict(config), "recipe": asdict(recipe), "data": corpus.identity, "vocabulary": vocabulary}


def _record(training: Training, recipe: Recipe, corpus: Corpus) -> dict[str, Any]:
    last = training.losses[-100:]
    return {
        **asdict(recipe),
        "data": corpus.identity,
        "parameters": sum(p.numel() for p in training.model.parameters()),
        "first_losses": training.losses[:10],
        "mean_of_last_100_losses": sum(last) / len(last),
        "evaluations": training.evaluations,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _finish(folder: Path, trained: Trained, tokenizer: Any) -> None:
    """Write the model and its losses; only then is the checkpoint of no more use."""
    held_out = dict(trained.evaluations)
    lines = ["step,training,held_out"]
    for step, loss in enumerate(("", *trained.losses)):
        lines.append(f"{step},{loss},{held_out.get(step, '')}")
    store.write(folder / LOSSES, ("\n".join(lines) + "\n").encode())
    store.save(folder, trained.model, tokenizer, trained.record)
    (folder / CHECKPOINT).unlink(missing_ok=True)
