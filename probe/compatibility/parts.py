"""What a capture offers of a model: which sites, in which layers, and all of them open at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from probe.anatomy import Anatomy
from probe.capture import Capture, guards
from probe.sites import CROSS, ENCODER, PREFIXED, SITES, WHOLE_SITES, Site, split


class Offer:
    """The sites of a model. layers: by site name, the layers that have it (empty for whole sites); whole: names that
    every layer of their stack has; partial: names that only some have; reasons: by name, why it is missing somewhere.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        self.layers: dict[str, tuple[int, ...]] = {}
        self.reasons: dict[str, str] = {}
        self.whole: list[str] = []
        self.partial: list[str] = []
        for name in (*SITES, *PREFIXED):
            self._look(name)

    def _look(self, name: str) -> None:
        prefix, base = split(name)
        places = self.places(prefix)
        if not places:
            return
        asked = [Site(name)] if base in WHOLE_SITES else [Site(name, layer) for layer in places]
        missing = {site: why for site in asked if (why := guards.missing(self.anatomy, site)) is not None}
        if missing:
            self.reasons[name] = next(iter(missing.values()))
        if len(missing) < len(asked):
            self.layers[name] = tuple(s.layer for s in asked if s not in missing and s.layer is not None)
            some = bool(missing) or (prefix == CROSS and len(places) < len(self.anatomy.stack.layers))
            (self.partial if some else self.whole).append(name)

    def places(self, prefix: str) -> tuple[int, ...]:
        """The layers that have attention of this kind."""
        if prefix == ENCODER:
            return tuple(self.anatomy.encoder.layers) if self.anatomy.encoder else ()
        if prefix == CROSS:
            return tuple(i for i, layer in self.anatomy.stack.layers.items() if layer.cross)
        return tuple(self.anatomy.stack.layers)

    def prefixes(self) -> tuple[str, ...]:
        """The kinds of attention the model has."""
        return tuple(prefix for prefix in ("", ENCODER, CROSS) if self.places(prefix))


class Reading:
    """Several captures read as one."""

    def __init__(self, captures: Sequence[Capture]) -> None:
        self.captures = captures

    def __getitem__(self, site: Site) -> Tensor:
        capture = next(c for c in self.captures if site in c.expected())
        return capture[site.name] if site.layer is None else capture[site.name, site.layer]

    def __contains__(self, site: Site) -> bool:
        return any(site in c.expected() for c in self.captures)

    def visible(self, prefix: str, layer: int) -> Tensor:
        """Which keys each row may see."""
        key = (prefix, layer) if prefix else layer
        return next(c.visible[key] for c in self.captures if Site(f"{prefix}pattern", layer) in c.expected())


@contextmanager
def reading(offer: Offer, only: Sequence[str] | None = None, **options: Any) -> Iterator[Reading]:
    """Captures of every site that the model has (or those of `only`), open at once."""
    wanted = [n for n in offer.layers if only is None or n in only]
    captures = [Capture(offer.anatomy, [n for n in wanted if n in offer.whole], **options)]
    captures += [Capture(offer.anatomy, n, layers=offer.layers[n], **options) for n in wanted if n in offer.partial]
    with ExitStack() as stack:
        for capture in captures:
            stack.enter_context(capture)
        yield Reading(captures)


def tensors(output: Any) -> dict[str, Tensor]:
    """Every tensor of a model's output by its path; caches are not outputs."""
    found: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, Tensor):
            found[path] = value
        elif isinstance(value, Mapping):
            for name, each in value.items():
                walk(each, f"{path}.{name}" if path else str(name))
        elif isinstance(value, tuple | list):
            for place, each in enumerate(value):
                walk(each, f"{path}.{place}")

    walk(output, "")
    return found


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two outputs are the same bit for bit, where NaN is NaN."""
    if one.keys() != other.keys():
        return False
    return all(torch.equal(one[n].nan_to_num(), other[n].nan_to_num()) for n in one)


def close(one: Tensor, other: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether two sums of products are the same but for rounding, relative to their size."""
    size = float(other.nan_to_num().abs().max().clamp(min=1.0)) if other.numel() else 1.0
    return one.shape == other.shape and distance(one, other) <= tolerance * size


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference between two tensors."""
    if one.shape != other.shape:
        return float("inf")
    return float((one.nan_to_num().float() - other.nan_to_num().float()).abs().max()) if one.numel() else 0.0


def listed(numbers: Iterable[int]) -> str:
    """Numbers, to be read."""
    return ", ".join(map(str, numbers))


def hooks(model: nn.Module) -> int:
    """How many hooks stand in a model."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)
