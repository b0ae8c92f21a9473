"""The sites of attention heads, read and edited at the two seams: models that ask for their attention function
(`probe.anatomy.interface`) and models that do not (`probe.anatomy.follow`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probe.anatomy.follow import Chain, Following
from probe.anatomy.interface import Call, forget, rotations, unrotated, unturned
from probe.anatomy.patterns import Link, Rows, attention_rows, only, take, visible_cells
from probe.anatomy.stacks import Attention
from probe.capture.edit import Edit
from probe.capture.streams import Reducer, row_statistics
from probe.errors import CaptureError, UnsupportedModel
from probe.sites import CROSS, ENCODER, KEY_SITES, SQUARE_SITES, Site

if TYPE_CHECKING:
    from probe.capture.capture import Capture


BLIND = "an edit of {} cuts every key that a row can see, so it has nothing left to read."


class AttentionSites:
    """Stands at the attentions of a model for one capture."""

    def __init__(self, capture: Capture, sites: Sequence[Site]) -> None:
        self.capture = capture
        self.at: dict[tuple[nn.Module, int], tuple[str, int, Attention]] = {}
        anatomy = capture.anatomy
        stacks = [("", anatomy.stack), *([(ENCODER, anatomy.encoder)] if anatomy.encoder else [])]
        per_pass: Counter[nn.Module] = Counter()
        for prefix, stack in stacks:
            for index, layer in stack.layers.items():
                for name, attention in ((prefix, layer.attention), (CROSS, layer.cross)):
                    if attention is not None:
                        self.at[attention.module, attention.number] = name, index, attention
                        per_pass[attention.module] += 1
        self.per_pass = per_pass
        touched = {(s.prefix, s.layer) for s in sites}
        touched |= {("", path.reader[0]) for path in capture.paths}
        touched |= {place[:2] for place in self.at.values() if self._wants_statistics(*place[:2])}
        self.modules = {module for (module, _), (prefix, layer, _) in self.at.items() if (prefix, layer) in touched}
        self._follows = {module for (module, _), (_, _, a) in self.at.items() if a.chain is not None}
        self.chains = {m: tuple(self._chains(m)) for m in self.modules}
        self._seen: Counter[nn.Module] = Counter()
        self._lengths: Counter[tuple[str, int]] = Counter()  # query positions of earlier steps
        self._scores = self._visible = torch.empty(0)  # of the running chain
        self._queries = 0  # query positions of the running chain
        self._inputs: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._running: list[nn.Module] = []
        self._attended: set[nn.Module] = set()  # of those running: the ones whose attention is done
        self._handles = list(self._hooks(sites))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _chains(self, module: nn.Module) -> Iterator[Chain]:
        for number in range(self.per_pass[module]):
            chain = self.at[module, number][2].chain
            if chain is not None:
                yield chain

    def _hooks(self, sites: Sequence[Site]) -> Iterator[torch.utils.hooks.RemovableHandle]:
        """Where q or k are wanted: what each attention module was given, and which one is running."""
        before = {(s.prefix, s.layer) for s in sites if s.base in ("q", "k")}

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.capture.mine():
                self._inputs[module] = args, kwargs
                self._attended.discard(module)
                self._running.append(module)
                if module in self._follows:
                    forget()  # nobody asks, so nobody says where a layer's rotations begin

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self.capture.mine():
                self._inputs.pop(module, None)
                self._running.pop()

        for (module, _), (prefix, layer, attention) in self.at.items():
            if (prefix, layer) in before and attention.rotary != "none":
                yield module.register_forward_pre_hook(enter, with_kwargs=True)
                yield module.register_forward_hook(leave, always_call=True)

    # The seam of models that ask.

    def hears(self, module: nn.Module) -> bool:
        return module in self.modules

    def rotating(self, number: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Edit q and k on their way into the rotation."""
        if not self._running or self._running[-1] in self._attended:
            return args  # some rotate what they found back
        module = self._running[-1]
        prefix, layer, attention = self.at[module, self._seen[module] % self.per_pass[module]]
        changed = list(args)
        for name, turn in attention.turns.items():
            site = Site(prefix + name, layer)
            if turn is None or turn.number != number or not self.capture.edits.get(site):
                continue
            if turn.argument >= len(args):
                raise UnsupportedModel(f"{site} cannot be edited: it is rotated under a name. Edit rot_{name}.")
            given = args[turn.argument]
            tensor = given.transpose(1, 2) if turn.heads_first else given
            first = self._lengths[prefix, layer] if self.capture.store.steps else None
            new = self.capture.visit(site, tensor, first=first, keep=False)
            changed[turn.argument] = new.transpose(1, 2) if turn.heads_first else new
        return tuple(changed)

    def entering(self, call: Call) -> None:
        prefix, layer, attention = self._place(call.module)
        self._before_rotary(call, prefix, layer, attention)
        for name, part in (("rot_q", "query"), ("rot_k", "key"), ("v", "value")):
            setattr(call, part, self._shown(Site(prefix + name, layer), getattr(call, part), call))

    def _shown(self, site: Site, heads_first: Tensor, call: Call) -> Tensor:
        """Visit a site whose tensor has its heads before its positions."""
        given = heads_first.transpose(1, 2)
        new = self._visited(site, given, call.query.shape[2])
        through = self.capture.with_gradients and self.capture.wants(site)  # so that what is kept lies on the path
        return heads_first if new is given and not through else new.transpose(1, 2)

    def _visited(self, site: Site, given: Tensor, n_queries: int) -> Tensor:
        """Visit q, k or v, (batch, pos, head, d_head), of a call with `n_queries` query positions.

        With a cache the keys are those of earlier steps too, or the last of them: edits see them all, the capture
        keeps the new ones.
        """
        if not self.capture.store.steps:
            return self.capture.visit(site, given)
        assert site.layer is not None
        past = self._lengths[site.prefix, site.layer]
        cross = site.prefix == CROSS and site.base in KEY_SITES
        first = 0 if cross else max(0, past + n_queries - given.shape[1])
        new = self.capture.visit(site, given, first=first, keep=False)
        self.capture.keep(site, new if cross else new[:, past - first :][:, :n_queries])
        return new

    def _before_rotary(self, call: Call, prefix: str, layer: int, attention: Attention) -> None:
        """Keep q and k; edit them too where nothing is rotated (elsewhere `rotating` has)."""
        sites = {name: Site(prefix + name, layer) for name in ("q", "k")}
        if attention.rotary == "none":
            call.query = self._shown(sites["q"], call.query, call)
            call.key = self._shown(sites["k"], call.key, call)
            return
        wanted = [name for name in sites if self.capture.wants(sites[name])]
        if not wanted:
            return
        before: dict[str, Tensor] = {}
        if attention.rotary == "again":
            args, kwargs = self._inputs[call.module]
            with self.capture.aside():
                before = dict(zip(("q", "k"), unrotated(call.module, args, kwargs), strict=True))
        for name in wanted:
            turn, given = attention.turns.get(name), call.query if name == "q" else call.key
            if name in before:
                tensor = before[name]
            elif turn is None:
                tensor = given
            else:  # by its number: with a cache, the keys that meet the query are more than were rotated now
                made = next(r for r in call.rotated if (r.number, r.argument) == (turn.number, turn.argument))
                tensor = made.given if turn.heads_first else made.given.transpose(1, 2)
                self.capture.base(sites[name], made.given, turn.heads_first)
            base = self.capture.has_base(sites[name])
            self.capture.keep(sites[name], tensor.transpose(1, 2), rebase=not base)

    def attended(self, call: Call) -> None:
        prefix, layer, attention = self._place(call.module)
        self._check_sizes(call, attention)
        self._squares(call, prefix, layer)
        if self._wants_statistics(prefix, layer):
            edited = any(self.capture.edits.get(Site(name, layer)) for name in SQUARE_SITES)
            links = (lambda at: self._link(call, at, prefix, layer, None)) if edited else None
            made = row_statistics(call, self.capture.wanted_statistics, attention.causal, links)  # type: ignore
            self.capture.statistics[layer] = made
        if self.capture.path_sites is not None and not prefix:
            self.capture.path_sites.attended(call, layer)
        found, call.output = call.output, self.capture.visit(Site(prefix + "z", layer), call.output)
        call.output_edited = call.output_edited or found is not call.output
        self._lengths[prefix, layer] += call.query.shape[2]
        self._attended.add(call.module)
        self._seen[call.module] += 1

    def _wants_statistics(self, prefix: str, layer: int) -> bool:
        wanted = self.capture.wanted_statistics
        return wanted is not None and wanted.prefix == prefix and self.capture.has_layer(layer)

    def _place(self, module: nn.Module) -> tuple[str, int, Attention]:
        return self.at[module, self._seen[module] % self.per_pass[module]]

    def _check_sizes(self, call: Call, attention: Attention) -> None:
        """The heads that were seen when the model was dissected are those that attend now."""
        told = (attention.n_heads, attention.n_kv_heads)
        seen = (call.query.shape[1], call.key.shape[1])
        if told != seen:
            raise CaptureError(
                f"{type(call.module).__name__} attends with {seen[0]} query and {seen[1]} key-value heads; when probe "
                f"looked, it had {told[0]} and {told[1]}."
            )

    def _squares(self, call: Call, prefix: str, layer: int) -> None:
        """Scores and patterns: read the wanted rows; compute anew the rows that an edit touches."""
        capture = self.capture
        sites = [Site(prefix + name, layer) for name in SQUARE_SITES]
        edits = [e for s in sites for e in capture.edits.get(s, ())]
        wanted = [s for s in sites if capture.wants(s)]
        if not edits and not wanted:
            return
        if call.square_edited or (edits and call.output_edited):
            raise CaptureError(
                f"another open capture has edited scores, pattern or z of layer {layer}: give all edits of one layer "
                "to one capture."
            )
        whole = capture.with_gradients and bool(wanted)
        call.square_edited = bool(edits)
        if whole or (edits and capture.store.steps):
            if wanted:
                self._expect(call, wanted, None)
            rows = self._computed(call, None, prefix, layer, keep=True)
            call.output = rows.z.to(call.output.dtype)
            self._see(prefix, layer, rows.visible)
            return
        if edits:
            self._compute_anew(call, edits, prefix, layer)
        if wanted:
            batch, _, n_queries, _ = call.query.shape
            at = None if prefix == ENCODER else capture.rows_of(batch, n_queries, call.query.device)
            self._expect(call, wanted, at)
            rows = self._computed(call, at, prefix, layer, keep=True, values=False)
            self._see(prefix, layer, rows.visible)

    def _compute_anew(self, call: Call, edits: Sequence[Edit], prefix: str, layer: int) -> None:
        """Put into z the rows that edits touch; all others stay what the model made them, bit for bit."""
        batch, _, length, _ = call.query.shape
        frame, _ = self.capture.frames_of(Site(prefix + "scores", layer))
        touched = [set().union(*(e.touches(b, length, frame) for e in edits)) for b in range(batch)]
        places = [b for b in range(batch) if touched[b]]
        if not places:
            return
        most = max(len(touched[b]) for b in places)
        filled = [[*sorted(touched[b]), *([min(touched[b])] * (most - len(touched[b])))] for b in places]
        at = torch.tensor(filled, device=call.query.device)
        cells = len(places) * call.query.shape[1] * most * call.key.shape[2]
        self.capture.store.expect(Site(edits[0].site, layer), cells * max(4, call.query.element_size()), 1)
        z = self._computed(only(call, places), at, prefix, layer, keep=False, places=places).z
        call.output = call.output.clone()
        call.output[torch.tensor(places, device=at.device)[:, None], at] = z.to(call.output.dtype)

    def _computed(
        self,
        call: Call,
        at: Tensor | None,
        prefix: str,
        layer: int,
        *,
        keep: bool,
        values: bool = True,
        places: Sequence[int] | None = None,
    ) -> Rows:
        """Attention rows with the edits made in them. keep: whether the capture is to keep what it wants of them."""
        edited = {s.base for s in self.capture.edits if s.prefix == prefix and s.layer == layer}
        every = (at is None or places is not None) and not self.capture.store.steps  # row that an edit touches
        link = self._link(call, at, prefix, layer, places, every) if edited & set(SQUARE_SITES) else None
        rows = attention_rows(call, at, link, values=values)
        if "scores" in edited:
            self._check_not_blind(rows, Site(prefix + "scores", layer))
        if keep:
            for name in SQUARE_SITES:
                self.capture.keep(Site(prefix + name, layer), getattr(rows, name), rows_chosen=at is not None)
        return rows

    def _link(
        self,
        call: Call,
        at: Tensor | None,
        prefix: str,
        layer: int,
        places: Sequence[int] | None,
        every: bool = False,
    ) -> Link:
        """Makes the edits of scores and pattern in the rows `at` while they are computed. every: these are all the
        rows that edits touch, so that one which changes no visible cell is known to change nothing.
        """
        past = self._lengths[prefix, layer] if self.capture.store.steps else None

        def link(name: str, tensor: Tensor, visible: Tensor) -> Tensor:
            site, total = Site(prefix + name, layer), call.query.shape[2]
            return self.capture.visit(
                site,
                tensor,
                rows_at=at,
                length=total,
                places=places,
                first=past,
                keep=False,
                visible=visible,
                every=every,
            )

        return link

    def _check_not_blind(self, rows: Rows, site: Site) -> None:
        sees = (rows.scores > torch.finfo(rows.scores.dtype).min / 2).any(-1)
        if bool((rows.visible.any(-1) & ~sees).any()):
            raise CaptureError(BLIND.format(site))

    def _expect(self, call: Call, wanted: Sequence[Site], at: Tensor | None) -> None:
        """Refuse patterns that do not fit before they are computed."""
        batch, n_heads, n_queries, _ = call.query.shape
        cells = batch * n_heads * (n_queries if at is None else at.shape[1]) * call.key.shape[2]
        for site in wanted:
            size = cells * max(4, call.query.element_size())
            self.capture.store.expect(site, size, self.capture.layers_left(site))

    def _see(self, prefix: str, layer: int, visible: Tensor) -> None:
        self.capture.visible[layer if not prefix else (prefix, layer)] = visible

    # The seam of models that never ask.

    def link(self, module: nn.Module, number: int, name: str, tensor: Tensor) -> Tensor:
        prefix, layer, attention = self.at[module, number]
        if name in ("rot_q", "rot_k", "v"):
            if name == "rot_q":
                self._queries = tensor.shape[1]
            if attention.rotary == "none" and name != "v":
                tensor = self._visited(Site(prefix + name.removeprefix("rot_"), layer), tensor, self._queries)
            elif name != "v" and attention.rotary == "followed":
                site = Site(prefix + name.removeprefix("rot_"), layer)
                before = unturned(tensor.transpose(1, 2), rotations()).tensor if self.capture.wants(site) else None
                if before is not None:
                    self.capture.keep(site, before.transpose(1, 2))
                if name == "rot_k":
                    forget()
            return self._visited(Site(prefix + name, layer), tensor, self._queries)
        if name == "scores":
            visible = self._visible = visible_cells(tensor)
            saw, every = visible.any(-1), not self.capture.store.steps
            tensor = self.capture.visit(Site(prefix + name, layer), tensor, visible=visible, every=every)
            self._scores = tensor
            if bool((saw & ~visible_cells(tensor).any(-1)).any()):
                raise CaptureError(BLIND.format(Site(prefix + name, layer)))
            rows = None if prefix == ENCODER else self.capture.rows_of(tensor.shape[0], tensor.shape[2], tensor.device)
            seen = visible if rows is None else take(visible, rows, 2)
            self._see(prefix, layer, seen.any(1, keepdim=True))
            return tensor
        cells, every = self._visible if name == "pattern" else None, not self.capture.store.steps
        tensor = self.capture.visit(Site(prefix + name, layer), tensor, visible=cells, every=every)
        if name == "pattern" and self._wants_statistics(prefix, layer):
            sizes = tensor.shape
            reducer = Reducer(self.capture.wanted_statistics, *sizes, attention.causal, tensor.device)  # type: ignore
            edited = any(self.capture.edits.get(Site(n, layer)) for n in SQUARE_SITES)
            reducer.add(tensor, self._scores, 0, edited=edited)
            self.capture.statistics[layer] = reducer.done()
        if name == "z":
            self._lengths[prefix, layer] += tensor.shape[1]
        return tensor

    @contextmanager
    def batch_known(self, mode: Following) -> Iterator[None]:
        """Tell `mode` how many prompts each pass has."""

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)), None)
            if given is not None and self.capture.mine():
                mode.batch = given.shape[0]

        anatomy = self.capture.anatomy  # either may be the one that is called
        handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in {anatomy.model, anatomy.backbone}]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
