"""Direct logit attribution: how much of a logit difference each component wrote (Elhage et al. 2021).

The stream that the logits are read from is a sum: the embedding, and what attention and MLP of each layer added. The
final norm divides by a scale and is otherwise linear; with the scale frozen at its value on the prompt, the logit
difference is the sum of every component's own part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import pandas as pd
import torch
from torch import Tensor, nn

from probe.errors import PromptError, UnsupportedModel
from probe.models.gpt import GPT
from probe.subject import Subject
from probe.targets import Unit


class Tail(NamedTuple):
    """What stands between the last block and the logits. norm: the final norm, None where there is none.
    unembedding: (vocab, d_model).
    """

    norm: nn.Module | None
    unembedding: Tensor


class Frozen(NamedTuple):
    """A norm with its scale fixed: part -> its share of the output; bias: what the norm adds of its own."""

    of: Callable[[Tensor], Tensor]
    bias: Tensor


def direct_logit_attribution(subject: Subject, units: Sequence[Unit], *, batch_size: int = 8) -> pd.DataFrame:
    """Each component's part of logit(right) - logit(wrong) at the position that produces the answer, in nats.

    units: with an `answer`; its first tokens are compared, the first wrong one where there are several.
    Returns one row per item and component: item, cluster, component ("embedding", "attention", "mlp", "bias"), layer
    (-1 for embedding and bias), value, and of the whole item difference (the model's own) and residue (what the parts
    leave unexplained; rounding, unless the model bends its logits, as Gemma 2's softcap does).
    Raises UnsupportedModel for a model without logits or whose halves do not add up to its stream, PromptError for a
    unit without an answer.
    """
    for unit in units:
        if unit.answer is None:
            raise PromptError(f"{unit.item} asks nothing: attribution needs a right and a wrong answer.")
    tail, rows = tail_of(subject), []
    layers = subject.anatomy.stack.layers.values()
    sites = ["resid_pre", "resid_post", "logits"]
    sites += ["resid_mid"] if all(layer.mid for layer in layers) else ["attn_out"]
    sites += [] if "resid_mid" in sites or not any(layer.mlp for layer in layers) else ["mlp_out"]
    reads = [[unit.answer.read_at] for unit in units if unit.answer is not None]
    for batch, seen in subject.captured([u.ids for u in units], sites, rows=reads, batch_size=batch_size):
        for at, index in enumerate(batch.indices):
            stream = {
                site: torch.stack([seen[site, layer][at, 0] for layer in range(subject.n_layers)]).double()
                for site in sites
                if site != "logits"
            }
            rows += _parts_of(units[index], _written(stream, subject.name), seen["logits"][at, 0].double(), tail)
    return pd.DataFrame(rows)


def _written(stream: dict[str, Tensor], name: str) -> list[tuple[str, int, Tensor]]:
    """stream: sites of one position, (layer, d_model) each. Returns (component, layer, what it added to the stream)."""
    before, after = stream["resid_pre"], stream["resid_post"]
    if "resid_mid" in stream:
        halves = {"attention": stream["resid_mid"] - before, "mlp": after - stream["resid_mid"]}
    else:  # both halves read the same stream, or there is one half
        halves = {"attention": stream["attn_out"]}
        if "mlp_out" in stream:
            halves["mlp"] = stream["mlp_out"]
        if (sum(halves.values()) - (after - before)).abs().max() > 1e-4 * after.abs().max():
            raise UnsupportedModel(f"{name}: what attention and MLP write does not add up to its residual stream.")
    layers = [(kind, layer, part[layer]) for layer in range(len(before)) for kind, part in halves.items()]
    # A stack whose last layers have no heads ends beyond what was read; the residue then says so.
    return [("embedding", -1, before[0]), *layers]


def _parts_of(
    unit: Unit, written: list[tuple[str, int, Tensor]], logits: Tensor, tail: Tail
) -> list[dict[str, object]]:
    answer = unit.answer
    assert answer is not None
    right, wrong = answer.right[0], answer.wrong[0][0]
    direction = tail.unembedding[right].double() - tail.unembedding[wrong].double()
    frozen = frozen_norm(tail.norm, torch.stack([part for _, _, part in written]).sum(0))
    parts = [(kind, layer, float(frozen.of(part) @ direction)) for kind, layer, part in written]
    parts.append(("bias", -1, float(frozen.bias @ direction)))
    difference = float(logits[right] - logits[wrong])
    residue = difference - sum(value for _, _, value in parts)
    return [
        {
            "item": unit.item,
            "cluster": unit.cluster,
            "component": kind,
            "layer": layer,
            "value": value,
            "difference": difference,
            "residue": residue,
        }
        for kind, layer, value in parts
    ]


def frozen_norm(norm: nn.Module | None, stream: Tensor) -> Frozen:
    """The norm as a linear map, its scale fixed at what it is for `stream`, (d_model).

    Found by asking it, so that it need not be one of a list: whether it subtracts the mean, its gain and its bias from
    how it answers to a random vector and to that vector's opposite, its scale from how it answers to `stream`.
    """
    if norm is None or isinstance(norm, nn.Identity):
        return Frozen(lambda part: part, torch.zeros_like(stream))
    like = next(iter(norm.parameters()), stream)

    def ask(x: Tensor) -> Tensor:
        with torch.no_grad():
            return cast(Tensor, norm(x.to(like.dtype)[None, None]))[0, 0].double()

    far = torch.randn(len(stream), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1000
    far = far.to(stream.device)  # so long that the norm's epsilon does not count
    bias = (ask(far) + ask(-far)) / 2
    centred = bool((ask(far + 1000) - ask(far)).abs().max() < 1e-2)

    def centre(x: Tensor) -> Tensor:
        return x - x.mean() if centred else x

    gain = (ask(far) - bias) * centre(far).square().mean().sqrt() / centre(far)
    raw, answered = gain * centre(stream), ask(stream) - bias
    scale = (raw @ raw) / (raw @ answered)
    if (raw / scale - answered).abs().max() > 1e-2 * answered.abs().max():
        raise UnsupportedModel(f"the final {type(norm).__name__} is not a scale and a gain: it cannot be frozen.")
    return Frozen(lambda part: gain * centre(part) / scale, bias)


def tail_of(subject: Subject) -> Tail:
    """The final norm and the unembedding, seen in a short pass. Raises UnsupportedModel where there are no logits."""
    model: Any = subject.model
    if not subject.has_logits:
        raise UnsupportedModel(f"{subject.name} has no language-model head: no logits to attribute.")
    if isinstance(model, GPT):
        matrix = model.base_model.embed.weight if model.config.tied else model.unembed.weight
        return Tail(model.base_model.norm, matrix.detach())
    head = model.get_output_embeddings()
    if head is None or not isinstance(getattr(head, "weight", None), Tensor):
        raise UnsupportedModel(f"{subject.name}: no single matrix maps its stream to logits.")
    made: dict[int, tuple[nn.Module, Tensor]] = {}
    read: list[Tensor] = []

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            made[output.data_ptr()] = module, output  # kept, so that its address is not used again

    hooks = [m.register_forward_hook(note) for m in model.modules()]
    hooks.append(head.register_forward_pre_hook(lambda _, args: read.append(args[0])))
    try:
        for _ in subject.captured([[1, 1]], ["logits"]):
            pass
    finally:
        for hook in hooks:
            hook.remove()
    norm = made.get(read[-1].data_ptr())
    if norm is None:
        raise UnsupportedModel(f"{subject.name}: what its logits are read from does not come from a final norm.")
    return Tail(norm[0], head.weight.detach())
