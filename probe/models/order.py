"""Who chases whom: a task that only word order solves, and a short training on it.

    model = learn_order(Config(len(WORDS) + 3, n_layers=2, position="none"), steps=300, seed=0)
    tells_order(model, HELD_OUT)               # share of right answers; 0.5 is a guess

`<bos> cat chases dog :` is answered with "cat", `<bos> dog chases cat :` with "dog". The words are the same, so whoever
does not know their order can only guess. The answer is read at the last token, the only one that is trained: a
bidirectional model can learn this, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.models.gpt import GPT, Config
from probe.models.tokenizer import BEGIN_ID, SPECIAL

_names = "cat dog fox bear goat duck wolf mouse lion sheep frog horse cow pig hen owl rat bee ant crab"
ANIMALS: tuple[str, ...] = tuple(_names.split())
WORDS = (*ANIMALS, "chases", ":")
IDS = {word: n for n, word in enumerate((*SPECIAL, *WORDS))}
Pair = tuple[str, str]

_pairs = list(combinations(ANIMALS, 2))
HELD_OUT: tuple[Pair, ...] = tuple(_pairs[4::5])  # pairs of animals that no training meets, in either order
TRAINED: tuple[Pair, ...] = tuple(p for p in _pairs if p not in HELD_OUT)


def sentence(first: str, second: str) -> list[int]:
    """The ids of `<bos> first chases second :`."""
    return [BEGIN_ID, *(IDS[word] for word in (first, "chases", second, ":"))]


def both_orders(pairs: Sequence[Pair]) -> Tensor:
    """Every pair in both orders, (2 pairs, 5): the second half are the first half's sentences turned round."""
    return torch.tensor([sentence(*p) for p in pairs] + [sentence(*p[::-1]) for p in pairs])


def learn_order(config: Config, *, steps: int, seed: int, batch_size: int = 64, learning_rate: float = 1e-3) -> GPT:
    """A new model, trained to answer with the first animal (AdamW, cross-entropy at the last token), in evaluation
    mode. The caller's own random numbers go on as if nothing had been drawn.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT(config).train()
    rng, ids = random.Random(seed), both_orders(TRAINED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
    for _ in range(steps):
        rows = ids[[rng.randrange(len(ids)) for _ in range(batch_size)]]
        loss = F.cross_entropy(_answers(model, rows), rows[:, 1])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


@torch.no_grad()
def tells_order(model: GPT, pairs: Sequence[Pair]) -> float:
    """Share of sentences, each pair in both orders, whose first animal gets the higher logit of the two; ties count
    half.
    """
    ids = both_orders(pairs)
    logits = _answers(model, ids)
    first, second = (logits.gather(1, ids[:, [at]]).squeeze(1) for at in (1, 3))
    return float(((first > second).double() + 0.5 * (first == second)).mean())


def _answers(model: GPT, ids: Tensor) -> Tensor:
    return cast(Tensor, model(ids).logits)[:, -1]
