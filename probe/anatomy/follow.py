"""The seam for models that never ask for their attention function (Bloom, MPT, DeBERTa, XLM, MPNet, XLNet, ...).

Their forward pass runs under a `TorchFunctionMode`, which sees every function of torch as it is called. Attention is
the chain: a product of queries and keys, whatever is added and scaled, a softmax over the keys, a dropout, and a
product with the values. `Finder` finds such chains in one pass and notes the numbers of their links (the third
product in this module's forward, the first softmax, ...); `Following` then shows and edits those links by number.
Nothing is computed differently, so outputs are the same bit for bit.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

COPIES = ("contiguous", "reshape", "clone", "to", "float", "cat", "repeat_interleave", "flatten")
PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum")


class Layout(NamedTuple):
    """How a tensor of a chain is laid out. order: its axes in the order batch, pos, head, d_head (or batch, head,
    query, key); flat: its first axis holds batch and head together; repeats: how often each key-value head is there,
    one after the other, for the query heads that share it.
    """

    order: tuple[int, ...]
    flat: bool
    repeats: int = 1

    def canonical(self, tensor: Tensor, batch: int) -> Tensor:
        whole = tensor.reshape(batch, -1, *tensor.shape[1:]) if self.flat else tensor
        return whole.permute(self.order)[:, :, :: self.repeats]

    def restored(self, tensor: Tensor) -> Tensor:
        back = [self.order.index(axis) for axis in range(len(self.order))]
        tensor = tensor.repeat_interleave(self.repeats, 2)
        whole = tensor.permute(back)
        return whole.flatten(0, 1) if self.flat else whole


@dataclass(frozen=True)
class Chain:
    """One attention inside a module's forward: the numbers of its links among that forward's products, softmaxes and
    dropouts, and the layouts of its tensors. dropout: None where the pattern goes to the values undropped.
    """

    scored: int
    softmax: int
    dropout: int | None
    valued: int
    layouts: dict[str, Layout] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, int, int | None, int]:
        return self.scored, self.softmax, self.dropout, self.valued


class Follower(Protocol):
    """Whoever sees the links of chains, and returns what the model is to go on with."""

    def link(self, module: nn.Module, chain: int, name: str, tensor: Tensor) -> Tensor:
        """name: "rot_q", "rot_k", "scores", "pattern", "v" or "z"; tensor: in its site's own shape."""


