"""One prompt, one query word: how much attention each word gets, head by head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from probe.data.texts import Span
from probe.subject import Subject


@dataclass(frozen=True)
class WordAttention:
    """words: the words the query may look at, its own left out. mass: (layer, head, word), attention summed over each
    word's tokens, averaged over the query's. special, itself: (layer, head), the rest: what lies on special tokens and
    on the query's own tokens. first_word: 1 if the first of the words holds position 0, on which attention sinks
    rest, else 0.
    """

    query: str
    words: tuple[str, ...]
    mass: Tensor
    special: Tensor
    itself: Tensor
    first_word: int


def word_attention(subject: Subject, text: str, query: str, *, occurrence: int | None = None) -> WordAttention:
    """Attention from the word `query` to every other word of `text`.

    occurrence: which one, from 0, where the word is there more than once. Raises PromptError, SpanError.
    """
    prompt = subject.encode(text)
    at = prompt.positions(Span.of(text, query, occurrence))
    subject.anatomy.check_even()
    run = subject.run(text, ["pattern"], rows=[at])
    rows = torch.stack([run["pattern", layer][0].mean(1) for layer in range(subject.n_layers)])  # (layer, head, key)
    last = at[-1] if subject.is_causal else len(prompt) - 1
    words = [w for w in prompt.words if not set(w) & set(at) and w[0] <= last]
    mass = torch.stack([rows[..., list(w)].sum(-1) for w in words], -1) if words else rows[..., :0]
    special = [p for p, span in enumerate(prompt.spans) if span is None]
    names = tuple(text[prompt.spans[w[0]].start : prompt.spans[w[-1]].end] for w in words)  # type: ignore[union-attr]
    itself = rows[..., list(at)].sum(-1)
    first_word = int(bool(words) and words[0][0] == 0)
    return WordAttention(query, names, mass, rows[..., special].sum(-1), itself, first_word)
