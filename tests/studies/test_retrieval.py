"""The retrieval study, on a small untrained model: its sentence and its tables come from the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf

import probe
from probe.runner.findings import Findings
from probe.studies import haystack, retrieval
from probe.subject import Subject


@pytest.fixture(scope="module")
def small(smollm2: Subject) -> Subject:
    """SmolLM2's tokenizer and shape of model, two small layers, untrained."""
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        vocab_size=smollm2.model.config.vocab_size,  # type: ignore[union-attr]
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    return probe.load(tf.LlamaForCausalLM(config), smollm2.tokenizer, name="small")


@pytest.fixture(scope="module")
def found(small: Subject) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(retrieval.LISTS, "quick", 6)
        patch.setitem(retrieval.SIZES, "quick", {5: (0, 1, 2, 3, 4), 6: (0, 3, 5)})
        patch.setitem(retrieval.CALIBRATED, "quick", 2)
        patch.setitem(retrieval.MASKS, "quick", ((2,), 3, 5))
        patch.setattr(retrieval, "TOP", 3)
        patch.setattr(retrieval, "SHOWN", 2)
        return retrieval.retrieval(small, profile="quick", seed=0)


def test_an_untrained_model_fetches_nothing_and_the_page_says_so(found: Findings) -> None:
    assert found.answer.startswith("Untestable in small: ")
    counts = found.tables["counts"].frame.set_index("measure")
    assert "score" not in counts.index
    assert counts.loc["value step, forced", "of"] == 8
    assert any("Untestable" in paragraph for paragraph in found.sections[0].text)
    assert (found.tables["key_effect"].frame["p_holm"] > 0.05).all()


def test_tables_are_those_of_the_lists(found: Findings) -> None:
    heads = found.tables["heads"].frame
    best = found.tables["places"].frame
    assert len(heads) == 8
    assert list(best["index"]) == [0, 1, 2, 3, 4]
    assert best.iloc[0, -1] == 3, "the best heads of index 0 are all among themselves"
    for name in ("value", "first", "mass"):
        by_place = found.tables[name].frame
        assert by_place["lists"].max() == 3, "half of the lists choose heads"
        assert by_place.groupby("head").size().unique().tolist() == [5]
    (view,) = found.views
    assert [plot.table for plot in view.panels] == ["watched", "value", "first", "mass"]
    assert len(found.tables["prompts"].frame) == 3 * 5
    assert found.tables["watched"].frame["value"].mean() == pytest.approx(
        found.tables["prompts"].frame["correct"].mean()
    )
    assert found.tables["calibrated_by_index"].frame["lists"].unique().tolist() == [2]
    masks = found.tables["masks"].frame
    assert list(masks["heads taken away"]) == ["2 by retrieval score", "2 by value step"]
    assert masks["accuracy with all"].nunique() == 1
    assert len(found.data) == 2


@pytest.fixture(scope="module")
def hay(small: Subject) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(haystack.SIZE, "quick", haystack.Size({10: 3}, (10, 2), (64, 128), 2, 2, 3, (200,)))
        return haystack.haystack(small, profile="quick", seed=0)


def test_the_sentence_has_the_numbers_of_the_tables(hay: Findings) -> None:
    changes = hay.tables["filler_changes"].frame.set_index(["filler", "index"])
    assert f"by {changes.loc[('filler after', 9), 'change']:+.2f}, and before it" in hay.answer
    needle = hay.tables["needle"].frame
    alone = needle[needle["phrasing"] == "alone"]["value"].mean()
    assert f"in {alone:.2f} of cases alone" in hay.answer
    assert np.isclose(changes["change"], changes["after"] - changes["before"]).all()


def test_every_task_is_there(hay: Findings) -> None:
    assert set(hay.tables["json_ends"].frame["phrasing"]) == {"10 words", "10 UUIDs"}
    assert set(hay.tables["json_added"].frame["phrasing"]) == {"10 words"}
    assert set(hay.tables["needle"].frame["n"]) == {64, 128}
    assert list(hay.tables["page"].frame["depth, %"]) == [50, 100]
    assert hay.tables["long"].frame["tokens"].between(180, 300).all()
    assert (hay.tables["timing_long"].frame["peak memory, MB"] > 100).all()


def test_every_task_has_its_prompts_under_it(hay: Findings) -> None:
    """Questions of the half that chose no head; what was answered is what the figure above says."""
    assert [view.name for view in hay.views] == [f"{p}_by_index" for p in ("words", "hidden", "before", "after")]
    for view, questions in zip(hay.views, (5, 5, 3, 3), strict=True):
        assert view.prompts is not None
        prompts = hay.tables[view.prompts.table].frame
        assert len(prompts) == questions
        right = hay.tables[view.panels[0].table].frame.set_index("index")["value"]
        assert prompts.groupby("index")["correct"].mean().to_dict() == pytest.approx(right.to_dict())
        tokens = hay.tables[view.prompts.tokens].frame
        assert set(tokens["prompt"]) <= set(prompts["prompt"])
        assert tokens.groupby("prompt")["role"].apply(lambda roles: (roles == "target").any()).all()
