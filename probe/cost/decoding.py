"""Decoding by hand, one token at a time, with a KV cache and without: what is chosen, computed and kept.

decoder = Decoder(subject.model)
cache = decoder.new_cache()
decoder.logits(prompt, cache)        # (vocab,): prefill
decoder.logits([token], cache)       # one token more
decoder.logits([*prompt, token])     # the same without a cache
"""

from __future__ import annotations

import inspect
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probe.anatomy.look import ordinary_ids
from probe.anatomy.stacks import Anatomy
from probe.cost.growth import Spread, repeated
from probe.errors import CaptureError, UnsupportedModel
from probe.models.gpt import GPT, Cache


def check_decodes(anatomy: Anatomy) -> None:
    """Raises UnsupportedModel unless the model writes text and every layer keeps keys and values for it."""
    why = None
    if anatomy.is_encoder_decoder:
        why = "it is an encoder-decoder, whose encoder reads its text only once anyway"
    elif not anatomy.is_causal:
        why = "its tokens see later ones, so that each new token changes the keys and values of all"
    elif not anatomy.has_logits:
        why = "it has no language-model head, so it writes no text"
    elif len(anatomy.layers) < anatomy.n_layers:
        why = f"only {len(anatomy.layers)} of its {anatomy.n_layers} layers have keys and values"
    if why is not None:
        name = type(anatomy.model).__name__
        raise UnsupportedModel(
            f"{name} has no KV cache to measure: {why}. Causal decoders do, such as smollm2 or tiny."
        )


class Decoder:
    """A causal decoder, as a function from its newest tokens to the logits of the next one. For a single prompt.

    device: where token ids have to lie (`probe.capture.batch.input_device`).
    """

    def __init__(self, model: nn.Module, device: str | torch.device = "cpu") -> None:
        self.model: Any = model
        self.device = device
        accepted = inspect.signature(model.forward).parameters
        self._cache = "cache" if "cache" in accepted else "past_key_values"  # transformers' name before 5.19
        self._may_cache = "use_cache" in accepted
        # As in generation, where only the newest token's logits are computed.
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def new_cache(self) -> Any:
        """An empty cache of the kind the model takes."""
        if isinstance(self.model, GPT):
            return Cache()
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def random_ids(self, n: int, seed: int) -> list[int]:
        """n token ids, none of them special; a longer list with the same seed begins alike."""
        return random.Random(seed).choices(ordinary_ids(self.model), k=n)

    def logits(self, ids: Sequence[int], cache: Any = None) -> Tensor:
        """(vocab,): of the token after `ids`. cache: the tokens before them, extended in place; None: there are none,
        and nothing is kept.
        """
        options: dict[str, Any] = dict(self._options)
        if cache is not None:
            options[self._cache] = cache
        if self._may_cache:
            options["use_cache"] = cache is not None
        with torch.no_grad():
            out: Tensor = self.model(torch.tensor([ids], device=self.device), **options).logits
        return out[0, -1]


def kept_bytes(cache: Any) -> int:
    """Bytes of the keys and values in a cache of the tiny GPT or of transformers."""
    pairs = cache.layers.values() if isinstance(cache, Cache) else [(at.keys, at.values) for at in cache.layers]
    return sum(t.numel() * t.element_size() for pair in pairs for t in pair)


def bytes_per_token(decoder: Decoder, n: int = 8) -> int:
    """What one more token adds to the cache, as its tensors say, from prompts of n and 2 n tokens."""
    sizes = []
    for length in (n, 2 * n):
        cache = decoder.new_cache()
        decoder.logits(decoder.random_ids(length, 0), cache)
        sizes.append(kept_bytes(cache))
    return (sizes[1] - sizes[0]) // n


class StepTimes(NamedTuple):
    """Seconds to read a context (prefill), and for the next token with a cache and without."""

    prefill: Spread
    cached: Spread
    plain: Spread


