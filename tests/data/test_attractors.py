"""Agreement in English: numbers are balanced, and pairs differ in the subject's number alone."""

from __future__ import annotations

from collections import Counter

import pytest

import probe
from probe.data.attractors import ADVERBS, PHRASES, attractors
from probe.data.texts import Labelled
from probe.errors import DataError
from probe.subject import Subject


@pytest.mark.parametrize("n", [4, 8])
def test_subject_and_attractor_are_independent_in_every_phrase(n: int) -> None:
    items = [i for i in attractors(n).items if isinstance(i, Labelled)]
    assert len(items) == len(PHRASES) * n
    counts = Counter((i.cluster, i.tags["number"], i.tags["attractor"]) for i in items)
    assert set(counts.values()) == {n // 4}
    by_name = {i.item: i for i in items}
    for item in items:
        assert item.question is not None
        subject, attractor = item.target.text(item.text), item.foils[0].text(item.text)
        plural = subject.endswith("s")
        assert item.text.endswith(f" {item.query.text(item.text)} {'are' if plural else 'is'}")
        assert item.tags == {
            "number": "plural" if plural else "singular",
            "attractor": "plural" if attractor.endswith("s") else "singular",
        }
        assert item.pair is not None
        other = by_name[item.pair]
        mine, theirs = item.text.split(), other.text.split()
        assert [n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b] == [1, len(mine) - 1]


def test_adverbs_are_spread_over_both_numbers() -> None:
    items = [i for i in attractors().items if isinstance(i, Labelled)]
    counts = Counter((i.query.text(i.text), i.tags["number"]) for i in items)
    assert set(counts) == {(a, n) for a in ADVERBS for n in ("singular", "plural")}
    assert len(set(counts.values())) == 1


def test_both_models_measure_every_item(smollm2: Subject, minilm: Subject) -> None:
    for subject in (smollm2, minilm):
        bound = subject.bind(probe.data.attractors(4))
        assert (len(bound.units), bound.excluded) == (len(PHRASES) * 4, ())


def test_each_is_aligned_with_the_subject_of_the_other_number(smollm2: Subject) -> None:
    bound = smollm2.bind(probe.data.attractors(4))
    pairs = {u.ids: u for u in bound.units}
    for unit in bound.units:
        assert unit.swapped is not None
        other = pairs[unit.swapped]
        assert unit.answer is not None
        assert other.answer is not None
        assert unit.answer.right in other.answer.wrong
        assert other.rows[0].target == unit.rows[0].target
        assert sum(a != b for a, b in zip(unit.ids, other.ids, strict=True)) == 2, "the subject, and the verb behind it"


def test_other_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="items_per_phrase=6"):
        attractors(6)
