"""Decoding without `nn.Module`'s bookkeeping: the same numbers, and never where somebody listens to the modules."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

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


@pytest.mark.parametrize(
    "listen", [hooked, hooked_before, hooked_everywhere, with_a_forward_of_its_own, of_another_class, parametrized]
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
