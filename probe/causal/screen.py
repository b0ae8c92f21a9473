"""Attribution patching: every head's effect at once, to first order (Nanda 2023; Syed et al. 2023).

(z of the minimal pair's prompt - z) · ∂(logit difference)/∂z, summed over positions: what `sweep` measures exactly, one
head after the other, is here guessed for all heads from one backward pass. Good enough to say which to measure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from probe.capture.capture import Capture
from probe.causal.readout import ask, asked, contrast
from probe.causal.sweep import Array, mean_z
from probe.errors import ProbeError
from probe.subject import Subject
from probe.targets import Positions, Unit


def screen(subject: Subject, units: Sequence[Unit], *, towards: str = "pair", batch_size: int = 8) -> Array:
    """(layer, head, unit): nats the answer would lose if the head's z were another, by the gradient alone.

    towards: "pair" (z on the minimal pair's prompt; NaN for units without one) or "mean" (its mean over all positions).
    Raises ProbeError if no unit can be measured, UnsupportedModel for models without heads in every layer.
    """
    subject.anatomy.check_even()
    prompts = [p for p in asked(subject, units, most=1) if towards == "mean" or p.swapped is not None]
    if not prompts:
        raise ProbeError("no unit has both a question and an aligned minimal pair.")
    prompts.sort(key=lambda p: len(p.ids))
    mean = mean_z(subject, [p.ids for p in prompts]) if towards == "mean" else None
    found = np.full((subject.n_layers, subject.n_heads, len(units)), np.nan)
    for start in range(0, len(prompts), batch_size):
        chosen = prompts[start : start + batch_size]
        asking = ask(subject, chosen, [p.ids for p in chosen], sites=["z"], gradients=True)
        gradients = asking.seen.gradients(torch.stack([contrast(s) for s in asking.scores]).sum())
        others = None if mean is not None else _captured(subject, [p.swapped or () for p in chosen])
        for layer in range(subject.n_layers):
            z = asking.seen["z", layer].detach()
            other = mean[layer].expand_as(z) if mean is not None else others["z", layer]  # type: ignore[index]
            real = asking.batch.inputs["attention_mask"].bool().unsqueeze(-1)
            products = torch.where(real, ((z - other) * gradients["z", layer]).sum(-1), 0)  # (prompt, pos, head)
            lost = products.sum(1).double().cpu().numpy()
            for at, prompt in enumerate(chosen):
                before = np.nan_to_num(found[layer, :, prompt.unit])
                found[layer, :, prompt.unit] = before + lost[at]
    return found


def _captured(subject: Subject, ids: Sequence[Positions]) -> Capture:
    (found,) = (seen for _, seen in subject.captured(ids, ["z"], batch_size=len(ids)))
    return found
