"""What heads write, in tokens: whether a head writes back the token it looks at, and which tokens it writes for a
prompt.

Both go through the head's part of the output projection, the final norm and the unembedding (OV circuit, Elhage et al.
2021). Set a randomly initialised copy (`Subject.random_copy`) beside them: what it scores is what chance writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from probe import stats
from probe.capture.residual import head_writes
from probe.errors import OutOfRange, PromptError, UnsupportedModel
from probe.models.distribution import entropy
from probe.scores.continuations import token_text
from probe.scores.entry import entering, entries
from probe.scores.tail import frozen_norm, tail_of
from probe.sites import check_indices
from probe.subject import Subject

Array = npt.NDArray[np.float64]
CHUNK = 256  # (head, token) rows whose logits are held at once


def copying(subject: Subject, texts: Sequence[str], *, seed: int = 0) -> pd.DataFrame:
    """How far each head writes back the token it looks at (Olsson et al. 2022), if it looks at that token alone.

    Of the logits that a head's output gives to all tokens, above their mean, the share on the token looked at, times 2,
    minus 1: 1 where only that token is raised, -1 where it is not. Over a large vocabulary a head that raises others a
    little has a low score; `among` takes the share among the tokens looked at alone, `rank` says how many of all tokens
    it raises more.
    texts: prompts whose tokens are looked at; random words in Olsson et al. Special tokens and those that come more
    than once are looked at as they first come. seed: of the bootstrap over tokens. Columns: layer, head, copying (mean
    over tokens; NaN for a head that writes nothing), low, high (95 % interval over tokens), among with among_low and
    among_high, first (share of tokens that get the highest logit of all), rank (median place of the token; 1 is first),
    tokens (how many were looked at). Raises UnsupportedModel for models without logits or whose heads have no parts in
    the stream, PromptError.
    """
    subject.anatomy.check_even()
    if isinstance(texts, str):
        raise PromptError(f"one text was given, {texts[:40]!r}: copying takes a list of texts; put it into one.")
    prompts = [subject.encode(text) for text in texts]
    if not prompts:
        raise PromptError("no prompts were given; give at least one text.")
    chosen: dict[int, tuple[int, int]] = {}  # token -> the prompt and position where it first comes
    for number, prompt in enumerate(prompts):
        for position, (token, span) in enumerate(zip(prompt.ids, prompt.spans, strict=True)):
            if span is not None:
                chosen.setdefault(token, (number, position))
    looked = torch.tensor(list(chosen))
    values: dict[int, list[Tensor]] = {layer: [] for layer in range(subject.n_layers)}
    for batch, seen in subject.captured([p.ids for p in prompts], ["v"]):
        for at, index in enumerate(batch.indices):
            mine = [batch.shift[at] + position for number, position in chosen.values() if number == index]
            for layer, found in values.items():
                found.append(seen["v", layer][at, mine])
    share, among, rank = _written_back(subject, {n: torch.cat(v) for n, v in values.items()}, looked)
    layers, heads = np.indices(share.shape[:2])
    silent = np.asarray(np.isnan(share).any(-1))  # writes nothing
    table: dict[str, Any] = {"layer": layers.ravel(), "head": heads.ravel()}
    for name, ends, shares in (("copying", ("low", "high"), share), ("among", ("among_low", "among_high"), among)):
        scores = np.where(silent[..., None], 0, 2 * shares - 1)
        grouped = stats.by_cluster(scores, [str(n) for n in range(len(looked))])
        table[name] = np.where(silent, np.nan, grouped.overall).ravel()
        for end, bound in zip(ends, stats.interval(grouped, seed=seed, shares=False), strict=True):
            table[end] = np.where(silent, np.nan, bound).ravel()
    table["first"] = np.where(silent, np.nan, (rank == 1).mean(-1)).ravel()
    table["rank"] = np.where(silent, np.nan, np.median(rank, -1)).ravel()
    return pd.DataFrame(table).assign(tokens=len(looked))


def _written_back(subject: Subject, values: dict[int, Tensor], looked: Tensor) -> tuple[Array, Array, Array]:
    """Share on the token looked at, the same among all tokens looked at, and its rank: (layer, head, token) each; NaN
    where nothing is raised. values: layer -> (token, key-value head, d_head).
    """
    tail, enters, made = tail_of(subject), entries(subject), []
    matrix = tail.unembedding
    for layer, per_group in values.items():
        attention = subject.anatomy.stack.layers[layer].attention
        if attention.project is None:
            raise UnsupportedModel(f"{subject.name}: no module is handed z as it is, so no head has a part of its own.")
        z = per_group.repeat_interleave(attention.n_heads // attention.n_kv_heads, dim=1)
        with torch.no_grad():
            written = head_writes(attention.project.module, z[None], range(attention.n_heads))[0]  # (token, head, d)
        norm = enters.attention[layer]
        # Whatever their scale, the two norms share it out in the same proportions.
        parts = written.double().transpose(0, 1)
        like = torch.linspace(-1, 2, parts.shape[-1], dtype=parts.dtype, device=parts.device)
        parts = frozen_norm(tail.norm, like).of(entering(norm, like, like)(parts)).to(matrix.dtype).flatten(0, 1)
        own = looked.repeat(attention.n_heads).to(parts.device)
        chunks = zip(torch.split(parts, CHUNK), torch.split(own, CHUNK), strict=True)
        made.append(torch.cat([_raised(part @ matrix.T, token, looked) for part, token in chunks], 1))
    share, among, rank = torch.stack(made, 1).view(3, len(made), -1, len(looked)).cpu().numpy()
    return share, among, rank


def _raised(logits: Tensor, token: Tensor, looked: Tensor) -> Tensor:
    """Of the logits above their mean, the share on a token, the same of the tokens `looked` alone, and the token's
    rank. (row, vocab), (row), (token) -> (3, row).
    """
    raised = (logits - logits.mean(-1, keepdim=True)).relu()
    own = raised.gather(-1, token[:, None])[:, 0].double()
    whole, part = raised.double().sum(-1), raised[:, looked].double().sum(-1)
    rank = 1 + (logits > logits.gather(-1, token[:, None])).sum(-1).double()
    share = torch.where(whole > 0, own / whole, torch.nan)
    # where none of them is raised, the token is not either
    return torch.stack([share, torch.where(whole > 0, own / part.clamp(min=1e-12), torch.nan), rank])


def top_tokens(
    subject: Subject, text: str, heads: Sequence[tuple[int, int]], *, position: int = -1, k: int = 5
) -> pd.DataFrame:
    """The tokens that heads raise most, and lower most, by what they write at a position of a prompt.

    heads: (layer, head) each. position: negative from the prompt's end. One row for each head and each of k places:
    head ("layer.head"), rank, raised and its logit (nats above the mean over the vocabulary, through the final norm
    with its scale frozen there), lowered and its logit, looked_at (the token with most of the head's attention there)
    and weight (that attention), spread (exp of the entropy of a softmax over the head's logits: how many tokens it
    would leave in play by itself). Raises UnsupportedModel for models without logits or whose heads have no parts in
    the stream, OutOfRange, PromptError.
    """
    if not heads:
        raise OutOfRange("heads=[] names none: give at least one (layer, head).")
    if not all(isinstance(head, Sequence) and len(head) == 2 for head in heads):
        raise OutOfRange(f"heads={heads!r}: give (layer, head) for each, such as [(0, 1)].")
    tail, enters, prompt = tail_of(subject), entries(subject), subject.encode(text)
    if not 1 <= k <= len(tail.unembedding):
        raise OutOfRange(
            f"k={k} tokens were asked for: allowed are 1 to {len(tail.unembedding)}, the whole vocabulary."
        )
    (row,) = check_indices("position", position, len(prompt))
    run = subject.run(text, ["result", "attn_out", "pattern", "resid_post"], rows=[row])
    frozen = frozen_norm(tail.norm, run["resid_post", subject.anatomy.layers[-1]][0, 0].double())
    tables = []
    for head in heads:
        (layer,) = check_indices("layer", head[0], subject.n_layers)
        (number,) = check_indices("head", head[1], subject.n_heads)
        written = run["attn_out", layer][0, 0].double()
        part = entering(enters.attention[layer], written, written)(run["result", layer][0, 0, number].double())
        logits = tail.unembedding.double() @ frozen.of(part)
        weights = run["pattern", layer][0, number, 0, : len(prompt)]
        looked = token_text(subject.tokenizer, prompt.ids[int(weights.argmax())])
        table = _extremes(subject, logits - logits.mean(), k)
        tables.append(table.assign(head=f"{layer}.{number}", looked_at=looked, weight=float(weights.max())))
    return pd.concat(tables, ignore_index=True)


def _extremes(subject: Subject, logits: Tensor, k: int) -> pd.DataFrame:
    up, down = torch.topk(logits, k), torch.topk(-logits, k)
    return pd.DataFrame(
        {
            "rank": range(1, k + 1),
            "raised": [token_text(subject.tokenizer, int(i)) for i in up.indices],
            "logit": up.values.tolist(),
            "lowered": [token_text(subject.tokenizer, int(i)) for i in down.indices],
            "its logit": (-down.values).tolist(),
            "spread": float(entropy(logits.softmax(-1)).exp()),
        }
    )
