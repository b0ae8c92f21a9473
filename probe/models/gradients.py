"""Attention and MLP with their gradients written out: what `backward` works out for them, a line for each product.

    with by_hand():
        loss = F.cross_entropy(model(ids).logits.flatten(0, 1), targets)   # of a tiny GPT
    loss.backward()

torch's fused attention keeps no pattern and works it out again for the gradients, which saves memory that grows with
the square of the length; its GELU works its curve out twice. Keeping both is faster while the pattern is small, and so
is going through a few prompts or positions at a time, whose products stay in the processor's caches. The numbers are
the same but for rounding. On two cores of a server's processor (AVX-512), attention alone has 1.15 times the kernel's
speed at 32, 64 and 128 positions and .8 at 256; the MLP of 128 by 512 numbers has 1.15 times that of torch's parts.

What asks for more than `backward` needs torch's own: gradients of gradients, `torch.func`, many at once. What is worked
out again for the gradients (checkpoints) must be so inside `by_hand` if it was computed inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from probe.models.lean import unheard

_ON = ContextVar("by_hand", default=False)
EXACT = (torch.float32, torch.float64)  # a square of what fits into fewer bits may not
KEPT = 128  # positions: longer patterns cost more to keep than to work out again
CACHED = 2**18  # numbers of a pattern, or of the MLP's width, at a time: from 2^17 to 2^20 as fast, all at once slower
FORWARD = nn.Linear.forward  # who watches or changes every layer puts another in its place

# shapes in comments: N batch times heads, T positions, D d_head, M batch times positions, C d_model, W the MLP's width


@contextmanager
def by_hand(on: bool = True) -> Iterator[None]:
    """Take these in every tiny GPT that is run inside: in the MLP where `wanted` says so and it is no gated one, and in
    fused attention to at most `KEPT` keys if, besides, it needs no mask.
    """
    before = _ON.set(on)
    try:
        yield
    finally:
        _ON.reset(before)


def wanted(x: Tensor, *layers: nn.Module) -> bool:
    """Whether to compute with x as here: inside `by_hand` with gradients recorded, on a CPU, where x is of single or
    double precision and autocast is off. layers: also whether they are linear, and no one listens to them.
    """
    if not (_ON.get() and torch.is_grad_enabled() and x.dtype in EXACT and x.device.type == "cpu"):
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    torchs = nn.Linear.forward is FORWARD and "__call__" not in vars(nn.Linear)
    return not layers or (torchs and all(type(layer) is nn.Linear for layer in layers) and unheard(layers))


def attention(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> Tensor:
    """softmax(q·kᵀ · scaling + mask) · v; all are (batch, head, pos, d_head). The pattern is kept for the gradients."""
    return cast(Tensor, Attention.apply(query, key, value, scaling, causal))  # type: ignore[no-untyped-call]


def mlp(x: Tensor, expand: nn.Linear, contract: nn.Linear) -> Tensor:
    """contract(GELU(expand(x))), (..., C) -> (..., C). GELU in GPT-2's form, x·σ(u) with u = √(8/π)·(x + 0.044715 x³);
    its slope is kept for the gradients. Neither layer is called: who listens to them hears nothing.
    """
    return cast(Tensor, MLP.apply(x, expand.weight, expand.bias, contract.weight, contract.bias))  # type: ignore[no-untyped-call]


class Attention(torch.autograd.Function):
    """What `attention` computes, and its gradients; a few prompts and heads at a time, so that scores stay cached."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> Tensor:
        q, k, v = (x.flatten(0, 1) for x in (query, key, value))  # (N, T, D)
        mask = q.new_zeros(q.shape[1], k.shape[1])  # (T, T)
        if causal:
            mask = mask.fill_(-math.inf).triu(1)
        pattern, out = q.new_empty(len(q), *mask.shape), q.new_empty(query.shape)  # (N, T, T), (batch, head, T, D)
        z, some = out.view(q.shape), max(1, CACHED // max(1, mask.numel()))
        for q_, k_, v_, pattern_, z_ in zip(*(torch.split(x, some) for x in (q, k, v, pattern, z)), strict=True):
            torch.softmax(torch.baddbmm(mask, q_, k_.mT, alpha=scaling), dim=-1, out=pattern_)
            torch.bmm(pattern_, v_, out=z_)
        ctx.save_for_backward(q, k, v, out, pattern)
        ctx.scaling, ctx.some = scaling, some
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """A row's scores cannot all rise: what its weights gain on average, Σ dpattern·pattern = dz·z, is taken off."""
        q, k, v, out, pattern = ctx.saved_tensors
        size, dz, z = dz.shape[:2], dz.flatten(0, 1), out.view(q.shape)
        average = (dz * z).sum(dim=-1, keepdim=True)  # (N, T, 1)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        parts = (torch.split(x, ctx.some) for x in (q, k, v, pattern, dz, average, dq, dk, dv))
        for q_, k_, v_, pattern_, dz_, average_, dq_, dk_, dv_ in zip(*parts, strict=True):
            torch.bmm(pattern_.mT, dz_, out=dv_)
            dscores = torch.baddbmm(average_, dz_, v_.mT, beta=-1).mul_(pattern_)  # dpattern is dz·vᵀ
            dq_.baddbmm_(dscores, k_, beta=0, alpha=ctx.scaling)
            dk_.baddbmm_(dscores.mT, q_, beta=0, alpha=ctx.scaling)
        return dq.view(*size, *q.shape[1:]), dk.view(*size, *k.shape[1:]), dv.view(*size, *v.shape[1:]), None, None


class MLP(torch.autograd.Function):
    """What `mlp` computes, and its gradients; a few positions at a time, so that what lies between stays cached."""

    SCALE, CUBE = math.sqrt(8 / math.pi), 0.044715

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (M, C)
        out, bent = x.new_empty(*x.shape[:-1], len(w2)), x.new_empty(len(rows), len(w1))  # (..., C), (M, W)
        slope, linear, some = torch.empty_like(bent), x.new_tensor(MLP.SCALE), max(1, CACHED // len(w1))
        parts = (torch.split(y, some) for y in (rows, bent, slope, out.view(len(rows), len(w2))))
        for x_, bent_, passed, out_ in zip(*parts, strict=True):
            wide = F.linear(x_, w1, b1)
            steep = torch.addcmul(linear, wide, wide, value=MLP.SCALE * MLP.CUBE)  # u/wide
            torch.mul(wide, steep, out=passed).sigmoid_()  # σ(u), the share let through
            torch.mul(wide, passed, out=bent_)
            held = torch.addcmul(bent_, bent_, passed, value=-1)  # wide·σ·(1 - σ), to be multiplied with du/dwide
            passed.addcmul_(held, steep, value=3).add_(held, alpha=-2 * MLP.SCALE)  # that is 3·u/wide - 2·SCALE
            out_.copy_(F.linear(bent_, w2, b2))
        ctx.save_for_backward(rows, bent, slope, w1, w2)
        ctx.some = some
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]:
        rows, bent, slope, w1, w2 = ctx.saved_tensors
        size, dout = dout.shape[:-1], dout.reshape(-1, dout.shape[-1])
        dx, dw1, dw2 = torch.empty_like(rows), torch.zeros_like(w1), torch.zeros_like(w2)
        db1, db2 = w1.new_zeros(len(w1)), dout.sum(0)
        parts = (torch.split(y, ctx.some) for y in (rows, bent, slope, dout, dx))
        for x_, bent_, slope_, dout_, dx_ in zip(*parts, strict=True):
            dwide = (dout_ @ w2).mul_(slope_)
            torch.mm(dwide, w1, out=dx_)
            dw1.addmm_(dwide.T, x_)
            dw2.addmm_(dout_.T, bent_)
            db1.add_(dwide.sum(0))
        needs = ctx.needs_input_grad  # a layer may have no bias
        return dx.view(*size, dx.shape[-1]), dw1, db1 if needs[2] else None, dw2, db2 if needs[4] else None
