"""Decoding without `nn.Module`'s bookkeeping: the same numbers, and never where somebody listens to the modules."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrize

from probe.errors import ProbeError
from probe.models import gpt
from probe.models.gpt import GPT, PARTS, Cache
from probe.models.lean import lean
from tests.models.test_gpt_options import VARIANTS, made, some_ids

NEW = 5


def wrote(model: GPT, n: int = NEW) -> Tensor:
    return model.generate(some_ids(), max_new_tokens=n)


@pytest.fixture
def model() -> GPT:
    return made()


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_logits_are_the_modules_own_bit_for_bit(options: dict[str, object]) -> None:
    model, ids = made(**options), some_ids()
    step = lean(model, PARTS)
    assert step is not model
    assert torch.equal(step(ids).logits, model(ids).logits)
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    positions = (padded.cumsum(1) - 1).clamp(min=0)
    assert torch.equal(step(ids, padded, positions).logits, model(ids, padded, positions).logits)
    if model.config.visible != "bidirectional":
        plain, kept = Cache(), Cache()
        for part in (ids[:, :9], ids[:, 9:10], ids[:, 10:]):
            assert torch.equal(step(part, None, None, kept).logits, model(part, None, None, plain).logits)


def changed(out: object) -> object:
    """What a listener makes of a tensor: enough for other tokens to be written."""
    return out * -1 if isinstance(out, Tensor) else out


def hooked(model: GPT, calls: list[str]) -> Callable[[], None]:
    def hook(module: nn.Module, given: object, out: object) -> object:
        calls.append("hook")
        return changed(out)

    return model.base_model.blocks[1].mlp.contract.register_forward_hook(hook).remove


def hooked_before(model: GPT, calls: list[str]) -> Callable[[], None]:
    def hook(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        calls.append("hook")
        return tuple(-x for x in given)

    return model.base_model.norm.register_forward_pre_hook(hook).remove


def hooked_everywhere(model: GPT, calls: list[str]) -> Callable[[], None]:
    def hook(module: nn.Module, given: object, out: object) -> object:
        if module is model.base_model.norm:
            calls.append("hook")
            return changed(out)
        return None

    return register_module_forward_hook(hook).remove


def hooked_everywhere_before(model: GPT, calls: list[str]) -> Callable[[], None]:
    def hook(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if module is model.base_model.norm:
            calls.append("hook")
            return tuple(-x for x in given)
        return None

    return register_module_forward_pre_hook(hook).remove


def compiled(model: GPT, calls: list[str]) -> Callable[[], None]:
    """What `part.compile(backend=...)` does, without a compiler."""
    part = model.base_model.blocks[0].mlp

    def call(x: Tensor) -> Tensor:
        calls.append("compiled")
        return -part._call_impl(x)

    part._compiled_call_impl = call
    return lambda: setattr(part, "_compiled_call_impl", None)


def traced(model: GPT, calls: list[str]) -> Callable[[], None]:
    """What tracers do: another call for every module."""
    own = nn.Module.__call__

    def call(module: nn.Module, *args: object) -> object:
        calls.append("traced")
        out = own(module, *args)
        return changed(out) if module is model.base_model.norm else out

    nn.Module.__call__ = call  # type: ignore[method-assign]
    return lambda: setattr(nn.Module, "__call__", own)


def with_a_forward_of_its_own(model: GPT, calls: list[str]) -> Callable[[], None]:
    part = model.base_model.blocks[0].mlp
    own = part.forward

    def forward(x: Tensor) -> Tensor:
        calls.append("forward")
        return -own(x)

    part.forward = forward  # type: ignore[method-assign]
    return lambda: delattr(part, "forward")


class Negative(nn.LayerNorm):
    calls: list[str]

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append("subclass")
        return -super().forward(x)


def of_another_class(model: GPT, calls: list[str]) -> Callable[[], None]:
    own = model.base_model.norm
    other = Negative(own.normalized_shape[0])
    other.load_state_dict(own.state_dict())
    other.calls = calls
    model.base_model.norm = other

    def back() -> None:
        model.base_model.norm = own

    return back


class Turned(nn.Module):
    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, weight: Tensor) -> Tensor:
        self.calls.append("parametrization")
        return -weight


def parametrized(model: GPT, calls: list[str]) -> Callable[[], None]:
    part = model.base_model.blocks[1].mlp.contract
    parametrize.register_parametrization(part, "weight", Turned(calls))
    calls.clear()  # it is run once to be checked
    return lambda: parametrize.remove_parametrizations(part, "weight", leave_parametrized=False) and None


def test_a_norm_that_was_replaced_for_all_is_used(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that is made anew for each call of `lean` has what the module's class has at that moment."""
    before, calls, own = wrote(model), list[str](), nn.LayerNorm.forward

    def forward(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        calls.append("norm")
        return -own(norm, x)

    monkeypatch.setattr(nn.LayerNorm, "forward", forward)
    assert not torch.equal(wrote(model), before)
    assert len(calls) >= NEW
    monkeypatch.undo()
    assert torch.equal(wrote(model), before)


def test_parts_of_a_kind_are_of_one_class(model: GPT) -> None:
    step = lean(model, PARTS)
    assert len({type(block.attention.qkv) for block in step.base_model.blocks}) == 1
    assert type(step.base_model.norm) is type(step.base_model.blocks[0].norm_mlp)


@pytest.mark.parametrize(
    "listen",
    [
        hooked,
        hooked_before,
        hooked_everywhere,
        hooked_everywhere_before,
        compiled,
        traced,
        with_a_forward_of_its_own,
        of_another_class,
        parametrized,
    ],
)
def test_whoever_listens_to_a_module_hears_every_step(
    listen: Callable[[GPT, list[str]], Callable[[], None]], model: GPT
) -> None:
    before, calls = wrote(model), list[str]()
    stop = listen(model, calls)
    try:
        assert lean(model, PARTS) is model
        assert not torch.equal(wrote(model), before), "what the listener changed was not used"
        assert len(calls) >= NEW
    finally:
        stop()
    assert torch.equal(wrote(model), before)


def test_backward_hooks_are_heard(model: GPT) -> None:
    calls = []
    part = model.requires_grad_().base_model.blocks[1].mlp
    handle = part.register_full_backward_hook(lambda *_: calls.append("backward"))
    lean(model, PARTS)(some_ids()).logits.sum().backward()
    handle.remove()
    assert calls == ["backward"]


def test_text_is_written_without_the_modules(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(gpt, "lean", lambda *given: made.append(lean(*given)) or made[-1])
    before = wrote(model)
    assert len(made) == 1
    assert not isinstance(made[0], nn.Module)
    stop = hooked(model, [])
    wrote(model)
    stop()
    assert made[1] is model
    monkeypatch.setattr(gpt, "lean", lambda model, parts: model)
    assert torch.equal(wrote(model), before)


def test_a_forward_function_replaced_for_a_while_is_used_for_as_long(
    model: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, own = wrote(model), nn.Linear.forward
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: -own(self, x))
        turned = wrote(model)
        assert torch.equal(lean(model, PARTS)(some_ids()).logits, model(some_ids()).logits)
    assert not torch.equal(turned, before)
    assert torch.equal(wrote(model), before)


def test_a_part_in_two_places_is_one_part(model: GPT) -> None:
    model.base_model.blocks[1] = model.base_model.blocks[0]
    step = lean(model, PARTS)
    assert torch.equal(step(some_ids()).logits, model(some_ids()).logits)
    plain, kept = Cache(), Cache()
    assert torch.equal(step(some_ids(), None, None, kept).logits, model(some_ids(), None, None, plain).logits)
    assert len(kept.layers) == len(plain.layers) == 1


class Scaled(nn.Module):
    """A class with a constant, a property and a method that belongs to it."""

    scale = 2

    def __init__(self) -> None:
        super().__init__()
        self._kept = nn.Linear(3, 3)
        self.nothing = None
        self.register_buffer("shift", torch.ones(3))

    @property
    def twice(self) -> int:
        return 2 * self.scale

    @staticmethod
    def turned(x: Tensor) -> Tensor:
        return -x

    def forward(self, x: Tensor) -> Tensor:
        assert self.nothing is None
        return self.turned(self._kept(x)) * self.twice + self.shift + self.training


def test_classes_named_may_have_what_classes_have() -> None:
    part, x = Scaled(), torch.ones(2, 3)
    for mode in (True, False):
        assert torch.equal(lean(part.train(mode), (Scaled,))(x), part(x))


def test_weights_changed_between_two_texts_are_the_new_ones(model: GPT) -> None:
    other = copy.deepcopy(model)
    wrote(model)
    for part in (model, other):
        part.base_model.blocks[0].attention.out.weight.data.neg_()
        part.base_model.blocks[1].mlp.expand.weight = nn.Parameter(part.base_model.blocks[1].mlp.expand.weight * 2)
    read = torch.cat([some_ids(), torch.empty(2, 0, dtype=torch.long)], 1)
    for _ in range(NEW):  # by the modules, without a cache
        read = torch.cat([read, other(read).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(wrote(model), read)


def test_an_unknown_class_is_left_alone() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + len(list(self.parameters()))

    for part in (Own(), nn.ModuleList([nn.Linear(2, 2), Own()])):
        assert lean(part) is part


# the cache, which both use


def test_a_cache_of_other_prompts_is_refused(model: GPT) -> None:
    cache = Cache()
    model(some_ids()[:1], cache=cache)
    for n in (2, 3):
        with pytest.raises(ProbeError, match=f"the cache holds 1 prompts, and {n} are to go on from it"):
            model(some_ids()[:1, :1].expand(n, 1), cache=cache)


@pytest.mark.parametrize("frozen", [True, False], ids=["weights frozen", "nothing recorded"])
@pytest.mark.parametrize("graded", [(0, 1, 0, 0), (1, 0, 1, 0), (0, 0, 1, 1), (1, 1, 0, 0)])
def test_steps_with_and_without_gradients_may_follow_each_other(
    model: GPT, graded: tuple[int, ...], frozen: bool
) -> None:
    ids = some_ids()
    whole, cache, start = model(ids).logits, Cache(room=32), 0  # so much that a hole in it would be read
    model.requires_grad_()
    for n, grad in zip((5, 1, 3, 7), graded, strict=True):
        if frozen:
            model.requires_grad_(bool(grad))
        with torch.set_grad_enabled(frozen or bool(grad)):
            got = model(ids[:, start : start + n], cache=cache).logits
        assert torch.allclose(got, whole[:, start : start + n], atol=1e-5)
        assert got.requires_grad or not grad
        start += n


def test_what_gradients_need_of_a_cache_is_not_touched_by_later_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen weights, gradients of the queries alone: the keys are read through a buffer that later steps write to."""
    ids, cache, attend = some_ids(), Cache(), gpt.eager_attention
    strength = torch.ones(1, requires_grad=True)

    def scaled(module: nn.Module, query: Tensor, *args: object, **options: object) -> object:
        return attend(module, query * strength, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(gpt, "eager_attention", scaled)
    model = made(attention="eager")
    model(ids[:, :5]).logits.sum().backward()
    alone, strength.grad = strength.grad, None
    logits = model(ids[:, :5], cache=cache).logits
    model(ids[:, 5:6], cache=cache)
    logits.sum().backward()
    assert alone is not None
    assert float(alone.abs()) > 1e-3
    torch.testing.assert_close(strength.grad, alone)
