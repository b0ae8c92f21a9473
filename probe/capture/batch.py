"""Padded batches: prompts of token ids as a model wants them, and back."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from probe.anatomy.look import ordinary_ids
from probe.anatomy.stacks import Anatomy
from probe.capture.edit import Frame
from probe.errors import OutOfRange, ProbeError, PromptError, UnknownName, UnsupportedModel
from probe.sites import ENCODER

Padding = Literal["left", "right"]


@dataclass(frozen=True)
class Batch:
    """One padded batch. indices: which prompts. lengths: real tokens of each. shift: padding before each prompt.

    frames: the same for each stack: "" is the decoder or only stack, "encoder." the encoder of an encoder-decoder.
    """

    indices: tuple[int, ...]
    lengths: tuple[int, ...]
    shift: tuple[int, ...]
    inputs: dict[str, Any]
    frames: dict[str, Frame]


def batches(n: int, batch_size: int) -> list[range]:
    """The numbers of n prompts, batch by batch. Raises OutOfRange for a batch of none, or of no whole number."""
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise OutOfRange(f"batch_size={batch_size} was given: a batch holds 1 prompt or more; the nearest is 1.")
    return [range(start, min(start + batch_size, n)) for start in range(0, n, batch_size)]


TOKENS_PER_BATCH = 2048


def alike(lengths: Sequence[int], most_tokens: int = TOKENS_PER_BATCH) -> Iterator[list[int]]:
    """The numbers of prompts of like length, shortest first, in batches of at most so many tokens, padding included."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[i] > most_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def copies(n: int, length: int) -> list[range]:
    """The numbers of n prompts of one length, in batches of about `TOKENS_PER_BATCH` tokens."""
    return batches(n, max(1, TOKENS_PER_BATCH // length))


def make_batch(
    anatomy: Anatomy,
    prompts: Sequence[Sequence[int]],
    indices: Sequence[int],
    *,
    padding: Padding = "right",
    pad_id: int = 0,
    decoder: Sequence[Sequence[int]] | None = None,
    use_cache: bool = False,
) -> Batch:
    """Pad the prompts at `indices`. decoder: what an encoder-decoder's decoder reads, for each prompt.

    Raises UnknownName for a side, OutOfRange for ids that the model has no embedding of, PromptError for no ids.
    """
    if padding not in get_args(Padding):
        raise UnknownName.of("padding side", padding, get_args(Padding))
    _check_ids(anatomy, {i: prompts[i] for i in indices})
    device = input_device(anatomy)
    accepted = inspect.signature(anatomy.model.forward).parameters
    if anatomy.is_encoder_decoder:
        padding = "right"  # an encoder may count positions from its first column, whatever that holds
    ids, mask, frame = _padded([prompts[i] for i in indices], indices, padding, pad_id, device)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    frames = {"": frame}
    if anatomy.is_encoder_decoder:
        if decoder is None:
            raise ProbeError(f"{type(anatomy.model).__name__} is an encoder-decoder: its decoder needs token ids too.")
        inputs["decoder_input_ids"], inputs["decoder_attention_mask"], frames[""] = _padded(
            [decoder[i] for i in indices], indices, "right", pad_id, device
        )
        frames[ENCODER] = frame
    elif any(frame.shift) and "position_ids" not in accepted and not pads_left(anatomy):
        raise UnsupportedModel(
            f"{type(anatomy.model).__name__} counts positions from its first column and takes no position ids: left "
            "padding would move its prompts. Pad on the right, or give prompts of one length."
        )
    elif any(frame.shift) and "position_ids" in accepted:
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0) + anatomy.first_position
    if "use_cache" in accepted:
        inputs["use_cache"] = use_cache
    return Batch(*frames[""], inputs, frames)


def _check_ids(anatomy: Anatomy, prompts: Mapping[int, Sequence[int]]) -> None:
    embedding = anatomy.stack.embedding if anatomy.encoder is None else anatomy.encoder.embedding
    size = getattr(embedding.module, "num_embeddings", None) if embedding else None
    for number, ids in prompts.items():
        if not len(ids):
            raise PromptError(f"prompt {number} has no tokens; give at least one.")
        if size is not None and not 0 <= min(ids) <= max(ids) < size:
            raise OutOfRange.of("token id", max(ids) if max(ids) >= size else min(ids), size)


_pads_left: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def pads_left(anatomy: Anatomy) -> bool:
    """Whether a model that takes no position ids finds a prompt's first token behind padding, tried on a short one."""
    if anatomy.model not in _pads_left:
        ids = torch.tensor([ordinary_ids(anatomy.model)[1:5]], device=input_device(anatomy))
        ids = ids.repeat(2, 1)
        padded = torch.cat([ids[:, :1].expand(-1, 2), ids], 1)
        mask = torch.ones_like(padded)
        mask[:, :2] = 0
        with torch.no_grad():
            plain, behind = anatomy.model(input_ids=ids)[0], anatomy.model(input_ids=padded, attention_mask=mask)[0]
        _pads_left[anatomy.model] = torch.allclose(plain, behind[:, 2:], atol=1e-3 * float(plain.abs().max()))
    return _pads_left[anatomy.model]


def input_device(anatomy: Anatomy) -> torch.device:
    """Where token ids have to lie: with the token embedding, or where its offloaded weights are run."""
    embedding = anatomy.stack.embedding
    module = embedding.module if embedding else anatomy.model
    hook = getattr(module, "_hf_hook", None)
    if getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)  # type: ignore[union-attr]
    return next(module.parameters()).device


def decoder_prompts(
    anatomy: Anatomy, prompts: Sequence[Sequence[int]], given: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int]]:
    """What the decoder of an encoder-decoder reads for each prompt, its start token by default; of another model, the
    prompts. Raises OutOfRange for another number of lists or an empty one, ProbeError where there is no decoder.
    """
    name = type(anatomy.model).__name__
    if not anatomy.is_encoder_decoder:
        if given is not None:
            raise ProbeError(f"{name} is no encoder-decoder, its one stack reads the prompts: leave decoder= out.")
        return prompts
    if given is None:
        start = getattr(anatomy.model.config, "decoder_start_token_id", None)
        return [[start if isinstance(start, int) else 0]] * len(prompts)
    if len(given) != len(prompts) or not all(given):
        raise OutOfRange(
            f"the decoder needs at least one token id for each of {len(prompts)} prompts; got {len(given)} lists."
        )
    return given


def row_tensor(rows: Sequence[Sequence[int]], batch: Batch) -> Tensor:
    """The chosen rows as tensor positions, (batch, row); a shorter list is filled up by repeating its last row."""
    most = max(len(rows[i]) for i in batch.indices)
    filled = [
        [r + s for r in rows[i]] + [rows[i][-1] + s] * (most - len(rows[i]))
        for i, s in zip(batch.indices, batch.shift, strict=True)
    ]
    return torch.tensor(filled, dtype=torch.long)


def _padded(
    prompts: Sequence[Sequence[int]], indices: Sequence[int], padding: str, pad_id: int, device: torch.device
) -> tuple[Tensor, Tensor, Frame]:
    lengths = tuple(map(len, prompts))
    longest = max(lengths)
    shift = tuple(longest - n if padding == "left" else 0 for n in lengths)
    ids = torch.full((len(prompts), longest), pad_id, dtype=torch.long, device=device)
    mask = torch.zeros_like(ids)
    for row, (prompt, n, s) in enumerate(zip(prompts, lengths, shift, strict=True)):
        ids[row, s : s + n] = torch.tensor(prompt, device=device)
        mask[row, s : s + n] = 1
    return ids, mask, Frame(tuple(indices), lengths, shift)