def step_times(decoder: Decoder, n: int, repeats: int, seed: int) -> StepTimes:
    """Time them at a context of n random tokens. Cached steps follow each other: the context grows by one at each, to
    n + repeats + 1.
    """
    ids, cache = decoder.random_ids(n + 1, seed), decoder.new_cache()
    prefill = repeated(lambda: decoder.logits(ids[:-1], decoder.new_cache()), repeats)
    decoder.logits(ids[:-1], cache)
    cached = repeated(lambda: decoder.logits(ids[-1:], cache), repeats)
    return StepTimes(prefill, cached, repeated(lambda: decoder.logits(ids), repeats))


class Compared(NamedTuple):
    """Greedy decoding with a cache beside passes without one over the same tokens.

    same: choices, out of len(new_ids), that were the same. difference: the largest between two logits. margin: the
    smallest between the likeliest token's logit and the next one's.
    """

    new_ids: tuple[int, ...]
    same: int
    difference: float
    margin: float


def compare(decoder: Decoder, prompt: Sequence[int], n_new: int) -> Compared:
    """Write `n_new` tokens with a cache, and at each step ask for the same logits without one."""
    ids, cache, same, difference, margin = list(prompt), decoder.new_cache(), 0, 0.0, float("inf")
    fed: Sequence[int] = prompt
    for _ in range(n_new):
        cached, plain = decoder.logits(fed, cache), decoder.logits(ids)
        best = plain.float().topk(2).values
        same += int(cached.argmax() == plain.argmax())
        difference = max(difference, float((cached - plain).abs().max()))
        margin = min(margin, float(best[0] - best[1]))
        fed = [int(cached.argmax())]
        ids += fed
    return Compared(tuple(ids[len(prompt) :]), same, difference, margin)


class Counted(NamedTuple):
    """What a text took to write. projected: tokens whose keys and values were computed, in every layer. projections:
    the matrices at which they were counted. seconds: from the first pass to the last.
    """

    new_ids: tuple[int, ...]
    projected: int
    projections: tuple[str, ...]
    seconds: float


def write(decoder: Decoder, anatomy: Anatomy, prompt: Sequence[int], n_new: int, *, cached: bool) -> Counted:
    """Write `n_new` tokens greedily, counting the tokens that pass through each layer's projections.

    anatomy: of the decoder's model. Raises CaptureError where layers or projections saw different numbers of tokens.
    """
    ids, cache = list(prompt), decoder.new_cache() if cached else None
    fed: Sequence[int] = prompt
    with projected(anatomy) as tally:
        began = time.perf_counter()
        for _ in range(n_new):
            ids.append(int(decoder.logits(fed, cache).argmax()))
            fed = ids[-1:] if cached else ids
        seconds = time.perf_counter() - began
    counts = {n for layers in tally.values() for n in layers.values()}
    if len(counts) != 1:
        raise CaptureError(f"the projections of attention disagree about the tokens they saw: {sorted(counts)}.")
    return Counted(tuple(ids[len(prompt) :]), counts.pop(), tuple(tally), seconds)


@contextmanager
def projected(anatomy: Anatomy) -> Iterator[dict[str, Counter[int]]]:
    """Counts, while inside, the tokens that pass through each matrix of attention but the output's: name -> layer ->
    tokens. Raises UnsupportedModel for attention without matrices of its own.
    """
    tally: dict[str, Counter[int]] = {}
    handles = []
    for index, layer in anatomy.stack.layers.items():
        out = layer.attention.project
        for name, module in layer.attention.module.named_modules():
            weight = getattr(module, "weight", None)
            is_matrix = isinstance(weight, Tensor) and weight.dim() == 2 and not isinstance(module, nn.Embedding)
            if is_matrix and not (out and module is out.module):
                handles.append(module.register_forward_hook(partial(_count, tally.setdefault(name, Counter()), index)))
    if not tally:
        raise UnsupportedModel(f"the attention of {type(anatomy.model).__name__} has no projections to count at.")
    try:
        yield tally
    finally:
        for handle in handles:
            handle.remove()


def _count(tally: Counter[int], layer: int, module: nn.Module, given: Any, made: Tensor) -> None:
    tally[layer] += made.numel() // made.shape[-1]
