"""A check, when a model is loaded, that what `probe` reads of it is what it computes.

Three short forward passes, beside the one in which the model's parts were found: plain, captured, edited. A model that
fails is refused then, and not in mid-study.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from probe.anatomy.look import ordinary_ids
from probe.anatomy.stacks import Anatomy
from probe.capture import edits
from probe.capture.batch import make_batch
from probe.capture.capture import Capture
from probe.errors import CaptureError, UnsupportedModel
from probe.sites import CROSS, ENCODER


def check(anatomy: Anatomy) -> None:
    """Two prompts, one of them padded, through the model: outputs are the same bit for bit while it is read; masked
    cells of every pattern are 0, no row sums to more than 1, a causal model's rows see no later key; zeroing what the
    heads found changes the output; no hook stays behind.

    Raises UnsupportedModel, saying which of these failed.
    """
    ids = ordinary_ids(anatomy.model)
    prompts = [[ids[(1 + 7 * i) % len(ids)] for i in range(n)] for n in (6, 4)]
    batch = make_batch(anatomy, prompts, range(2), decoder=prompts if anatomy.is_encoder_decoder else None)
    hooks = _hooks(anatomy)
    sites = _sites(anatomy)
    with torch.no_grad():
        plain = _output(anatomy.model(**batch.inputs))
        with _told(anatomy), Capture(anatomy, sites) as seen:
            captured = _output(anatomy.model(**batch.inputs))
        zeros = [edits.zero("z", layer) for layer in anatomy.layers]
        with Capture(anatomy, edits=zeros):
            edited = _output(anatomy.model(**batch.inputs))
    if not bool(torch.isfinite(plain).all()):
        return  # weights that hold NaN or inf; a run names the site where they are met first
    if not torch.equal(plain, captured):
        raise _failed(anatomy, "its output is not the same while it is read; is it random in evaluation mode?")
    if torch.equal(plain, edited):
        raise _failed(anatomy, "its output does not change when what its heads found is set to zero.")
    if _hooks(anatomy) != hooks:
        raise _failed(anatomy, "hooks stayed behind after it was read.")
    for site in seen.expected():
        if site.base == "pattern" and site.layer is not None:
            visible = seen.visible[site.layer if not site.prefix else (site.prefix, site.layer)]
            _check_pattern(anatomy, str(site), seen[site.name, site.layer], visible)


def _check_pattern(anatomy: Anatomy, site: str, pattern: Tensor, visible: Tensor) -> None:
    sees = visible.any(-1, keepdim=True)  # rows of padding may see nothing; what is in them is never read
    if bool((pattern.masked_fill(visible | ~sees, 0) != 0).any()):
        raise _failed(anatomy, f"{site} looks at keys that its mask hides.")
    sums = pattern.float().sum(-1, keepdim=True)
    if bool((sums[sees.expand_as(sums)] > 1.01).any()):
        raise _failed(anatomy, f"rows of {site} sum to more than 1.")


def _sites(anatomy: Anatomy) -> list[str]:
    prefixes = [""]
    if anatomy.encoder is not None:
        prefixes.append(ENCODER)
    if any(layer.cross for layer in anatomy.stack.layers.values()):
        prefixes.append(CROSS)
    return [prefix + base for prefix in prefixes for base in ("pattern", "z")]


def _output(output: Any) -> Tensor:
    found: Tensor | None = getattr(output, "logits", None)
    return found if found is not None else output[0]


def _hooks(anatomy: Anatomy) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in anatomy.model.modules())


def _failed(anatomy: Anatomy, why: str) -> UnsupportedModel:
    return UnsupportedModel(f"{type(anatomy.model).__name__} failed the check at load: {why}")


class _told:
    """Turns what a capture says it could not see into a refusal of the model."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, CaptureError):
            raise _failed(self.anatomy, str(error)) from error
