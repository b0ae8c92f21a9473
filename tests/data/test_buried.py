"""Lists of facts: every index asks about the same list, spans are where they should be, bad numbers are refused."""

from __future__ import annotations

from collections import defaultdict

import pytest

import probe
from probe.data.buried import PHRASINGS
from probe.data.texts import Dataset, Labelled
from probe.errors import DataError, UnknownName
from probe.subject import Subject


def labelled(dataset: Dataset) -> list[Labelled]:
    return [i for i in dataset.items if isinstance(i, Labelled)]


@pytest.mark.parametrize("phrasing", PHRASINGS)
def test_spans_and_questions_say_what_the_text_says(phrasing: str) -> None:
    for item in labelled(probe.data.buried(6, lists=8, phrasing=phrasing, chat=("<u>", "<a>"))):
        assert item.question is not None
        things = [s.text(item.text) for s in (item.target, *item.foils)]
        assert things == [item.question.right, *item.question.wrong]
        assert len(set(things)) == 6
        start, answer = item.text[: item.question.read_at], item.text[item.question.read_at :]
        assert answer == f" {item.question.right}"
        assert start.startswith("<u>")
        name = start.split("<a>")[1].split()[0]
        facts = start.split("<u>")[1].split(". ")
        assert facts[int(item.tags["index"])].split()[0] == name
        assert f" {item.question.right} " in facts[int(item.tags["index"])]


def test_a_list_is_asked_about_at_every_index() -> None:
    lists = defaultdict(set)
    for item in labelled(probe.data.buried(5, lists=4)):
        lists[item.cluster].add(item.text.split(" What did")[0])
    assert len(lists) == 4
    assert all(len(texts) == 1 for texts in lists.values())


def test_the_absent_name_is_asked_about_the_same_lists() -> None:
    asked = {i.cluster: i.text.split(" What did")[0] for i in labelled(probe.data.buried(5, lists=4))}
    for item in labelled(probe.data.buried(5, lists=4, absent=True)):
        facts, question = item.text.split(" What did ")
        assert facts == asked[item.cluster]
        assert question.split()[0] not in facts
        assert item.question is not None
        in_order = sorted((s.start, s.text(item.text)) for s in (item.target, *item.foils))
        assert [thing for _, thing in in_order] == [item.question.right, *item.question.wrong]


def test_seeds_phrasings_and_sizes_draw_apart() -> None:
    texts = [probe.data.buried(5, lists=1, seed=s).items[0].text for s in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_words_that_do_not_fit_are_left_out(smollm2: Subject) -> None:
    def one(word: str) -> bool:
        return len(smollm2.tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1

    bound = smollm2.bind(probe.data.buried(20, lists=2, indices=(0, 10, 19), fits=one))
    assert len(bound.units) == 6
    for unit in bound.units:
        assert unit.answer is not None
        assert all(len(c) == 1 for c in (unit.answer.right, *unit.answer.wrong))


def test_bad_numbers_name_what_is_allowed() -> None:
    with pytest.raises(DataError, match=r"n=60 facts: 44 names and 48 things fit, enough for 2 to 43 facts"):
        probe.data.buried(60)
    with pytest.raises(DataError, match=r"indices=\(0, 5\) of a fact among n=5: they run from 0 to 4"):
        probe.data.buried(5, indices=(0, 5))
    with pytest.raises(UnknownName, match="Did you mean 'market'"):
        probe.data.buried(5, phrasing="markets")


def test_filler_stands_around_the_list_and_changes_nothing_in_it() -> None:
    plain = labelled(probe.data.buried(4, lists=2))
    for filler in (("Rain fell.", ""), ("", "Rain fell."), ("Snow fell.", "Rain fell.")):
        filled = labelled(probe.data.buried(4, lists=2, filler=filler))
        for one, other in zip(plain, filled, strict=True):
            facts, question = one.text.split(" What did")
            parts = (filler[0], facts, filler[1], f"What did{question}")
            assert other.text == " ".join(p for p in parts if p)
            assert other.question is not None
            assert other.target.text(other.text) == other.question.right == one.target.text(one.text)
