"""The tiny GPT beside transformers' GPT-2 with the same sizes and weights: training and decoding, timed in pairs.

python -m probe.cost.tiny_gpt training --repeats 7

The last line on stdout is a JSON object: {"plain": seconds of GPT-2, "contender": seconds of the tiny GPT}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.cost.pairs import paired, timing_options
from probe.models.exchange import to_transformers
from probe.models.gpt import GPT, Config
from probe.models.gradients import by_hand

SIZES = Config(vocab_size=256)  # else the shipped tiny GPT's, with 128 positions
BATCH, LENGTH = 32, 128  # of a training step
PROMPT = 16  # tokens before decoding, which fills the context
# GPT-2's activation, in eight steps, and the same formula as torch's single one, which the tiny GPT uses.
OWN, FUSED = "gelu_new", "gelu_pytorch_tanh"

Run = Callable[[], Tensor]


class Task(NamedTuple):
    """Something both models do. label: for tables. tokens: how many one run works through. make: from a seed to the
    runs of GPT-2 and of the tiny GPT.
    """

    label: str
    tokens: int
    make: Callable[[int], tuple[Run, Run]]


def training(seed: int, activation: str = OWN, gradients: str = "by_hand") -> tuple[Run, Run]:
    """One step of each: forward, cross-entropy of the next token, backward, fused AdamW. A run returns its loss (nats).

    activation: GPT-2's, by its name in transformers. gradients: the tiny GPT's (`Recipe.gradients`); by default those
    that `probe train` takes.
    """
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(SIZES.vocab_size, (BATCH, LENGTH + 1), generator=draws)
    tiny, twin = _both(seed, activation)

    def logits(read: Tensor) -> Tensor:
        with by_hand(gradients == "by_hand"):
            return cast(Tensor, tiny(read).logits)

    return (
        _step(twin.train(), lambda read: twin(input_ids=read, use_cache=False).logits, ids),
        _step(tiny.train(), logits, ids),
    )


def decoding(seed: int) -> tuple[Run, Run]:
    """Greedy decoding of one prompt with a cache until the context is full; a run returns the ids, (1, pos)."""
    from transformers import GenerationConfig

    draws = torch.Generator().manual_seed(seed)
    prompt = torch.randint(SIZES.vocab_size, (1, PROMPT), generator=draws)
    tiny, twin = _both(seed)
    new = SIZES.max_positions - PROMPT
    greedy = GenerationConfig(max_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0)
    mask = torch.ones_like(prompt)
    return (
        lambda: twin.generate(prompt, attention_mask=mask, generation_config=greedy),
        lambda: tiny.generate(prompt, mask, max_new_tokens=new),
    )


TASKS = {
    "training": Task("training step, 32 x 128 tokens", BATCH * LENGTH, training),
    "training-autograd": Task(
        "training step, the tiny GPT with torch's gradients", BATCH * LENGTH, partial(training, gradients="torch")
    ),
    "training-fused-gelu": Task(
        "training step, GPT-2 with a fused activation", BATCH * LENGTH, partial(training, activation=FUSED)
    ),
    "decoding": Task("greedy decoding with a cache, 112 tokens after 16", SIZES.max_positions - PROMPT, decoding),
}


def _both(seed: int, activation: str = OWN) -> tuple[GPT, Any]:
    """A tiny GPT and GPT-2 with its weights."""
    from transformers.activations import ACT2FN

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tiny = GPT(SIZES)
        twin: Any = to_transformers(tiny)
    for block in twin.transformer.h:
        block.mlp.act = ACT2FN[activation]
    return tiny, twin


def _step(model: nn.Module, logits: Callable[[Tensor], Tensor], ids: Tensor) -> Run:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> Tensor:
        loss = F.cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


def main(words: Sequence[str] | None = None) -> None:
    """Time one task as the command line says and print the JSON."""
    parser = argparse.ArgumentParser(prog="probe.cost.tiny_gpt")
    parser.add_argument("task", choices=sorted(TASKS))
    timing_options(parser)
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    twin, tiny = TASKS[given.task].make(given.seed)
    print(json.dumps(paired(twin, tiny, given.repeats)._asdict()))


if __name__ == "__main__":
    main()
