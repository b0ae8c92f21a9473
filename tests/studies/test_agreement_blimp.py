"""The study of BLiMP's agreement: what is asked, what is described, and what cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.studies import agreement_blimp as study
from probe.subject import Subject


def cut(shared_data: Path, folder: Path, name: str) -> Path:
    source = shared_data / "blimp" / f"{name}.jsonl"
    if not source.is_file():
        pytest.skip("BLiMP is not here")
    path = folder / source.name
    path.write_text("\n".join(source.read_text(encoding="utf-8").split("\n")[:240]), encoding="utf-8")
    return path


def test_a_set_with_a_noun_between_is_judged_beside_its_rules(
    shared_data: Path, tmp_path: Path, minilm: Subject
) -> None:
    found = study.agreement_blimp(minilm, data=cut(shared_data, tmp_path, "principle_A_c_command"))
    rivals = found.tables["rivals"].frame.set_index("rival")["value"]
    assert rivals["first"] == 1
    assert rivals["nearest"] == 0
    assert not found.tables["heads"].frame["passed"].any()
    prompts, tokens = found.tables["prompts"].frame, found.tables["tokens"].frame
    assert list(tokens.columns[3:]) == list(found.tables["best"].frame["head"][: study.HEADS])
    best = found.tables["best"].frame.iloc[0]
    assert prompts["correct"].mean() == pytest.approx(best["accuracy"], abs=0.05), "the mean over nouns, there"
    assert len(prompts) == found.tables["heads"].frame["n_units"].iloc[0]
    for row in prompts[: study.PROMPTS].to_dict("records"):
        mine = tokens[tokens["prompt"] == row["prompt"]]
        target = mine[mine["role"] == "target"]
        assert "".join(target["token"]).strip() == row["noun"]
        assert target.iloc[:, 3].sum() == pytest.approx(row["attention on it"], abs=1e-5)
    assert "untestable here, for the model has no language-model head" in found.answer
    assert any("no head can be told from the rule 'first'" in n for n in found.notes)
    assert found.notes[0].startswith("BLiMP (Warstadt et al. 2020): 240 pairs")


def test_a_set_without_one_is_described(shared_data: Path, tmp_path: Path, minilm: Subject) -> None:
    found = study.agreement_blimp(minilm, data=cut(shared_data, tmp_path, "anaphor_number_agreement"))
    best = found.tables["best"].frame
    assert list(best.columns) == ["head", "attention on the noun", "low", "high", "chance"]
    assert "its attention on the noun is" in found.answer
    assert "rivals" not in found.tables
    prompts = found.tables["prompts"].frame
    assert len(prompts) == found.tables["heads"].frame["n_units"].iloc[0]
    assert set(prompts["correct"]) == {0.0, 1.0}
    assert prompts["attention on it"][prompts["correct"] == 1].min() > 0
