"""What a tiny GPT is trained on: batches without end, and held-out data that no batch is made of.

    corpus = SyntheticLanguage(tokenizer)                          # texts of probe.data.language
    corpus = TextFile(read_text(path), tokenizer, positions=128)   # windows of any text
    corpus.batch(random.Random(0), 64)                             # [ids (64, pos)]

A corpus holds no state: a batch depends on the random numbers it is given, and on nothing else, so that training can
be stopped and go on later.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import torch
from torch import Tensor

from probe.data import language
from probe.errors import DataError, UnknownName
from probe.models.tokenizer import BEGIN_ID, PAD_ID, pieces

HELD_OUT = 0.1  # the share of the data that is kept for evaluation
OPENING = 5  # words that decide whether a text of the synthetic language is held out
EVALUATION_TEXTS = 512
EVALUATION_WINDOWS = 64


class Corpus(Protocol):
    """Where a training's batches come from. Each row of ids begins with <bos> and may be filled up with <pad>."""

    def batch(self, rng: random.Random, size: int, step: int = 0) -> list[Tensor]:
        """The next `size` rows, as one or more tensors of ids (row, pos); rows of one tensor are of similar length.
        step: how many batches came before.
        """

    @property
    def evaluation(self) -> list[Tensor]:
        """The held-out rows, as tensors of ids (row, pos): always the same."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the data are, in JSON's types: equal for equal data only."""


def held_out(text: str) -> bool:
    """Whether a text of the synthetic language is never trained on: a tenth of them, told from their first words.

    All texts that begin with the same `OPENING` words are on the same side, so that a question is held out together
    with its answer and with whatever may follow it.
    """
    return crc32(" ".join(text.split()[:OPENING]).encode()) % 1000 < 1000 * HELD_OUT


class Stage(NamedTuple):
    """A part of a training that has texts of its own: for so many steps, tasks drawn as often as their weights say."""

    steps: int
    tasks: Mapping[str, float]


