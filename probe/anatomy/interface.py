"""The seam through which attention is read and edited: the look-up of the attention function.

Every modern transformers model, and the tiny GPT, asks `get_interface(configured name, its own eager function)` for
the function to call with `(module, query, key, value, mask, scaling=...)`. While a listener is active this look-up
returns a wrapper that shows the listeners what goes in, calls *the implementation the user loaded* with what they
hand back, and shows them what came out. Configuration and masks stay untouched, so outputs are the same bit for bit
where nothing is edited.

Rotary embeddings are seen in the same way: the modelling module's `apply_*rot*` globals are wrapped, and their
inputs remembered until the attention function is called with their outputs.

Both wraps are process-wide while any listener is active, but do nothing in threads, or for modules, without one.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from probe.models.gpt import AttentionLookup

ROTARY = re.compile(r"^apply_\w*rot\w*$")


class Turn(NamedTuple):
    """Where a query or key was rotated: which rotation since the last attention call, which of its arguments, and
    whether that argument had its heads before its positions.
    """

    number: int
    argument: int
    heads_first: bool


class Rotation(NamedTuple):
    """A tensor that was rotated, what it was before, and which call and argument that was."""

    output: Tensor
    given: Tensor
    number: int
    argument: int


class Unturned(NamedTuple):
    """A query or key before rotary: (batch, head, pos, d_head). tensor: the same one where nothing was rotated, None
    where a rotation was seen that did not return it. turn: where it was rotated.
    """

    tensor: Tensor | None
    turn: Turn | None


@dataclass
class Call:
    """One call of an attention function.

    query: (batch, head, query, d_head); key, value: (batch, kv_head, key, d_head), as they meet in the dot product.
    output: z, (batch, query, head, d_head). own_eager: the model's own explicit implementation.
    implementation: the configured name ("eager", "sdpa", "fused", ...), and function: what it names. rotated: the
    rotations since the last call. square_edited, output_edited: whether a listener has edited scores or pattern, or z.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    own_eager: Callable[..., Any]
    implementation: str
    kwargs: dict[str, Any]
    function: Callable[..., Any]
    rotated: tuple[Rotation, ...] = ()
    output: Tensor = field(init=False)
    square_edited: bool = False
    output_edited: bool = False


def unturned(tensor: Tensor, rotated: Sequence[Rotation]) -> Unturned:
    """A query or key, (batch, head, pos, d_head), as the model made it, before the rotation."""
    if not rotated:
        return Unturned(tensor, None)
    for rotation in rotated:
        if rotation.output is tensor:
            return Unturned(rotation.given, Turn(rotation.number, rotation.argument, True))
    # A key that went through an empty cache is a copy of what the rotation returned; some rotate before they put
    # heads first.
    for output, given, number, argument in rotated:
        for heads_first in (True, False):
            if output.dim() != 4 or given.shape != output.shape:
                continue
            alike = output if heads_first else output.transpose(1, 2)
            if alike.shape == tensor.shape and torch.equal(alike, tensor):
                return Unturned(given if heads_first else given.transpose(1, 2), Turn(number, argument, heads_first))
    return Unturned(None, None)


