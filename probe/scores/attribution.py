"""Direct logit attribution: how much of a logit difference each component wrote (Elhage et al. 2021).

The stream that the logits are read from is a sum: the embedding, and what attention and MLP of each layer added; what
attention added is the sum of its heads and a bias. The final norm divides by a scale and is otherwise linear; with the
scale frozen at its value on the prompt, the logit difference is the sum of every component's own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from probe.errors import UnsupportedModel
from probe.scores.entry import Entries, entering, entries
from probe.scores.tail import Tail, check_tail, compared, frozen_norm, tail_of
from probe.subject import Subject
from probe.targets import Unit


class Part(NamedTuple):
    """What one component added to the stream of one position. layer, head: -1 where it has none."""

    component: str
    layer: int
    head: int
    vector: Tensor


def direct_logit_attribution(
    subject: Subject, units: Sequence[Unit], *, heads: bool = False, batch_size: int = 8
) -> pd.DataFrame:
    """Each component's part of logit(right) - logit(wrong) at the position that produces the answer, in nats.

    units: with an `answer`; its first tokens are compared, the first wrong one where there are several.
    heads: whether attention and MLP are taken apart. Returns one row per item and component: item, cluster, component,
    layer, head (both -1 where it has none), value, and of the whole item difference (the model's own) and residue (what
    the parts leave unexplained; rounding, unless the model bends its logits, as Gemma 2's softcap does).
    Components: "embedding" (positions included), "attention", "mlp" and "bias" (of the final norm and the unembedding);
    with `heads` "embedding", "head", "attention bias", "mlp", "mlp bias", "norm bias" and "unembedding bias". A bias of
    the values is in the heads.
    Raises UnsupportedModel for a model without logits, whose halves do not add up to its stream, or that does more than
    a final norm, an unembedding and a softcap after it; with `heads` for one whose heads have no parts in it;
    PromptError for a unit without an answer, OutOfRange for an answer's token that the model does not have.
    """
    tail, rows = tail_of(subject), []
    for unit in units:
        compared(unit, len(tail.unembedding))
    enters = entries(subject) if heads else None
    sites = _sites(subject, heads)
    reads = [[unit.answer.read_at] for unit in units if unit.answer is not None]
    for batch, seen in subject.captured([u.ids for u in units], [*sites, "logits"], rows=reads, batch_size=batch_size):
        for at, index in enumerate(batch.indices):
            stream = {
                site: torch.stack([seen[site, layer][at, 0] for layer in range(subject.n_layers)]).double()
                for site in sites
            }
            parts = list(_halves(stream, subject.name))
            if enters is not None:
                parts = [small for part in parts for small in _taken_apart(part, stream, enters)]
            last = torch.stack([part.vector for part in parts]).sum(0)
            check_tail(subject, tail, last[None], seen["logits"][at])
            rows += _rows(units[index], parts, seen["logits"][at, 0].double(), tail, split=heads)
    return pd.DataFrame(rows)


def _sites(subject: Subject, heads: bool) -> list[str]:
    layers = subject.anatomy.stack.layers.values()
    mid, mlps = all(layer.mid for layer in layers), any(layer.mlp for layer in layers)
    sites = ["resid_pre", "resid_post", *(["resid_mid"] if mid else ["attn_out"])]
    sites += ["mlp_out"] if mlps and (heads or not mid) else []
    return [*sites, *(["result"] if heads else []), *(["attn_out"] if heads and mid else [])]


def _halves(stream: dict[str, Tensor], name: str) -> Iterator[Part]:
    """stream: sites of one position, (layer, d_model) each. Yields the embedding, then what each half added."""
    before, after = stream["resid_pre"], stream["resid_post"]
    if "resid_mid" in stream:
        halves = {"attention": stream["resid_mid"] - before, "mlp": after - stream["resid_mid"]}
    else:  # both halves read the same stream, or there is one half
        halves = {"attention": stream["attn_out"]}
        if "mlp_out" in stream:
            halves["mlp"] = stream["mlp_out"]
        if (sum(halves.values()) - (after - before)).abs().max() > 1e-4 * after.abs().max():
            raise UnsupportedModel(f"{name}: what attention and MLP write does not add up to its residual stream.")
    yield Part("embedding", -1, -1, before[0])
    for layer in range(len(before)):
        yield from (Part(kind, layer, -1, part[layer]) for kind, part in halves.items())


def _taken_apart(part: Part, stream: dict[str, Tensor], enters: Entries) -> Iterator[Part]:
    """A half as its heads, or its MLP, and its bias; the embedding as it is."""
    layer = part.layer
    if part.component == "attention":
        into = entering(enters.attention[layer], stream["attn_out"][layer], part.vector)
        written = into(stream["result"][layer])  # (head, d_model)
        yield from (Part("head", layer, head, vector) for head, vector in enumerate(written))
        yield Part("attention bias", layer, -1, part.vector - written.sum(0))
    elif part.component == "mlp" and "mlp_out" in stream:
        bias = entering(enters.mlp[layer], stream["mlp_out"][layer], part.vector)(enters.biases[layer])
        yield Part("mlp", layer, -1, part.vector - bias)
        yield Part("mlp bias", layer, -1, bias)
    else:
        yield part


def _rows(unit: Unit, parts: Sequence[Part], logits: Tensor, tail: Tail, *, split: bool) -> list[dict[str, object]]:
    right, wrong = compared(unit, len(logits))
    direction = tail.unembedding[right].double() - tail.unembedding[wrong].double()
    vectors = torch.stack([part.vector for part in parts])
    whole = vectors.sum(0)
    frozen = frozen_norm(tail.norm, whole)
    values = (frozen.of(vectors) @ direction).tolist()
    found = [(part.component, part.layer, part.head, value) for part, value in zip(parts, values, strict=True)]
    norm, unembedding = float(frozen.bias @ direction), 0.0
    if tail.bias is not None:
        unembedding = float(tail.bias[right] - tail.bias[wrong])
    if split:
        found += [("norm bias", -1, -1, norm), ("unembedding bias", -1, -1, unembedding)]
    else:
        found.append(("bias", -1, -1, norm + unembedding))
    difference = float(logits[right] - logits[wrong])
    residue = difference - sum(value for *_, value in found)
    return [
        {
            "item": unit.item,
            "cluster": unit.cluster,
            "component": kind,
            "layer": layer,
            "head": head,
            "value": value,
            "difference": difference,
            "residue": residue,
        }
        for kind, layer, head, value in found
    ]
