"""Gradients written out: against finite differences, against torch's own, and where they are not taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.errors import UnknownName
from probe.models import gradients
from probe.models.corpora import TextFile
from probe.models.gpt import GPT, Cache, Config
from probe.models.gradients import by_hand
from probe.models.tokenizer import character_tokenizer
from probe.models.train import Recipe, train

SIZES: dict[str, Any] = {"vocab_size": 11, "n_layers": 2, "d_model": 16, "max_positions": 12}
TOLERANCE = 2e-6  # of float32, in gradients of order 1


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of float64 that ask for gradients."""
    return torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def made(**options: Any) -> GPT:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GPT(Config(**{**SIZES, "init_scale": 0.3, **options}))


def learned(model: GPT, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients, by parameter."""
    logits = model(ids[:, :-1]).logits
    assert logits is not None
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_attention_of_fewer_queries_than_keys() -> None:
    q, k, v = (numbers(2, 3, n, 4, seed=n) for n in (1, 5, 5))
    assert torch.autograd.gradcheck(lambda *qkv: gradients.attention(*qkv, 0.4, False), (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_against_finite_differences_and_torchs_kernel(causal: bool) -> None:
    q, k, v = (numbers(2, 3, 7, 4, seed=seed) for seed in range(3))
    assert torch.autograd.gradcheck(lambda *qkv: gradients.attention(*qkv, 0.4, causal), (q, k, v))
    kernel = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.4)
    torch.testing.assert_close(gradients.attention(q, k, v, 0.4, causal), kernel, rtol=0, atol=1e-14)


def layers(bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """Of float64: 3 numbers to 5 and back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 5, bias, dtype=torch.double), nn.Linear(5, 3, bias, dtype=torch.double)


@pytest.mark.parametrize("cached", [2**18, 5, 10, 1])  # numbers: all seven positions at once, one, two, one
@pytest.mark.parametrize("bias", [True, False])
def test_an_mlp_against_finite_differences_and_torchs_own(
    bias: bool, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "CACHED", cached)
    expand, contract = layers(bias)
    x = (numbers(7, 3).detach() * 3).requires_grad_()
    weights = [*expand.parameters(), *contract.parameters()]
    assert len(weights) == (4 if bias else 2)
    assert torch.autograd.gradcheck(lambda *_: gradients.mlp(x, expand, contract), (x, *weights))
    right = contract(F.gelu(expand(x), approximate="tanh"))
    torch.testing.assert_close(gradients.mlp(x, expand, contract), right, rtol=0, atol=1e-14)
    stood = x.detach().T.contiguous().T.unsqueeze(0).requires_grad_()  # the same, laid out the other way
    torch.testing.assert_close(gradients.mlp(stood, expand, contract)[0], right, rtol=0, atol=1e-14)
    found, expected = (
        torch.autograd.grad(out, (at, *weights), torch.ones(1, dtype=torch.double).expand(out.shape))
        for out, at in ((gradients.mlp(stood, expand, contract), stood), (right, x))
    )
    torch.testing.assert_close(found[0][0], expected[0])
    torch.testing.assert_close(found[1:], expected[1:])


