"""What a transformer may look at, and does: where attention falls, what a changed token reaches, how often it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from probe import stats
from probe.capture.guards import missing
from probe.capture.run import Run
from probe.errors import ProbeError, UnsupportedModel
from probe.sites import CROSS, ENCODER, PREFIXED, SITES, WHOLE_SITES, Site, split
from probe.subject import Subject


def directions(run: Run, site: str = "pattern") -> pd.DataFrame:
    """Where each head's attention falls, as seen from the query: one row for each layer and head.

    run: captured `site` ("pattern" or "encoder.pattern") whole. Columns: layer, head, earlier, itself, later (share of
    attention on keys before the query, on it, after it; mean over a prompt's queries, then over prompts), latest (the
    largest single weight on a later key), uniform_later (what equal weights on all keys would put on later ones).
    """
    lengths = _lengths(run, site)
    rows = []
    for layer in sorted(n for name, n in run.values if name == site and n is not None):
        parts = [_falls(run[site, layer][b, :, :n, :n].double()) for b, n in enumerate(lengths)]
        shares = torch.stack([shares for shares, _ in parts]).mean(0)
        latest = torch.stack([latest for _, latest in parts]).amax(0)
        for head in range(len(latest)):
            earlier, itself, later = shares[:, head].tolist()
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "earlier": earlier,
                    "itself": itself,
                    "later": later,
                    "latest": float(latest[head]),
                    "uniform_later": float(np.mean([(n - 1) / (2 * n) for n in lengths])),
                }
            )
    return pd.DataFrame(rows)


def neighbour_head(run: Run, offset: int) -> tuple[int, int, float]:
    """Layer and head that put most weight on the key `offset` away from the query (1 after it, -1 before it), and that
    weight: the mean over the queries of the run's first prompt that have such a key.
    """
    layers = sorted(n for name, n in run.values if name == "pattern" and n is not None)
    n = _lengths(run, "pattern")[0]
    means = torch.stack(
        [run["pattern", k][0, :, :n, :n].diagonal(offset, dim1=-2, dim2=-1).mean(-1) for k in layers]
    )  # (layer, head)
    at, head = divmod(int(means.argmax()), means.shape[1])
    return layers[at], head, float(means.max())


def _falls(pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Of one prompt's pattern (head, query, key): shares (3, head) before, on and after the query; largest after it."""
    later = pattern.triu(1)
    parts = pattern.tril(-1), pattern * torch.eye(pattern.shape[-1], dtype=pattern.dtype), later
    return torch.stack([part.sum(-1).mean(-1) for part in parts]), later.amax((-2, -1))


def _lengths(run: Run, site: str) -> list[int]:
    encoder = split(site)[0] == ENCODER
    return [len(p) for p in run.prompts] if encoder or not run.ids else [len(ids) for ids in run.ids]


def aim(run: Run, wanted: Sequence[Sequence[int]], *, seed: int) -> pd.DataFrame:
    """How often each head of the cross-attention looks hardest at the encoder position that it is wanted to.

    run: captured "cross.pattern" whole. wanted: for each prompt, the encoder position for its first decoder positions,
    as many as are measured. Returns one row for each layer and head: layer, head, share (of the decoder positions whose
    largest weight is there), low, high (95 % interval, bootstrap over prompts), mass (mean weight there), offset (the
    commonest distance of the largest weight from the wanted position) and offset_share, chance (share of a uniform
    choice), n_positions, n_prompts.
    """
    sources, counts = [len(p) for p in run.prompts], np.array([len(w) for w in wanted], dtype=np.float64)
    chance = float(sum(len(w) / n for w, n in zip(wanted, sources, strict=True)) / counts.sum())
    rows = []
    for layer in sorted(n for name, n in run.values if name == "cross.pattern" and n is not None):
        hits, offsets, masses = [], [], []
        for b, (aims, n) in enumerate(zip(wanted, sources, strict=True)):
            at = torch.tensor(list(aims))
            rows_of = run["cross.pattern", layer][b, :, : len(aims), :n]  # (head, step, key)
            offset = rows_of.argmax(-1) - at
            offsets.append(offset)
            hits.append((offset == 0).sum(-1))
            masses.append(rows_of.double().gather(-1, at.expand(len(rows_of), -1).unsqueeze(-1)).squeeze(-1))
        grouped = stats.ByCluster(torch.stack(hits, -1).double().numpy(), counts)
        low, high = stats.interval(grouped, seed=seed)
        for head, share in enumerate(grouped.overall):
            usual, times = np.unique(torch.cat(offsets, -1)[head].numpy(), return_counts=True)
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "share": float(share),
                    "low": float(low[head]),
                    "high": float(high[head]),
                    "mass": float(torch.cat(masses, -1)[head].mean()),
                    "offset": int(usual[times.argmax()]),
                    "offset_share": float(times.max() / times.sum()),
                    "chance": chance,
                    "n_positions": int(counts.sum()),
                    "n_prompts": len(counts),
                }
            )
    return pd.DataFrame(rows)


