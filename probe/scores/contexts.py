"""One word in two texts: how alike a model holds it, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe import stats
from probe.data.senses import Comparison, Use
from probe.data.texts import Span
from probe.subject import Subject

ROUNDING = 1e-6


def similarity(subject: Subject, comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Cosine similarity of the residual stream at the word in two texts, averaged over the word's tokens first.

    One row for each comparison and number of blocks passed (0: as the first block gets it). Columns: kind, word (the
    comparison's cluster), blocks, cosine. Raises PromptError, SpanError.
    """
    uses = list(dict.fromkeys(use for c in comparisons for use in (c.one, c.other)))
    held = dict(zip(uses, _streams(subject, uses), strict=True))
    rows = []
    for comparison in comparisons:
        cosines = torch.cosine_similarity(held[comparison.one], held[comparison.other], dim=-1)
        rows += [
            {"kind": comparison.kind, "word": comparison.word, "blocks": blocks, "cosine": float(cosine)}
            for blocks, cosine in enumerate(cosines)
        ]
    return pd.DataFrame(rows)


def by_kind(found: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """The mean cosine of each kind and number of blocks passed, over words, with its 95 % interval (bootstrap over
    words). found: as `similarity` returns it. Columns: blocks, kind, cosine, low, high.
    """
    rows = []
    for (kind, blocks), group in found.groupby(["kind", "blocks"], sort=False):
        grouped = stats.by_cluster(group["cosine"].to_numpy(), group["word"].tolist())
        mean = float(grouped.overall)
        # Where all words agree, as before the first block, there is no spread to resample.
        alike = np.ptp(grouped.sums / grouped.counts) < ROUNDING
        low, high = (mean, mean) if alike else map(float, stats.interval(grouped, seed=seed))
        rows.append({"blocks": blocks, "kind": kind, "cosine": mean, "low": low, "high": high})
    return pd.DataFrame(rows)


def _streams(subject: Subject, uses: Sequence[Use]) -> list[Tensor]:
    """The word's stream in each text: (blocks passed, d_model)."""
    layers = subject.anatomy.layers
    run = subject.run([use.text for use in uses], ["resid_pre", "resid_post"])
    found = []
    for number, (use, prompt) in enumerate(zip(uses, run.prompts, strict=True)):
        at = list(prompt.positions(Span.of(use.text, use.word)))
        stack = [run["resid_pre", layers[0]], *(run["resid_post", layer] for layer in layers)]
        found.append(torch.stack([site[number, at].double().mean(0) for site in stack]))
    return found
