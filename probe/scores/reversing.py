"""An encoder-decoder trained to write strings backwards: whether it does, and where its cross-attention looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from scipy import stats

from probe.capture.run import Run
from probe.models import reversal
from probe.models.reversal import String
from probe.models.train import Recipe
from probe.scores.sight import aim
from probe.subject import Subject, load

BATCH = 32  # strings a step


class Learned(NamedTuple):
    """One training. losses: of each step's batch, nats per token. right, right_far: of the strings, and of as many that
    are longer than any in training, those written backwards without a mistake.
    """

    seed: int
    subject: Subject
    losses: tuple[float, ...]
    right: int
    right_far: int


class Best(NamedTuple):
    """The cross-attention head that aims best on one half of the strings, as it does on the other half.

    share, low, high, chance: as in `sight.aim`. untrained: the best share of any head of an untrained copy.
    """

    seed: int
    layer: int
    head: int
    share: float
    low: float
    high: float
    chance: float
    untrained: float


def learn(seed: int, steps: int, strings: Sequence[String]) -> Learned:
    """Train a model that never sees `strings`, and have it write them backwards."""
    trained = reversal.train(Recipe(steps=steps, batch_size=BATCH, seed=seed), strings)
    subject = load(trained.model, reversal.tokenizer(), name="reverser")
    far = reversal.held_out(len(strings), seed=seed, length=reversal.FAR)
    return Learned(seed, subject, trained.losses, right(subject, strings), right(subject, far))


def right(subject: Subject, strings: Sequence[String]) -> int:
    """How many strings it writes backwards and ends, without a mistake, the likeliest token each time."""
    answers = [reversal.answer(s) for s in strings]
    texts = [reversal.source(s) for s in strings]
    written = subject.generate(texts, max_new_tokens=max(map(len, answers)), batch_size=len(texts)).new_ids
    return sum(ids[: len(wanted)] == wanted for ids, wanted in zip(written, answers, strict=True))


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    found = stats.binomtest(right, n).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def read(subject: Subject, strings: Sequence[String], sites: str | Sequence[str]) -> Run:
    """Run the model while its decoder reads the right answer of each string, up to each step (teacher forcing)."""
    return subject.run(
        [reversal.source(s) for s in strings],
        sites,
        decoder=[reversal.read_by_decoder(s) for s in strings],
        batch_size=50,
    )


def aims(learned: Learned, strings: Sequence[String], *, seed: int) -> tuple[pd.DataFrame, Best]:
    """How often each cross-attention head looks hardest at the symbol to be written: `sight.aim` on the second half of
    the strings, with a column `untrained`, the same head's share in an untrained copy; and the head that is best on the
    first half.
    """

    def measured(subject: Subject, some: Sequence[String]) -> pd.DataFrame:
        return aim(read(subject, some, "cross.pattern"), [reversal.mirrored(len(s)) for s in some], seed=seed)

    half = len(strings) // 2
    picked = int(measured(learned.subject, strings[:half])["share"].argmax())
    found = measured(learned.subject, strings[half:])
    untrained = measured(untrained_copy(learned), strings[half:])["share"]
    row = found.iloc[picked]
    share, low, high, chance = (float(row[name]) for name in ("share", "low", "high", "chance"))
    best = Best(learned.seed, int(row["layer"]), int(row["head"]), share, low, high, chance, float(untrained.max()))
    return found.assign(untrained=untrained), best


def untrained_copy(learned: Learned) -> Subject:
    """The same architecture with other first weights than the training began with."""
    return learned.subject.random_copy(learned.seed + 1)


def pattern(subject: Subject, string: String, layer: int, head: int) -> pd.DataFrame:
    """One cross-attention head while a string is written backwards. Columns: key (what the encoder has read), query
    (what is written), weight; both numbered, so that no two are alike.
    """
    run = read(subject, [string], "cross.pattern")
    keys = [f"{n} {token}" for n, token in enumerate(run.prompts[0].names)]
    queries = [f"{n + 1} {symbol}" for n, symbol in enumerate((*reversed(string), reversal.END))]
    return cells(run["cross.pattern", layer][0, head].tolist(), queries, keys)


def cells(weights: Sequence[Sequence[float]], queries: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """A pattern (query, key) as one row for each cell: query, key, weight."""
    return pd.DataFrame(
        [
            {"query": query, "key": key, "weight": weight}
            for query, row in zip(queries, weights, strict=True)
            for key, weight in zip(keys, row, strict=True)
        ]
    )
