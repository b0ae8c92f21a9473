"""Where heads look by place alone: on words in random order, on strings that come again, and on natural text.

What a head does on one of these it need not do on the others: a head that looks at the previous token in text may look
for syntax, one that looks at a fixed distance in strings of one period may be an induction head. So they stay apart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pandas as pd

from probe.data import PLAIN, language
from probe.errors import DataError
from probe.subject import Subject

TOKENS = 64  # of a prompt
KINDS = ("random words", "repeated words", "natural text")
SINK = 0.3  # Gu et al. 2024: mean weight on the first key, at a stated length
POSITIONAL = 0.9  # Voita et al. 2019: share of rows whose largest weight is at one and the same offset
FIRST_ROW = 8  # rows before it have too few keys for every offset to be had
OFFSETS = tuple(range(-8, 9))


def texts(subject: Subject, kind: str, *, n: int = 12, tokens: int = TOKENS, seed: int = 0) -> list[str]:
    """n prompts of one of `KINDS`, each as many words as fit into so many tokens. Raises DataError for a model whose
    context is shorter.
    """
    if subject.max_positions is not None and subject.max_positions < tokens:
        raise DataError(f"{subject.name} reads {subject.max_positions} tokens, not {tokens}.")
    rng = random.Random(f"{kind} {seed}")
    made = []
    for _ in range(n):
        if kind == "natural text":
            words = _natural(subject, rng, tokens)
        else:
            drawn = rng.sample(pool(subject, seed), tokens)
            words = drawn if kind == "random words" else _repeated(drawn, rng, tokens)
        made.append(_fitting(subject, words, tokens))
    return made


def pool(subject: Subject, seed: int = 0, most: int = 1500) -> list[str]:
    """Words that are one token of the subject's, drawn from its vocabulary."""
    if subject.language == "synthetic":
        return [w for w in language.WORDS if w.isalpha()]
    vocabulary = {
        t.lstrip("\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}\N{LOWER ONE EIGHTH BLOCK}") for t in _known(subject)
    }
    words = sorted(w for w in vocabulary if w.isascii() and w.isalpha() and w.islower() and 3 <= len(w) <= 9)
    random.Random(seed).shuffle(words)
    sizes = subject.tokenizer([f" {w}" for w in words[: 3 * most]], add_special_tokens=False).input_ids
    return [w for w, ids in zip(words, sizes, strict=False) if len(ids) == 1][:most]


def _known(subject: Subject) -> list[str]:
    return list(subject.tokenizer.get_vocab())


def _natural(subject: Subject, rng: random.Random, tokens: int) -> list[str]:
    words: list[str] = []
    while len(words) < tokens:
        words += (language.draw(rng) if subject.language == "synthetic" else rng.choice(PLAIN)).split()
    return words


def _repeated(drawn: Sequence[str], rng: random.Random, tokens: int) -> list[str]:
    """A string of 16 words, again and again, with gaps of random length between."""
    string, others = list(drawn[:16]), list(drawn[16:])
    words: list[str] = []
    while len(words) < tokens:
        gap = rng.randint(0, 6)
        words += others[:gap] + string
        others = others[gap:] + others[:gap]
    return words


def _fitting(subject: Subject, words: Sequence[str], tokens: int) -> str:
    """As many of the words as make at most so many tokens, special tokens among them."""
    kept = list(words[:tokens])
    while len(subject.tokenizer(" ".join(kept), verbose=False).input_ids) > tokens:
        kept.pop()
    return " ".join(kept)


def placed(subject: Subject, prompts: Sequence[str]) -> pd.DataFrame:
    """One row a head, means over prompts of means over rows: layer, head, first (weight on the first key), self,
    previous, next, the other offsets as "-2" to "+8" (those that a row can see), distance (tokens, the mean of how far
    away the weight lies), offset and share (the offset at which most rows have their largest weight, and how many
    do, from row `FIRST_ROW` on), entropy (share of the largest possible).
    """
    longest = max(len(subject.encode(p)) for p in prompts)
    reach = tuple(range(-longest + 1, 1 if subject.is_causal else longest))
    seen = subject.stream(list(prompts), offsets=reach, batch_size=4)
    lengths = [len(subject.encode(p)) for p in prompts]
    by_offset = np.nanmean(seen.offsets.double().numpy(), axis=0)  # (layer, head, offset), of the rows that have it
    columns = {
        "first": _mean_of_rows(seen.first.double().numpy(), lengths),
        **{_name(o): by_offset[..., reach.index(o)] for o in OFFSETS if o in reach},
        "distance": _distance(seen.offsets.double().numpy(), reach, lengths),
        "entropy": _entropy(seen.entropy.double().numpy(), lengths, causal=subject.is_causal),
    }
    columns["offset"], columns["share"] = _usual(seen.argmax.numpy(), lengths)
    layer, head = np.indices((subject.n_layers, subject.n_heads))
    table = {"layer": layer.ravel(), "head": head.ravel()}
    return pd.DataFrame({**table, **{name: np.asarray(v).ravel() for name, v in columns.items()}})


def _name(offset: int) -> str:
    return {-1: "previous", 0: "self", 1: "next"}.get(offset, f"{offset:+d}")


def _mean_of_rows(values: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """(prompt, layer, head, query) -> (layer, head): over rows from the second on, then over prompts."""
    return np.asarray(np.mean([values[i, :, :, 1:n].mean(-1) for i, n in enumerate(lengths)], axis=0))


def _distance(offsets: np.ndarray, reach: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
    """Mean distance of the weight. offsets: (prompt, layer, head, offset), means over the rows that have such a key."""
    found = []
    for i, n in enumerate(lengths):
        rows = np.array([max(0, n - abs(o)) for o in reach])  # how many rows have a key there
        total = np.nan_to_num(offsets[i]) * rows
        found.append((total * np.abs(reach)).sum(-1) / total.sum(-1))
    return np.asarray(np.mean(found, axis=0))


def _entropy(values: np.ndarray, lengths: Sequence[int], *, causal: bool) -> np.ndarray:
    found = []
    for i, n in enumerate(lengths):
        most = np.log(np.arange(2, n + 1) if causal else np.full(n - 1, n))
        found.append((values[i, :, :, 1:n] / most).mean(-1))
    return np.asarray(np.mean(found, axis=0))


def _usual(argmax: np.ndarray, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The most frequent offset of the largest weight, and its share of rows. argmax: (prompt, layer, head, query)."""
    shape = argmax.shape[1:3]
    usual, share = np.zeros(shape), np.zeros(shape)
    for layer, head in np.ndindex(*shape):
        rows = np.concatenate(
            [argmax[i, layer, head, FIRST_ROW:n] - np.arange(FIRST_ROW, n) for i, n in enumerate(lengths)]
        )
        values, times = np.unique(rows, return_counts=True)
        usual[layer, head], share[layer, head] = values[times.argmax()], times.max() / len(rows)
    return usual, share
