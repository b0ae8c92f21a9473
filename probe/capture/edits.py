"""Edits: change what a model computes at a site, during a forward pass.

    subject.run(text, "logits", edits=[probe.edits.zero("z", layer=4, heads=2)])

An edit reaches everything the model computes from that site, or is refused. Several edits are applied in the order in
which the model computes the sites: embed; then in each layer resid_pre, q and k, rot_q, rot_k and v, scores, pattern,
z, result, attn_out, resid_mid, mlp_out, resid_post. Edits of one site are applied in the order given, and what is
captured at a site is what the model goes on with, after its edits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from probe.capture.edit import HEAD_SITES, Captured, Change, Edit, Indices, Path, Positions, Where, fits
from probe.capture.paths import path
from probe.errors import OutOfRange, ProbeError, UnknownName
from probe.sites import SQUARE_SITES, Site, check_indices, check_sites, plain_indices, split

__all__ = [
    "Edit",
    "Path",
    "Where",
    "add",
    "edit",
    "knock_out",
    "mean",
    "patch",
    "path",
    "replace",
    "resample",
    "scale",
    "zero",
]
UNEDITABLE = ("logits",)
CHOICES = ("heads", "rows", "keys", "prompts")


def edit(
    site: str,
    layer: int | None,
    change: Change,
    *,
    heads: Indices = None,
    rows: Indices | Sequence[Sequence[int]] = None,
    keys: Indices | Sequence[Sequence[int]] = None,
    prompts: Indices = None,
    what: str = "change",
    **unknown: object,
) -> Edit:
    """An edit that puts `change(part, where)` in the place of the chosen part of a site (see `Change`).

    layer: None for `embed`. Raises UnknownName for a site that does not exist, ProbeError for a choice that the site
    does not have or that chooses nothing.
    """
    if unknown:
        raise UnknownName.of("choice of an edit", next(iter(unknown)), CHOICES)
    (site,) = check_sites(site)
    base = split(site)[1]
    if base in UNEDITABLE:
        raise ProbeError(f"{site} cannot be edited: it is the model's answer. Edit resid_post of the last layer.")
    if (layer is None) != (base == "embed"):
        raise ProbeError(f"{site} has {'no layer' if base == 'embed' else 'a layer: give layer=0, 1, ...'}")
    if heads is not None and base not in (*HEAD_SITES, *SQUARE_SITES):
        raise ProbeError(f"{site} has no heads; edit z or result to reach one head's part.")
    if keys is not None and base not in SQUARE_SITES:
        raise ProbeError(f"keys are columns of {' and '.join(SQUARE_SITES)}; {site} has none.")
    chosen = _tuple(heads), _rows(rows), _rows(keys), _tuple(prompts)
    for name, choice in zip(CHOICES, chosen, strict=True):
        if choice == ():
            raise ProbeError(f"{name}=[] of an edit of {site} chooses nothing; leave it out for all.")
    return Edit(site, layer, change, *chosen, what)


def zero(site: str, layer: int | None = None, **where: object) -> Edit:
    """Zero ablation. where: heads=, rows=, keys=, prompts= as for `edit`."""
    return edit(site, layer, lambda part, _: torch.zeros_like(part), what="zero", **where)  # type: ignore[arg-type]


def scale(site: str, layer: int | None, factor: float, **where: object) -> Edit:
    """Multiply by `factor`."""
    if not isinstance(factor, Real | Tensor):
        raise ProbeError(f"the factor of an edit is a number, not {factor!r}.")
    return edit(site, layer, lambda part, _: part * factor, what="scale", **where)


def add(site: str, layer: int | None, vector: Tensor, **where: object) -> Edit:
    """Add `vector`, which broadcasts to the chosen part: (d_model,) or (head, d_head). Steering."""
    added = _tensor(vector, "what is added")
    return edit(site, layer, lambda part, _: _alike(added, part, site) + part, what="add to", **where)  # type: ignore[arg-type]


def replace(site: str, layer: int | None, values: Tensor, **where: object) -> Edit:
    """Put `values`, which broadcast to the chosen part, in its place."""
    new = _tensor(values, "what replaces it")
    return edit(site, layer, lambda part, _: _alike(new, part, site), what="replace", **where)  # type: ignore[arg-type]


def mean(site: str, layer: int | None, run: Captured, **where: object) -> Edit:
    """Mean ablation: the mean over every real position of every prompt in `run`, which captured the site whole.

    The run is the reference set: say in a report what it was.
    """
    if split(site)[1] in SQUARE_SITES:
        raise ProbeError(f"columns of {site} are positions, so their mean says nothing. Mean-ablate z or result.")
    values = _whole(run, site, layer)
    average = values.nanmean(dim=(0, 1))

    def change(part: Tensor, where: Where) -> Tensor:
        return (average if where.heads is None else average[where.heads.to(average.device)]).to(part).expand_as(part)

    return edit(site, layer, change, what="mean-ablate", **where)  # type: ignore[arg-type]


def patch(site: str, layer: int | None, run: Captured, *, source: Indices = None, **where: object) -> Edit:
    """Activation patching: what the site held at the same positions in `run`, which captured the site whole.

    source: for each prompt, the number of the prompt in `run` to take it from; default its own number.
    Raises OutOfRange, when it happens, for a position that the source does not have.
    """
    values = _whole(run, site, layer)
    sources = None if source is None else torch.tensor(source).reshape(-1).to(values.device)
    if sources is not None:
        check_indices("prompt", sources.tolist(), len(values))

    def change(part: Tensor, where: Where) -> Tensor:
        prompts, rows = where.prompts.to(values.device), where.rows.to(values.device)
        if sources is not None:
            if len(sources) > 1 and int(prompts.max()) >= len(sources):
                raise OutOfRange(
                    f"sources were given for {len(sources)} prompts; there is a prompt {int(prompts.max())}."
                )
            prompts = sources[torch.zeros_like(prompts)] if len(sources) == 1 else sources[prompts]
        length = values.shape[2 if where.keys is not None else 1]
        if int(prompts.max()) >= len(values) or int(rows.max()) >= length:
            raise OutOfRange(
                f"{Site(site, layer)} cannot be patched at prompt {int(prompts.max())}, position {int(rows.max())}: "
                f"the source has {len(values)} prompts of at most {length} tokens."
            )
        taken = values[prompts]
        if where.keys is not None and where.heads is not None:
            taken = taken[:, where.heads.to(values.device)][:, :, rows]
            real = (where.keys >= 0) & (where.keys < taken.shape[-1])
            new = part.clone()
            new[..., real] = taken[..., where.keys[real].to(values.device)].to(part)
        else:
            new = taken[:, rows] if where.heads is None else taken[:, rows][:, :, where.heads.to(values.device)]
        if torch.isnan(new).any():
            raise OutOfRange(f"{Site(site, layer)} cannot be patched: the source prompt is shorter than the target.")
        return new.to(part)

    return edit(site, layer, change, what="patch", **where)  # type: ignore[arg-type]


def resample(site: str, layer: int | None, run: Captured, *, seed: int, **where: object) -> Edit:
    """Resample ablation (Chan et al. 2022): the same positions of another prompt of `run`, drawn for each prompt.

    `run` holds the prompts that are edited, at least two, and each long enough for the rows.
    """
    n = len(_whole(run, site, layer))
    if n < 2:
        raise ProbeError("resampling draws from another prompt, and the run holds only one: give a run of two or more.")
    drawn = torch.randint(1, n, (n,), generator=torch.Generator().manual_seed(seed))
    made = patch(site, layer, run, source=((torch.arange(n) + drawn) % n).tolist(), **where)
    return dataclasses.replace(made, what="resample")


def knock_out(
    layer: int,
    query: int | Sequence[int],
    key: int | Sequence[int],
    *,
    heads: Indices = None,
    prompts: Indices = None,
    prefix: str = "",
) -> Edit:
    """Cut the edges from the query positions to the key positions: their scores become those of masked cells, so the
    row's other weights grow in proportion. prefix: "encoder." or "cross." in encoder-decoder models.

    A row whose every visible key is cut is refused when it happens, for it has nothing left to read.
    """

    def cut(part: Tensor, where: Where) -> Tensor:
        return torch.full_like(part, torch.finfo(part.dtype).min)

    return edit(f"{prefix}scores", layer, cut, heads=heads, rows=query, keys=key, prompts=prompts, what="knock out")


def _whole(run: Captured, site: str, layer: int | None) -> Tensor:
    """A site of a run that kept all of its rows and heads, so that places in it are positions and heads."""
    for name in ("rows", "heads"):
        if getattr(run, name, None) is not None:
            raise ProbeError(f"the run kept only some {name} of {Site(site, layer)}: run it again without {name}=.")
    return run[site] if layer is None else run[site, layer]


def _tensor(given: Any, what: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise ProbeError(f"{what} in an edit is a tensor, not {type(given).__name__}: give torch.tensor(...).")
    return given


def _alike(values: Tensor, part: Tensor, site: str) -> Tensor:
    """Broadcast to the part of a site. Raises ProbeError where the sizes do not fit."""
    if not fits(values.shape, part.shape):
        raise ProbeError(
            f"a tensor of shape {tuple(values.shape)} does not fit into a part of {site} of shape {tuple(part.shape)}."
        )
    return values.to(part).expand_as(part)


def _tuple(given: Any) -> tuple[int, ...] | None:
    """One number or several, NumPy's too, as plain ones."""
    if given is None:
        return None
    return plain_indices("place of an edit", given)


def _rows(given: Any) -> Positions:
    """The same, or a list for each prompt."""
    if isinstance(given, Tensor):
        given = given.tolist()
    several = given is not None and not isinstance(given, Integral) and len(tuple(given)) > 0
    if not several or isinstance(next(iter(given)), Integral):
        return _tuple(given)
    return tuple(plain_indices("place of an edit", one) for one in given)
