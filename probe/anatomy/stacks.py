"""What a model is made of, as seen in one short forward pass.

There is no list of architectures here. Where attention happens is where the attention function is asked for (or a
product, softmax, product chain runs); a block is the element of a module list around it; its output projection is the
module that is handed z; its halves are found by fitting (`probe.anatomy.halves`). What is not found is refused by
name, never guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from probe.anatomy import halves
from probe.anatomy.follow import Chain
from probe.anatomy.interface import Turn
from probe.anatomy.look import Event, Recording, Seen, record
from probe.errors import UnsupportedModel
from probe.sites import CROSS, ENCODER


class Place(NamedTuple):
    """A module's call in a forward pass. number: which of its calls, where layers share the module."""

    module: nn.Module
    number: int = 0


@dataclass(frozen=True)
class Attention:
    """One layer's attention. place: its module; number: which attention of that module in a pass.

    rotary: "none", "followed" (q and k are seen being rotated, at `turns`), "again" (the module is run once more
    without rotation to tell them), "lost". chain: for models that never ask. project: the output projection, None
    where no module is handed z as it is. writer: the call whose output is `attn_out`.
    added: the factor with which `attn_out` enters the stream; None where a norm stands between or it was not found.
    causal: whether no row sees a later key. shared: which of "q", "k", "v" are read by more than the attention.
    """

    module: nn.Module
    number: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    rotary: str
    turns: dict[str, Turn | None]
    chain: Chain | None
    project: Place | None
    writer: Place | None
    added: float | None
    causal: bool
    shared: frozenset[str]


@dataclass(frozen=True)
class Layer:
    """One layer of a stack. block, mid, mlp: None where they were not found. carries: what is in the stream before the
    block is in it after, as it was.
    """

    index: int
    attention: Attention
    cross: Attention | None = None
    block: Place | None = None
    mid: tuple[Place, Literal["input", "output"]] | None = None
    mlp: Place | None = None
    carries: bool = False


@dataclass(frozen=True)
class Stack:
    """The layers that have heads, by their index, out of `n_layers`; the token embedding's call."""

    layers: dict[int, Layer]
    n_layers: int
    embedding: Place | None


@dataclass(frozen=True)
class Anatomy:
    """A model's parts and sizes, as found by `dissect`.

    backbone: the model without its language-model head. stack: the decoder, or the only stack; encoder: that of an
    encoder-decoder model, None also where its attention is not over all tokens at once. calls: how often each of the
    modules named is called in one pass. asks: whether the model asks for its attention function.
    n_heads, n_kv_heads: of the layer that has most. first_position: the position id of a prompt's first token
    (RoBERTa's is not 0). has_logits: whether the model has a language-model head. max_positions: the longest prompt in
    tokens, or None where nothing bounds it.
    """

    model: nn.Module
    backbone: nn.Module
    stack: Stack
    encoder: Stack | None
    is_encoder_decoder: bool
    calls: dict[nn.Module, int]
    asks: bool
    d_model: int
    first_position: int
    has_logits: bool
    max_positions: int | None

    @property
    def n_layers(self) -> int:
        return self.stack.n_layers

    @property
    def n_heads(self) -> int:
        return max(layer.attention.n_heads for layer in self.stack.layers.values())

    @property
    def n_kv_heads(self) -> int:
        return max(layer.attention.n_kv_heads for layer in self.stack.layers.values())

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that have heads: all of them, but in hybrids of attention and other mixers."""
        return tuple(self.stack.layers)

    @property
    def is_causal(self) -> bool:
        """Whether no token sees a later one."""
        return all(layer.attention.causal for layer in self.stack.layers.values())

    def check_even(self) -> None:
        """Raises UnsupportedModel unless every layer has heads, and as many: what a map of layers x heads needs."""
        counts = {layer.attention.n_heads for layer in self.stack.layers.values()}
        if len(self.layers) < self.n_layers or len(counts) > 1:
            held = ", ".join(f"{n}: {layer.attention.n_heads}" for n, layer in self.stack.layers.items())
            raise UnsupportedModel(
                f"{type(self.model).__name__} has no even grid of heads ({self.n_layers} layers; heads by layer "
                f"{held}), so its heads cannot be scored yet. Its sites can be read: subject.run(...)."
            )

    def attention(self, prefix: str, layer: int) -> Attention | None:
        """The attention behind `prefix` ("", "encoder.", "cross.") in a layer."""
        if prefix == ENCODER:
            return self.encoder.layers[layer].attention if self.encoder and layer in self.encoder.layers else None
        found = self.stack.layers.get(layer)
        if found is None:
            return None
        return found.cross if prefix == CROSS else found.attention


KEPT = "_probe_anatomy"  # on the model itself, so that both are freed together


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's wrapper, or inside TransformerLens' `TransformerBridge`."""
    model = getattr(model, "_orig_mod", model)
    return model.original_model if type(model).__name__ == "TransformerBridge" else model  # type: ignore[return-value]


