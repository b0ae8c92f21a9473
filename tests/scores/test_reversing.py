"""A reverser that has learned its task: what it writes and where it looks, by loops of our own."""

from __future__ import annotations

import pytest
import torch

from probe.models import reversal
from probe.scores.reversing import Learned, aims, learn, pattern, read, right, untrained_copy, wilson

STRINGS = reversal.held_out(24, seed=1, length=2)


@pytest.fixture(scope="module")
def learned() -> Learned:
    """Trained on strings of two symbols, which takes a few seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reversal, "SHORTEST", 2)
        patch.setattr(reversal, "LONGEST", 2)
        return learn(0, 160, STRINGS)


def test_right_counts_what_a_plain_loop_writes(learned: Learned) -> None:
    model, tokenizer = learned.subject.model, reversal.tokenizer()
    count = 0
    for string in STRINGS:
        source = torch.tensor([tokenizer(reversal.source(string)).input_ids])
        written = [1]
        for _ in range(3):
            with torch.no_grad():
                logits = model(input_ids=source, decoder_input_ids=torch.tensor([written])).logits
            written.append(int(logits[0, -1].argmax()))
        count += tokenizer.decode(written[1:]) == f"{string[1]} {string[0]} ."
    assert learned.right == right(learned.subject, STRINGS) == count
    assert count > 12, "it has learned something, so that the count says something"


def test_its_cross_attention_finds_the_mirror_and_an_untrained_copys_does_not(learned: Learned) -> None:
    found, best = aims(learned, STRINGS, seed=0)
    half = STRINGS[12:]
    run = read(learned.subject, half, "cross.pattern")
    hits = sum(
        int(run["cross.pattern", best.layer][b, best.head, step, :4].argmax()) == 2 - step
        for b in range(len(half))
        for step in range(2)
    )
    assert best.share == pytest.approx(hits / (2 * len(half)))
    assert best.chance == pytest.approx(1 / 4)
    assert found["untrained"].max() == best.untrained
    assert len(found) == 2 * 4


def test_a_copy_is_untrained(learned: Learned) -> None:
    copied = untrained_copy(learned)
    assert right(copied, STRINGS) == 0
    assert copied.weights_hash != learned.subject.weights_hash


def test_a_pattern_is_named_by_what_is_read_and_written(learned: Learned) -> None:
    found = pattern(learned.subject, ("c", "a"), 1, 2)
    assert found["key"].unique().tolist() == ["0 <bos>", "1 c", "2 a", "3 ."]
    assert found["query"].unique().tolist() == ["1 a", "2 c", "3 ."]
    assert found.groupby("query")["weight"].sum().tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    weights = read(learned.subject, [("c", "a")], "cross.pattern")["cross.pattern", 1][0, 2]
    assert found.set_index(["query", "key"])["weight"]["2 c", "1 c"] == pytest.approx(float(weights[1, 1]))


def test_wilson_interval_of_half() -> None:
    z, n = 1.959964, 100
    centre, spread = 0.5, z * (0.25 / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    assert wilson(50, n) == pytest.approx((centre - spread, centre + spread), abs=1e-5)
