"""Balanced over order and gender, aligned pairs, and the right name follows the ending."""

from __future__ import annotations

from collections import Counter

import pytest

import probe
from probe.data.texts import Labelled
from probe.errors import DataError
from probe.subject import Subject


def items(n: int) -> list[Labelled]:
    found = [i for i in probe.data.asked_names(n).items if isinstance(i, Labelled)]
    assert len(found) == 42 * n
    return found


@pytest.mark.parametrize("n", [2, 4, 8, 12])
def test_everything_is_halved(n: int) -> None:
    for tag in ("right", "order", "gender"):
        counts = Counter(i.tags[tag] for i in items(n))
        assert len(counts) == 2
        assert len(set(counts.values())) == 1


def test_a_pair_differs_in_the_pronoun_and_the_answer() -> None:
    by_name = {i.item: i for i in items(8)}
    for item in by_name.values():
        assert item.pair is not None
        other = by_name[item.pair]
        assert (item.question, other.question) != (None, None)
        assert item.question is not None
        assert item.text == item.text[: item.question.read_at] + " " + item.question.right
        mine, theirs = item.text.split(), other.text.split()
        pronouns = {(a, b) for a, b in zip(mine, theirs, strict=True) if a != b}
        assert len(pronouns) == 2
        assert item.query.text(item.text) in ("he", "she")
        assert item.target.text(item.text) == item.question.right == other.foils[0].text(other.text)


def test_smollm2_measures_every_item(smollm2: Subject) -> None:
    bound = smollm2.bind(probe.data.asked_names(4))
    assert len(bound.units) == 168
    assert not bound.excluded
    assert all(u.swapped is not None and u.answer is not None and len(u.answer.right) == 1 for u in bound.units)


def test_other_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="items_per_frame=6"):
        probe.data.asked_names(6)
