"""What stands between the last block and the logits: a final norm, an unembedding, and what bends the logits after it.

A norm divides by a scale and is otherwise linear. With the scale frozen at its value on a prompt, what goes into it
comes out part by part; that is what direct logit attribution and the logits of a head's output are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from probe.errors import OutOfRange, PromptError, UnsupportedModel
from probe.models.gpt import GPT
from probe.subject import Subject
from probe.targets import Unit

WATCHED = [[1, 1]]  # the prompt that a model is watched on
ROUNDING = 1e-3  # of the largest logit: how far what the tail says may be from the model's own logits


class Tail(NamedTuple):
    """norm: the final norm, None where there is none. unembedding: (vocab, d_model), a constant factor on the logits
    included. bias: (vocab,), None where there is none. cap: the softcap of the logits, cap · tanh(logits / cap).
    """

    norm: nn.Module | None
    unembedding: Tensor
    bias: Tensor | None = None
    cap: float | None = None

    def logits(self, stream: Tensor) -> Tensor:
        """What the model would say of a stream: (n, d_model) -> (n, vocab)."""
        with torch.no_grad():
            normed = stream if self.norm is None else self.norm(stream.to(self.unembedding.dtype)[None])[0]
            raw = normed @ self.unembedding.T
            raw = raw if self.bias is None else raw + self.bias
            return raw if self.cap is None else self.cap * torch.tanh(raw / self.cap)


class Frozen(NamedTuple):
    """A norm with its scale fixed. of: parts of its input, (..., d_model) -> their share of the output. bias: what the
    norm adds of its own.
    """

    of: Callable[[Tensor], Tensor]
    bias: Tensor


def frozen_norm(norm: nn.Module | None, stream: Tensor) -> Frozen:
    """The norm as a linear map, its scale fixed at what it is for `stream`, (d_model).

    Found by asking it, so that it need not be one of a list: whether it subtracts the mean, its gain and its bias from
    how it answers to a random vector and to that vector's opposite, its scale from how it answers to `stream`.
    Raises UnsupportedModel for what is no scale and gain.
    """
    if norm is None or isinstance(norm, nn.Identity):
        return Frozen(lambda part: part, torch.zeros_like(stream))
    like = next(iter(norm.parameters()), stream)

    def ask(x: Tensor) -> Tensor:
        with torch.no_grad():
            return cast(Tensor, norm(x.to(like.dtype)[None, None]))[0, 0].double()

    far = torch.randn(len(stream), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1000
    far = far.to(stream.device)  # so long that the norm's epsilon does not count
    bias = (ask(far) + ask(-far)) / 2
    centred = bool((ask(far + 1000) - ask(far)).abs().max() < 1e-2)

    def centre(x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if centred else x

    gain = (ask(far) - bias) * centre(far).square().mean().sqrt() / centre(far)
    raw, answered = gain * centre(stream), ask(stream) - bias
    scale = (raw @ raw) / (raw @ answered)
    if (raw / scale - answered).abs().max() > 1e-2 * answered.abs().max():
        raise UnsupportedModel(f"the final {type(norm).__name__} is not a scale and a gain: it cannot be frozen.")
    return Frozen(lambda part: gain * centre(part) / scale, bias)


def tail_of(subject: Subject) -> Tail:
    """The final norm and the unembedding, seen in a short pass. Raises UnsupportedModel where there are no logits, and
    where they are not all that stands between the last block and the logits (the head of a masked language model).
    """
    model: Any = subject.model
    if not subject.has_logits:
        raise UnsupportedModel(f"{subject.name} has no language-model head: no logits to attribute.")
    if isinstance(model, GPT):
        matrix = model.base_model.embed.weight if model.config.tied else model.unembed.weight
        return Tail(model.base_model.norm, matrix.detach())
    head = model.get_output_embeddings()
    if head is None or not isinstance(getattr(head, "weight", None), Tensor):
        raise UnsupportedModel(f"{subject.name}: no single matrix maps its stream to logits.")
    made: dict[int, tuple[nn.Module, Tensor]] = {}
    read: list[tuple[Tensor, Tensor]] = []

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            made[output.data_ptr()] = module, output  # kept, so that its address is not used again

    hooks = [m.register_forward_hook(note) for m in model.modules()]
    hooks.append(head.register_forward_hook(lambda _, args, output: read.append((args[0], output))))
    try:
        ((_, seen),) = subject.captured(WATCHED, ["resid_post", "logits"])
    finally:
        for hook in hooks:
            hook.remove()
    given, raw = read[-1]
    norm = made.get(given.data_ptr())
    if norm is None:
        raise UnsupportedModel(f"{subject.name}: what its logits are read from does not come from a final norm.")
    said = seen["logits"]
    factor, cap = _bent(model, raw.double(), said.double())
    bias = getattr(head, "bias", None)
    tail = Tail(norm[0], factor * head.weight.detach(), None if bias is None else factor * bias.detach(), cap)
    check_tail(subject, tail, seen["resid_post", subject.anatomy.layers[-1]][0], said[0])
    return tail


def check_tail(subject: Subject, tail: Tail, stream: Tensor, own: Tensor) -> None:
    """That the tail says of the last stream, (n, d_model), what the model itself said, (n, vocab). Raises
    UnsupportedModel.
    """
    rounding = max(ROUNDING, 4 * torch.finfo(tail.unembedding.dtype).eps)
    own = own.double()
    if (tail.logits(stream).double() - own).abs().max() > rounding * own.abs().max():
        between = "a final norm and an unembedding" + (" with a softcap" if tail.cap else "")
        raise UnsupportedModel(
            f"{subject.name} does more than {between} after its last block, so parts of its stream are no parts of its "
            "logits and no lens reads what it would say. Take a decoder, such as smollm2."
        )


def compared(unit: Unit, vocabulary: int) -> tuple[int, int]:
    """The first tokens of a unit's right answer and of its first wrong one. vocabulary: how many tokens have a logit.

    Raises PromptError for a unit without both, OutOfRange for a token that has no logit.
    """
    answer = unit.answer
    if answer is None or not answer.right or not answer.wrong or not answer.wrong[0]:
        raise PromptError(f"{unit.item} asks nothing: it needs a right and a wrong answer.")
    right, wrong = answer.right[0], answer.wrong[0][0]
    for side, token in (("right", right), ("wrong", wrong)):
        if not 0 <= token < vocabulary:
            raise OutOfRange.of(f"the {side} answer of {unit.item}, token", token, vocabulary)
    return right, wrong


def _bent(model: Any, raw: Tensor, said: Tensor) -> tuple[float, float | None]:
    """What the model does to its head's output: a factor, and a softcap. Anything else is refused by `check_tail`."""
    for name in ("final_logit_softcapping", "logits_soft_cap"):
        cap = getattr(model.config, name, None)
        if cap and _near(cap * torch.tanh(raw / cap), said):
            return 1.0, float(cap)
    size = float(raw.square().sum())
    factor = float((raw * said).sum()) / size if size else 1.0
    return (factor, None) if abs(factor - 1) > 1e-4 and _near(factor * raw, said) else (1.0, None)


def _near(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-4 * (1 + other.abs().max()))
