"""The study of induction heads on a model whose one induction head was written by hand."""

from __future__ import annotations

import pytest

import probe
from probe.models import planted
from probe.studies import induction_heads as study


def test_the_written_head_is_named_and_copying_depends_on_it() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.SIZES, "quick", (4, 8))
        patch.setattr(study, "HEADS", 1)
        tokenizer = probe.load("planted:induction").tokenizer
        subject = probe.load(planted.build("induction", n_heads=16), tokenizer, name="many heads")
        found = study.induction_heads(subject, profile="quick", seed=0)
    assert found.answer.startswith("It does: without the 1 heads of many heads that look most at what followed")
    assert "(1.0)" in found.answer
    assert found.tables["picked"].frame["head"].tolist() == ["1.0"]
    assert len(found.tables["random_groups"].frame) == 8
    scores = found.tables["scores"].frame
    assert len(scores) == 32
    assert scores["picked"].sum() == 1
    strings, tokens = found.tables["strings"].frame, found.tables["strings_tokens"].frame
    assert strings["correct"].tolist() == [1.0] * 4
    assert (strings["likeliest"] == strings["what followed before"]).all()
    assert tokens.groupby("prompt")["1.0"].sum().tolist() == pytest.approx([1.0] * 4)
    targets = tokens[tokens["role"] == "target"]
    assert targets.groupby("prompt")["1.0"].sum().tolist() == pytest.approx([1.0] * 4, abs=1e-3)
    assert set(zip(targets["prompt"], targets["token"], strict=True)) == set(
        zip(strings["prompt"], " " + strings["what followed before"], strict=True)
    )
