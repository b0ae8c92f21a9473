"""The sites of the residual stream, and `result`, read and edited by hooks on the modules where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probe.anatomy.patterns import take
from probe.anatomy.stacks import Attention, Place
from probe.capture.guards import stack_of
from probe.sites import ENCODER, Site

if TYPE_CHECKING:
    from probe.capture.capture import Capture

ORDER = ("embed", "resid_pre", "result", "attn_out", "resid_mid", "mlp_out", "resid_post", "logits")
Handle = torch.utils.hooks.RemovableHandle


class ResidualSites:
    """Stands at a model's blocks for one capture. Hooks that only read return None, so nothing is replaced."""

    def __init__(self, capture: Capture, sites: Iterable[Site]) -> None:
        self.capture = capture
        # Where two sites are one module's output, hooks run in the order in which the model computes them.
        mine = sorted((s for s in sites if s.base in ORDER), key=lambda s: ORDER.index(s.base))
        self._handles = [handle for site in mine for handle in self._hooks(site)]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hooks(self, site: Site) -> Iterator[Handle]:
        anatomy = self.capture.anatomy
        if site.base == "logits":
            yield self._after(Place(anatomy.model), site)
            return
        stack = stack_of(anatomy, site.prefix, site.name)
        if site.base == "embed":
            assert stack.embedding is not None
            yield self._after(stack.embedding, site)
            return
        assert site.layer is not None
        layer, attention = stack.layers[site.layer], anatomy.attention(site.prefix, site.layer)
        assert attention is not None
        if site.base == "resid_mid" and layer.mid is not None:
            place, side = layer.mid
            yield self._before(place, site, in_place=True) if side == "input" else self._after(place, site)
        elif site.base == "result" and attention.project is not None:
            yield self._result(attention.project, site, attention)
        else:
            whole = {"attn_out": attention.writer, "mlp_out": layer.mlp}.get(site.base, layer.block)
            assert whole is not None  # `guards.check_available` let it pass
            yield self._before(whole, site) if site.base == "resid_pre" else self._after(whole, site)

    def _before(self, place: Place, site: Site, in_place: bool = False) -> Handle:
        """At the tensor a module is given. in_place: the block goes on with that same tensor beside the module."""
        mine = turn(self.capture, place)

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not mine():
                return None
            given = stream_of(args, kwargs)
            new = self.capture.visit(site, given)
            if new is given:
                return None
            if in_place:
                given.copy_(new)
                self.capture.base(site, given)
                return None
            return with_stream(args, kwargs, new)

        return place.module.register_forward_pre_hook(hook, with_kwargs=True)

    def _after(self, place: Place, site: Site) -> Handle:
        """At what a module returns: a tensor, or the first of a tuple or list."""
        mine = turn(self.capture, place)

        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if not mine():
                return None
            if site.base == "logits":
                # While generating, the last row alone: it chooses the token, and some models compute no other.
                self.capture.visit(site, output.logits[:, -1:] if self.capture.store.steps else output.logits)
                return None
            several = isinstance(output, tuple | list)
            given = output[0] if several else output
            new = self.capture.visit(site, given)
            if new is given:
                return None
            return type(output)([new, *output[1:]]) if several else new

        return place.module.register_forward_hook(hook)

    def _result(self, place: Place, site: Site, attention: Attention) -> Handle:
        """At the output projection: each head's part of it; an edit's difference is added to the sum."""
        mine = turn(self.capture, place)

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if not mine():
                return None
            capture = self.capture
            z = args[0].reshape(*output.shape[:-1], attention.n_heads, -1)
            if capture.wants(site):
                capture.base(site, output)  # the heads' parts add up to it
            if not capture.edits.get(site):
                whole = site.prefix == ENCODER
                rows = None if whole else capture.rows_of(z.shape[0], z.shape[1], z.device)
                heads = capture.heads_of(attention.n_heads)
                n_rows = z.shape[1] if rows is None else rows.shape[1]
                size = z.shape[0] * n_rows * len(heads) * output.shape[-1] * output.element_size()
                capture.store.expect(site, size, capture.layers_left(site))
                with capture.aside():
                    parts = head_writes(module, z if rows is None else take(z, rows, 1), heads)
                capture.put(site, parts)
                return None
            with capture.aside():
                parts = head_writes(module, z, range(attention.n_heads))
            return output + (capture.visit(site, parts) - parts).sum(2)

        return place.module.register_forward_hook(hook)


def turn(capture: Capture, place: Place) -> Callable[[], bool]:
    """Whether a call of a module is the one meant, where layers share the module, in the capture's own thread."""
    calls, count = capture.anatomy.calls.get(place.module, 1), -1

    def mine() -> bool:
        nonlocal count
        if not capture.mine():
            return False
        count += 1
        return count % calls == place.number

    return mine


def head_writes(project: nn.Module, z: Tensor, heads: Iterable[int]) -> Tensor:
    """What each head alone adds to the output projection: (batch, pos, head, d_model) of z (batch, pos, head, d_head).

    The projection itself is run on one head's z, past its hooks, so any kind of projection (transposed, quantised,
    with an adapter) gives its own numbers; its bias is the answer to zeros, and is taken off.
    """
    bias = project.forward(torch.zeros_like(z[:1, :1]).flatten(2))
    parts = []
    for head in heads:
        alone = torch.zeros_like(z)
        alone[:, :, head] = z[:, :, head]
        parts.append(project.forward(alone.flatten(2)) - bias)
    return torch.stack(parts, 2)


def stream_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The residual stream among a block's arguments: the first (batch, pos, d_model)."""
    found: Tensor = next(v for v in (*args, *kwargs.values()) if _is_stream(v))
    return found


def with_stream(args: tuple[Any, ...], kwargs: dict[str, Any], new: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with another residual stream."""
    old = stream_of(args, kwargs)
    return tuple(new if a is old else a for a in args), {n: new if v is old else v for n, v in kwargs.items()}


def _is_stream(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 3
