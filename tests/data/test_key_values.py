"""Pairs in JSON: it holds what is asked for where it says; Liu et al.'s files are read as another reader does."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

import probe
from probe.data.texts import Dataset, Labelled
from probe.errors import DataError, UnknownName
from probe.subject import Subject


def labelled(dataset: Dataset) -> list[Labelled]:
    return [i for i in dataset.items if isinstance(i, Labelled)]


def read_back(item: Labelled) -> tuple[list[tuple[str, str]], str]:
    """The pairs and the key asked for, by Python's own JSON reader."""
    start = item.text.index("{")
    pairs, end = json.JSONDecoder(object_pairs_hook=list).raw_decode(item.text[start:])
    return pairs, item.text[start + end :].split('Key: "')[1].split('"')[0]


@pytest.mark.parametrize("kind", ["words", "uuids"])
def test_the_json_holds_the_value_where_the_index_says(kind: str) -> None:
    for item in labelled(probe.data.key_values(6, lists=4, kind=kind)):  # type: ignore[arg-type]
        pairs, key = read_back(item)
        assert len(pairs) == len(dict(pairs)) == 6
        assert pairs[int(item.tags["index"])][0] == key
        assert item.question is not None
        assert item.question.right == dict(pairs)[key] == item.target.text(item.text)
        assert {item.question.right, *item.question.wrong} == set(dict(pairs).values())
        assert [s.text(item.text) for s in item.foils] == [v for k, v in pairs if k != key]
        assert item.text[: item.question.read_at].endswith('Corresponding value: "')
        assert item.text[item.question.read_at :] == f'{item.question.right}"'


def test_the_pair_moves_and_the_others_stay_in_order() -> None:
    by_list = defaultdict(list)
    for item in labelled(probe.data.key_values(5, lists=3)):
        by_list[item.cluster].append(read_back(item))
    assert len(by_list) == 3
    for asked in by_list.values():
        (key,) = {key for _, key in asked}
        (rest,) = {tuple(p for p in pairs if p[0] != key) for pairs, _ in asked}
        assert len(rest) == 4
        assert [[k for k, _ in pairs].index(key) for pairs, _ in asked] == [0, 1, 2, 3, 4]


def test_an_absent_key_is_in_no_pair() -> None:
    asked = labelled(probe.data.key_values(5, lists=2))
    absent = labelled(probe.data.key_values(5, lists=2, absent=True))
    for one, other in zip(asked, absent, strict=True):
        pairs, key = read_back(other)
        assert key not in dict(pairs)
        assert pairs == read_back(one)[0]
        assert one.question is not None
        assert other.question is not None
        assert (other.question.right, other.question.wrong) == (one.question.right, one.question.wrong)
        assert other.target.text(other.text) == one.target.text(one.text)


def test_the_answer_follows_its_quotation_mark_as_in_the_list(smollm2: Subject) -> None:
    def fits(word: str) -> bool:
        return len(smollm2.tokenizer(f'"{word}"').input_ids) == 3

    for unit in smollm2.bind(probe.data.key_values(8, lists=2, indices=(3,), fits=fits)).units:
        assert unit.answer is not None
        assert unit.answer.right == tuple(unit.ids[p] for p in unit.rows[0].target)
        assert len(unit.answer.wrong) == 7
        for wrong, foil in zip(unit.answer.wrong, unit.rows[0].foils, strict=True):
            assert wrong == tuple(unit.ids[p] for p in foil)


def test_published_files_are_read_as_they_are(shared_data: Path) -> None:
    path = shared_data / "lost_in_the_middle" / "kv-retrieval-75_keys.jsonl.gz"
    with gzip.open(path, "rt") as file:
        records = [json.loads(next(file)) for _ in range(2)]
    items = labelled(probe.data.key_values_file(path, lists=2, indices=(0, 74)))
    assert len(items) == 4
    for item, record in zip(items, [records[0], records[0], records[1], records[1]], strict=True):
        pairs, key = read_back(item)
        assert key == record["key"]
        assert sorted(pairs) == sorted(map(tuple, record["ordered_kv_records"]))
        assert item.question is not None
        assert item.question.right == record["value"]
    few = labelled(probe.data.key_values_file(path, lists=1, n=5, indices=(2,)))
    pairs, key = read_back(few[0])
    others = [tuple(p) for p in records[0]["ordered_kv_records"] if p[0] != key]
    assert [p for p in pairs if p[0] != key] == others[:4]


GOOD = {"ordered_kv_records": [["a", "1"], ["b", "2"], ["c", "3"]], "key": "b", "value": "2"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: it is not JSON"),
        ("[]", "line 2: there is no field 'ordered_kv_records'"),
        (json.dumps({**GOOD, "key": "z"}), "line 2, field 'key': 'z' with its value is there 0 times"),
        (json.dumps({**GOOD, "ordered_kv_records": [["a"]]}), "field 'ordered_kv_records': each pair is a list"),
        (json.dumps({**GOOD, "ordered_kv_records": 5}), "field 'ordered_kv_records': each pair is a list"),
        (json.dumps({**GOOD, "ordered_kv_records": [["b", "2"], ["a", "1"]]}), "lists have 2 to 3 pairs"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(DataError, match=reason):
        probe.data.key_values_file(path)


def test_bad_numbers_name_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="n=200 pairs: 204 words fit, enough for 2 to 101 pairs; kind='uuids' takes"):
        probe.data.key_values(200)
    with pytest.raises(DataError, match=r"indices=\(5,\) of a pair among n=5: they run from 0 to 4"):
        probe.data.key_values(5, indices=(5,))
    with pytest.raises(UnknownName, match="Did you mean 'uuids'"):
        probe.data.key_values(5, kind="uuid")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="does not exist; such files are named kv-retrieval"):
        probe.data.key_values_file(tmp_path / "none.jsonl")
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(DataError, match="line 1: n=4 of its 3 pairs; allowed are 2 to 3"):
        probe.data.key_values_file(path, n=4)
