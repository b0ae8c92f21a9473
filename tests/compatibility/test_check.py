"""The check itself: what the well-known families come out as, and that it fails where something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from probe.anatomy.patterns import Rows, attention_rows
from probe.capture import Capture, heads
from probe.capture.edit import Edit
from probe.capture.heads import AttentionSites
from probe.capture.residual import ResidualSites
from probe.compatibility import check as checking
from probe.compatibility.check import Finding, check
from probe.compatibility.configs import Pair
from probe.compatibility.oracle import are_weights, by_layer
from probe.compatibility.parts import close, distance, same, tensors
from probe.errors import UnknownName

FAMILIES = [
    "llama",
    "mistral",
    "gemma2",
    "gemma3_text",
    "qwen3",
    "phi3",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "bloom",
    "opt",
    "falcon",
    "deepseek_v3",
    "deepseek_v32",
    "jamba",
    "bert (masked)",
    "deberta-v2 (masked)",
    "modernbert (masked)",
    "t5 (seq2seq)",
    "bart (seq2seq)",
]
LLAMA = Pair("llama", "causal")


def pair(name: str) -> Pair:
    kind, _, task = name.rstrip(")").partition(" (")
    return Pair(kind, task or "causal")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAMILIES)
def test_well_known_families_are_read_exactly(name: str) -> None:
    found = check(pair(name))
    assert (found.status, found.why, found.trace) == ("exact", "", "")
    assert found.max_error is not None
    assert found.max_error < 2e-5
    assert {"pattern", "z", "v", "scores"} <= set(found.sites)
    assert "eager" in found.implementations
    assert len(found.head_layers) == (2 if name == "jamba" else found.n_layers)
    if found.pair.task == "seq2seq":
        assert {"encoder.pattern", "cross.pattern"} <= set(found.sites)


def test_a_composite_is_run_on_text_alone_and_says_so() -> None:
    found = check(Pair("gemma3", "causal"))
    assert found.status == "exact"
    assert "run on text alone" in found.notes


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("mamba", "no attention heads"),
        ("fnet (masked)", "no attention heads"),
        ("reformer", "no attention heads"),
        ("gemma4_assistant", "reads no tokens"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(name: str, why: str) -> None:
    found = check(pair(name))
    assert found.status == "unsupported"
    assert why in found.why
    assert (found.trace, found.implementations, found.sites, found.missing) == ("", (), (), ())


def test_a_pair_that_is_not_mapped_is_unknown() -> None:
    with pytest.raises(UnknownName, match="llama"):
        check(Pair("lama", "causal"))


# What may go wrong in the engine, and the step that notices.


def wrong_pattern(patch: pytest.MonkeyPatch) -> None:
    def rows(*args: Any, **kwargs: Any) -> Rows:
        made = attention_rows(*args, **kwargs)
        return made._replace(pattern=made.pattern * 1.001)

    patch.setattr(heads, "attention_rows", rows)


def wrong_rows(patch: pytest.MonkeyPatch) -> None:
    def rows(call: Any, at: Tensor | None, *args: Any, **kwargs: Any) -> Rows:
        return attention_rows(call, None if at is None else at.flip(1), *args, **kwargs)

    patch.setattr(heads, "attention_rows", rows)


def output_changes_while_read(patch: pytest.MonkeyPatch) -> None:
    visit = Capture.visit
    patch.setattr(Capture, "visit", lambda self, site, tensor, **options: visit(self, site, tensor, **options) * 1.0001)


def edits_do_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Edit, "apply", lambda self, tensor, *args, **kwargs: tensor)


def edits_reach_too_little(patch: pytest.MonkeyPatch) -> None:
    apply = Edit.apply

    def half(self: Edit, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        new = apply(self, tensor, *args, **kwargs)
        return torch.lerp(tensor, new, 0.5) if self.site == "pattern" else new

    patch.setattr(Edit, "apply", half)


def hooks_stay(patch: pytest.MonkeyPatch) -> None:
    close = ResidualSites.close

    def leave_one(self: ResidualSites) -> None:
        close(self)
        self.capture.anatomy.model.register_forward_hook(lambda *_: None)

    patch.setattr(ResidualSites, "close", leave_one)


def hidden_cells_are_called_visible(patch: pytest.MonkeyPatch) -> None:
    see = AttentionSites._see

    def blind(self: AttentionSites, prefix: str, layer: int, visible: Tensor) -> None:
        see(self, prefix, layer, visible & ~torch.eye(*visible.shape[-2:], dtype=torch.bool))

    patch.setattr(AttentionSites, "_see", blind)


def z_is_another(patch: pytest.MonkeyPatch) -> None:
    keep = Capture.keep

    def other(self: Capture, site: Any, tensor: Tensor, *args: Any, **options: Any) -> None:
        keep(self, site, tensor.flip(2) if site.base == "z" else tensor, *args, **options)

    patch.setattr(Capture, "keep", other)


def stream_is_another(patch: pytest.MonkeyPatch) -> None:
    keep = Capture.keep

    def other(self: Capture, site: Any, tensor: Tensor, *args: Any, **options: Any) -> None:
        keep(self, site, tensor + 1 if site.base == "resid_pre" else tensor, *args, **options)

    patch.setattr(Capture, "keep", other)


@pytest.mark.parametrize(
    ("break_it", "step"),
    [
        (wrong_pattern, "pattern"),
        (wrong_rows, "rows"),
        (output_changes_while_read, "output while read"),
        (edits_do_nothing, "edit"),
        (edits_reach_too_little, "edit"),
        (hooks_stay, "afterwards"),
        (hidden_cells_are_called_visible, "masked cells"),
        (z_is_another, "z"),
        (stream_is_another, "residual"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_check_fails_where_the_engine_is_wrong(
    break_it: Callable[[pytest.MonkeyPatch], None], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    found = check(LLAMA)
    assert (found.status, found.step) == ("unsupported", step), found.why
    assert found.why.startswith("eager, ")
    assert found.implementations == ()


def test_the_check_fails_where_the_model_itself_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    eager = modeling_llama.eager_attention_forward

    def tampered(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        output, weights = eager(*args, **kwargs)
        return output, weights.roll(1, dims=1)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", tampered)
    found = check(LLAMA)
    assert (found.status, found.step) == ("unsupported", "pattern")
    assert "pattern of layer 0 is off by" in found.why


def test_a_random_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    forward = modeling_llama.LlamaMLP.forward
    noisy = lambda self, x: forward(self, x) + torch.randn_like(x)  # noqa: E731
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", noisy)
    found = check(LLAMA)
    assert (found.status, found.step) == ("unsupported", "dissect")
    assert "random" in found.why


def test_whatever_is_raised_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: object) -> None:
        raise KeyError("nothing there")

    monkeypatch.setattr(checking, "dissect", broken)
    found = check(LLAMA)
    assert (found.status, found.step) == ("unsupported", "dissect")
    assert found.why == "KeyError: 'nothing there'"
    assert "in broken" in found.trace


# The small parts.


def test_outputs_are_compared_bit_for_bit() -> None:
    one = {"a": torch.tensor([1.0, float("nan")]), "b": torch.zeros(2)}
    assert same(one, {n: t.clone() for n, t in one.items()})
    assert not same(one, {"a": one["a"]})
    assert not same(one, one | {"b": torch.tensor([0.0, 1e-30])})
    assert list(tensors({"x": (torch.ones(1), [torch.ones(2)]), "cache": object()})) == ["x.0", "x.1.0"]


def test_closeness_is_relative_to_size() -> None:
    large = torch.tensor([1e4, 1.0])
    assert close(large + 0.1, large)
    assert not close(large + 10, large)
    assert distance(torch.zeros(2), torch.zeros(3)) == float("inf")


def test_the_oracle_tells_weights_and_layers() -> None:
    weights = torch.full((1, 1, 2, 2), 0.5)
    assert are_weights(weights)
    assert not are_weights(weights * 3)
    assert not are_weights(-weights)
    assert by_layer([weights, None, weights], [0, 2], 3) == {0: weights, 2: weights}
    assert by_layer([weights, weights], [1, 3], 4) == {1: weights, 3: weights}
    assert by_layer([weights], [1, 3], 4) is None


def test_missing_sites_are_those_of_stacks_the_model_has() -> None:
    found = Finding(LLAMA, "Llama", "exact", sites=("pattern", "encoder.pattern"), some=("z",))
    assert "resid_mid" in found.missing
    assert "encoder.z" in found.missing
    assert not {"z", "pattern", "cross.z"} & set(found.missing)