def dissect(model: nn.Module) -> Anatomy:
    """Find the parts of a tiny GPT or a transformers model by watching it run once on a few short prompts.

    A model is watched once; a compiled one is read as its author wrote it, a `TransformerBridge` as it computes.
    Raises UnsupportedModel.
    """
    model = unwrapped(model)
    made = tuple(map(id, model.modules()))  # another for a copy, and for a model whose parts were changed since
    kept: tuple[tuple[int, ...], Anatomy] | None = vars(model).get(KEPT)
    if kept is None or kept[0] != made:
        kept = made, _read(model, record(model))
        vars(model)[KEPT] = kept
    return kept[1]


def _read(model: nn.Module, seen: Recording) -> Anatomy:
    by_kind: dict[str, list[Seen]] = {"": [], ENCODER: [], CROSS: []}
    for attention in seen.attentions:
        kind = _kind(attention, seen)
        if kind is not None:
            by_kind[kind].append(attention)
    events = [a.event for a in by_kind[""] if a.chain is None]
    if len(set(map(id, events))) < len(events):
        raise UnsupportedModel(
            f"{type(model).__name__} attends more than once in one call of an attention module, so its heads are not "
            "what one pattern shows."
        )
    if not by_kind[""]:
        why = "its attention is not over all the tokens at once" if seen.attentions else "none was seen"
        fused = getattr(model.config, "_attn_implementation", "eager") != "eager"
        hint = " Perhaps attn_implementation='eager' shows them." if fused else ""
        raise UnsupportedModel(
            f"{type(model).__name__} has no attention heads that probe can read: {why}. State-space and convolution "
            f"models have none; sparse and pooled attention has no token-by-token pattern.{hint}"
        )
    reader = _Reader(model, seen)
    stack = reader.stack(by_kind[""], by_kind[CROSS], seen.inputs.get("decoder_input_ids", seen.inputs["input_ids"]))
    encoder = reader.stack(by_kind[ENCODER], [], seen.inputs["input_ids"]) if by_kind[ENCODER] else None
    first_position, max_positions = _positions(model)
    block = next((layer.block for layer in stack.layers.values() if layer.block), None)
    widths = (e.made.shape[-1] for e in seen.events if block and e.module is block.module and e.made is not None)
    return Anatomy(
        model=model,
        backbone=getattr(model, "base_model", model),
        stack=stack,
        encoder=encoder,
        is_encoder_decoder=seen.source is not None,
        calls=dict(Counter(e.module for e in seen.events)),
        asks=all(a.chain is None for a in seen.attentions),
        d_model=next(widths, 0) or _first(model, "hidden_size", "d_model"),
        has_logits=seen.has_logits,
        first_position=first_position,
        max_positions=max_positions,
    )


def _kind(attention: Seen, seen: Recording) -> str | None:
    lengths = attention.n_queries, attention.n_keys
    if lengths == (seen.length, seen.length):
        return ""
    if seen.source is not None and lengths == (seen.source, seen.source):
        return ENCODER
    return CROSS if lengths == (seen.length, seen.source) else None


