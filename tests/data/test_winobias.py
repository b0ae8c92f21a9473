"""WinoBias as published: brackets become spans, pairs of lines share their occupations, bad lines are named."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from probe.data.texts import Labelled
from probe.errors import DataError
from probe.subject import Subject

PRO = """1 [The developer] argued with the designer because [he] did not like the design.
2 The developer argued with [the designer] because [her] idea cannot be implemented.
3 [The cook] thanked the guard because [she] was helped with [her] coat.
4 The cook thanked [the guard] because [he] had helped.
"""


def written(folder: Path, text: str, name: str = "pro_stereotyped_type1.txt.dev") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_spans_are_what_the_brackets_hold(tmp_path: Path) -> None:
    items = [i for i in probe.data.winobias(written(tmp_path, PRO)).items if isinstance(i, Labelled)]
    shown = [(i.query.text(i.text), i.target.text(i.text), i.foils[0].text(i.text)) for i in items]
    assert shown == [
        ("he", "The developer", "the designer"),
        ("her", "the designer", "The developer"),
        ("she", "The cook", "the guard"),
        ("he", "the guard", "The cook"),
    ]
    assert [i.cluster for i in items] == ["pair-001", "pair-001", "pair-002", "pair-002"]
    assert [i.tags["gender"] for i in items] == ["masculine", "feminine", "feminine", "masculine"]
    assert not any(c in i.text for i in items for c in "[]")


def test_in_type_one_a_causal_model_has_not_read_what_decides(
    tmp_path: Path, smollm2: Subject, minilm: Subject
) -> None:
    dataset = probe.data.winobias(written(tmp_path, PRO))
    assert len(minilm.bind(dataset).units) == 4
    with pytest.raises(DataError, match="the deciding words follow the query"):
        smollm2.bind(dataset)
    second = probe.data.winobias(written(tmp_path, PRO, "anti_stereotyped_type2.txt.test"))
    assert len(smollm2.bind(second).units) == 4
    assert {i.tags["stereotype"] for i in second.items if isinstance(i, Labelled)} == {"anti"}


def test_sentences_without_the_other_occupation_are_left_out_and_counted(tmp_path: Path) -> None:
    text = PRO.replace("thanked the guard because [she]", "thanked her guest because [she]")
    dataset = probe.data.winobias(written(tmp_path, text))
    assert len(dataset.items) == 3
    assert "4 sentences, 3 with one mention of each occupation" in dataset.source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PRO + "[The cook] left.\n", r"line 5: expected a number, a space and a sentence"),
        (PRO.replace("[he] had", "he had"), r"line 4: expected one occupation and a pronoun in square brackets"),
        (PRO.split("4 ")[0], r"its 3 sentences are not pairs"),
    ],
)
def test_what_is_malformed_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        probe.data.winobias(written(tmp_path, text))


def test_a_missing_file_says_what_files_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.txt does not exist; WinoBias has files like pro_stereotyped"):
        probe.data.winobias(tmp_path / "none.txt")


def test_the_published_files_are_read(shared_data: Path, minilm: Subject) -> None:
    for kind in ("pro", "anti"):
        for number in (1, 2):
            for part in ("dev", "test"):
                path = shared_data / "winobias" / f"{kind}_stereotyped_type{number}.txt.{part}"
                assert 380 <= len(probe.data.winobias(path).items) <= 396
    bound = minilm.bind(probe.data.winobias(shared_data / "winobias" / "pro_stereotyped_type1.txt.dev"))
    assert len(bound.units) > 380
