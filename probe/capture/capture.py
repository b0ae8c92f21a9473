"""`Capture`: read and edit a model's sites while it runs.

with Capture(model, ["pattern", "resid_post"], edits=[edits.zero("z", layer=4, heads=2)]) as seen:
    model(**inputs)
seen["pattern", 3]               # (batch, head, query, key)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from probe.anatomy.follow import Following, counting
from probe.anatomy.interface import listening
from probe.anatomy.look import uncompiled
from probe.anatomy.patterns import take
from probe.anatomy.stacks import Anatomy, Attention, dissect
from probe.capture import guards
from probe.capture.edit import Edit, Frame, Path
from probe.capture.heads import AttentionSites
from probe.capture.paths import PathSites, check_readers, checked
from probe.capture.residual import ResidualSites
from probe.capture.store import Store
from probe.capture.streams import RowStatistics, Statistics
from probe.errors import CaptureError, OutOfRange, UnknownName
from probe.sites import (
    ATTENTION_SITES,
    CROSS,
    ENCODER,
    KEY_SITES,
    SQUARE_SITES,
    WHOLE_SITES,
    Site,
    check_indices,
    check_sites,
    kv_head,
    split,
)


class Capture:
    """Context manager that keeps, and edits, the chosen sites of a forward pass. Unedited outputs stay the same bit
    for bit.

    model: a tiny GPT, a transformers model, or its `Anatomy`. sites: names of `probe.sites`.
    layers, heads: which ones to keep, default all (negative: from the end; heads are query heads, and the key-value
    heads they read are kept for `k`, `rot_k`, `v`). rows: query positions to keep, the same for every prompt or a
    (batch, row) tensor; every site but `k`, `rot_k`, `v` keeps these positions only. Positions here are those of the
    tensors given to the model, padding included; `Subject.run` counts real tokens instead. Sites of an encoder keep
    all theirs.
    edits: changes to make (`probe.edits`). frames: how the batch's tensors hold its prompts, where edits count real
    tokens: "" for the decoder or only stack, "encoder." for an encoder. gradients: keep whole tensors that lie on the
    model's path, so that `gradients()` can be asked; scores and patterns then run through the model's eager
    attention, equal to 1e-6.
    device: where to keep tensors, default where the model made them. max_bytes: how much they may take, default what
    is free when the capture opens. steps: read the successive passes of a generation with a cache, joined into one.

    statistics: what to compute of every row of every pattern without holding one (`probe.capture.streams`).

    `capture[site, layer]` is the tensor; `capture["logits"]` and `capture["embed"]` have no layer;
    `capture.visible[layer]` says which keys each row of `scores` and `pattern` may see; `capture.statistics[layer]`
    are the statistics. Tensors are references into the forward pass: do not write into them. Of captures that are open
    together, one keeps what was there before the edits of those opened after it.
    Raises UnknownName, OutOfRange, UnsupportedModel at once; CaptureError where an expected site was not seen, was
    seen twice, was overwritten by the model, or does not fit into memory.
    """

    def __init__(
        self,
        model: nn.Module | Anatomy,
        sites: str | Sequence[str] = (),
        *,
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        rows: Sequence[int] | Tensor | None = None,
        edits: Sequence[Edit | Path] = (),
        frames: Mapping[str, Frame] | None = None,
        gradients: bool = False,
        device: str | torch.device | None = None,
        max_bytes: int | None = None,
        steps: bool = False,
        statistics: Statistics | None = None,
    ) -> None:
        self.anatomy = model if isinstance(model, Anatomy) else dissect(guards.checked_model(model))
        self.sites = check_sites(sites)
        edits = [edits] if isinstance(edits, Edit | Path) else list(edits)
        self._chosen = layers if layers is None else guards.checked_some("layer", layers, self._most_layers())
        self.heads = None if heads is None else guards.checked_some("head", heads, self._most_heads())
        self.rows = guards.checked_rows(rows)
        self.frames = frames or {}
        self.with_gradients = gradients
        self.edits = guards.checked_edits([e for e in edits if not isinstance(e, Path)], self.anatomy)
        self.paths = checked([e for e in edits if isinstance(e, Path)], self.anatomy)
        self.path_sites: PathSites | None = None
        self.store = Store(
            device=guards.checked_device(device),
            max_bytes=guards.free_bytes(self.anatomy.model) if max_bytes is None else max_bytes,
            steps=steps,
        )
        self.visible: dict[int | tuple[str, int], Tensor] = {}
        self.wanted_statistics = statistics
        self.statistics: dict[int, RowStatistics] = {}
        self._expected = self._places()
        streamed = [] if statistics is None else self._places_of(f"{statistics.prefix}pattern")
        if statistics is not None and not streamed:
            raise OutOfRange(f"{statistics.prefix}pattern is in none of the layers asked for, {self._chosen}.")
        check_readers(self.paths, self.edits, [*self._expected, *streamed])
        guards.check_available(self.anatomy, [*self._expected, *self.edits], self.edits)
        if gradients:
            guards.check_gradients(self.anatomy, self._expected)
        self._wanted = frozenset(self._expected)
        self._past: Counter[Site] = Counter()  # positions of earlier steps
        self._left: Counter[str] = Counter()  # layers still to be kept
        self._bases: dict[Site, tuple[Tensor, bool]] = {}
        self._stack = ExitStack()
        self._thread = 0
        self._aside = False
        self._open = False

    def _places(self) -> list[Site]:
        """Every site this capture is to see: the layers that have it, of those asked for."""
        places = []
        for name in self.sites:
            if split(name)[1] in WHOLE_SITES:
                places.append(Site(name))
                continue
            places += self._places_of(name)
        return places

    def _places_of(self, name: str) -> list[Site]:
        """A site with layers, in those asked for."""
        stack = guards.stack_of(self.anatomy, split(name)[0], name)
        return [Site(name, n) for n in stack.layers if self.has_layer(n)]

    def _most_layers(self) -> int:
        encoder = self.anatomy.encoder
        return max(self.anatomy.n_layers, 0 if encoder is None else encoder.n_layers)

    def _most_heads(self) -> int:
        encoder = self.anatomy.encoder
        theirs = [] if encoder is None else [layer.attention.n_heads for layer in encoder.layers.values()]
        return max([self.anatomy.n_heads, *theirs])

    def expected(self) -> list[Site]:
        """Every site this capture is to see."""
        return list(self._expected)

    def __enter__(self) -> Capture:
        if self._open:
            raise CaptureError("this capture is open already: open a new one for each forward pass.")
        guards.check_running(self.anatomy.model)
        self._open = True
        self._thread = threading.get_ident()
        self.store.clear()
        self.visible.clear()
        self.statistics.clear()
        self._past.clear()
        self._left = Counter(s.name for s in self._expected)
        self._bases.clear()
        touched = {*self._expected, *self.edits}
        with ExitStack() as stack:
            stack.enter_context(uncompiled())
            if self.paths:
                self.path_sites = PathSites(self, self.paths)
                stack.callback(self.path_sites.close)
            attentions = AttentionSites(self, [s for s in touched if s.base in ATTENTION_SITES])
            if attentions.modules:
                stack.callback(attentions.close)
                if self.anatomy.asks:
                    stack.enter_context(listening(attentions, attentions.modules))
                else:
                    mode = Following(attentions.chains, attentions, through=self.with_gradients)
                    stack.enter_context(attentions.batch_known(mode))
                    if any(s.base in ("q", "k") for s in touched):  # rotations are seen by their functions
                        stack.enter_context(listening(attentions, self.anatomy.model.modules()))
                    stack.enter_context(counting(mode, attentions.modules))
            residual = ResidualSites(self, touched)
            stack.callback(residual.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._open = False
        if error is not None:
            return
        missing = [s for s in self._expected if s not in self.store]
        if missing:
            raise CaptureError(
                f"{missing[0]} was not seen during the forward pass ({len(missing)} of {len(self._expected)} "
                "sites missing). The model was not called inside the capture, or skipped a layer."
            )

    def __getitem__(self, site: str | tuple[str, int]) -> Tensor:
        return self.store.get(self._site(site))

    def _site(self, site: str | tuple[str, int]) -> Site:
        name, layer = (site, None) if isinstance(site, str) else site
        if name not in self.sites:
            raise UnknownName.of("captured site", name, self.sites)
        if layer is not None:
            stack = guards.stack_of(self.anatomy, split(name)[0], name)
            (layer,) = check_indices("layer", layer, stack.n_layers)
        if Site(name, layer) not in self.store:
            layers = ", ".join(str(s.layer) for s in self._expected if s.name == name and s in self.store)
            raise UnknownName(f"{Site(name, layer)} was not captured; captured layers of {name}: {layers or 'none'}.")
        return Site(name, layer)

    def gradients(self, metric: Tensor) -> dict[tuple[str, int] | str, Tensor]:
        """∂metric/∂site for every captured site, by the keys of this capture and with their shapes, in one backward
        pass; metric: a number computed from the model's output, for example a difference of logits.

        `result` adds up to `attn_out`, so each head's gradient is that of `attn_out`.
        Raises CaptureError without `gradients=True`, or where the metric does not depend on a site in any layer.
        """
        if not self.with_gradients:
            raise CaptureError("gradients were not kept: open the capture with gradients=True.")
        if not self._expected:
            raise CaptureError("there is nothing to take the gradient of: name at least one site.")
        if not metric.requires_grad:
            frozen = not any(p.requires_grad for p in self.anatomy.model.parameters())
            what = "let the model's parameters require gradients" if frozen else "run the model outside torch.no_grad()"
            raise CaptureError(f"the metric has no gradient: {what}.")
        places = [s for s in self._expected if s in self._bases]
        bases = [self._bases[s][0] for s in places]
        found = torch.autograd.grad(metric, bases, retain_graph=True, allow_unused=True)
        for name in {s.name for s in places}:
            if all(g is None for s, g in zip(places, found, strict=True) if s.name == name):
                raise CaptureError(f"the metric depends on {name} in no layer: is it computed from the output?")
        made: dict[tuple[str, int] | str, Tensor] = {}
        for site, gradient in zip(places, found, strict=True):
            base, heads_first = self._bases[site]
            whole = torch.zeros_like(base) if gradient is None else gradient
            whole = whole.transpose(1, 2) if heads_first else whole
            if site.base == "result":
                whole = whole.unsqueeze(2).expand(-1, -1, self._attention(site).n_heads, -1)
            made[site.name if site.layer is None else (site.name, site.layer)] = self.chosen(site, whole)
        return made

    # What the seams ask of a capture.

    def mine(self) -> bool:
        """Whether a hook is to act: in the thread that opened this capture, and not in what it runs on the side."""
        return threading.get_ident() == self._thread and not self._aside

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Run parts of the model on the side, past this capture's hooks."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def visit(
        self,
        site: Site,
        tensor: Tensor,
        *,
        rows_at: Tensor | None = None,
        length: int | None = None,
        places: Sequence[int] | None = None,
        first: int | None = None,
        keep: bool = True,
        visible: Tensor | None = None,
        every: bool = False,
    ) -> Tensor:
        """Make this capture's edits of a site, keep what it wants of it, and return what the model is to go on with.

        rows_at: (batch, row), the position of each row, where the tensor holds only some of `length`. places: the
        places in the batch of the prompts it holds, where these are not all. first: the position of its first entry,
        where a cache holds earlier ones that it does not show. visible: the cells of scores or a pattern that may be
        changed, those that no mask hides; every: the tensor holds all that the edits touch, and one that changes no
        visible cell is refused.
        """
        edits = self.edits.get(site, ())
        if not edits and site not in self._wanted:
            return tensor
        square = site.base in SQUARE_SITES
        here = tensor.shape[2 if square else 1]
        past = (self._past[site] if self.store.steps else 0) if first is None else first
        keys_from = max(0, past + here - tensor.shape[3]) if square and rows_at is None and not site.prefix else 0
        frames = self.frames_of(site)
        if square and site.prefix == CROSS and frames[1] is None:
            frames = frames[0], Frame.plain(len(tensor), tensor.shape[3])
        if places is not None:
            whole = Frame.plain(max(places) + 1, past + (length or here))
            frames = ((frames[0] or whole).only(places), (frames[1] or whole).only(places))
        for edit in edits:
            place: dict[str, Any] = {"rows_at": rows_at, "length": length, "past": past, "keys_from": keys_from}
            new = edit.apply(tensor, *frames, **place)
            if visible is not None and new is not tensor:
                if every and edit.keys is not None:
                    guards.check_seen(edit, edit.marked(tensor, *frames, **place), visible)
                new = torch.where(visible, new, tensor)
            tensor = new
        if keep:
            self.keep(site, tensor, rows_at is not None)
            self._past[site] += here
        return tensor

    def keep(self, site: Site, tensor: Tensor, rows_chosen: bool = False, *, rebase: bool = True) -> None:
        """Keep a site's tensor if it is wanted. rows_chosen: it holds only the wanted rows already. rebase: it lies on
        the model's path.
        """
        if site not in self._wanted:
            return
        if rebase and site.base != "result":
            self.base(site, tensor)
        self.put(site, self.chosen(site, tensor, rows_chosen))

    def has_base(self, site: Site) -> bool:
        """Whether the tensor whose gradient is the site's is known."""
        return site in self._bases

    def put(self, site: Site, chosen: Tensor) -> None:
        """Keep what was chosen of a wanted site."""
        self.store.keep(site, chosen, self.layers_left(site))
        self._left[site.name] -= 1

    def base(self, site: Site, tensor: Tensor, heads_first: bool = False) -> None:
        """Remember the tensor on the model's path whose gradient is the site's. heads_first: before its positions."""
        if self.with_gradients and self.wants(site):
            self._bases[site] = tensor, heads_first

    def layers_left(self, site: Site) -> int:
        """How many layers of a site are still to be kept, this one with them."""
        return max(1, self._left[site.name])

    def chosen(self, site: Site, tensor: Tensor, rows_chosen: bool = False) -> Tensor:
        """The chosen heads and rows of a site's whole tensor."""
        if site.base in ATTENTION_SITES and self.heads is not None:
            attention = self._attention(site)
            heads = self.heads_of(attention.n_heads)
            if site.base in KEY_SITES and attention.n_kv_heads < attention.n_heads:
                heads = list(dict.fromkeys(kv_head(h, attention.n_heads, attention.n_kv_heads) for h in heads))
            tensor = tensor[:, heads] if site.base in SQUARE_SITES else tensor[:, :, heads]
        if rows_chosen or site.base in KEY_SITES:
            return tensor
        dim = 2 if site.base in SQUARE_SITES else 1
        rows = None if site.prefix == ENCODER else self.rows_of(tensor.shape[0], tensor.shape[dim], tensor.device)
        return tensor if rows is None else take(tensor, rows, dim)

    def rows_of(self, batch: int, length: int, device: torch.device) -> Tensor | None:
        """The chosen rows, (batch, row), none of them negative; None is all. Raises OutOfRange."""
        if self.rows is None:
            return None
        if self.rows.dim() == 2 and len(self.rows) not in (1, batch):
            raise OutOfRange(f"rows were given for {len(self.rows)} prompts, but the batch has {batch}.")
        for row in (int(self.rows.min()), int(self.rows.max())):
            check_indices("row", row, length)
        rows = self.rows.to(device) % length
        return rows.expand(batch, -1)

    def frames_of(self, site: Site) -> tuple[Frame | None, Frame | None]:
        """How prompts lie along a site's positions (those of keys for key sites), and along its columns."""
        encoder = self.frames.get(ENCODER)
        if site.prefix == ENCODER or (site.prefix == CROSS and site.base in KEY_SITES):
            return encoder, encoder
        decoder = self.frames.get("")
        return decoder, encoder if site.prefix == CROSS else decoder

    def heads_of(self, n_heads: int) -> list[int]:
        """The chosen heads of an attention that has `n_heads`."""
        return list(range(n_heads)) if self.heads is None else [h for h in self.heads if h < n_heads]

    def has_layer(self, layer: int) -> bool:
        """Whether a layer is among those asked for."""
        return self._chosen is None or layer in self._chosen

    def wants(self, site: Site) -> bool:
        return site in self._wanted

    def _attention(self, site: Site) -> Attention:
        attention = None if site.layer is None else self.anatomy.attention(site.prefix, site.layer)
        assert attention is not None  # a capture expects only what `guards.check_available` let pass
        return attention
