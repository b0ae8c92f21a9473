"""What a model says next: its likeliest tokens, the probability of whole words, and what it writes by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from probe.errors import PromptError
from probe.models.distribution import distribution, entropy
from probe.scores.stream import check_predicts, logit_lens
from probe.subject import Subject
from probe.tokens.counts import visible


@dataclass(frozen=True)
class Setting:
    """How tokens are drawn; see `probe.models.sampling.choose`."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __str__(self) -> str:
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top-k {self.top_k}"] if self.top_k is not None else []
        parts += [f"top-p {self.top_p:g}"] if self.top_p is not None else []
        return ", ".join(parts)


TEMPERATURES = (0.0, 0.3, 0.7, 1.0, 1.5)
SETTINGS = (
    *(Setting(temperature) for temperature in TEMPERATURES),
    *(Setting(top_k=k) for k in (10, 50)),
    *(Setting(top_p=p) for p in (0.5, 0.9)),
)


@dataclass(frozen=True)
class Next:
    """What a model predicts after a text. logits: (vocab,). top: the likeliest tokens, see `likeliest`. lens: the logit
    lens, see `probe.scores.stream`.
    """

    logits: Tensor
    top: pd.DataFrame
    lens: pd.DataFrame

    @property
    def word(self) -> str:
        """The likeliest token, without the space before it."""
        return str(self.top["token"][0]).removeprefix("␣")

    @property
    def leads_from(self) -> int:
        """The block, counted from 1, from which on the token leads that is likeliest in the end."""
        behind = [layer for layer, rank in zip(self.lens["layer"], self.lens["rank"], strict=True) if rank > 1]
        return 1 + max((layer + 1 for layer in behind), default=0)


def next_token(subject: Subject, text: str) -> Next:
    """Raises UnsupportedModel for a model that predicts no next token, PromptError."""
    check_predicts(subject)
    logits = subject.run(text, ["logits"], rows=[-1])["logits"][0, 0].double()
    return Next(logits, likeliest(subject, logits), logit_lens(subject, text))


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text, spaces visible; by its name in the vocabulary where it is only part of a character."""
    text = tokenizer.decode([token])
    return str(tokenizer.convert_ids_to_tokens(token)) if not text or "\ufffd" in text else visible(text)


def likeliest(subject: Subject, logits: Tensor, k: int = 10) -> pd.DataFrame:
    """The k likeliest tokens by logits (vocab,). Columns: rank (from 1), token, id, logit, probability."""
    probabilities = logits.softmax(-1)
    top = torch.topk(logits, k).indices.tolist()
    return pd.DataFrame(
        {
            "rank": range(1, k + 1),
            "token": [token_text(subject.tokenizer, i) for i in top],
            "id": top,
            "logit": [float(logits[i]) for i in top],
            "probability": [float(probabilities[i]) for i in top],
        }
    )


def by_temperature(logits: Tensor, ranks: int = 20) -> pd.DataFrame:
    """The probabilities of the likeliest tokens at each of `TEMPERATURES` above 0. logits: (vocab,).

    Columns: rank (from 1), probability, temperature (as text).
    """
    frames = [
        pd.DataFrame(
            {
                "rank": range(1, ranks + 1),
                "probability": distribution(logits, temperature=t).sort(descending=True).values[:ranks],
                "temperature": f"temperature {t:g}",
            }
        )
        for t in TEMPERATURES
        if t > 0
    ]
    return pd.concat(frames, ignore_index=True)


def word_probabilities(subject: Subject, heads: Mapping[str, str], words: Sequence[str]) -> pd.DataFrame:
    """The probability of each word after each text (name -> text), all of the word's tokens together.

    A word is counted whatever follows, so a longer word that begins with its tokens counts as well. One row for each
    word; columns: word, tokens, and one for each name.
    Raises UnsupportedModel for a model that predicts no next token, PromptError where a word's tokens do not follow
    those of the text.
    """
    check_predicts(subject)
    table: dict[str, list[Any]] = {"word": list(words), "tokens": []}
    for name, text in heads.items():
        start = subject.encode(text).ids
        wholes = [f"{text} {word}" for word in words]
        ids = [subject.encode(whole).ids for whole in wholes]
        for word, each in zip(words, ids, strict=True):
            if each[: len(start)] != start or len(each) == len(start):
                raise PromptError(f"the tokens of {word!r} do not follow those of {text!r}, so it cannot be scored.")
        rows = [range(len(start) - 1, len(each) - 1) for each in ids]
        logits = subject.run(wholes, ["logits"], rows=rows)["logits"].double()
        table["tokens"] = [len(each) - len(start) for each in ids]
        table[name] = [_joint(rows_of, each[len(start) :]) for rows_of, each in zip(logits, ids, strict=True)]
    return pd.DataFrame(table)


def _joint(logits: Tensor, ids: Sequence[int]) -> float:
    """The probability of a word's tokens, each given those before it. logits: (row, vocab), one row a token or more."""
    chosen = logits[: len(ids)].log_softmax(-1).gather(-1, torch.tensor(ids).unsqueeze(-1))
    return float(chosen.sum().exp())


def sampled(
    subject: Subject, text: str, settings: Sequence[Setting], *, runs: int, tokens: int, seed: int
) -> pd.DataFrame:
    """What is drawn from under each setting, and what comes out of it: `runs` continuations of `tokens` tokens.

    One row for each setting. Columns: setting, temperature, top_k, top_p, entropy (nats, of the first token's
    distribution), kept (tokens that can be drawn as the first), distinct (different outputs among the runs), repeated
    (whether all runs came out the same when drawn again from the same seed), example (the first run).
    Raises UnsupportedModel for a model that predicts no next token, PromptError.
    """
    check_predicts(subject)
    logits = subject.run(text, ["logits"], rows=[-1])["logits"][0, 0].double()
    rows = []
    for setting in settings:
        options: dict[str, Any] = {
            "temperature": setting.temperature,
            "top_k": setting.top_k,
            "top_p": setting.top_p,
        }
        p = distribution(logits, **options)
        # One batch: chance goes on from row to row, so the runs differ though the seed is one.
        once, again = (
            subject.generate([text] * runs, max_new_tokens=tokens, seed=seed, batch_size=runs, **options)
            for _ in range(2)
        )
        rows.append(
            {
                "setting": str(setting),
                **options,
                "entropy": float(entropy(p)),
                "kept": int((p > 0).sum()),
                "distinct": len(set(once.new_ids)),
                "repeated": once.new_ids == again.new_ids,
                "example": visible(once.texts[0]).replace("␣", " ").strip(),
            }
        )
    return pd.DataFrame(rows)