class Listener(Protocol):
    """Whoever wants to see attention calls, in the modules it says it hears, and may change what goes on from there."""

    def hears(self, module: nn.Module) -> bool: ...

    def rotating(self, number: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments to rotate with; number counts rotations since the last attention call."""

    def entering(self, call: Call) -> None:
        """Before the attention function: may set `call.query`, `key`, `value`."""

    def attended(self, call: Call) -> None:
        """After it: may set `call.output`."""


class Stopped(Exception):
    """Raised at the attention call of a module that is run only to see what it would attend with."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        super().__init__()
        self.query, self.key, self.value = query, key, value


@dataclass
class _Thread(threading.local):
    listeners: list[Listener] = field(default_factory=list)
    rotated: list[Rotation] = field(default_factory=list)  # since the last attention call
    turns: int = 0  # rotations since the last attention call
    stopping: bool = False  # stop at the attention call
    still: bool = False  # rotate by nothing


_thread = _Thread()
_lock = threading.RLock()
_wrapped: dict[tuple[int, str], tuple[Any, int]] = {}  # (id of owner, name) -> original, number of users


def rotations() -> tuple[Rotation, ...]:
    """The rotations that this thread has made since the last attention call, or since `forget`."""
    return tuple(_thread.rotated)


def forget() -> None:
    """An attention has taken the rotated queries and keys: what is rotated next belongs to another."""
    _thread.rotated.clear()
    _thread.turns = 0


@contextmanager
def listening(listener: Listener, modules: Iterable[nn.Module]) -> Iterator[None]:
    """While inside, `listener` sees every attention call that this thread makes in `modules`."""
    places = [*_lookups(), *_rotary_globals(modules)]
    with _lock:
        for owner, name, wrapper in places:
            _wrap(owner, name, wrapper)
    _thread.listeners.append(listener)
    forget()
    try:
        yield
    finally:
        _thread.listeners.remove(listener)
        forget()
        with _lock:
            for owner, name, _ in places:
                _unwrap(owner, name)


def unrotated(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The query and key, (batch, head, pos, d_head), with which `module` would attend were there no rotation.

    Runs the module again on what it was given, with every rotation the identity and no cache, and stops at its
    attention call. For rotations whose results cannot be followed: of a part of each head, or joined to others.
    """
    plain = dict(kwargs)
    if isinstance(angles := plain.get("position_embeddings"), tuple) and len(angles) == 2:
        plain["position_embeddings"] = torch.ones_like(angles[0]), torch.zeros_like(angles[1])
    _thread.still = True
    try:
        query, key, _ = would_attend(module, args, plain)
        return query, key
    finally:
        _thread.still = False


def would_attend(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The query, key and value, (batch, head, pos, d_head), with which `module`, given this, would attend first.

    Runs it, without a cache, up to its first attention call.
    """
    plain = {n: None if n in ("past_key_values", "past_key_value", "cache") else v for n, v in kwargs.items()}
    _thread.stopping = True
    try:
        module.forward(*args, **plain)
    except Stopped as stop:
        return stop.query, stop.key, stop.value
    finally:
        _thread.stopping = False
    raise AssertionError("an attention module asked for its attention function in one run and not in the next")


def _lookups() -> list[tuple[Any, str, Callable[..., Any]]]:
    from transformers.modeling_utils import AttentionInterface

    return [(owner, "get_interface", _wrap_lookup) for owner in (AttentionInterface, AttentionLookup)]


def _rotary_globals(modules: Iterable[nn.Module]) -> list[tuple[Any, str, Callable[..., Any]]]:
    # By the class's module, not by the globals of `forward`: a decorated forward has those of its decorator.
    classes = {c for m in modules for c in type(m).__mro__ if "forward" in vars(c) and c.__module__ in sys.modules}
    spaces = {c.__module__: vars(sys.modules[c.__module__]) for c in classes}
    return [(s, name, _wrap_rotary) for s in spaces.values() for name in sorted(s) if ROTARY.match(name)]


def _wrap_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function: Callable[..., Any] = original(self, name, default)
        if not _thread.listeners:
            return function

        def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            if _thread.stopping:
                raise Stopped(query, key, value)
            heard = [li for li in _thread.listeners if li.hears(module)]
            if not heard:
                forget()
                return function(module, query, key, value, *args, **kwargs)
            extra = dict(kwargs)
            mask = args[0] if args else extra.pop("attention_mask", extra.pop("mask", None))
            call = Call(module, query, key, value, mask, default, name, extra, function, tuple(_thread.rotated))
            forget()
            for listener in heard:
                listener.entering(call)
            result = function(module, call.query, call.key, call.value, *args, **kwargs)
            call.output = result[0]
            for listener in heard:
                listener.attended(call)
            return (call.output, *result[1:])

        return attend

    return get_interface


def _wrap_rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(*args: Any, **kwargs: Any) -> Any:
        if not _thread.listeners:
            return original(*args, **kwargs)
        if _thread.stopping and not _thread.still:
            return original(*args, **kwargs)
        if _thread.stopping:
            result = original(*args, **kwargs)
            tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
            return tuple(tensors[: len(result)]) if isinstance(result, tuple) else tensors[0]
        for listener in _thread.listeners:
            args = listener.rotating(_thread.turns, args)
        result = original(*args, **kwargs)
        outputs = result if isinstance(result, tuple) else (result,)
        for place, (output, given) in enumerate(zip(outputs, (*args, *kwargs.values()), strict=False)):
            if isinstance(given, Tensor):
                _thread.rotated.append(Rotation(output, given, _thread.turns, place))
        _thread.turns += 1
        return result

    return rotate


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    original, users = _wrapped.get((id(owner), name), (None, 0))
    if not users:
        original = owner[name] if isinstance(owner, dict) else vars(owner)[name]
        _set(owner, name, wrapper(original))
    _wrapped[id(owner), name] = original, users + 1


def _unwrap(owner: Any, name: str) -> None:
    original, users = _wrapped.pop((id(owner), name))
    if users > 1:
        _wrapped[id(owner), name] = original, users - 1
    else:
        _set(owner, name, original)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)