class _Reader:
    """Reads stacks of layers off a recording."""

    def __init__(self, model: nn.Module, seen: Recording) -> None:
        self.model, self.events = model, seen.events
        self.batch, self.lengths = seen.batch, (seen.length, seen.source)
        self.listed = {
            child: (holder, place)
            for holder in model.modules()
            if isinstance(holder, nn.ModuleList)
            for place, child in enumerate(holder)
        }

    def stack(self, attentions: Sequence[Seen], crosses: Sequence[Seen], ids: torch.Tensor) -> Stack:
        blocks = [self._block(a, attentions) for a in attentions]
        holders = {id(self.listed[b.module][0]) for b in blocks if b}
        once = len({b.module for b in blocks if b}) == len(blocks)
        by_place = len(holders) == 1 and once and None not in blocks
        layers: dict[int, Layer] = {}
        n_layers = len(attentions)
        for order, (attention, block) in enumerate(zip(attentions, blocks, strict=True)):
            index = order
            if by_place and block is not None:
                holder, index = self.listed[block.module]
                n_layers = len(holder)
            cross = next((c for c in crosses if block and block.entered < c.moment < block.left), None)
            layers[index] = self._layer(index, attention, cross, block)
        return Stack(dict(sorted(layers.items())), n_layers, self._embedding(ids))

    def _block(self, attention: Seen, others: Sequence[Seen]) -> Event | None:
        """The outermost element of a module list around an attention that holds no other of its kind."""
        found = None
        event: Event | None = attention.event
        while event is not None:
            alone = sum(event.entered < o.moment < event.left for o in others) == 1
            if alone and event.module in self.listed and event.module is not attention.event.module:
                found = event
            event = event.parent
        return found

    def _layer(self, index: int, attention: Seen, cross: Seen | None, block: Event | None) -> Layer:
        if block is None:
            return Layer(index, self._attention(attention, None, None))
        if not self._carries_stream(block):
            crossing = self._attention(cross, None, None) if cross else None
            return Layer(index, self._attention(attention, None, None), crossing)
        inside = [e for e in self.events if block.entered < e.entered < block.left]
        found = halves.find(block, inside, [attention, *([cross] if cross else [])])
        mine = self._attention(attention, found.attention, found.added)
        theirs = self._attention(cross, found.cross, None) if cross else None
        mid = (Place(found.mid[0].module, found.mid[0].number), found.mid[1]) if found.mid else None
        return Layer(index, mine, theirs, _place(block), mid, _place(found.mlp), found.carries)

    def _carries_stream(self, block: Event) -> bool:
        """Whether what the block is given first and returns is (batch, pos, d_model)."""
        given = next((t for t in block.given if t.is_floating_point() and t.dim() > 2), None)
        if given is None or block.made is None or given.shape != block.made.shape or given.dim() != 3:
            return False
        return given.shape[0] == self.batch and given.shape[1] in self.lengths

    def _attention(self, seen: Seen, writer: Event | None, added: float | None) -> Attention:
        project = self._projection(seen)
        kept = project or writer
        return Attention(
            module=seen.event.module,
            number=seen.number,
            n_heads=seen.n_heads,
            n_kv_heads=seen.n_kv_heads,
            d_head=seen.z.shape[-1],
            rotary=seen.rotary,
            turns=seen.turns,
            chain=seen.chain,
            project=_place(project),
            writer=_place(kept),
            added=added if writer is project else None,
            causal=seen.causal,
            shared=frozenset(seen.shared),
        )

    def _projection(self, seen: Seen) -> Event | None:
        """The first module after an attention that is handed z and maps it to something else, in a straight line.

        Not by its class: it may be transposed, quantised, or carry an adapter.
        """
        z = seen.z.reshape(*seen.z.shape[:2], -1)
        for event in self.events:
            given = event.given[0] if event.given else None
            if event.entered < seen.moment or given is None or given.numel() != z.numel() or event.made is None:
                continue
            if torch.equal(given.reshape(z.shape), z) and event.made.dim() == 3 and _is_affine(event, given):
                return event
        return None

    def _embedding(self, ids: torch.Tensor) -> Place | None:
        """The first module that is handed the token ids and makes vectors of them."""
        for event in self.events:
            given = next((t for t in event.given if t.shape == ids.shape and torch.equal(t, ids)), None)
            if given is not None and isinstance(event.module, nn.Embedding):
                return _place(event)
        return None


def _is_affine(event: Event, given: torch.Tensor) -> bool:
    if event.made is None or (event.made.shape == given.shape and torch.equal(event.made, given)):
        return False
    try:
        with torch.no_grad():
            nothing, double = (event.module.forward(given * factor) for factor in (0, 2))
            return torch.allclose(double - nothing, 2 * (event.made - nothing), rtol=1e-2, atol=1e-4)
    except Exception:  # it takes more than z, so it is no projection
        return False


def _place(event: Event | None) -> Place | None:
    return None if event is None else Place(event.module, event.number)


def _first(model: nn.Module, *names: str) -> Any:
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    return next((v for n in names if (v := getattr(config, n, None)) is not None), None)


def _positions(model: nn.Module) -> tuple[int, int | None]:
    """The position id of a prompt's first token, and the most tokens there are positions for."""
    longest = _first(model, "max_position_embeddings", "max_positions", "n_positions")
    # RoBERTa's table of positions keeps its first rows for padding.
    inner = getattr(model, "base_model", model)
    table = getattr(getattr(inner, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    first_position = 0 if padding is None else padding + 1
    return first_position, longest if longest is None else longest - first_position
