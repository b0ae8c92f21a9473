"""The one seam through which attention is read: the look-up of the attention function.

Every modern transformers model, and the tiny GPT, asks `get_interface(configured name, its own eager function)` for
the function to call with `(module, query, key, value, mask, scaling=...)`. While a listener is active this look-up
returns a wrapper that calls *the implementation the user loaded* and then tells the listeners what went in and came
out. Configuration and masks stay untouched, so outputs are the same bit for bit.

Rotary embeddings are seen in the same way: the modelling module's `apply_*rot*` globals are wrapped, and their
inputs remembered until the attention function is called with their outputs.

Both wraps are process-wide while any listener is active, but do nothing in threads, or for modules, without one.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from probe.models.gpt import AttentionLookup

ROTARY = re.compile(r"^apply_\w*rot\w*$")


@dataclass(frozen=True)
class Call:
    """One call of an attention function.

    query: (batch, head, query, d_head); key, value: (batch, kv_head, key, d_head), as they meet in the dot product.
    before_rotary: the same query and key before the rotation: the same tensors where there is none, None where a
    rotation was seen that did not return them.
    output: z, (batch, query, head, d_head). own_eager: the model's own explicit implementation.
    implementation: the configured name ("eager", "sdpa", "fused", ...).
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    output: Tensor
    before_rotary: tuple[Tensor | None, Tensor | None]
    own_eager: Callable[..., Any]
    implementation: str
    kwargs: dict[str, Any]


class Listener(Protocol):
    """Whoever wants to be told of attention calls, in the modules it says it hears."""

    def hears(self, module: nn.Module) -> bool: ...
    def attended(self, call: Call) -> None: ...


@dataclass
class _Thread(threading.local):
    listeners: list[Listener] = field(default_factory=list)
    rotated: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # (output, input) since the last attention call


_thread = _Thread()
_lock = threading.RLock()
_wrapped: dict[tuple[int, str], tuple[Any, int]] = {}  # (id of owner, name) -> original, number of users


@contextmanager
def listening(listener: Listener, modules: Iterable[nn.Module]) -> Iterator[None]:
    """While inside, `listener` is told of every attention call that this thread makes in `modules`."""
    places = [*_lookups(), *_rotary_globals(modules)]
    with _lock:
        for owner, name, wrapper in places:
            _wrap(owner, name, wrapper)
    _thread.listeners.append(listener)
    try:
        yield
    finally:
        _thread.listeners.remove(listener)
        _thread.rotated.clear()
        with _lock:
            for owner, name, _ in places:
                _unwrap(owner, name)


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
            result = function(module, query, key, value, *args, **kwargs)
            heard = [li for li in _thread.listeners if li.hears(module)]
            if heard:
                before = _before_rotary(query), _before_rotary(key)
                extra = dict(kwargs)
                mask = args[0] if args else extra.pop("attention_mask", extra.pop("mask", None))
                call = Call(module, query, key, value, mask, result[0], before, default, name, extra)
                for listener in heard:
                    listener.attended(call)
            _thread.rotated.clear()
            return result

        return attend

    return get_interface


def _wrap_rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    def rotate(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _thread.listeners:
            outputs = result if isinstance(result, tuple) else (result,)
            inputs = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
            for output, given in zip(outputs, inputs, strict=False):
                _thread.rotated.append((output, given))
        return result

    return rotate


def _before_rotary(tensor: Tensor) -> Tensor | None:
    """What was rotated into `tensor`: itself where nothing was rotated, None where that cannot be told."""
    if not _thread.rotated:
        return tensor
    for output, given in _thread.rotated:
        if output is tensor:
            return given
    # A key that went through an empty cache is a copy of what the rotation returned.
    alike = (given for output, given in _thread.rotated if output.shape == tensor.shape and torch.equal(output, tensor))
    return next(alike, None)


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
