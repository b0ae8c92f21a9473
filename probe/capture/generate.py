"""Writing text while capturing and editing: prefill, then one token at a time with a KV cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from probe.anatomy.stacks import Anatomy
from probe.capture.batch import Batch, make_batch
from probe.capture.capture import Capture
from probe.capture.edit import ENDLESS, Edit, Frame, Path
from probe.capture.run import Collector, Run
from probe.errors import ProbeError, PromptError, UnsupportedModel
from probe.models.gpt import GPT
from probe.models.sampling import check as sampling_check
from probe.sites import ENCODER


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: see `probe.models.sampling.choose`. seed: where chance starts."""

    max_new_tokens: int
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0


@dataclass(frozen=True, repr=False)
class Generation(Run):
    """What `Subject.generate` wrote, and captured while writing.

    texts: the new text of each prompt. new_ids: its tokens. Captured positions are those of the prompt and of every
    new token but the last, which the model did not read; `logits` are those that chose the new tokens, in order.
    """

    texts: tuple[str, ...] = ()
    new_ids: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Written:
    """A batch's new token ids, up to and with what ends a prompt, and the batch as it was read at last."""

    new_ids: tuple[tuple[int, ...], ...]
    batch: Batch
    capture: Capture


def write(
    anatomy: Anatomy,
    prompts: Sequence[Sequence[int]],
    indices: Sequence[int],
    sites: Sequence[str],
    sampling: Sampling,
    *,
    layers: int | Sequence[int] | None,
    heads: int | Sequence[int] | None,
    edits: Sequence[Edit | Path],
    pad_id: int,
    stop: int | None,
    decoder_start: int,
    max_bytes: int | None,
) -> Written:
    """Continue the prompts at `indices`, padded on the left, under one capture.

    Raises UnsupportedModel for a model that writes no text, PromptError where the text would outgrow the context.
    """
    _check(anatomy, prompts, indices, sampling, edits)
    decoder = [[decoder_start]] * len(prompts) if anatomy.is_encoder_decoder else None
    batch = make_batch(anatomy, prompts, indices, padding="left", pad_id=pad_id, decoder=decoder)
    frames = {
        name: f if name == ENCODER else f._replace(lengths=(ENDLESS,) * len(indices))
        for name, f in batch.frames.items()
    }
    seen = Capture(
        anatomy, sites, layers=layers, heads=heads, edits=edits, frames=frames, max_bytes=max_bytes, steps=True
    )
    with torch.no_grad(), seen:
        start = decoder_start if anatomy.is_encoder_decoder else None
        whole = _generate(anatomy.model, batch.inputs, sampling, pad_id, stop, start)
    written = whole[:, 1 if anatomy.is_encoder_decoder else batch.inputs["input_ids"].shape[1] :].tolist()
    new = tuple(tuple(ids[: ids.index(stop) + 1] if stop in ids else ids) for ids in written)
    return Written(new, _grown(batch, [len(n) for n in new]), seen)


def _check(
    anatomy: Anatomy,
    prompts: Sequence[Sequence[int]],
    indices: Sequence[int],
    sampling: Sampling,
    edits: Sequence[Edit | Path],
) -> None:
    name = type(anatomy.model).__name__
    if not anatomy.has_logits or not anatomy.is_causal or not hasattr(anatomy.model, "generate"):
        raise UnsupportedModel(f"{name} writes no text: it has no language-model head, or its tokens see later ones.")
    if any(isinstance(e, Path) for e in edits):
        raise ProbeError("paths are not patched while text is written: run the finished text with them.")
    sampling_check(sampling.temperature, sampling.top_k, sampling.top_p)
    if not isinstance(sampling.max_new_tokens, Integral) or sampling.max_new_tokens < 1:
        raise ProbeError(f"max_new_tokens is {sampling.max_new_tokens}; a whole number, at least 1, is needed.")
    longest = max(len(prompts[i]) for i in indices)
    most = None if anatomy.is_encoder_decoder else anatomy.max_positions
    if most is not None and longest + sampling.max_new_tokens - 1 > most:
        raise PromptError(
            f"a prompt of {longest} tokens and {sampling.max_new_tokens} new ones outgrow what {name} reads, {most}; "
            f"max_new_tokens can be at most {max(0, most - longest + 1)}."
        )


def _generate(
    model: Any, inputs: dict[str, Any], sampling: Sampling, pad_id: int, stop: int | None, start: int | None
) -> Tensor:
    if isinstance(model, GPT):
        return model.generate(
            inputs["input_ids"],
            inputs["attention_mask"],
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
            stop=stop,
        )
    from transformers import GenerationConfig

    given = {n: v for n, v in inputs.items() if n not in ("use_cache", "position_ids", "decoder_attention_mask")}
    chosen: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        chosen = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        }
    if start is not None:
        chosen["decoder_start_token_id"] = start
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens, pad_token_id=pad_id, eos_token_id=stop, use_cache=True, **chosen
    )
    if "input_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModel(f"{type(model).__name__} does not write from token ids.")
    # What is left open is filled from the checkpoint's own configuration, which may ask for beams, penalties or forced
    # tokens that nobody asked for here.
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(sampling.seed)
            return model.generate(**given, generation_config=config)  # type: ignore[no-any-return]
    finally:
        model.generation_config = own


def _grown(batch: Batch, new: Sequence[int]) -> Batch:
    """The batch with the positions of the tokens written, but the last of each, which nothing has read."""
    frame = batch.frames[""]
    grown = Frame(frame.indices, tuple(n + m - 1 for n, m in zip(frame.lengths, new, strict=True)), frame.shift)
    return Batch(*grown, batch.inputs, {**batch.frames, "": grown})


def collected(prompts: Sequence[Any], parts: Sequence[Written], name: str, tokenizer: Any, encodes: bool) -> Generation:
    """The captures of successive batches, lined up."""
    new = tuple(ids for part in parts for ids in part.new_ids)
    ends = [n for part in parts for n in part.batch.lengths]
    longest = {"": max(ends), ENCODER: max(len(p) for p in prompts)}
    collector, answers = Collector(longest, None, name), Collector({"": max(map(len, new))}, None, name)
    for part in parts:
        lengths = tuple(len(ids) for ids in part.new_ids)
        frame = Frame(part.batch.indices, lengths, (0,) * len(lengths))
        chose = Batch(*frame, part.batch.inputs, {"": frame})
        for site in part.capture.expected():
            tensor = part.capture[site.name if site.layer is None else (site.name, site.layer)]
            if site.base == "logits":
                answers.add(site, tensor, chose)
            else:
                collector.add(site, tensor, part.batch)
    read = tuple(new_ids if encodes else (*prompt.ids, *new_ids) for prompt, new_ids in zip(prompts, new, strict=True))
    texts = tuple(tokenizer.decode(list(ids), skip_special_tokens=True) for ids in new)
    return Generation(tuple(prompts), None, collector.values() | answers.values(), read, texts=texts, new_ids=new)
