"""What the halves of a block write to the residual stream, told by numbers.

A block adds what attention found to its stream, then what its MLP made of that, with norms before, after or around
either half. Which of its modules stand at these places is found by fitting: the stream between the halves is the
tensor that is a sum of the stream before and of something a module wrote, and from which the block's output follows
in the same way. A layout that does not add up like this has no `resid_mid`, and is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from probe.anatomy.look import Event, Seen

CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
MOST = 4096  # numbers that a fit looks at


@dataclass(frozen=True)
class Halves:
    """mid: the module call at which the stream stands between the halves, and on which side of it; None in parallel
    blocks. attention, cross, mlp: the calls whose outputs the halves are, before any norm that follows.
    added: what attention writes enters the stream as it is, times this factor; None where a norm stands between.
    carries: what is in the stream before the block is in it after, as it was (not so in post-norm blocks).
    """

    mid: tuple[Event, Literal["input", "output"]] | None = None
    attention: Event | None = None
    cross: Event | None = None
    mlp: Event | None = None
    added: float | None = None
    carries: bool = False


def find(block: Event, inside: Sequence[Event], attentions: Sequence[Seen]) -> Halves:
    """The halves of one block. inside: the module calls that are part of it, in the order they began; attentions: its
    self-attention and, in a decoder that reads an encoder, its cross-attention after it.
    """
    if block.made is None or not block.given:
        return Halves()
    start = _stream(block)
    if start is None or start.shape != block.made.shape:
        return Halves()
    path = _follow(start, block, inside, list(attentions), [])
    if path is not None:
        steps, mlp = path
        writers = [_unnormed(step.wrote, inside) for step in steps]
        added = steps[0].factors[1] if writers[0] is steps[0].wrote else None
        carries = _final(block, inside) is block.made and all(s.side == "input" and s.factors[0] == 1 for s in steps)
        last = steps[-1]
        crossed = writers[1] if len(writers) > 1 else None
        return Halves((last.stands, last.side), writers[0], crossed, mlp, added, carries)
    return _attention_alone(start, block, inside, attentions) or _parallel(start, block, inside, attentions)


class Step(NamedTuple):
    """One addition to the stream: where the sum stands, what wrote the addend, the factors of stream and addend."""

    stands: Event
    side: Literal["input", "output"]
    wrote: Event
    factors: list[float]


def _follow(
    stream: Tensor, block: Event, inside: Sequence[Event], left: list[Seen], steps: list[Step]
) -> tuple[list[Step], Event | None] | None:
    """Walk the stream through the attentions that are left, then through the MLP to the block's output."""
    if not left:
        final = _final(block, inside)
        mlp = _addend(final, stream, [e for e in inside if e.entered > steps[-1].stands.entered])
        if mlp is None:
            return None
        return steps, _unnormed(mlp[0], inside)
    seen, *rest = left
    until = rest[0].moment if rest else block.left
    for event in inside:
        if not seen.moment < event.entered < until:
            continue
        given = _stream(event)
        if given is None or given.shape != stream.shape or torch.equal(given, stream):
            continue
        wrote = [e for e in inside if seen.event.entered <= e.entered and seen.moment < e.left < event.entered]
        addend = _addend(given, stream, wrote)
        if addend is None:
            continue
        sides: list[tuple[Literal["input", "output"], Tensor | None]] = [("input", given), ("output", event.made)]
        for side, tensor in sides:
            if tensor is not None and tensor.shape == stream.shape:
                path = _follow(tensor, block, inside, rest, [*steps, Step(event, side, *addend)])
                if path is not None:
                    return path
        return None
    return None


def _attention_alone(start: Tensor, block: Event, inside: Sequence[Event], attentions: Sequence[Seen]) -> Halves | None:
    """A block without an MLP: its output is the stream and what attention wrote."""
    final, seen = _final(block, inside), attentions[0]
    addend = _addend(final, start, [e for e in inside if seen.event.entered <= e.entered <= seen.event.left])
    if addend is None or len(attentions) > 1:
        return None
    writer = _unnormed(addend[0], inside)
    carries = final is block.made and addend[1][0] == 1
    return Halves(None, writer, None, None, addend[1][1] if writer is addend[0] else None, carries)


def _parallel(start: Tensor, block: Event, inside: Sequence[Event], attentions: Sequence[Seen]) -> Halves:
    """Both halves read the same stream and are added to it at once."""
    final = _final(block, inside)
    seen = attentions[0]
    wrote = [e for e in inside if seen.moment < e.left and _shaped(e, start)]
    for attention in wrote:
        for mlp in wrote:
            if mlp is attention or attention.made is None or mlp.made is None:
                continue
            factors = _fit(final, start, attention.made, mlp.made)
            within = seen.event.entered <= attention.entered <= seen.event.left
            if factors is not None and (within or attention.left <= seen.event.left):
                writer = _unnormed(attention, inside)
                added = factors[1] if writer is attention else None
                carries = final is block.made and factors[0] == 1
                return Halves(None, writer, None, _unnormed(mlp, inside), added, carries)
    return Halves()


def _stream(event: Event) -> Tensor | None:
    return next((t for t in event.given if t.is_floating_point() and t.dim() == 3), None)


def _shaped(event: Event, like: Tensor) -> bool:
    return event.made is not None and event.made.shape == like.shape and event.made.is_floating_point()


def _final(block: Event, inside: Sequence[Event]) -> Tensor:
    """The last sum of the block: its output, or what a norm at its end was given."""
    assert block.made is not None
    for event in reversed(inside):
        if _is_norm(event) and event.made is not None and torch.equal(event.made, block.made):
            return _stream(event) if _stream(event) is not None else block.made  # type: ignore[return-value]
    return block.made


def _addend(total: Tensor, stream: Tensor, wrote: Sequence[Event]) -> tuple[Event, list[float]] | None:
    """The first module call to return what was added to `stream` to give `total`, and the factors of the two."""
    for event in sorted(wrote, key=lambda e: e.left):
        if _shaped(event, stream) and event.made is not None:
            factors = _fit(total, stream, event.made)
            if factors is not None:
                return event, factors
    return None


def _unnormed(event: Event, inside: Sequence[Event]) -> Event:
    """The module call that a norm after a half was given the output of; the call itself where it is no norm."""
    given = _stream(event)
    if not _is_norm(event) or given is None:
        return event
    before = [e for e in inside if e.left < event.entered and e.made is not None and e.made.shape == given.shape]
    return next((e for e in sorted(before, key=lambda e: e.left) if torch.equal(e.made, given)), event)  # type: ignore


def _is_norm(event: Event) -> bool:
    return "norm" in type(event.module).__name__.lower()


def _fit(total: Tensor, *terms: Tensor) -> list[float] | None:
    """The factors with which `terms` add up to `total`, none of them 0; None where they do not."""
    if any(t.shape != total.shape for t in terms) or any(torch.equal(total, t) for t in terms):
        return None
    step = max(1, total.numel() // MOST)
    columns = torch.stack([t.flatten()[::step].double() for t in terms], 1)
    target = total.flatten()[::step].double()
    if not bool(torch.isfinite(columns).all() and torch.isfinite(target).all()):
        return None
    factors = torch.linalg.lstsq(columns, target.unsqueeze(1)).solution.squeeze(1)
    rest = (columns @ factors - target).norm() / target.norm().clamp(min=1e-30)
    if rest > CLOSE.get(total.dtype, 1e-4) or bool((factors.abs() < 1e-2).any()):
        return None
    return [round(f, 3 if total.dtype in (torch.float16, torch.bfloat16) else 5) for f in factors.tolist()]
