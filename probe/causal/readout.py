"""What the model answers, in nats: the log-probability of each candidate, every one of its tokens counted.

A causal model reads the prompt up to where the answer follows, and the candidate behind it. A masked model reads the
whole text with a mask in each token of the candidate's place, and predicts all of them at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probe.capture.batch import Batch, make_batch
from probe.capture.capture import Capture
from probe.capture.edit import Edit
from probe.subject import Subject
from probe.targets import Positions, Unit


@dataclass(frozen=True)
class Asked:
    """One prompt that is run to score candidates of a unit.

    unit: its number. ids: the prompt. swapped: the minimal pair's, aligned token by token, or None.
    terms: (candidate, row, token): the log-probability of `token` at position `row` is a part of the candidate's;
    candidate 0 is the right answer. Rows count from the prompt's start.
    """

    unit: int
    ids: Positions
    swapped: Positions | None
    terms: tuple[tuple[int, int, int], ...]

    @property
    def rows(self) -> Positions:
        return tuple(sorted({row for _, row, _ in self.terms}))


def unreadable(subject: Subject) -> str | None:
    """Why this subject cannot be asked anything, or None."""
    if subject.anatomy.is_encoder_decoder:
        return "an encoder-decoder's answer is not read yet"
    if not subject.has_logits:
        return "the model has no language-model head"
    if not subject.is_causal and getattr(subject.tokenizer, "mask_token_id", None) is None:
        return "the model sees later tokens, and its tokenizer has no mask token to ask with"
    return None


def asked(subject: Subject, units: Sequence[Unit], *, most: int | None = None) -> list[Asked]:
    """The prompts that score the candidates of units with an answer. most: how many wrong candidates; None: all.

    Candidates of one token share their prompt in a causal model, and in a masked one.
    """
    made = []
    mask: int = getattr(subject.tokenizer, "mask_token_id", None) or 0
    for number, unit in enumerate(units):
        if unit.answer is None:
            continue
        candidates = [unit.answer.right, *unit.answer.wrong[:most]]
        by_prompt: dict[Positions, list[int]] = {}  # what stands in the answer's place -> the candidates it scores
        for index, candidate in enumerate(candidates):
            place: Positions = candidate[:-1] if subject.is_causal else (mask,) * len(candidate)
            by_prompt.setdefault(place, []).append(index)
        at = unit.answer.read_at
        first = at if subject.is_causal else at + 1
        rest = () if subject.is_causal else unit.ids[at + 1 + len(unit.answer.right) :]
        for place, indices in by_prompt.items():
            terms = [(i, first + n, token) for i in indices for n, token in enumerate(candidates[i])]
            swapped = None if unit.swapped is None else (*unit.swapped[: at + 1], *place, *rest)
            made.append(Asked(number, (*unit.ids[: at + 1], *place, *rest), swapped, tuple(terms)))
    return made


Scores = dict[int, Tensor]
"""Candidate -> log-probability, nats."""


def scores_of(logits: Tensor, rows: Positions, prompts: Sequence[Asked]) -> list[Scores]:
    """Each prompt's candidates. logits: (prompt, row, vocab) at the positions `rows`."""
    found = []
    for one, prompt in zip(logits, prompts, strict=True):
        normal = {row: one[rows.index(row)].float().log_softmax(-1) for row in prompt.rows}
        scores: Scores = {}
        for candidate, row, token in prompt.terms:
            scores[candidate] = scores.get(candidate, 0.0) + normal[row][token]
        found.append(scores)
    return found


def contrast(scores: Scores) -> Tensor:
    """A prompt's part of log p(right) - log p(first wrong); the parts of a unit's prompts add up to it."""
    parts = [scores[c] if c == 0 else -scores[c] for c in (0, 1) if c in scores]
    return torch.stack(parts).sum()


class Asking(NamedTuple):
    """One pass over prompts: what their candidates got, the batch they were, and what was captured on the way."""

    scores: list[Scores]
    batch: Batch
    seen: Capture

    @property
    def contrasts(self) -> npt.NDArray[np.float64]:
        """Each prompt's, (prompt,) nats."""
        return np.array([float(contrast(s)) for s in self.scores])


def ask(
    subject: Subject,
    prompts: Sequence[Asked],
    ids: Sequence[Positions],
    *,
    sites: Sequence[str] = (),
    edits: Sequence[Edit] = (),
    gradients: bool = False,
) -> Asking:
    """Run prompts in one batch, padded on the right. ids: of each prompt or of its minimal pair. sites, edits,
    gradients: as for `Capture`.
    """
    batch = make_batch(subject.anatomy, ids, range(len(ids)))
    rows = tuple(sorted({row for p in prompts for row in p.rows}))
    seen = Capture(subject.anatomy, sites, edits=edits, frames=batch.frames, gradients=gradients)
    with torch.set_grad_enabled(gradients), seen:
        logits = logits_at(subject, batch, rows)
    return Asking(scores_of(logits, rows, prompts), batch, seen)


def logits_at(subject: Subject, batch: Batch, rows: Sequence[int]) -> Tensor:
    """(prompt, row, vocab): the logits of a batch at some rows, made for these alone where the model allows it."""
    if "logits_to_keep" in inspect.signature(subject.model.forward).parameters:
        kept = torch.tensor(rows, device=batch.inputs["input_ids"].device)
        some: Tensor = subject.model(**batch.inputs, logits_to_keep=kept).logits
        return some
    every: Tensor = subject.model(**batch.inputs).logits
    return every[:, list(rows)]