@pytest.mark.parametrize(("cached", "parts"), [(2**18, 1), (10, 4), (1, 7)])
def test_an_mlp_takes_a_few_positions_at_a_time(cached: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen = F.linear, []
    monkeypatch.setattr(F, "linear", lambda x, *weights: seen.append(x.shape) or own(x, *weights))
    monkeypatch.setattr(gradients, "CACHED", cached)
    gradients.mlp(numbers(7, 3), *layers())
    assert len(seen) == 2 * parts


def test_a_bias_of_one_layer_only() -> None:
    x = numbers(7, 3)
    for biased in (0, 1):
        expand, contract = layers(biased == 0)[0], layers(biased == 1)[1]
        bias = (expand, contract)[biased].bias
        (found,) = torch.autograd.grad(gradients.mlp(x, expand, contract).sum(), bias)
        (right,) = torch.autograd.grad(contract(F.gelu(expand(x), approximate="tanh")).sum(), bias)
        torch.testing.assert_close(found, right)


def test_weights_changed_before_the_gradients_are_refused_as_torchs_own() -> None:
    expand, contract = layers()
    for layer in (expand, contract):
        out = gradients.mlp(numbers(7, 3), expand, contract).sum()
        with torch.no_grad():
            layer.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.backward()


def test_what_the_mlp_wrote_may_be_changed_in_place() -> None:
    x = numbers(2, 4, 3)
    changed, twice = gradients.mlp(x, *layers()).mul_(2), gradients.mlp(x, *layers()) * 2
    assert torch.equal(changed, twice)
    found, right = (torch.autograd.grad(out.square().sum(), x)[0] for out in (changed, twice))
    assert torch.equal(found, right)


def test_nothing_is_read_as_nothing() -> None:
    x = numbers(0, 4, 3)
    assert gradients.mlp(x, *layers()).shape == (0, 4, 3)
    (slope,) = torch.autograd.grad(gradients.mlp(x, *layers()).sum(), x)
    assert slope.shape == x.shape
    none = numbers(2, 3, 0, 4)
    assert gradients.attention(none, none, none, 0.4, True).shape == (2, 3, 0, 4)


def test_the_slope_of_gelu_far_out() -> None:
    expand, contract = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for layer in (expand, contract):
        nn.init.ones_(layer.weight)
    far = torch.tensor([-1e13, -50.0, 0.0, 50.0, 1e13]).unsqueeze(1).requires_grad_()
    (slope,) = torch.autograd.grad(gradients.mlp(far, expand, contract).sum(), far)
    assert slope.flatten().tolist() == [0, 0, 0.5, 1, 1]  # also where x³ is infinite in float32


def test_who_listens_to_a_layer_of_the_mlp_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, heard, model = called(monkeypatch), list[torch.Size](), made(n_layers=1)
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(1))
    mlp = model.base_model.blocks[0].mlp
    for layer in (mlp.expand, mlp.contract):
        handle = layer.register_forward_hook(lambda _module, _read, wrote: heard.append(wrote.shape))
        with by_hand():
            model(ids)
        handle.remove()
    assert heard == [(2, 8, 64), (2, 8, 16)]
    assert seen == ["attention"] * 2
    handle = mlp.register_forward_hook(lambda _module, _read, wrote: heard.append(wrote.shape))
    with by_hand():
        model(ids)  # who listens to the whole is heard either way
    handle.remove()
    assert heard[2:] == [(2, 8, 16)]
    assert seen[2:] == ["attention", "mlp"]


@pytest.mark.parametrize("cached", [1, 98, 200])  # one prompt's head at a time, two, four of six
def test_attention_of_a_few_heads_at_a_time(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (numbers(2, 3, 7, 4, seed=seed) for seed in range(3))
    whole = gradients.attention(q, k, v, 0.4, True)
    monkeypatch.setattr(gradients, "CACHED", cached)
    own, seen = torch.softmax, []
    monkeypatch.setattr(torch, "softmax", lambda x, **how: seen.append(len(x)) or own(x, **how))
    torch.testing.assert_close(gradients.attention(q, k, v, 0.4, True), whole, rtol=0, atol=1e-14)
    assert seen == {1: [1] * 6, 98: [2] * 3, 200: [4, 2]}[cached]
    assert torch.autograd.gradcheck(lambda *qkv: gradients.attention(*qkv, 0.4, True), (q, k, v))


@pytest.mark.parametrize(
    "options",
    [{}, {"n_kv_heads": 2}, {"position": "rope", "ffn": "swiglu"}, {"bias": False, "ffn": "none"}, {"d_head": 6}],
    ids=str,
)
def test_a_model_learns_the_same_with_either(options: dict[str, Any]) -> None:
    ids = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(1))
    with by_hand():
        loss, found = learned(made(**options), ids)
    expected, right = learned(made(**options), ids)
    assert float(loss) == pytest.approx(float(expected), abs=TOLERANCE)
    assert found.keys() == right.keys()
    assert len(found) == len(list(made(**options).parameters()))
    for name, gradient in right.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=TOLERANCE, msg=name)
        assert gradient.abs().max() > 1e-4, name


