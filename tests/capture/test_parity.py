"""The check at load: it lets good models pass in four short passes, and stops each kind of bad one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.errors import UnsupportedModel
from probe.models import gpt
from probe.models.gpt import GPT, Config
from probe.subject import Subject


def model(attention: str = "eager") -> GPT:
    torch.manual_seed(0)
    return GPT(Config(vocab_size=400, n_layers=2, d_model=32, n_heads=4, init_scale=0.3, attention=attention)).eval()


@pytest.mark.parametrize("attention", ["eager", "fused"])
def test_looking_and_checking_take_four_short_passes(attention: str, tiny: Subject) -> None:
    made, lengths = model(attention), []
    made.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    probe.load(made, tiny.tokenizer)
    assert len(lengths) == 4
    assert max(lengths) <= 64


def test_the_check_can_be_left_out(tiny: Subject) -> None:
    passes: list[int] = []
    made = model()
    made.register_forward_pre_hook(lambda *_: passes.append(1))
    probe.load(made, tiny.tokenizer, check=False)
    assert len(passes) == 1


def test_a_model_that_is_random_in_evaluation_mode_is_refused(tiny: Subject) -> None:
    made = model()
    made.base_model.norm.register_forward_hook(lambda _, args, out: out + torch.randn_like(out))
    with pytest.raises(UnsupportedModel, match="failed the check at load: its output is not the same while it is read"):
        probe.load(made, tiny.tokenizer)


def test_a_model_whose_answer_ignores_its_heads_is_refused(tiny: Subject) -> None:
    made = model()
    for block in made.base_model.blocks:
        nn.init.zeros_(block.attention.out.weight)
    with pytest.raises(UnsupportedModel, match="does not change when what its heads found is set to zero"):
        probe.load(made, tiny.tokenizer)


def spoiled(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Eager attention with another pattern, as a model with a mistake in its own code would have."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, Tensor]:
        scores = query @ key.transpose(2, 3) * scaling
        pattern = change((scores if mask is None else scores + mask).softmax(-1)).softmax(-1)
        return (pattern @ value).transpose(1, 2), pattern

    return attend


def test_a_pattern_that_looks_behind_its_mask_is_refused(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt, "eager_attention", spoiled(lambda pattern: pattern))  # a second softmax: nothing is 0
    with pytest.raises(UnsupportedModel, match="pattern of layer 0 looks at keys that its mask hides"):
        probe.load(model(), tiny.tokenizer)
