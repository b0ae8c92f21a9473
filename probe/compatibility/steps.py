"""The steps of the check, each of which compares what `probe` reads with what the model does, or raises `Failed`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from probe.anatomy import Anatomy
from probe.anatomy.stacks import Place
from probe.compatibility.oracle import by_layer
from probe.compatibility.parts import Offer, Reading, close, distance, listed, reading, same, tensors
from probe.sites import CROSS, ENCODER, Site

TOLERANCE = {"eager": 1e-5, "sdpa": 2e-5}  # under a fused kernel, later layers read slightly different inputs
ROWS_TOLERANCE = 5e-6


class Failed(Exception):
    """A step that did not hold. step: its name; why: where, and by how much."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(why)
        self.step, self.why = step, why


@dataclass
class Case:
    """One model under one attention implementation, with one kind of padding.

    own: by prefix, the oracle's weights as it returned them; spare: those that its modules returned; own_output: its
    output. found: by prefix, its weights by layer. notes: what is worth saying and is no failure. read_only: sites
    whose edits were refused. without_oracle: prefixes whose patterns had nothing to be compared with.
    """

    model: nn.Module
    anatomy: Anatomy
    offer: Offer
    inputs: dict[str, Any]
    implementation: str
    own: dict[str, list[Tensor | None]]
    spare: list[Tensor]
    own_output: dict[str, Tensor]
    found: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)
    max_error: float = 0.0
    without_oracle: set[str] = field(default_factory=set)

    def run(self) -> dict[str, Tensor]:
        with torch.no_grad():
            return tensors(self.model(**self.inputs))

    def real(self, prefix: str, keys: bool) -> Tensor | None:
        """(batch, pos) which positions of rows or keys are not padding; None where there is none."""
        decoder = self.anatomy.is_encoder_decoder or "decoder_input_ids" in self.inputs
        own = "" if not decoder else ENCODER
        mine = prefix == own or (prefix == CROSS and keys)
        mask: Tensor | None = self.inputs.get("attention_mask")
        return mask.bool() if mine and mask is not None else None

    def real_rows(self, output: Tensor) -> Tensor:
        """An output of the model without its rows of padding, which are undefined under a fused kernel."""
        real = self.real("", keys=False)
        return output if real is None or output.shape[:2] != real.shape else output[real]


def read(case: Case) -> None:
    """Every comparison that one captured pass allows."""
    plain = case.run()
    with reading(case.offer) as seen:
        captured = case.run()
    if not same(plain, captured):
        changed = [n for n in plain if n not in captured or not same({n: plain[n]}, {n: captured[n]})]
        error = max((distance(plain[n], captured[n]) for n in changed if n in captured), default=float("nan"))
        raise Failed("output while read", f"{changed[0]} is not the same bit for bit (off by {error:.1e}).")
    patterns(case, seen, compare=_comparable(case, plain))
    masked(case, seen)
    rows(case, seen)
    values(case, seen)
    projections(case, seen)
    streams(case, seen)


def _comparable(case: Case, plain: dict[str, Tensor]) -> bool:
    """Whether the model computes the same as its oracle, which runs with eager attention.

    A few do not where rows of padding, on which implementations differ, reach real ones through other mixers.
    """
    if case.implementation == "eager":
        return True
    pairs = [(case.real_rows(plain[n]), case.real_rows(case.own_output[n])) for n in plain if n in case.own_output]
    if all(close(mine, own, 1e-3) for mine, own in pairs):
        return True
    if "attention_mask" not in case.inputs:
        raise Failed("oracle", "the model's own output is not that under eager.")
    case.notes.add(f"padded, its own {case.implementation} run is not its eager run: patterns compared unpadded only")
    return False


def patterns(case: Case, seen: Reading, compare: bool) -> None:
    """Patterns are the model's own, where it computes the same as its oracle."""
    for prefix in case.offer.prefixes():
        site = f"{prefix}pattern"
        layers = case.offer.layers.get(site, ())
        if not layers:
            continue
        own = _oracle(case, prefix, seen)
        if own is None:
            case.without_oracle.add(prefix)
            continue
        case.found[prefix] = own
        for layer in layers if compare else ():
            _pattern(case, seen[Site(site, layer)], own.get(layer), prefix, layer)


