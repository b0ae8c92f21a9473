"""Which heads look at what they write: the retrieval score of Wu et al. (2404.15574), and what it leaves out.

Wu's score is the share of the needle's tokens that the model writes at a step where the head's largest weight lies on
that same token inside the needle. A head whose sink happens to lie in a needle scores on one function word, so the
value alone is scored beside it; and a head that does so whatever is asked for fetches nothing, so both are scored under
a question for a name that is not there. The text may be the model's own, or forced on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from probe import stats
from probe.capture.batch import alike, make_batch, row_tensor
from probe.capture.capture import Capture
from probe.causal.lookups import Lookup
from probe.causal.readout import logits_at
from probe.errors import DataError
from probe.sites import head_names
from probe.subject import Subject
from probe.targets import Positions

FEWEST_FOUND, FEWEST_DEPTHS = 20, 3
RETRIEVES = 0.1  # Wu et al. 2024

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Retrieved:
    """What heads did while answers were written. table: a row a question: item, list, n, phrasing, index, found
    (whether the model's own choice is the value, every token of it), wrote (the tokens written, or forced).

    share: of the needle's different tokens, how many were written while the head's largest weight lay on such a token
    in the needle. value: the same of the value's tokens, in the value. first: the weight on the value where the answer
    is to follow. mass: the weight on the needle, mean over the steps. All (layer, head, question).
    """

    table: pd.DataFrame
    share: Array
    value: Array
    first: Array
    mass: Array

    @property
    def found(self) -> npt.NDArray[np.bool_]:
        """Whether each question was answered with the value."""
        return self.table["found"].to_numpy(dtype=bool)

    def only(self, kept: npt.NDArray[np.bool_]) -> Retrieved:
        """The questions that are kept, (question,)."""
        parts = (self.share, self.value, self.first, self.mass)
        return Retrieved(self.table[kept].reset_index(drop=True), *(part[..., kept] for part in parts))

    def untestable(self) -> str | None:
        """Why the score says nothing: fewer than 20 values found, or at fewer than three depths (how far down the list,
        from 0 to 1); else None.
        """
        found = self.table[self.found]
        depths = len(set((found["index"] / (found["n"] - 1).clip(lower=1)).round(2)))
        if self.found.sum() >= FEWEST_FOUND and depths >= FEWEST_DEPTHS:
            return None
        return (
            f"{int(self.found.sum())} values were found, at {depths} depths; the retrieval score takes {FEWEST_FOUND} "
            f"at {FEWEST_DEPTHS}"
        )

    def by_place(self, what: str) -> Array:
        """(layer, head): the mean over places (length and index) of the mean of `share`, `value`, `first` or `mass` at
        each, so that a place where much is found does not count for more.
        """
        places = self.table.groupby(["n", "index"]).indices.values()
        values = getattr(self, what)
        return np.asarray(np.mean([values[..., at].mean(-1) for at in places], axis=0))

    def of(self, what: str, heads: Sequence[tuple[int, int]]) -> dict[str, Array]:
        """`share`, `value`, `first` or `mass` of some heads: name -> (question,)."""
        return {name: getattr(self, what)[at] for name, at in zip(head_names(heads), heads, strict=True)}

    def score(self, what: str = "share") -> Array:
        """(layer, head): `by_place` of `share` or `value` over the questions answered with the value (Wu et al. 2024);
        NaN where that is untestable.
        """
        if self.untestable() is not None:
            return np.full(self.share.shape[:2], np.nan)
        return self.only(self.found).by_place(what)


def generated(subject: Subject, asked: Sequence[Lookup], *, extra: int = 0) -> Retrieved:
    """Let the model answer (greedily, as many tokens as the longest needle and `extra`), then read its heads.

    Questions with one prompt are answered once and counted for the value that the answer begins with: those about a
    name that is not there have every value of their list. Raises UnsupportedModel for a model that writes none.
    """
    by_prompt: dict[Positions, list[Lookup]] = {}
    for one in asked:
        by_prompt.setdefault(one.ids, []).append(one)
    longest = max(len(one.needle) for one in asked) + extra
    chosen, wrote, found = [], [], []
    first = [same[0] for same in by_prompt.values()]
    for numbers in alike([len(one.ids) + longest for one in first]):
        group = [first[i] for i in numbers]
        written = subject.generate([g.prompt for g in group], max_new_tokens=longest, batch_size=len(group))
        for one, new in zip(group, written.new_ids, strict=True):
            same = by_prompt[one.ids]
            right = [s for s in same if new[: len(s.value)] == s.value_ids]
            chosen.append((right or same)[0])
            wrote.append(new)
            found.append(bool(right))
    return _read(subject, chosen, wrote, found)


def forced(subject: Subject, asked: Sequence[Lookup]) -> Retrieved:
    """Force each needle on the model as its answer: every question counts. found: whether the model would have chosen
    the value itself, token by token.
    """
    return _read(subject, asked, [one.needle_ids for one in asked], None)


def _read(
    subject: Subject, asked: Sequence[Lookup], wrote: Sequence[Positions], found: Sequence[bool] | None
) -> Retrieved:
    """One pass over each prompt with what was written. found: None to see it in the model's own choices."""
    subject.anatomy.check_even()
    if not asked:
        raise DataError("there is no question to read heads on.")
    shape = subject.n_layers, subject.n_heads, len(asked)
    made = {name: np.full(shape, np.nan) for name in ("share", "value", "first", "mass")}
    right = [False] * len(asked) if found is None else list(found)
    longest = max(map(len, wrote))
    for chosen in alike([len(one.ids) + longest for one in asked]):
        texts = [(*asked[i].ids, *wrote[i][:-1]) for i in chosen]
        rows = [list(range(len(asked[i].ids) - 1, len(t))) for i, t in zip(chosen, texts, strict=True)]
        greedy, seen = _run(subject, texts, rows, logits=found is None)
        for layer in range(subject.n_layers):
            pattern = seen["pattern", layer].float()
            for place, i in enumerate(chosen):
                mine = pattern[place, :, : len(rows[place])]
                for name, value in _steps(mine, asked[i], wrote[i]).items():
                    made[name][layer, :, i] = value
        for place, i in enumerate(chosen):
            if found is None:
                right[i] = greedy[place][: len(asked[i].value)] == asked[i].value_ids
    columns = {name: [getattr(one, name) for one in asked] for name in ("item", "list", "n", "phrasing", "index")}
    texts_of = [subject.tokenizer.decode(list(ids)) for ids in wrote]
    return Retrieved(pd.DataFrame({**columns, "found": right, "wrote": texts_of}), **made)


def _steps(pattern: Tensor, one: Lookup, wrote: Positions) -> dict[str, Array]:
    """(head,) of each measure. pattern: (head, step, key), the rows that chose what was written."""
    top = pattern.argmax(-1)
    ids = torch.tensor(one.ids + wrote, device=top.device)
    same = ids[top] == torch.tensor(wrote, device=top.device)
    needle, value = (torch.tensor(p, device=top.device) for p in (one.needle, one.value))
    return {
        "share": _share(same & torch.isin(top, needle), wrote, one.needle_ids),
        "value": _share(same & torch.isin(top, value), wrote, one.value_ids),
        "first": pattern[:, 0, list(one.value)].sum(-1).double().cpu().numpy(),
        "mass": pattern[..., list(one.needle)].sum(-1).mean(-1).double().cpu().numpy(),
    }


def _share(hits: Tensor, wrote: Positions, wanted: Positions) -> Array:
    """(head,): of the different tokens wanted, those written at a step that hits. hits: (head, step)."""
    kinds = sorted(set(wanted))
    written = torch.tensor([[token == kind for kind in kinds] for token in wrote], device=hits.device)
    return np.asarray((hits[..., None] & written).any(1).double().mean(-1).cpu().numpy())


def _run(
    subject: Subject, texts: Sequence[Positions], rows: Sequence[Sequence[int]], *, logits: bool
) -> tuple[list[Positions], Capture]:
    """The tokens that the model would choose at each row, where logits are wanted, and the pattern of these rows."""
    batch = make_batch(subject.anatomy, texts, range(len(texts)))
    seen = Capture(subject.anatomy, ["pattern"], rows=row_tensor(rows, batch), frames=batch.frames)
    if not logits:
        with torch.no_grad(), seen:
            subject.anatomy.backbone(**batch.inputs)
        return [], seen
    read = sorted({r for mine in rows for r in mine})
    with torch.no_grad(), seen:
        best = logits_at(subject, batch, read).argmax(-1).tolist()
    return [tuple(best[b][read.index(r)] for r in mine) for b, mine in enumerate(rows)], seen


def key_effect(
    asked: Retrieved, absent: Retrieved, heads: Sequence[tuple[int, int]], *, what: str = "value", seed: int = 0
) -> pd.DataFrame:
    """How much a head's score owes to what is asked for: `what` of the same needles with the question, and with one for
    a name that is not there, paired within lists. Columns: layer, head, asked, absent, difference, low, high (95 %
    interval over lists), p (one-sided sign-flip), p_holm (over the heads), lists.

    asked, absent: both `forced`. Raises DataError where a needle is in `asked` alone.
    """
    places = [list(zip(*(r.table[c] for c in ("list", "n", "index")), strict=True)) for r in (asked, absent)]
    wanted, place = places[0], {at: i for i, at in enumerate(places[1])}
    if missing := [at for at in wanted if at not in place]:
        raise DataError(f"{missing[0][0]} is asked about, but not without its names.")
    order = [place[at] for at in wanted]
    pairs = [(getattr(asked, what)[at], getattr(absent, what)[at][order]) for at in heads]
    own, other = (np.array(part) for part in zip(*pairs, strict=True))
    grouped = stats.by_cluster(own - other, list(asked.table["list"]))
    low, high = stats.interval(grouped, seed=seed, shares=False)
    p = stats.sign_flip(grouped.weighted, seed=seed)
    return pd.DataFrame(
        {
            "layer": [layer for layer, _ in heads],
            "head": [head for _, head in heads],
            "asked": own.mean(-1),
            "absent": other.mean(-1),
            "difference": grouped.overall,
            "low": low,
            "high": high,
            "p": p,
            "p_holm": stats.holm(p),
            "lists": len(grouped.counts),
        }
    )