class Reach(NamedTuple):
    """What one changed token changes in the last layer's stream. positions: those looked at; changed: how many of them
    differ at all; largest: the largest difference of any number.
    """

    positions: int
    changed: int
    largest: float


def reach(run: Run, positions: Sequence[int], site: str = "resid_post") -> Reach:
    """What the change between the two prompts of `run`, alike but for a token, reaches at `positions`."""
    last = max(n for name, n in run.values if name == site and n is not None)
    one, other = run[site, last][:, list(positions)]
    difference = (one - other).abs().amax(-1)
    return Reach(len(difference), int((difference > 0).sum()), float(difference.max()))


class Passes(NamedTuple):
    """How often each stack ran, and over how many positions in all."""

    encoder: int
    encoder_positions: int
    decoder: int
    decoder_positions: int


@contextmanager
def counting_passes(subject: Subject) -> Iterator[list[tuple[str, int]]]:
    """Within, each pass of the encoder ("encoder.") or the decoder or only stack ("") is noted, with its positions."""
    seen: list[tuple[str, int]] = []
    anatomy = subject.anatomy
    stacks = {"": anatomy.stack, **({ENCODER: anatomy.encoder} if anatomy.encoder else {})}
    handles = []
    for name, stack in stacks.items():
        block = next(iter(stack.layers.values())).block
        if block is None:
            raise UnsupportedModel(f"{subject.name}: its layers are not modules of their own, so no pass is seen.")

        def hook(_: nn.Module, __: object, output: object, name: str = name) -> None:
            stream = output[0] if isinstance(output, tuple | list) else output
            if not isinstance(stream, Tensor):
                raise ProbeError(f"a block of {subject.name} returned {type(stream).__name__}, not a tensor.")
            seen.append((name, stream.shape[1]))

        handles.append(block.module.register_forward_hook(hook))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def passes(seen: Sequence[tuple[str, int]]) -> Passes:
    """What `counting_passes` has seen, added up."""
    encoder, decoder = ([n for name, n in seen if name == stack] for stack in (ENCODER, ""))
    return Passes(len(encoder), sum(encoder), len(decoder), sum(decoder))


def available(subject: Subject) -> pd.DataFrame:
    """Which sites a model has in its first layer with heads: columns site, "" (the decoder or only stack), "encoder.",
    "cross." (booleans).
    """
    layer = subject.anatomy.layers[0]
    prefixes = ("", ENCODER, CROSS) if subject.anatomy.is_encoder_decoder else ("",)

    def has(prefix: str, base: str) -> bool:
        name = prefix + base
        if prefix not in prefixes or name not in (*SITES, *PREFIXED):
            return False
        return missing(subject.anatomy, Site(name, None if base in WHOLE_SITES else layer)) is None

    return pd.DataFrame([{"site": base, **{p: has(p, base) for p in ("", ENCODER, CROSS)}} for base in SITES])