def _oracle(case: Case, prefix: str, seen: Reading) -> dict[int, Tensor] | None:
    layers = case.offer.places(prefix)
    stack = case.anatomy.encoder if prefix == ENCODER else case.anatomy.stack
    assert stack is not None
    entries = case.own.get(prefix, [])
    own = by_layer(entries, layers, stack.n_layers) if entries else None
    if entries and own is None:  # layers that shorten the text have patterns of another shape
        mine = seen[Site(f"{prefix}pattern", layers[0])].shape[2:]
        kept = [e for e in entries if e is not None and e.shape[2:] == mine]
        own = by_layer(kept, layers, stack.n_layers)
        if own is not None:
            case.notes.add(f"of its {len(entries)} layers, those that shorten the text are not read")
    if own is not None:
        unread = [i for i, e in own.items() if i not in layers]
        if unread:
            alike = {seen[Site(f"{prefix}pattern", i)].shape[2:] for i in layers}
            if any(own[i].shape[2:] in alike for i in unread):
                raise Failed(
                    "layers", f"the model has {prefix}patterns in layers {unread}, and probe reads none there."
                )
            case.notes.add(f"layers {listed(unread)} attend to keys that are no tokens")
        return own
    shapes = {seen[Site(f"{prefix}pattern", i)].shape[2:] for i in layers}
    spare = [t for t in case.spare if t.shape[2:] in shapes]
    if len(spare) == len(layers) and len(case.offer.prefixes()) == 1:
        case.notes.add("patterns were compared with what its attention modules return")
        return dict(zip(layers, spare, strict=True))
    if entries:
        raise Failed("layers", f"the model returns {len(entries)} {prefix}patterns; probe sees {len(layers)} layers.")
    return None


def _pattern(case: Case, mine: Tensor, own: Tensor | None, prefix: str, layer: int) -> None:
    where = f"{prefix}pattern of layer {layer}"
    if own is None:
        raise Failed("pattern", f"{where}: the model returns none.")
    if mine.shape != own.shape:
        raise Failed("pattern", f"{where} is {tuple(mine.shape)}; the model's own is {tuple(own.shape)}.")
    both = mine.isnan() & own.isnan()  # rows of padding that see nothing
    difference = (mine - own).abs().masked_fill(both, 0)
    real = case.real(prefix, keys=False)
    if real is not None and case.implementation != "eager":  # rows of padding are undefined under a fused kernel
        difference = difference * real[:, None, :, None]
    error = float(difference.nan_to_num(nan=1.0).max())
    if error > TOLERANCE[case.implementation]:
        heads = sorted(set((difference.amax((0, 2, 3)) > TOLERANCE[case.implementation]).nonzero().flatten().tolist()))
        raise Failed("pattern", f"{where} is off by {error:.1e} (heads {listed(heads)}).")
    case.max_error = max(case.max_error, error)


def masked(case: Case, seen: Reading) -> None:
    """Cells that a mask hides are exactly 0, and no real row looks at padding."""
    for prefix in case.offer.prefixes():
        for layer in case.offer.layers.get(f"{prefix}pattern", ()):
            pattern, visible = seen[Site(f"{prefix}pattern", layer)], seen.visible(prefix, layer)
            where = f"{prefix}pattern of layer {layer}"
            sees = visible.any(-1, keepdim=True)
            hidden = pattern.masked_fill(visible | ~sees, 0)
            if bool((hidden != 0).any()):
                raise Failed(
                    "masked cells", f"{where} holds {float(hidden.abs().max()):.1e} where its mask hides the key."
                )
            row, key = case.real(prefix, keys=False), case.real(prefix, keys=True)
            if key is None or key.shape[1] != pattern.shape[3]:
                continue
            if (given := _to_padding(pattern, row, key)) > 0:
                own = case.found.get(prefix, {}).get(layer)
                if own is None or _to_padding(own, row, key) == 0:
                    raise Failed("padding", f"{where} gives {given:.1e} to a padding key.")
                case.notes.add("the model itself attends to padding")


def _to_padding(pattern: Tensor, row: Tensor | None, key: Tensor) -> float:
    """The most that a real row gives to a padding key."""
    given = pattern * ~key[:, None, None, :]
    return float((given if row is None else given * row[:, None, :, None]).abs().max())


def rows(case: Case, seen: Reading) -> None:
    """Some rows of a pattern, computed alone, are those of the whole."""
    names = [n for n in ("pattern", "cross.pattern") if n in case.offer.layers]
    if not names:
        return
    chosen = [1, -2]
    with reading(case.offer, names, rows=chosen) as few:
        case.run()
    for name in names:
        for layer in case.offer.layers[name]:
            whole, part = seen[Site(name, layer)][:, :, chosen], few[Site(name, layer)]
            error = distance(whole, part)
            if error > ROWS_TOLERANCE:
                raise Failed("rows", f"{name} of layer {layer}: chosen rows are off by {error:.1e} from the whole.")


