"""A small encoder-decoder that learns to write strings backwards: a task for which cross-attention is needed.

The encoder reads `<bos> c a f .`, the decoder `<bos> f a c`, and each of the decoder's positions has to say the next of
`f a c .`; so where each step has to find its symbol is known: at the mirrored position of what the encoder read.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.models.tokenizer import BEGIN_ID, PAD_ID, SPECIAL, word_tokenizer
from probe.models.train import Recipe, learning_rate
from probe.threads import limited

SYMBOLS = tuple("abcdefghijklmnop")
END = "."
END_ID = len(SPECIAL) + len(SYMBOLS)
SHORTEST, LONGEST = 4, 10
"""Symbols of the strings trained on."""
FAR = 12
"""Symbols of the longest string there are positions for."""

String = tuple[str, ...]


@dataclass(frozen=True)
class Reverser:
    """A trained model, in evaluation mode; the loss of each step's batch, in nats per token, before its update."""

    model: Any
    losses: tuple[float, ...]


def tokenizer() -> Any:
    """One token for each symbol and the end mark; <bos> before each string."""
    return word_tokenizer((*SYMBOLS, END))


def draw(rng: random.Random, length: int | None = None) -> String:
    """A random string. length: how many symbols, default any from `SHORTEST` to `LONGEST`."""
    return tuple(rng.choices(SYMBOLS, k=rng.randint(SHORTEST, LONGEST) if length is None else length))


def held_out(n: int, *, seed: int, length: int | None = None) -> tuple[String, ...]:
    """n different random strings, to be kept out of training."""
    rng = random.Random(f"held out {seed}")
    found: dict[String, None] = {}
    while len(found) < n:
        found[draw(rng, length)] = None
    return tuple(found)


def source(string: Sequence[str]) -> str:
    """The text that the encoder reads."""
    return " ".join((*string, END))


def answer(string: Sequence[str]) -> tuple[int, ...]:
    """The ids that the decoder has to write: the string backwards, and the end mark."""
    return (*(_id(symbol) for symbol in reversed(string)), END_ID)


def read_by_decoder(string: Sequence[str]) -> tuple[int, ...]:
    """The ids that the decoder reads while it writes the right answer: position t is read to write symbol t."""
    return (BEGIN_ID, *answer(string)[:-1])


def mirrored(length: int) -> tuple[int, ...]:
    """Of a string of `length` symbols: the encoder position that holds the symbol to be written, for each of them.

    Encoder position 0 is <bos>.
    """
    return tuple(length - step for step in range(length))


def new_model(seed: int = 0) -> Any:
    """An untrained BART-type model (post-norm, learned positions): two layers on either side, four heads, width 64."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=END_ID + 1,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        dropout=0.0,
        max_position_embeddings=FAR + 2,  # <bos> and the end mark are read as well
        pad_token_id=PAD_ID,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        decoder_start_token_id=BEGIN_ID,
        forced_eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BartForConditionalGeneration(config).eval()


def train(recipe: Recipe, kept: Collection[String] = ()) -> Reverser:
    """Train a new model on random strings, `recipe.batch_size` a step, none of which is in `kept`.

    Runs on one thread: several are slower for matrices this small, and the losses would depend on their number.
    """
    rng, kept = random.Random(recipe.seed), frozenset(kept)
    model = new_model(recipe.seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    losses = []
    with limited(1):
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step)
            loss = _loss(model, [_fresh(rng, kept) for _ in range(recipe.batch_size)])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            losses.append(loss.item())
    return Reverser(model.eval(), tuple(losses))


def _loss(model: Any, strings: Sequence[String]) -> Tensor:
    """Mean cross-entropy (nats) of each token of the right answers, given those before it."""
    sources = _padded([(BEGIN_ID, *map(_id, s), END_ID) for s in strings], PAD_ID)
    labels = _padded([answer(s) for s in strings], -100)
    logits = model(
        input_ids=sources,
        attention_mask=(sources != PAD_ID).long(),
        decoder_input_ids=_padded([read_by_decoder(s) for s in strings], PAD_ID),
    ).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def _fresh(rng: random.Random, kept: frozenset[String]) -> String:
    string = draw(rng)
    while string in kept:
        string = draw(rng)
    return string


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def _id(symbol: str) -> int:
    return len(SPECIAL) + SYMBOLS.index(symbol)
