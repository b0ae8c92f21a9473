"""The study of Liu et al.'s file: its answers are the model's own, its sentence is its tables'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import probe
from probe.errors import DataError
from probe.runner.findings import Findings
from probe.studies import key_value_file as study
from probe.subject import Subject

WORDS = ("apple", "river", "stone", "chair", "bread", "cloud", "horse", "paper", "glass", "tower", "music")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four lists of four pairs, in the layout of the published files."""
    lines = []
    for number in range(4):
        words = WORDS[number:] + WORDS[:number]
        pairs = [[words[2 * i], words[2 * i + 1]] for i in range(4)]
        lines.append(json.dumps({"ordered_kv_records": pairs, "key": pairs[1][0], "value": pairs[1][1]}))
    made = tmp_path_factory.mktemp("liu") / "kv-retrieval-4_keys.jsonl"
    made.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def found(path: Path, smollm2: Subject) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.LISTS, "quick", {3: 4})
        patch.setattr(study, "SHOWN", 2)
        return study.key_value_file(smollm2, data=path)


def test_an_answer_is_right_if_the_model_writes_the_value(found: Findings, path: Path, smollm2: Subject) -> None:
    table = found.tables["accuracy"].frame
    asked = study.pairs(smollm2, path, 3, 4)
    right: dict[int, list[bool]] = {}
    for item in asked.items:
        assert isinstance(item, probe.data.Labelled)
        assert item.question is not None
        prompt = item.text[: item.question.read_at]
        (new,) = smollm2.generate([prompt], max_new_tokens=4).new_ids
        written = smollm2.tokenizer.decode(list(new))
        right.setdefault(int(item.tags["index"]), []).append(written.startswith(item.question.right))
    assert dict(zip(table["index"], table["value"], strict=True)) == {i: sum(r) / len(r) for i, r in right.items()}
    assert 0 < table["value"].mean() <= 1


def test_the_sentence_has_the_numbers_of_the_tables(found: Findings) -> None:
    heads, shape = found.tables["heads"].frame, found.tables["ends"].frame
    best = heads.iloc[0]
    assert f"head {best['head']} looks at the value in {best['value step']:.2f} of the steps" in found.answer
    accuracy = found.tables["accuracy"].frame
    first, last = (accuracy[accuracy["index"] == i]["value"].item() for i in (0, 2))
    assert f"of 3 pairs {accuracy['value'].mean():.2f} (first {first:.2f}, last {last:.2f})" in found.answer
    u = int(((shape["p_holm"] < 0.05) & (shape["u"] > 0)).sum())
    assert f"in {u} of 1 sizes" in found.answer


def test_heads_are_measured_on_lists_that_did_not_choose_them(found: Findings) -> None:
    assert set(found.tables["by_place"].frame["lists"]) == {2}
    assert set(found.tables["heads"].frame["lists"]) == {2}
    assert set(found.tables["accuracy"].frame["lists"]) == {4}


def test_the_prompts_stand_under_their_answers(found: Findings) -> None:
    (view,) = found.views
    prompts, right = found.tables["prompts"].frame, found.tables["watched"].frame
    assert len(prompts) == 2 * 3
    assert prompts.groupby("index")["correct"].mean().tolist() == pytest.approx(right["value"].tolist())
    tokens = found.tables["tokens"].frame
    assert set(tokens.columns[3:]) == set(found.tables["steps"].frame["head"])
    for _, mine in tokens[tokens["role"] == "target"].groupby("prompt"):
        assert "".join(mine["token"]).strip() in WORDS
    assert "2 lists of 3 pairs" in view.caption


def test_values_that_share_a_token_with_the_quotation_mark_are_measured_and_not_shown(
    path: Path, tmp_path: Path, smollm2: Subject
) -> None:
    marked = tmp_path / path.name
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["ordered_kv_records"] = [[key, f"-{value}"] for key, value in row["ordered_kv_records"]]
        row["value"] = f"-{row['value']}"
    marked.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.LISTS, "quick", {3: 4})
        made = study.key_value_file(smollm2, data=marked)
    (view,) = made.views
    assert view.prompts is None
    assert "Their prompts cannot be shown: " in view.caption
    assert set(made.tables["accuracy"].frame["lists"]) == {4}


def test_a_file_with_too_few_pairs_says_so(path: Path, smollm2: Subject) -> None:
    with pytest.raises(DataError, match=r"n=5 of its 4 pairs; allowed are 2 to 4"):
        study.key_value_file(smollm2, data=path)


def test_the_published_file_is_read(shared_data: Path, smollm2: Subject) -> None:
    source = shared_data / "lost_in_the_middle" / "kv-retrieval-75_keys.jsonl.gz"
    if not source.is_file():
        pytest.skip("Liu et al.'s files are not here")
    made = study.pairs(smollm2, source, 10, 2)
    assert [i.tags["index"] for i in made.items if isinstance(i, probe.data.Labelled)] == ["0", "2", "4", "7", "9"] * 2
