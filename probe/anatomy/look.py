"""One short forward pass, watched: every module's call with what went in and out, and every attention.

What a model is made of is read off this recording (`probe.anatomy.stacks`), not from a list of known architectures.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from probe.anatomy.follow import Chain, Finder, Found, Layout, counting
from probe.anatomy.interface import Call, Turn, forget, listening, rotations, unrotated, unturned
from probe.anatomy.patterns import mask_rows, visible_cells
from probe.errors import ProbeError, UnsupportedModel

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


@dataclass(eq=False)
class Event:
    """One call of a module. number: which of its calls in the pass; entered, left: moments; parent: the call it was
    part of; given, made: the tensors that went in and (first) came out.
    """

    module: nn.Module
    number: int
    parent: Event | None
    entered: int
    given: tuple[Tensor, ...]
    left: int = -1
    made: Tensor | None = None


@dataclass(eq=False)
class Seen:
    """One attention. event: the call of its module; number: which attention of that module in the pass; n_queries,
    n_keys: lengths; z: (batch, query, head, d_head).

    turns: where q and k were rotated; rotary: "none", "followed" (they can be told from rot_q and rot_k), "again" (by
    running the module again without rotation), or "lost". chain: for models that never ask. causal: whether no row
    sees a later key. shared: which of "q", "k", "v" are read by more than the attention.
    """

    event: Event
    number: int
    moment: int
    n_heads: int
    n_kv_heads: int
    n_queries: int
    n_keys: int
    z: Tensor
    rotary: str = "none"
    turns: dict[str, Turn | None] = field(default_factory=dict)
    chain: Chain | None = None
    causal: bool = True
    shared: set[str] = field(default_factory=set)


@dataclass
class Recording:
    """A watched pass. batch, length, source: prompts, their tokens, and the tokens the encoder read (None without)."""

    batch: int
    length: int
    source: int | None
    inputs: dict[str, Any]
    events: list[Event]
    attentions: list[Seen]
    has_logits: bool


def record(model: nn.Module) -> Recording:
    """Run `model` on a few short prompts, in evaluation mode and without gradients, and watch.

    Raises UnsupportedModel where the model does not run on token ids.
    """
    batch, length, source, inputs = _inputs(model)
    watch = _Watch(batch, {length, source})
    finder = watch.finder = Finder(watch.ended, ignore=lambda: watch.asked)
    with _evaluating(model), torch.no_grad(), uncompiled(), _hooked(model, watch):
        try:
            with listening(watch, model.modules()), counting(finder, model.modules()):
                output = model(**inputs)
        except ProbeError:
            raise
        except Exception as error:
            raise UnsupportedModel(
                f"{type(model).__name__} does not run on token ids alone ({type(error).__name__}: {error})."
            ) from error
    logits = output.logits if hasattr(output, "logits") else None
    attentions = watch.attentions or watch.chains
    return Recording(batch, length, source, inputs, watch.events, attentions, logits is not None)


class _Watch:
    """Notes module calls and attention calls. asked: inside an attention function that was asked for."""

    def __init__(self, batch: int, lengths: set[int | None]) -> None:
        self.batch, self.lengths = batch, lengths
        self.chains: list[Seen] = []
        self.finder: Finder | None = None
        self.heard: list[tuple[Seen, Tensor, Tensor]] = []  # each attention with its keys and values
        self.events: list[Event] = []
        self.attentions: list[Seen] = []
        self.running: list[Event] = []
        self.asked = False
        self.calls: Counter[nn.Module] = Counter()
        self.attended_in: Counter[nn.Module] = Counter()
        self.arguments: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.moment = 0

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = tuple(a.detach().clone() for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        parent = self.running[-1] if self.running else None
        event = Event(module, self.calls[module], parent, self._tick(), given)
        self.calls[module] += 1
        self.events.append(event)
        self.running.append(event)
        self.arguments[id(event)] = args, kwargs

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        event = self.running.pop()
        event.left = self._tick()
        self.arguments.pop(id(event))
        first = next((t for t in output if isinstance(t, Tensor)), None) if isinstance(output, tuple | list) else output
        event.made = first.detach().clone() if isinstance(first, Tensor) else None

    def _tick(self) -> int:
        self.moment += 1
        return self.moment

    def hears(self, module: nn.Module) -> bool:
        return True

    def rotating(self, number: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args

    def entering(self, call: Call) -> None:
        self._used = self._uses({"q": call.query, "k": call.key, "v": call.value}, 0)
        if call.key.data_ptr() == call.value.data_ptr():
            self._used.add("k")  # DeepSeek-V4's keys are its values too
        self.asked = True
        self._before = {"q": unturned(call.query, call.rotated), "k": unturned(call.key, call.rotated)}

    def attended(self, call: Call) -> None:
        self.asked = False
        event = next((e for e in reversed(self.running) if e.module is call.module), None)
        if event is None:
            return
        number = self.attended_in[call.module]
        self.attended_in[call.module] += 1
        sizes = call.query.shape[1], call.key.shape[1], call.query.shape[2], call.key.shape[2]
        seen = Seen(event, number, self._tick(), *sizes, call.output.detach().clone())
        seen.causal = _looks_back_only(mask_rows(call, None)[1])
        followed = all(u.tensor is not None for u in self._before.values())
        args, kwargs = self.arguments[id(event)]
        seen.shared = self._used
        for earlier, key, value in self.heard:  # some layers read the keys and values of an earlier one
            earlier.shared |= {"rot_k", "k"} if key.data_ptr() == call.key.data_ptr() else set()
            earlier.shared |= {"v"} if value.data_ptr() == call.value.data_ptr() else set()
        self.heard.append((seen, call.key, call.value))
        turns = {name: u.turn for name, u in self._before.items()}
        # Sparse attention rotates once for each block of keys, so which rotation is which depends on the prompt.
        followed = followed and all(t is None or t.number < 4 for t in turns.values())
        if followed and (call.rotated or "position_embeddings" not in kwargs):
            seen.rotary = "followed" if call.rotated else "none"
            seen.turns = turns
        else:
            seen.rotary = "again" if _can_run_again(call, args, kwargs) else "lost"
        self.attentions.append(seen)

    def _uses(self, operands: dict[str, Tensor], own: int) -> set[str]:
        """Which operands more than `own` functions have read so far."""
        assert self.finder is not None
        return {name for name, tensor in operands.items() if self.finder.uses[tensor.data_ptr()] > own}

    def ended(self, found: Found) -> None:
        """A chain in a model that does not ask."""
        layouts = _layouts(found.tensors, self.batch, self.lengths)
        event = next((e for e in reversed(self.running) if e.module is found.module), None)
        if layouts is None or event is None:
            return
        shown = {name: layouts[name].canonical(t, self.batch) for name, t in found.tensors.items() if name in layouts}
        number = self.attended_in[found.module]
        self.attended_in[found.module] += 1
        n_heads, n_queries, n_keys = shown["pattern"].shape[1:]
        n_kv_heads = shown["v"].shape[2] if "v" in shown else n_heads
        sizes = n_heads, n_kv_heads, n_queries, n_keys
        seen = Seen(event, number, self._tick(), *sizes, shown["z"].detach().clone())
        seen.chain = Chain(*found.chain.numbers, layouts=layouts)
        seen.causal = _looks_back_only(visible_cells(shown["scores"]))
        operands = {"q": found.tensors["rot_q"], "k": found.tensors["rot_k"], "v": found.tensors["v"]}
        seen.shared = self._uses(operands, 1)  # beside the product
        rotated = rotations()
        forget()
        if rotated and {"rot_q", "rot_k"} <= shown.keys():
            before = {name: unturned(shown[f"rot_{name}"].transpose(1, 2), rotated) for name in ("q", "k")}
            seen.turns = {name: u.turn for name, u in before.items()}
            seen.rotary = "followed" if all(u.tensor is not None for u in before.values()) else "lost"
        elif rotated or any("rotary" in type(e.module).__name__.lower() for e in self.events):
            seen.rotary = "lost"
        self.chains.append(seen)


def _looks_back_only(visible: Tensor) -> bool:
    """visible: (batch, head, query, key). Whether no row sees a later key."""
    return not bool(visible.triu(1).any())


def _can_run_again(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        query, key = unrotated(call.module, args, kwargs)
    except Exception:  # whatever a model's own code may raise without its rotation
        return False
    return query.shape == call.query.shape and key.shape == call.key.shape


def _layouts(tensors: dict[str, Tensor], batch: int, lengths: set[int | None]) -> dict[str, Layout] | None:
    """How each tensor of a chain is laid out, told by its sizes; None where the chain is no attention of tokens."""
    layouts = {}
    for name in ("scores", "pattern"):
        shape = tensors[name].shape
        flat = len(shape) == 3
        if len(shape) not in (3, 4) or shape[0] % batch or not {shape[-2], shape[-1]} <= lengths:
            return None
        layouts[name] = Layout((0, 1, 2, 3), flat)
    n_heads, n_queries, n_keys = layouts["pattern"].canonical(tensors["pattern"], batch).shape[1:]
    for name, positions in (("rot_q", n_queries), ("rot_k", n_keys), ("v", n_keys), ("z", n_queries)):
        keys = name in ("rot_k", "v")
        layout = _layout(tensors[name], batch, n_heads, positions)
        if layout is None and keys:  # one key-value head for all query heads, which the product spreads
            layout = _layout(tensors[name], batch, 1, positions)
        if layout is not None:
            layouts[name] = (
                layout._replace(repeats=_repeats(layout.canonical(tensors[name], batch))) if keys else layout
            )
    return layouts if "z" in layouts else None


def _layout(tensor: Tensor, batch: int, n_heads: int, positions: int) -> Layout | None:
    """Where batch, positions and heads lie in a tensor; the axis left over is d_head."""
    flat = tensor.dim() == 3 and tensor.shape[0] == batch * n_heads
    shape = (batch, n_heads, *tensor.shape[1:]) if flat else tuple(tensor.shape)
    if len(shape) != 4:
        return None
    order = []
    for size in (batch, positions, n_heads):
        places = [i for i, n in enumerate(shape) if n == size and i not in order]
        if not places:
            return None
        order.append(places[0])
    return Layout((*order, *(i for i in range(4) if i not in order)), flat)


def _repeats(keys: Tensor) -> int:
    """How many query heads share each key-value head, told from the copies in `keys` (batch, pos, head, d_head)."""
    n_heads = keys.shape[2]
    for group in range(n_heads, 1, -1):
        if n_heads % group == 0 and torch.equal(keys, keys[:, :, ::group].repeat_interleave(group, 2)):
            return group
    return 1


def _inputs(model: nn.Module) -> tuple[int, int, int | None, dict[str, Any]]:
    """Short prompts whose sizes are none of the model's own, so that no axis is taken for another.

    Ids with a meaning of their own (padding, end of text) are left out: models treat them in ways of their own.
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        raise UnsupportedModel(
            f"{type(model).__name__} has no configuration: it is neither a tiny GPT nor transformers'."
        )
    numbers = set(_numbers(vars(config) if not hasattr(config, "to_dict") else config.to_dict()))
    numbers |= {p.shape[0] for p in model.parameters() if p.dim()} & set(PRIMES)
    free = [p for p in PRIMES if p not in numbers] or list(PRIMES)
    batch = free[0]
    length, source = [p for p in free if p >= 5 and p != batch][:2]
    ordinary = ordinary_ids(model)
    device = next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))

    def ids(n: int) -> Tensor:
        return torch.tensor(
            [[ordinary[(1 + 7 * i + 3 * b) % len(ordinary)] for i in range(n)] for b in range(batch)], device=device
        )

    inputs: dict[str, Any] = {"input_ids": ids(length)}
    if encodes := bool(getattr(config, "is_encoder_decoder", False)):
        inputs = {"input_ids": ids(source), "decoder_input_ids": ids(length)}
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs["use_cache"] = False
    return batch, length, source if encodes else None, inputs


