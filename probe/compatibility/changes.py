"""The steps of the check that edit: what is changed at a site has to reach the output, or be refused beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probe.capture import Capture, edits
from probe.capture.edit import Edit
from probe.compatibility.parts import close, distance, reading, same
from probe.compatibility.steps import Case, Failed
from probe.errors import ProbeError
from probe.sites import STREAM_SITES, WHOLE_SITES, Site, split

# What nothing downstream reads: ProphetNet answers from its predicting streams, which read the main stream of the
# layer before.
UNREAD = {"prophetnet": -1}
# Scores are linear in each of these, and what the heads write is linear in each of those.
HALVES = (("rot_q", ("rot_k", "q", "k")), ("z", ("v", "result")))
HALF_TOLERANCE = 1e-3  # of outputs whose later layers round differently


def edited(case: Case) -> None:
    """Edits reach the output: of z and pattern in every layer with heads, of every other site in one layer. Halving
    either factor of a product does the same.
    """
    plain = case.run()
    for prefix in case.offer.prefixes():
        for layer in case.offer.places(prefix):
            _heads(case, plain, prefix, layer)
    halved: dict[str, tuple[int | None, dict[str, Tensor]]] = {}
    for name, layers in case.offer.layers.items():
        if split(name)[1] not in ("logits", "pattern"):
            last = layers[-1] if layers else None
            after = _reaches(case, plain, _other(name, last))
            if after is not None:
                halved[name] = last, after
    for prefix in case.offer.prefixes():
        for one, others in HALVES:
            _alike(case, halved, prefix + one, [prefix + other for other in others])
        for name in ("q", "k", "v"):
            if prefix + name in halved:
                _projected(case, Site(prefix + name, halved[prefix + name][0]), halved[prefix + name][1])


def _heads(case: Case, plain: Mapping[str, Tensor], prefix: str, layer: int) -> None:
    """Edits of the last head of a layer."""
    attention = case.anatomy.attention(prefix, layer)
    assert attention is not None
    last = attention.n_heads - 1
    if layer in case.offer.layers.get(f"{prefix}z", ()):
        _reaches(case, plain, edits.zero(f"{prefix}z", layer, heads=last))
    if layer in case.offer.layers.get(f"{prefix}pattern", ()):
        half = _reaches(case, plain, edits.scale(f"{prefix}pattern", layer, 0.5, heads=last))
        same_half = _run(case, edits.scale(f"{prefix}z", layer, 0.5, heads=last))
        if half is not None and same_half is not None and layer == case.offer.places(prefix)[-1]:
            outcome = {"z": (layer, half), "pattern": (layer, same_half)}
            _alike(case, outcome, "z", ["pattern"])


def _alike(
    case: Case, halved: Mapping[str, tuple[int | None, dict[str, Tensor]]], one: str, others: Sequence[str]
) -> None:
    """Halving `one` and halving each of `others` in the same layer gave the same output."""
    for other in others:
        if one not in halved or other not in halved or halved[one][0] != halved[other][0]:
            continue
        layer, outputs = halved[one]
        for name, output in outputs.items():
            mine, theirs = case.real_rows(output), case.real_rows(halved[other][1][name])
            if not close(mine, theirs, HALF_TOLERANCE):
                off = f"{name} is off by {distance(mine, theirs):.1e}"
                raise Failed("edit", f"half of {other} of layer {layer} is not half of {one} ({off}).")


def _projected(case: Case, site: Site, halved: Mapping[str, Tensor]) -> None:
    """Halving a site did what halving the output of the module that makes it does, where one makes it as it is."""
    assert site.layer is not None
    attention = case.anatomy.attention(site.prefix, site.layer)
    assert attention is not None
    with reading(case.offer, [site.name]) as seen:
        made = _made(case, attention.module.children())
    value = seen[site]
    found = [place for place, output in made.items() if _is(output, value)]
    if not found:
        return
    module, number = found[-1]
    calls = itertools.count()
    handle = module.register_forward_hook(lambda _, __, output: output * 0.5 if next(calls) == number else None)
    try:
        expected = case.run()
    finally:
        handle.remove()
    for name, output in halved.items():
        mine, theirs = case.real_rows(output), case.real_rows(expected[name])
        if not close(mine, theirs, HALF_TOLERANCE):
            off = f"{name} is off by {distance(mine, theirs):.1e}"
            raise Failed("edit", f"half of {site} is not half of what {type(module).__name__} made ({off}).")


def _made(case: Case, modules: Iterable[nn.Module]) -> dict[tuple[nn.Module, int], Tensor]:
    """What modules return, by module and call, in the order in which they return it."""
    made: dict[tuple[nn.Module, int], Tensor] = {}

    def hook(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            made[module, sum(m is module for m, _ in made)] = output.clone()

    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        case.run()
    finally:
        for handle in handles:
            handle.remove()
    return made


def _is(output: Tensor, value: Tensor) -> bool:
    """Whether a module's output is a site's value (batch, pos, head, d_head), in one layout or another."""
    if output.numel() != value.numel() or output.shape[0] != value.shape[0]:
        return False
    laid_out = (value, value.transpose(1, 2)) if output.dim() == 4 else (value.flatten(2),)
    return any(output.shape == v.shape and torch.equal(output, v) for v in laid_out)


def _other(name: str, layer: int | None) -> Edit:
    """Half of what a head does; for the stream, whose norms would undo a factor, something added."""
    if split(name)[1] in (*STREAM_SITES, *WHOLE_SITES):
        return edits.edit(name, layer, lambda part, _: part + torch.linspace(-0.5, 0.5, part.shape[-1]), what="add to")
    return edits.scale(name, layer, 0.5)


def _reaches(case: Case, plain: Mapping[str, Tensor], edit: Edit) -> dict[str, Tensor] | None:
    """The output under an edit, which is not what it was."""
    after = _run(case, edit)
    if after is not None and same(plain, after) and not _unread(case, edit):
        raise Failed("edit", f"the output does not change: {edit}.")
    return after


def _unread(case: Case, edit: Edit) -> bool:
    prefix, _ = split(edit.site)
    layer = UNREAD.get(case.anatomy.model.config.model_type)  # type: ignore[union-attr,arg-type]
    if prefix or layer is None or edit.layer != case.offer.places("")[layer]:
        return False
    case.notes.add(f"nothing reads the heads of layer {edit.layer}")
    return True


def _run(case: Case, edit: Edit) -> dict[str, Tensor] | None:
    """The output under an edit; None where it is refused before the model runs."""
    try:
        capture = Capture(case.anatomy, edits=[edit])
    except ProbeError:
        case.read_only.add(edit.site)
        return None
    with capture:
        return case.run()
