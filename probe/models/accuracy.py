"""How well a tiny GPT knows the synthetic language: the share of held-out questions that it answers right, by task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from scipy.stats import binomtest
from torch import Tensor

from probe.data import language
from probe.data.texts import Labelled, Question
from probe.models.corpora import held_out, padded
from probe.models.gpt import GPT
from probe.models.tokenizer import BEGIN_ID

BATCH = 128  # prompts
PER_FRAME = 64  # items of each sentence frame; a tenth of them is held out


def task_accuracy(model: GPT, tokenizer: Any, seed: int = 1) -> pd.DataFrame:
    """Forced choice on the questions of each task of `language.dataset(task, seed)` that training never saw.

    One row a task: task, n (questions), right, accuracy (share answered right), low, high (Wilson's 95 % interval). A
    question is answered right if its right word is more probable than every wrong one, at the row that reads it.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    rows = []
    for task in language.tasks():
        asked = sorted(_questions(task, seed), key=lambda pair: len(pair[0]))
        right = sum(
            answer
            for at in range(0, len(asked), BATCH)
            for answer in _answers(model, vocabulary, asked[at : at + BATCH])
        )
        interval = binomtest(right, len(asked)).proportion_ci(0.95, method="wilson")
        rows.append((task, len(asked), right, right / len(asked), float(interval.low), float(interval.high)))
    return pd.DataFrame(rows, columns=["task", "n", "right", "accuracy", "low", "high"])


def _questions(task: str, seed: int) -> Iterator[tuple[list[str], Question]]:
    """The words before each held-out question, and the question."""
    for item in language.dataset(task, seed, PER_FRAME).items:
        if isinstance(item, Labelled) and item.question is not None and held_out(item.text):
            yield item.text[: item.question.read_at].split(), item.question


@torch.no_grad()
def _answers(model: GPT, vocabulary: dict[str, int], asked: list[tuple[list[str], Question]]) -> Iterator[bool]:
    prompts = [[BEGIN_ID, *(vocabulary[word] for word in words)] for words, _ in asked]
    logits: Tensor = model(padded(prompts)).logits
    for row, prompt, (_, question) in zip(logits, prompts, asked, strict=True):
        last = row[len(prompt) - 1]
        yield all(bool(last[vocabulary[question.right]] > last[vocabulary[wrong]]) for wrong in question.wrong)