def ordinary_ids(model: nn.Module) -> list[int]:
    """Token ids that have no meaning of their own (padding, end of text), at most a few hundred."""
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None) or model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    special = {v for n, v in vars(text).items() if n.endswith("token_id") and isinstance(v, int)}
    return [i for i in range(min(size, 500)) if i not in special] or list(range(size))


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list | tuple) and len(value) < 100:
        for each in value:
            yield from _numbers(each)


_lock = threading.Lock()
_stances: list[Any] = []


@contextmanager
def uncompiled() -> Iterator[None]:
    """Compiled code calls no hooks and would be read as if nothing happened: run it as it was written."""
    if "torch._dynamo" not in sys.modules:  # then nothing can have been compiled
        yield
        return
    with _lock:
        if not _stances:
            _stances.append(torch.compiler.set_stance("force_eager"))
        _stances.append(None)
    try:
        yield
    finally:
        with _lock:  # captures may overlap: the last to end puts back what the first has found
            _stances.pop()
            if len(_stances) == 1:
                _stances.pop().__exit__(None, None, None)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [m for m in model.modules() if m.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _hooked(model: nn.Module, watch: _Watch) -> Iterator[None]:
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(watch.enter, with_kwargs=True))
        handles.append(module.register_forward_hook(watch.leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
