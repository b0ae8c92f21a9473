"""Prompts in batches: every one once, as many as fit."""

from __future__ import annotations

import itertools
import random

import pytest

from probe.capture.batch import TOKENS_PER_BATCH, alike, batches, copies
from probe.errors import OutOfRange


def test_prompts_of_like_length_are_together_and_no_batch_could_hold_the_next() -> None:
    rng = random.Random(0)
    lengths = [rng.randrange(1, 60) for _ in range(80)] + [500]
    found = list(alike(lengths, 200))
    assert sorted(i for batch in found for i in batch) == list(range(81))
    in_order = [lengths[i] for batch in found for i in batch]
    assert in_order == sorted(lengths)
    for batch, after in itertools.pairwise(found):
        assert len(batch) * lengths[batch[-1]] <= 200, "with padding to the longest"
        assert (len(batch) + 1) * lengths[after[0]] > 200
    assert found[-1] == [80], "one that is too long alone is run alone"
    assert list(alike([])) == []


def test_prompts_of_one_length_fill_batches() -> None:
    assert copies(5, TOKENS_PER_BATCH // 2) == [range(2), range(2, 4), range(4, 5)]
    assert copies(2, 2 * TOKENS_PER_BATCH) == [range(1), range(1, 2)]
    with pytest.raises(OutOfRange, match="batch_size=0"):
        batches(3, 0)