def _kind(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    name = getattr(func, "__name__", "")
    if name in PRODUCTS:
        return None if _operands(func, args, kwargs) is None else "product"
    if name == "softmax":
        return "softmax"
    return "dropout" if func is F.dropout else None


class Running(NamedTuple):
    """A module's forward that has begun and not ended. serial: which one it is, of all in this pass."""

    module: nn.Module
    counts: Counter[str]
    serial: int


class _Counting(TorchFunctionMode):
    """Counts the products, softmaxes and dropouts of each running forward of the modules it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Running] = []
        self.thread = threading.get_ident()

    def hooks(self, modules: Iterable[nn.Module]) -> Iterator[torch.utils.hooks.RemovableHandle]:
        serial = itertools.count()

        def enter(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == self.thread:
                self.running.append(Running(module, Counter(), next(serial)))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if threading.get_ident() == self.thread:
                self.running.pop()

        for module in modules:
            yield module.register_forward_pre_hook(enter)
            yield module.register_forward_hook(leave, always_call=True)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = _kind(func, args, kwargs or {}) if self.running else None
        if kind is None:
            result = func(*args, **(kwargs or {}))
        else:
            result = self.saw(kind, func, args, kwargs or {})
            for forward in self.running:
                forward.counts[kind] += 1
        if self.running:
            self.passed(func, args, kwargs or {}, result, kind)
        return result

    def saw(self, kind: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a product, softmax or dropout; what it returns is what the model goes on with."""
        return func(*args, **kwargs)

    def passed(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, kind: str | None
    ) -> None:
        """What a function made of its arguments."""


@dataclass
class _Trace:
    """What a tensor came from: the product of these queries and keys, and the links passed since."""

    operands: tuple[Tensor, Tensor]
    counts: dict[int, dict[str, int]]  # serial of a running forward -> link -> number
    scores: Tensor | None = None  # what the softmax was given
    weights: Tensor | None = None  # what it, or the dropout after it, returned


@dataclass
class Found:
    """A chain that was found in a module, with its tensors as the model made them."""

    module: nn.Module
    chain: Chain
    tensors: dict[str, Tensor]


class Finder(_Counting):
    """Finds the chains of one forward pass, and tells of each when it ends. ignore: true while an attention function
    that was asked for runs.
    """

    def __init__(self, tell: Callable[[Found], None], ignore: Callable[[], bool]) -> None:
        super().__init__()
        self._tell = tell
        self.uses: Counter[int] = Counter()  # address of a tensor -> functions that have read it
        self._traces: dict[int, _Trace] = {}
        self._alive: list[Tensor] = []  # so that no tensor's id is used again
        self._ignore = ignore

    def saw(self, kind: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if self._ignore():
            return result
        self._used(func, args, kwargs, result)
        operands = _operands(func, args, kwargs)
        if kind == "product" and operands is not None:
            trace = self._traces.get(id(operands[0]))
            if trace is not None and trace.weights is not None:
                self._close(trace, operands, result)
            elif isinstance(result, Tensor) and result.dim() in (3, 4):
                self._trace(result, _Trace(operands, self._numbers("scored", "product")))
        elif args and isinstance(args[0], Tensor) and (trace := self._traces.get(id(args[0]))) is not None:
            counts = self._numbers(kind, kind, trace.counts)
            if kind == "softmax" and trace.weights is None:
                self._trace(result, _Trace(trace.operands, counts, args[0], result))
            elif kind == "dropout" and trace.weights is not None:
                self._trace(result, _Trace(trace.operands, counts, trace.scores, result))
        return result

    def passed(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, kind: str | None
    ) -> None:
        if kind is None and not self._ignore():
            self._used(func, args, kwargs, result)
        if kind is not None or not isinstance(result, Tensor) or id(result) in self._traces or self._ignore():
            return
        for given in args:
            trace = self._traces.get(id(given)) if isinstance(given, Tensor) else None
            if trace is not None and given.numel() == result.numel():
                self._trace(result, trace)
                return

    def _used(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Count what computes with its arguments; a view of an argument, or a look at its shape, does not."""
        tensors = [a for a in (*args, *kwargs.values()) if _has_address(a)]
        made = [t for t in (result if isinstance(result, tuple | list) else (result,)) if _has_address(t)]
        self._alive += made  # so that no address is used again
        storages = {t.untyped_storage().data_ptr() for t in made}
        viewed = any(a.untyped_storage().data_ptr() in storages for a in tensors)
        if made and not viewed and getattr(func, "__name__", "") not in COPIES:
            self.uses.update({a.data_ptr() for a in tensors})

    def _trace(self, tensor: Tensor, trace: _Trace) -> None:
        self._traces[id(tensor)] = trace
        self._alive.append(tensor)

    def _numbers(
        self, link: str, kind: str, before: dict[int, dict[str, int]] | None = None
    ) -> dict[int, dict[str, int]]:
        return {
            serial: {**(before or {}).get(serial, {}), link: counts[kind]}
            for _, counts, serial in self.running
            if before is None or serial in before
        }

    def _close(self, trace: _Trace, operands: tuple[Tensor, Tensor], result: Tensor) -> None:
        """The product with the values: the chain belongs to the innermost running module that saw all of it."""
        numbers = self._numbers("valued", "product", trace.counts)
        whole = [f for f in self.running if {"scored", "softmax", "valued"} <= numbers.get(f.serial, {}).keys()]
        if not whole or trace.scores is None or trace.weights is None:
            return
        links = numbers[whole[-1].serial]
        chain = Chain(links["scored"], links["softmax"], links.get("dropout"), links["valued"])
        tensors = {
            "rot_q": trace.operands[0],
            "rot_k": trace.operands[1],
            "scores": trace.scores,
            "pattern": trace.weights,
            "v": operands[1],
            "z": result,
        }
        self._tell(Found(whole[-1].module, chain, tensors))


class Following(_Counting):
    """Shows the links of known chains to a follower, and goes on with what it returns. batch: prompts in the batch.

    through: go on with what was shown even where it is unchanged, so that it lies on the path of gradients.
    """

    def __init__(
        self, chains: dict[nn.Module, tuple[Chain, ...]], follower: Follower, *, through: bool = False
    ) -> None:
        super().__init__()
        self.chains, self.follower, self.through = chains, follower, through
        self.batch = 0

    def saw(self, kind: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, counts, _ = self.running[-1]
        number = counts[kind]
        for place, chain in enumerate(self.chains[module]):
            if kind == "product" and number == chain.scored:
                args, kwargs = self._factors(module, place, chain, func, args, kwargs, ("rot_q", "rot_k"))
            elif kind == "softmax" and number == chain.softmax:
                args = (self._link(module, place, chain, "scores", args[0]), *args[1:])
            elif kind == "product" and number == chain.valued:
                args, kwargs = self._factors(module, place, chain, func, args, kwargs, (None, "v"))
        result = func(*args, **kwargs)
        for place, chain in enumerate(self.chains[module]):
            if kind == "product" and number == chain.valued:
                result = self._link(module, place, chain, "z", result)
            elif (kind == "dropout" and number == chain.dropout) or (
                kind == "softmax" and chain.dropout is None and number == chain.softmax
            ):
                result = self._link(module, place, chain, "pattern", result)
        return result

    def _factors(
        self,
        module: nn.Module,
        place: int,
        chain: Chain,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        names: tuple[str | None, str],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a product, with the factors that the follower returned."""
        pair = _operands(func, args, kwargs)
        assert pair is not None  # `_kind` counts nothing else
        shown = [
            tensor if name is None else self._link(module, place, chain, name, tensor)
            for name, tensor in zip(names, pair, strict=True)
        ]
        new = dict(zip(map(id, pair), shown, strict=True))
        return tuple(new.get(id(a), a) for a in args), {n: new.get(id(a), a) for n, a in kwargs.items()}

    def _link(self, module: nn.Module, place: int, chain: Chain, name: str, tensor: Tensor) -> Tensor:
        layout = chain.layouts.get(name)
        if layout is None:
            return tensor
        given = layout.canonical(tensor, self.batch)
        new = self.follower.link(module, place, name, given)
        return tensor if new is given and not self.through else layout.restored(new)


def _operands(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The two factors of a product; None where there are not two."""
    name = getattr(func, "__name__", "")
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    pair = given[1:] if name == "baddbmm" else given
    return (pair[0], pair[1]) if len(pair) == 2 else None


def _has_address(value: Any) -> bool:
    """Whether it is a tensor of its own, and not one inside a `torch.vmap`, with which transformers makes masks."""
    return isinstance(value, Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(value)


@contextmanager
def counting(mode: _Counting, modules: Iterable[nn.Module]) -> Iterator[None]:
    """Run what is inside under `mode`, which counts in `modules`."""
    handles = list(mode.hooks(modules))
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()