def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions written out, as they are called."""
    seen: list[str] = []
    for name in ("attention", "mlp"):
        own = getattr(gradients, name)

        def counted(*args: Any, own: Any = own, name: str = name) -> Any:
            seen.append(name)
            return own(*args)

        monkeypatch.setattr(gradients, name, counted)
    return seen


def test_only_inside_and_where_gradients_are_asked_for_and_the_kernel_would_have_no_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, ids = called(monkeypatch), torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(1))
    padded = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
    model = made()
    with by_hand():
        model(ids)
        assert seen == ["attention", "mlp"] * 2
        seen.clear()
        with torch.no_grad():
            model(ids)
        model.generate(ids, max_new_tokens=2)
        made().bfloat16()(ids)
        with torch.autocast("cpu"):
            model(ids)
        with by_hand(False):
            model(ids)
        assert not seen
        model(ids, padded)
        made(attention="eager")(ids)
        assert seen == ["mlp"] * 4
        seen.clear()
        monkeypatch.setattr(gradients, "KEPT", 7)
        model(ids)
        assert seen == ["mlp"] * 2
        seen.clear()
        monkeypatch.setattr(gradients, "KEPT", 8)
        model.double()(ids)
        assert seen == ["attention", "mlp"] * 2
        model.float()
    seen.clear()
    model(ids)
    assert not seen
    with pytest.raises(ZeroDivisionError), by_hand():
        _ = 1 // 0
    model(ids)
    assert not seen
    with by_hand():
        assert made().to("meta")(ids.to("meta")).logits.shape == (2, 8, 11)
    assert not seen


def test_layers_that_are_not_torchs_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(1))
    own, model = nn.Linear.forward, made(n_layers=1)
    with by_hand():
        before = model(ids).logits
        with monkeypatch.context() as patched:
            patched.setattr(nn.Linear, "forward", lambda self, x: -own(self, x))
            turned = model(ids).logits
        with by_hand(False), monkeypatch.context() as patched:
            patched.setattr(nn.Linear, "forward", lambda self, x: -own(self, x))
            right = model(ids).logits
        assert (before - right).abs().max() > 0.1
        torch.testing.assert_close(turned, right, rtol=0, atol=TOLERANCE)
        mlp = model.base_model.blocks[0].mlp
        mlp.expand, mlp.contract = nn.Linear(16, 16), nn.Identity()
        model(ids)


def test_a_token_read_after_a_cache() -> None:
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(1))
    found = []
    for on in (False, True):
        model, cache = made(), Cache()
        with torch.no_grad():
            model(ids[:, :5], cache=cache)
        with by_hand(on):
            logits = model(ids[:, 5:6], cache=cache).logits
        assert logits is not None
        logits.square().sum().backward()  # type: ignore[no-untyped-call]
        found.append(model.base_model.blocks[0].attention.qkv.weight.grad)
    assert found[0].abs().max() > 1
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_gradients_of_gradients_are_refused_rather_than_wrong(part: str) -> None:
    x = numbers(1, 1, 4, 3)
    out = gradients.mlp(x, *layers()) if part == "mlp" else gradients.attention(x, x, x, 0.4, True)
    (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_a_training_takes_them_where_its_recipe_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, text = called(monkeypatch), "the cat sat on the mat and the dog sat on the log . " * 8
    tokenizer = character_tokenizer(text)
    corpus = TextFile(text, tokenizer, positions=12)
    losses = {}
    for kind in ("torch", "by_hand"):
        config = Config(**{**SIZES, "vocab_size": len(tokenizer)})
        recipe = Recipe(steps=3, batch_size=4, gradients=kind)
        losses[kind] = train(config, recipe, corpus, tokenizer=tokenizer, quiet=True).losses
        assert bool(seen) == (kind == "by_hand")
    assert losses["by_hand"] == pytest.approx(losses["torch"], abs=1e-5)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownName, match="by_hand"):
        Recipe(gradients="by-hand")
