"""A needle in running text: it lies at its depth, the text is as long as asked for, and nothing else gives it away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import probe
from probe.data.running import passage, sentences, sentences_of
from probe.data.texts import Dataset, Labelled
from probe.errors import DataError, UnknownName
from probe.subject import Subject


def labelled(dataset: Dataset) -> list[Labelled]:
    return [i for i in dataset.items if isinstance(i, Labelled)]


def around(item: Labelled) -> tuple[str, str]:
    """The text before and after the sentence of the needle."""
    start = item.text.rfind(". ", 0, item.target.start)
    end = item.text.index(".", item.target.end) + 1
    return item.text[: start + 1].strip(), item.text[end : item.text.index(" What did")].strip()


def test_the_needle_lies_at_its_depth() -> None:
    for item in labelled(probe.data.needle((120, 400), (0.0, 0.5, 1.0), texts=3)):
        before, after = around(item)
        words = len(before.split()), len(after.split())
        assert int(item.tags["n"]) - 20 <= sum(words) <= int(item.tags["n"])
        depth = int(item.tags["index"]) / 100
        assert abs(words[0] - depth * sum(words)) < 20
        if depth in (0, 1):
            assert not (after if depth else before)
        assert item.question is not None
        assert len({item.question.right, *item.question.wrong}) == 10
        assert item.target.text(item.text) == item.question.right
        assert not any(f" {wrong} " in item.text for wrong in item.question.wrong)
        assert len(re.findall(rf"\b{item.question.right}\b", item.text)) == 2, "in the needle, and as the answer"


def test_a_text_has_one_needle_and_one_filler_at_every_depth() -> None:
    items = labelled(probe.data.needle((200,), (0.0, 0.3, 1.0), texts=2))
    for text in ("text-001", "text-002"):
        mine = [i for i in items if i.cluster == text]
        assert len({i.question for i in mine}) == 1
        assert len({" ".join(around(i)).strip() for i in mine}) == 1


def test_rivals_are_in_the_text_with_all_candidates() -> None:
    for item in labelled(probe.data.needle((300,), (0.5,), texts=2, rivals=9)):
        assert item.question is not None
        assert sorted(s.text(item.text) for s in item.foils) == sorted(item.question.wrong)
        facts = [s for s in item.text.split(". ") if " at the market" in s and "What" not in s]
        assert len(facts) == 10
    for item in labelled(probe.data.needle((300,), (0.5,), texts=2, rivals=2, absent=True)):
        name = item.text.split(" What did ")[1].split()[0]
        assert name not in item.text.split(" What did ")[0]


def test_lengths_are_in_whatever_is_counted(smollm2: Subject) -> None:
    def count(text: str) -> int:
        return len(smollm2.tokenizer(text).input_ids)

    (item,) = labelled(probe.data.needle((256,), (0.5,), texts=1, count=count))
    assert 256 - 30 <= count(" ".join(around(item))) <= 256


def test_sentences_come_from_a_file(shared_data: Path, tmp_path: Path) -> None:
    play = shared_data / "tinyshakespeare" / "input.txt"
    held = " ".join(play.read_text().split())
    for item in labelled(probe.data.needle((60,), (0.0,), texts=2, path=play)):
        assert around(item)[1] in held
    short = tmp_path / "short.txt"
    short.write_text("One two three. Four\nfive.  Six!")
    assert sentences_of(short) == ("One two three.", "Four five.", "Six!")
    with pytest.raises(DataError, match="its sentences are 6 long together, a text of 60 was asked for"):
        probe.data.needle((60,), path=short)
    short.write_text("  \n")
    with pytest.raises(DataError, match="there are no sentences in it"):
        sentences_of(short)
    with pytest.raises(DataError, match="does not exist; give a text file"):
        sentences_of(tmp_path / "none.txt")


def test_running_text_is_plain_endless_and_seeded() -> None:
    drawn = [s for s, _ in zip(sentences(3), range(500), strict=False)]
    assert len(set(drawn)) > 450
    assert all(s[0].isupper() and s.endswith(".") and "{" not in s for s in drawn)
    assert drawn[:5] == [s for s, _ in zip(sentences(3), range(5), strict=False)] != drawn[5:10]
    assert 240 <= len(passage(240).split()) < 270


def test_bad_numbers_name_what_is_allowed() -> None:
    with pytest.raises(DataError, match="rivals=10: 0 to 9 can be had, and 44 names and 48 things fit"):
        probe.data.needle(rivals=10)
    with pytest.raises(DataError, match=r"depths=\(1.5,\): give some of each, depths from 0 to 1"):
        probe.data.needle(depths=(1.5,))
    with pytest.raises(DataError, match="length=3: no sentence is as short"):
        probe.data.needle((3,))
    with pytest.raises(UnknownName, match="Did you mean 'market'"):
        probe.data.needle(phrasing="markets")