def values(case: Case, seen: Reading) -> None:
    """Notes where z is not the pattern times the values, or the pattern not the softmax of the scores."""
    for prefix in case.offer.prefixes():
        for layer in case.offer.places(prefix):
            parts = {n: Site(prefix + n, layer) for n in ("pattern", "v", "z", "scores")}
            real = case.real(prefix, keys=False)
            if all(parts[n] in seen for n in ("pattern", "v", "z")):
                pattern, v, z = (seen[parts[n]] for n in ("pattern", "v", "z"))
                v = v.repeat_interleave(max(1, pattern.shape[1] // v.shape[2]), 2)
                expected = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
                if expected.shape != z.shape or not close(_rows(expected, real), _rows(z, real)):
                    case.notes.add("z is not the pattern times v")
            if parts["scores"] in seen and parts["pattern"] in seen:
                pattern = seen[parts["pattern"]].transpose(1, 2)
                expected = seen[parts["scores"]].softmax(-1).transpose(1, 2)
                if not close(_rows(expected, real), _rows(pattern, real)):
                    case.notes.add("the pattern is not the softmax of the scores")


def projections(case: Case, seen: Reading) -> None:
    """z is what the output projection is given; the heads' results and its bias add up to attn_out."""
    given = _given(case)
    for prefix in case.offer.prefixes():
        for layer in case.offer.places(prefix):
            attention = case.anatomy.attention(prefix, layer)
            z, result, total = (Site(prefix + n, layer) for n in ("z", "result", "attn_out"))
            if attention is None or attention.project is None or z not in seen:
                continue
            module, number = attention.project
            handed = given[module][number].reshape(seen[z].shape)
            if not torch.equal(handed, seen[z]):
                raise Failed("z", f"{z} is off by {distance(handed, seen[z]):.1e} from what is projected.")
            if result not in seen or total not in seen:
                continue
            with torch.no_grad():
                bias = module(torch.zeros_like(given[module][number][:1, :1]))
            added = seen[result].sum(2) + bias
            if not close(added, seen[total]):
                off = distance(added, seen[total])
                raise Failed("result", f"{result}: its heads do not add up to attn_out (off by {off:.1e}).")


def _given(case: Case) -> dict[nn.Module, list[Tensor]]:
    """What each output projection is given, call by call."""
    given: dict[nn.Module, list[Tensor]] = {}
    for prefix in case.offer.prefixes():
        for layer in case.offer.places(prefix):
            attention = case.anatomy.attention(prefix, layer)
            if attention is not None and attention.project is not None:
                given[attention.project.module] = []
    handles = [
        module.register_forward_pre_hook(lambda module, args: given[module].append(args[0].clone())) for module in given
    ]
    try:
        case.run()
    finally:
        for handle in handles:
            handle.remove()
    return given


def streams(case: Case, seen: Reading) -> None:
    """Where one block's output is the next one's input, resid_post and the next resid_pre are the same."""
    lists = [m for m in case.model.modules() if isinstance(m, nn.ModuleList)]
    for prefix, stack in (("", case.anatomy.stack), (ENCODER, case.anatomy.encoder)):
        for layer in stack.layers.values() if stack else ():
            following = stack.layers.get(layer.index + 1) if stack else None
            post, pre = Site(f"{prefix}resid_post", layer.index), Site(f"{prefix}resid_pre", layer.index + 1)
            if following is None or layer.block is None or following.block is None:
                continue
            pair = (layer.block, following.block)
            if post not in seen or pre not in seen or not any(_adjacent(held, pair) for held in lists):
                continue
            if torch.equal(seen[post].nan_to_num(), seen[pre].nan_to_num()):
                continue
            if _passed_on(case, *pair):
                raise Failed("residual", f"{post} is not {pre} (off by {distance(seen[post], seen[pre]):.1e}).")
            case.notes.add("between some blocks, the stream is changed")


def _passed_on(case: Case, block: Place, following: Place) -> bool:
    """Whether what the following block is given is what the block before it returned."""
    made: list[Tensor] = []
    given: list[Tensor] = []

    def after(_: nn.Module, __: Any, output: Any) -> None:
        made.append((output if isinstance(output, Tensor) else output[0]).clone())

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append((args[0] if args else kwargs["hidden_states"]).clone())

    handles = [
        block.module.register_forward_hook(after),
        following.module.register_forward_pre_hook(before, with_kwargs=True),
    ]
    try:
        case.run()
    finally:
        for handle in handles:
            handle.remove()
    return distance(made[block.number], given[following.number]) == 0


def _adjacent(held: nn.ModuleList, pair: tuple[Place, Place]) -> bool:
    modules = [place.module for place in pair]
    return any(list(held[i : i + 2]) == modules for i in range(len(held) - 1))


def _rows(tensor: Tensor, real: Tensor | None) -> Tensor:
    """(batch, pos, ...) without what stands at padding."""
    return tensor if real is None else tensor[real]
