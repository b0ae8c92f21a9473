"""The logit lens: what the model would say if it stopped earlier, at every place of its residual stream.

W_U · final norm of the stream (nostalgebraist 2020), at the embedding, between attention and MLP, and after each block;
at every position, or where a question is answered. Depth counts blocks passed: 0 before the first, 0.5 between its
attention and its MLP, 1 after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe import stats
from probe.errors import PromptError
from probe.models.distribution import entropy
from probe.scores.stream import check_predicts
from probe.scores.tail import check_tail, compared, tail_of
from probe.subject import Subject
from probe.targets import Positions, Unit


def lens(subject: Subject, text: str) -> pd.DataFrame:
    """The lens at every depth and position of a text, one row each: site, layer, depth, position, likeliest (id),
    probability (of it), entropy (nats), next_rank and next_probability (of the token that follows in the text; rank 1
    is first; NaN at the last position).

    Raises UnsupportedModel for a model that predicts no next token, or that does more than a final norm, an unembedding
    and a softcap after its last block; PromptError.
    """
    check_predicts(subject)
    ids, rows = subject.encode(text).ids, []
    positions = list(range(len(ids)))
    ((_, depths),) = _read(subject, [ids], [positions])
    for site, layer, depth, logits in depths:
        p = logits.softmax(-1)
        for position in positions:
            follows = ids[position + 1] if position + 1 < len(ids) else None
            rows.append(
                {
                    "site": site,
                    "layer": layer,
                    "depth": depth,
                    "position": position,
                    "likeliest": int(p[position].argmax()),
                    "probability": float(p[position].max()),
                    "entropy": float(entropy(p[position])),
                    "next_rank": float("nan") if follows is None else _rank(logits[position], follows),
                    "next_probability": float("nan") if follows is None else float(p[position, follows]),
                }
            )
    return pd.DataFrame(rows)


def answer_lens(subject: Subject, units: Sequence[Unit], *, batch_size: int = 8) -> pd.DataFrame:
    """The lens where each question is answered: rank and probability of the right answer and of its rival, by depth.

    units: with an `answer`; its first tokens are compared, the first wrong one where there are several. One row for
    each item and depth: item, cluster, site, layer, depth, right_rank, right_probability, wrong_rank,
    wrong_probability, difference (nats, logit of right minus wrong).
    Raises as `lens`; PromptError for a unit without an answer, OutOfRange for an answer's token that the model does not
    have.
    """
    check_predicts(subject)
    for unit in units:
        if unit.answer is None:
            raise PromptError(f"{unit.item} asks nothing: the lens needs a right and a wrong answer.")
    reads = [[unit.answer.read_at] for unit in units if unit.answer is not None]
    rows = []
    for index, depths in _read(subject, [u.ids for u in units], reads, batch_size):
        right, wrong = compared(units[index], depths[-1][-1].shape[-1])
        for site, layer, depth, logits in depths:
            p = logits[0].softmax(-1)
            rows.append(
                {
                    "item": units[index].item,
                    "cluster": units[index].cluster,
                    "site": site,
                    "layer": layer,
                    "depth": depth,
                    "right_rank": _rank(logits[0], right),
                    "right_probability": float(p[right]),
                    "wrong_rank": _rank(logits[0], wrong),
                    "wrong_probability": float(p[wrong]),
                    "difference": float(logits[0, right] - logits[0, wrong]),
                }
            )
    return pd.DataFrame(rows)


def by_depth(found: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """`answer_lens`, summed up over items: depth, site, ahead (share of items whose right answer is ahead of its rival)
    and difference (mean, nats), each with its 95 % interval over clusters (low, high); right_rank and wrong_rank
    (medians), right_probability and wrong_probability (means). Raises PromptError for an empty table.
    """
    if found.empty:
        raise PromptError("the table has 0 rows: give `answer_lens` at least one unit with an answer.")
    rows = []
    for depth, part in found.groupby("depth", sort=True):
        clusters = part["cluster"].tolist()
        ahead = stats.by_cluster(np.asarray(part["difference"] > 0, dtype=np.float64), clusters)
        apart = stats.by_cluster(part["difference"].to_numpy(dtype=np.float64), clusters)
        low, high = stats.interval(ahead, seed=seed)
        least, most = stats.interval(apart, seed=seed, shares=False)
        rows.append(
            {
                "depth": float(depth),  # type: ignore[arg-type]
                "site": part["site"].iloc[0],
                "ahead": float(ahead.overall),
                "ahead_low": float(low),
                "ahead_high": float(high),
                "difference": float(apart.overall),
                "low": float(least),
                "high": float(most),
                "right_rank": float(part["right_rank"].median()),
                "wrong_rank": float(part["wrong_rank"].median()),
                "right_probability": float(part["right_probability"].mean()),
                "wrong_probability": float(part["wrong_probability"].mean()),
            }
        )
    return pd.DataFrame(rows)


def ahead_from(depths: pd.DataFrame) -> pd.DataFrame:
    """Of each task of `by_depth` tables (a column `task`): ahead_from (the first depth at which the right answer is
    ahead in more than half of the questions, by the interval; NaN if at none), and ahead, low, high (its share after
    the last block).
    """
    rows = []
    for task, part in depths.groupby("task", sort=False):
        above, last = part[part["ahead_low"] > 0.5]["depth"], part.iloc[-1]
        first = float(above.iloc[0]) if len(above) else float("nan")
        rows.append((task, first, last["ahead"], last["ahead_low"], last["ahead_high"]))
    return pd.DataFrame(rows, columns=["task", "ahead_from", "ahead", "low", "high"])


def sides(depths: pd.DataFrame) -> pd.DataFrame:
    """The right answer and its rival of `by_depth` tables (a column `task`), one row each: task, depth, answer, rank
    (median), probability (mean).
    """
    both = [
        depths[["task", "depth"]].assign(
            answer=name, rank=depths[f"{side}_rank"], probability=depths[f"{side}_probability"]
        )
        for side, name in (("right", "right answer"), ("wrong", "its rival"))
    ]
    return pd.concat(both, ignore_index=True)


Depth = tuple[str, int, float, Tensor]  # site, layer, blocks passed, logits (row, vocab)


def _read(
    subject: Subject, prompts: Sequence[Positions], rows: Sequence[Sequence[int]], batch_size: int = 8
) -> Iterator[tuple[int, list[Depth]]]:
    """Each prompt's number, and its logits at the chosen rows from every depth."""
    tail, layers = tail_of(subject), subject.anatomy.layers
    mid = [layer for layer in layers if subject.anatomy.stack.layers[layer].mid]
    sites = ["resid_pre", "resid_post", "logits", *(["resid_mid"] if len(mid) == len(layers) else [])]
    places = [("resid_pre", layers[0], 0.0)]
    for layer in layers:
        places += [("resid_mid", layer, layer + 0.5)] if "resid_mid" in sites else []
        places.append(("resid_post", layer, layer + 1.0))
    for batch, seen in subject.captured(prompts, sites, rows=rows, batch_size=batch_size):
        for at, index in enumerate(batch.indices):
            n = len(rows[index])
            streams = torch.stack([seen[site, layer][at, :n] for site, layer, _ in places])
            logits = tail.logits(streams.flatten(0, 1)).double().view(len(places), n, -1)
            check_tail(subject, tail, streams[-1], seen["logits"][at, :n])
            yield index, [(*place, said) for place, said in zip(places, logits, strict=True)]


def _rank(logits: Tensor, token: int) -> int:
    return 1 + int((logits > logits[token]).sum())
