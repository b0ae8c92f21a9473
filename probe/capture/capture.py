"""`Capture`: read a model's sites during one forward pass.

with Capture(model, ["pattern", "resid_post"]) as seen:
    model(**inputs)
seen["pattern", 3]               # (batch, head, query, key)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from probe.capture.anatomy import Anatomy, dissect
from probe.capture.interface import Call, listening
from probe.capture.patterns import attention_rows, take
from probe.errors import CaptureError, UnknownName, UnsupportedModel
from probe.sites import (
    ATTENTION_SITES,
    KEY_SITES,
    SQUARE_SITES,
    WHOLE_SITES,
    Site,
    check_indices,
    check_sites,
    kv_head,
)


class Capture:
    """Context manager that keeps the chosen sites of one forward pass; outputs stay the same bit for bit.

    model: a tiny GPT, a transformers model, or its `Anatomy`. sites: names of `probe.sites`.
    layers, heads: which ones to keep, default all (negative: from the end; heads are query heads, and the key-value
    heads they read are kept for `k`, `rot_k`, `v`). rows: query positions to keep, the same for every prompt or a
    (batch, row) tensor; every site but `k`, `rot_k`, `v` keeps these positions only. Positions here are those of the
    tensors given to the model, padding included; `Subject.run` counts real tokens instead.

    `capture[site, layer]` is the tensor; `capture["logits"]` and `capture["embed"]` have no layer;
    `capture.visible[layer]` says which keys each row of `scores` and `pattern` may see. Tensors are references into
    the forward pass: do not write into them.
    Raises UnknownName, OutOfRange, UnsupportedModel at once; CaptureError where an expected site was not seen, was
    seen twice, or was overwritten by the model.
    """

    def __init__(
        self,
        model: nn.Module | Anatomy,
        sites: str | Sequence[str],
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        rows: Sequence[int] | Tensor | None = None,
    ) -> None:
        self.anatomy = model if isinstance(model, Anatomy) else dissect(model)
        self.sites = check_sites(sites)
        self.layers = check_indices("layer", layers, self.anatomy.n_layers)
        self.heads = check_indices("head", heads, self.anatomy.n_heads)
        self.rows = rows if rows is None or isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.long)
        if "resid_mid" in self.sites and self.anatomy.mid is None:
            raise UnsupportedModel(
                f"{type(self.anatomy.model).__name__} has no resid_mid that probe can find: its attention and MLP run "
                "in parallel or are normed in another order. Ask for resid_pre or resid_post."
            )
        if "mlp_out" in self.sites and self.anatomy.mlps is None:
            raise UnsupportedModel(
                f"{type(self.anatomy.model).__name__} has no mlp_out that probe can read: its MLP flattens batch and "
                "positions. Ask for resid_post."
            )
        if "logits" in self.sites and not self.anatomy.has_logits:
            raise UnsupportedModel(
                f"{type(self.anatomy.model).__name__} has no language-model head, hence no logits; "
                "its last hidden state is resid_post of the last layer."
            )
        self.visible: dict[int, Tensor] = {}
        self._kept: dict[Site, tuple[Tensor, int]] = {}
        self._all_heads = self.heads == tuple(range(self.anatomy.n_heads))
        self._kv_heads = tuple(
            dict.fromkeys(kv_head(h, self.anatomy.n_heads, self.anatomy.n_kv_heads) for h in self.heads)
        )
        self._layer_of = {self.anatomy.attentions[layer]: layer for layer in self.layers}
        self._stack = ExitStack()
        self._thread = 0
        self._rotated = False
        self._open = False

    def __enter__(self) -> Capture:
        if self._open:
            raise CaptureError("this capture is open already: open a new one for each forward pass.")
        self._open = True
        self._thread = threading.get_ident()
        self._kept.clear()
        self.visible.clear()
        self._rotated = False
        with ExitStack() as stack:
            if any(s in ATTENTION_SITES for s in self.sites):
                stack.enter_context(listening(self, self._layer_of))
            for handle in self._hooks():
                stack.callback(handle.remove)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._open = False
        if error is not None:
            return
        missing = [s for s in self.expected() if s not in self._kept]
        if missing:
            raise CaptureError(
                f"{missing[0]} was not seen during the forward pass ({len(missing)} of {len(self.expected())} "
                "sites missing). The model was not called inside the capture, was compiled, skipped a layer, or does "
                "not ask transformers for its attention function, as some older architectures do not."
            )
        if self.anatomy.has_rotary and not self._rotated and not {"q", "k"}.isdisjoint(self.sites):
            raise UnsupportedModel(
                f"{type(self.anatomy.model).__name__} has rotary embeddings, but none was seen being applied, so q and "
                "k cannot be told from rot_q and rot_k. Ask for those."
            )

    def expected(self) -> list[Site]:
        """Every site this capture is to see."""
        layered = [Site(name, layer) for name in self.sites if name not in WHOLE_SITES for layer in self.layers]
        return layered + [Site(name) for name in self.sites if name in WHOLE_SITES]

    def __getitem__(self, site: str | tuple[str, int]) -> Tensor:
        name, layer = (site, None) if isinstance(site, str) else site
        if name not in self.sites:
            raise UnknownName.of("captured site", name, self.sites)
        if layer is not None:
            (layer,) = check_indices("layer", layer, self.anatomy.n_layers)
        if Site(name, layer) not in self._kept:
            layers = ", ".join(str(s.layer) for s in self._kept if s.name == name)
            raise UnknownName(f"{Site(name, layer)} was not captured; captured layers of {name}: {layers or 'none'}.")
        tensor, version = self._kept[Site(name, layer)]
        if _version(tensor) != version:
            raise CaptureError(f"{Site(name, layer)} was overwritten in place after it was captured.")
        return tensor

    def hears(self, module: nn.Module) -> bool:
        return module in self._layer_of

    def attended(self, call: Call) -> None:
        """Keep what this capture wants of one attention call."""
        layer = self._layer_of[call.module]
        self._check_sizes(call)
        self._rotated = self._rotated or call.before_rotary[0] is not call.query
        heads_first = {"rot_q": call.query, "rot_k": call.key, "v": call.value}
        heads_first["q"], heads_first["k"] = call.before_rotary  # type: ignore[assignment]
        if not set(SQUARE_SITES).isdisjoint(self.sites):
            rows = attention_rows(call, self._rows_for(call.query, dim=2))
            self.visible[layer] = rows.visible
            for name in SQUARE_SITES:
                if name in self.sites:
                    whole: Tensor = getattr(rows, name)
                    self._keep(Site(name, layer), whole if self._all_heads else whole[:, list(self.heads)])
        for name in self.sites:
            if name == "z":
                self._keep(Site(name, layer), self._choose(name, call.output))
            elif name == "result":
                self._keep(Site(name, layer), self._result(layer, self._choose_rows(call.output)))
            elif name in heads_first:
                if heads_first[name] is None:
                    raise UnsupportedModel(
                        f"{name} of {type(call.module).__name__} cannot be told from rot_{name}: its rotary embedding "
                        f"could not be followed. Ask for rot_{name}."
                    )
                self._keep(Site(name, layer), self._choose(name, heads_first[name].transpose(1, 2)))

    def _check_sizes(self, call: Call) -> None:
        """The heads that the configuration promises are those that attend; otherwise heads would be misnamed."""
        told = (self.anatomy.n_heads, self.anatomy.n_kv_heads, self.anatomy.n_heads)
        seen = (call.query.shape[1], call.key.shape[1], call.output.shape[2])
        if told != seen:
            raise UnsupportedModel(
                f"{type(call.module).__name__} attends with {seen[0]} query and {seen[1]} key-value heads; the "
                f"configuration of {type(self.anatomy.model).__name__} says {told[0]} and {told[1]}."
            )

    def _result(self, layer: int, z: Tensor) -> Tensor:
        """What each chosen head alone adds to the output projection: the projection itself run on one head's z.

        Runs the module's own forward, past its hooks, so any kind of projection (transposed, quantised, with an
        adapter) gives its own numbers; its bias is the answer to zeros, and is taken off.
        """
        project = self.anatomy.projects[layer].forward
        bias = project(torch.zeros_like(z[:1, :1]).flatten(2))
        parts = []
        for head in self.heads:
            alone = torch.zeros_like(z)
            alone[:, :, head] = z[:, :, head]
            parts.append(project(alone.flatten(2)) - bias)
        return torch.stack(parts, 2)

    def _choose(self, name: str, tensor: Tensor) -> Tensor:
        """The chosen heads and rows of a (batch, pos, head, d_head) tensor."""
        if not self._all_heads:
            tensor = tensor[:, :, list(self._kv_heads if name in KEY_SITES else self.heads)]
        return tensor if name in KEY_SITES else self._choose_rows(tensor)

    def _choose_rows(self, tensor: Tensor) -> Tensor:
        rows = self._rows_for(tensor)
        return tensor if rows is None else take(tensor, rows, 1)

    def _rows_for(self, tensor: Tensor, dim: int = 1) -> Tensor | None:
        """The chosen rows of a tensor whose positions lie along `dim`, none of them negative."""
        if self.rows is None:
            return None
        size = tensor.shape[dim]
        for row in (int(self.rows.min()), int(self.rows.max())):
            check_indices("row", row, size)
        rows = self.rows.to(tensor.device) % size
        return rows if rows.dim() == 2 else rows.expand(tensor.shape[0], -1)

    def _keep(self, site: Site, tensor: Tensor) -> None:
        if site in self._kept:
            raise CaptureError(f"{site} was seen twice: a capture reads one forward pass. Open one capture for each.")
        self._kept[site] = (tensor, _version(tensor))

    def _hooks(self) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Read-only hooks for the residual stream and the logits; they return None, so nothing is replaced."""
        for layer in self.layers:
            block = self.anatomy.blocks[layer]
            if "resid_pre" in self.sites:
                yield self._before(block, Site("resid_pre", layer))
            if "resid_post" in self.sites:
                yield self._after(block, Site("resid_post", layer))
            if "resid_mid" in self.sites and self.anatomy.mid is not None:
                module, side = self.anatomy.mid[layer]
                yield (self._before if side == "input" else self._after)(module, Site("resid_mid", layer))
            if "attn_out" in self.sites:
                yield self._after(self.anatomy.projects[layer], Site("attn_out", layer))
            if "mlp_out" in self.sites and self.anatomy.mlps is not None:
                yield self._after(self.anatomy.mlps[layer], Site("mlp_out", layer))
        if "embed" in self.sites:
            yield self._after(self.anatomy.embedding, Site("embed"))
        if "logits" in self.sites:
            yield self._after(self.anatomy.model, Site("logits"))

    def _before(self, module: nn.Module, site: Site) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if threading.get_ident() == self._thread:
                hidden = args[0] if args else kwargs["hidden_states"]
                self._keep(site, self._choose_rows(hidden))

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    def _after(self, module: nn.Module, site: Site) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if threading.get_ident() == self._thread:
                if site.name == "logits":
                    output = output.logits
                self._keep(site, self._choose_rows(output[0] if isinstance(output, tuple) else output))

        return module.register_forward_hook(hook)


def _version(tensor: Tensor) -> int:
    """Counts in-place writes; tensors made in inference mode do not count them."""
    return 0 if tensor.is_inference() else tensor._version