class SyntheticLanguage:
    """Texts drawn from `probe.data.language`, each a row of its own. tasks: how often each task is drawn, as weights;
    default all alike. first: stages that come before that, one after the other (a curriculum). Held-out texts are of
    `tasks` throughout. Raises UnknownName for a task that does not exist.
    """

    def __init__(
        self, tokenizer: Any, tasks: Mapping[str, float] | None = None, *, first: Sequence[Stage] = ()
    ) -> None:
        self.tasks = dict.fromkeys(language.tasks(), 1.0) if tasks is None else dict(tasks)
        self.first = tuple(first)
        for weights in (self.tasks, *(stage.tasks for stage in self.first)):
            for task in weights:
                if task not in language.tasks():
                    raise UnknownName.of("task of the synthetic language", task, language.tasks())
        self._ids: dict[str, int] = tokenizer.get_vocab()

    def batch(self, rng: random.Random, size: int, step: int = 0) -> list[Tensor]:
        """`size` texts that are not held out, in two halves: the shorter ones and the longer ones."""
        rows = sorted(self._rows(rng, size, self.tasks_at(step), held=False), key=len)
        return [padded(half) for half in (rows[: size // 2], rows[size // 2 :]) if half]

    def tasks_at(self, step: int) -> Mapping[str, float]:
        """The weights of the tasks at a step, counted from 0."""
        for stage in self.first:
            if step < stage.steps:
                return stage.tasks
            step -= stage.steps
        return self.tasks

    @cached_property
    def evaluation(self) -> list[Tensor]:
        """Held-out texts, from a stream of random numbers of their own."""
        rows = sorted(self._rows(random.Random("evaluation"), EVALUATION_TEXTS, self.tasks, held=True), key=len)
        return [padded(rows[at : at + 64]) for at in range(0, len(rows), 64)]

    @property
    def identity(self) -> dict[str, Any]:
        """The generator's name and the weights of its tasks; a sample's hash stands for the generator itself."""
        sample = hashlib.sha256(repr([t.tolist() for t in self.evaluation]).encode()).hexdigest()
        return {
            "name": "probe.data.language",
            "language": "synthetic",
            "first": [[stage.steps, dict(stage.tasks)] for stage in self.first],
            "tasks": self.tasks,
            "evaluation_sha256": sample,
        }

    def _rows(self, rng: random.Random, size: int, tasks: Mapping[str, float], *, held: bool) -> list[list[int]]:
        rows: list[list[int]] = []
        names, weights = list(tasks), list(tasks.values())
        while len(rows) < size:
            text = language.draw(rng, tasks=rng.choices(names, weights))
            if held_out(text) == held:
                # Every word is a token, and the words are apart: no need to ask the tokenizer 64 times a step.
                rows.append([BEGIN_ID, *(self._ids[word] for word in text.split())])
        return rows


class TextFile:
    """A text, cut at nine tenths of its characters: random windows of the first part are trained on, the second is
    held out. A window is <bos> and `positions` tokens, of which each is predicted from those before it.

    name: what the text is called in records. Raises DataError where a part does not fill one window.
    """

    def __init__(self, text: str, tokenizer: Any, *, positions: int, name: str = "text") -> None:
        self.positions = positions
        training, evaluation = (_ids(tokenizer, part) for part in split(text))
        if min(len(training), len(evaluation)) < positions:
            raise DataError(
                f"{name} is too short: it has {len(training) + len(evaluation):,} tokens, of which the last tenth "
                f"({len(evaluation):,}) is held out and must fill a window of {positions} positions. That needs about "
                f"{round(positions / HELD_OUT):,} tokens: give a longer text, or fewer positions."
            )
        self.training = torch.tensor(training)
        self._held_out = torch.tensor(evaluation)
        self._identity = {
            "name": name,
            "language": "english",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "tokens": len(training) + len(evaluation),
            "tokens_held_out": len(evaluation),
        }

    def batch(self, rng: random.Random, size: int, step: int = 0) -> list[Tensor]:
        """`size` windows from anywhere in the first part, (size, 1 + positions)."""
        last = len(self.training) - self.positions
        return [self._windows(self.training, [rng.randint(0, last) for _ in range(size)])]

    @cached_property
    def evaluation(self) -> list[Tensor]:
        """Windows of the held-out part that do not overlap, spread over it evenly; at most 64."""
        n = len(self._held_out) // self.positions
        kept = [n * i // min(n, EVALUATION_WINDOWS) for i in range(min(n, EVALUATION_WINDOWS))]
        return [self._windows(self._held_out, [i * self.positions for i in kept])]

    @property
    def identity(self) -> dict[str, Any]:
        """The text's name, hash and size."""
        return self._identity

    def _windows(self, ids: Tensor, starts: Sequence[int]) -> Tensor:
        rows = torch.stack([ids[start : start + self.positions] for start in starts])
        return torch.cat([torch.full((len(rows), 1), BEGIN_ID), rows], dim=1)


def split(text: str) -> tuple[str, str]:
    """The part that is trained on, and the held-out part: the last tenth of the characters."""
    cut = len(text) - round(len(text) * HELD_OUT)
    return text[:cut], text[cut:]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises DataError if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"the text file {path} does not exist.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {error.start} cannot be read.") from error
    except OSError as error:
        raise DataError(f"the text file {path} cannot be read: {error.strerror}.") from error
    if not text.strip():
        raise DataError(f"{path} is empty: there is nothing to train on.")
    return text


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids of different lengths as one tensor (row, pos), filled up with <pad> on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD_ID] * (longest - len(row))] for row in rows])


def _ids(tokenizer: Any, text: str) -> list[int]:
    """The ids of a whole text without <bos>; piece by piece, which bounds the memory."""
    encode = tokenizer.backend_tokenizer.encode
    return [i for piece in pieces(text) for i in encode(piece, add_special_tokens=False).ids]
