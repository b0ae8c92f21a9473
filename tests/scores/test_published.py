"""Published heads beside measured ones, on stand-ins in which a published head does what was published of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import probe
from probe.data.ioi import ROLES
from probe.data.syntax import RELATIONS, syntax
from probe.data.texts import Labelled
from probe.errors import DataError, UnknownName
from probe.runner.findings import Findings
from probe.scores.published import MEASURES, PUBLISHED, best_offset, cat_sentence, claims_of, compare
from probe.studies import published_heads as study
from probe.subject import Subject
from tests.scores import stand_ins


@pytest.fixture(scope="module")
def uncased(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return probe.load(stand_ins.bert_base_uncased(tmp_path_factory.mktemp("hub")), check=False)


@pytest.fixture(scope="module")
def chinese(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return probe.load(stand_ins.bert_base_chinese(tmp_path_factory.mktemp("hub")), check=False)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    words = sorted({w for i in probe.data.ioi().items for w in i.text.replace(",", " ,").split()})
    return probe.load(stand_ins.gpt2(tmp_path_factory.mktemp("hub") / "gpt2", words, previous=(4, 11)), check=False)


def test_in_a_stand_in_of_bert_the_coreference_head_is_the_published_one(uncased: Subject) -> None:
    """It resolves he and she, as it was written to, and no other head does better for coreference."""
    found = compare(uncased, quiet=True)
    row = found.table.set_index("does").loc["coreference"]
    assert (row["head"], row["rank"], row["heads"]) == ("4.3", 1, 144)
    assert (row["published"], row["rule"]) == (0.64, 0.29)
    best = found.best.set_index("does")
    assert best.loc["coreference", "head"] == "4.3"
    assert row["value"] == best.loc["coreference", "value"] > 0.2
    assert set(found.table["does"]) == {"coreference", *RELATIONS}
    assert found.table.set_index("does").loc["det", "rank"] > 1, "nothing was written for syntax"
    assert "coreference" not in found.left_out


def test_in_a_stand_in_of_gpt2_the_previous_token_head_is_the_published_one(gpt2: Subject) -> None:
    found = compare(gpt2, quiet=True)
    row = found.table.set_index(["does", "head"]).loc[("previous token", "4.11")]
    assert row["rank"] == 1
    assert row["value"] > 0.9
    assert len(found.table) == sum(c.model == "gpt2" for c in PUBLISHED) == 16
    assert set(found.table["does"]) == {*ROLES, "previous token"}
    assert "a causal model cannot look" in found.left_out["det"]
    assert "a causal model cannot look" in found.left_out["nsubj"]
    assert set(found.best["does"]) >= {"dobj", "poss", "pobj"} - set(found.left_out)


def test_models_are_known_by_the_last_part_of_their_name(uncased: Subject, minilm: Subject) -> None:
    assert len(claims_of(uncased)) == 6
    assert claims_of(minilm) == ()
    small = Subject(minilm.model, minilm.tokenizer, "bert-base-uncased", check=False)
    assert {c.head for c in claims_of(small)} == {(4, 3)}, "it has six layers only"


def test_from_it_to_the_cat_in_two_languages(uncased: Subject, chinese: Subject, minilm: Subject) -> None:
    found = cat_sentence(chinese, "chinese").set_index("rank").loc[1]
    assert (found["layer"], found["head"]) == (6, 5)
    assert found["cat"] > 0.9
    with pytest.raises(DataError, match="a labelled span splits a token of this tokenizer"):
        cat_sentence(uncased, "chinese")
    with pytest.raises(DataError, match=r"bert-base-uncased does not know the words of .The cat"):
        cat_sentence(uncased, "english")
    english = cat_sentence(minilm)
    ids = minilm.encode("The cat didn't jump onto the table because it was too tired.").ids
    names = minilm.tokenizer.convert_ids_to_tokens(list(ids))
    with torch.no_grad():
        eager = probe.load("minilm", attention="eager", check=False).model
        attention = eager(torch.tensor([ids]), output_attentions=True).attentions[3][0, 7]
    row = english[(english["layer"] == 3) & (english["head"] == 7)].iloc[0]
    assert row["cat"] == pytest.approx(float(attention[names.index("it"), names.index("cat")]), abs=1e-5)
    assert row["table"] == pytest.approx(float(attention[names.index("it"), names.index("table")]), abs=1e-5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_relations_are_labelled_and_no_distance_is_always_right(relation: str, minilm: Subject) -> None:
    dataset = syntax(relation)
    for item in dataset.items:
        assert isinstance(item, Labelled)
        assert item.text.count("  ") == 0
        assert len({item.query, item.target, *item.foils}) == 2 + len(item.foils)
    assert len({i.text for i in dataset.items}) == len(dataset.items)
    bound = minilm.bind(dataset)
    assert len(bound.units) == len(dataset.items)
    assert best_offset(bound)[1] < 0.75
    assert len({u.cluster for u in bound.units}) == 12
    with pytest.raises(UnknownName, match=r"no relation named 'dobjj'\. Did you mean 'dobj'"):
        syntax("dobjj")


def test_labels_of_one_sentence_by_hand() -> None:
    first = {name: syntax(name).items[7] for name in RELATIONS}
    text = first["det"].text
    words = text.rstrip(".").split()
    shown = {name: (i.query.text(text), i.target.text(text)) for name, i in first.items()}
    assert shown["pobj"][0] == shown["det"][1] == words[-1]
    assert shown["det"][0] == "the"
    assert shown["nsubj"][1] == shown["dobj"][1]
    assert words.index(shown["nsubj"][0]) < words.index(shown["nsubj"][1]) < words.index(shown["poss"][0])
    assert shown["poss"][1] == shown["dobj"][0]


def test_in_the_sentences_of_the_circuit_one_name_comes_twice(smollm2: Subject) -> None:
    by_role = {role: probe.data.ioi(role).items for role in ROLES}
    for n, item in enumerate(by_role["name mover"]):
        assert item.question is not None
        said = item.text[: item.question.read_at]
        subject, indirect = item.question.wrong[0], item.question.right
        assert (said.count(subject), said.count(indirect)) == (2, 1)
        assert item.query.text(item.text) == "to"
        assert item.target.text(item.text) == indirect
        again = by_role["duplicate token"][n]
        assert again.query.text(item.text) == again.target.text(item.text) == subject
        assert again.target < again.query
        after = by_role["induction"][n].target
        assert after.start == again.target.end + 1
    firsts = [i.tags["first"] for i in by_role["name mover"]]
    assert firsts.count("subject") == len(firsts) / 2
    for role in ROLES:
        assert best_offset(smollm2.bind(probe.data.ioi(role)))[1] < 0.7, "no fixed distance finds it"
    bound = smollm2.bind(probe.data.ioi())
    assert sum(u.answer is not None for u in bound.units) > 60


def shown_is_what_is_said(found: Findings) -> None:
    """The tokens' attention on the target is the number printed beside the prompt."""
    asked, tokens = found.tables["asked"].frame.set_index("prompt"), found.tables["asked_tokens"].frame
    for prompt, rows in tokens.groupby("prompt"):
        said = asked.loc[prompt]
        on = rows.loc[rows["role"] == "target", said["head"]].sum()
        assert on == pytest.approx(said["on the target"], abs=1e-4)


def test_the_row_shown_of_a_previous_token_is_the_one_that_is_counted(
    gpt2: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {does: MEASURES[does] for does in ("duplicate token", "previous token")}
    monkeypatch.setattr("probe.scores.published.MEASURES", few)
    found = study.published_heads(gpt2, profile="quick", seed=0)
    assert "previous token" in set(found.tables["asked"].frame["does"])
    shown_is_what_is_said(found)
    (section,) = (s for s in found.sections if s.title == "Where they look")
    assert section.text[0].startswith("For each, the head that was published for it")


def test_the_study_says_what_was_compared(uncased: Subject, chinese: Subject) -> None:
    found = study.published_heads(uncased, profile="quick", seed=0)
    assert found.answer.startswith("Of 6 published heads of bert-base-uncased, ")
    assert "4.3 (coreference, rank 1 of 144)" in found.answer
    assert found.tables["published"].frame["head"].tolist()[0] == "4.3"
    assert any("The chinese sentence is left out" in n for n in found.notes)
    asked = found.tables["asked"].frame.set_index("does")
    assert set(asked.loc["coreference", "head"]) == {"4.3"}, "the published head, whether or not it is the best"
    assert set(asked.loc["det", "head"]) == {"7.10"}
    compared = found.tables["published"].frame.set_index("does")["value"]
    for does in ("coreference", "det"):
        assert asked.loc[does, "correct"].mean() == pytest.approx(compared[does], abs=0.02)  # a mean over clusters
    shown_is_what_is_said(found)
    other = study.published_heads(chinese, profile="quick", seed=0)
    assert other.answer.startswith("Nothing was published of bert-base-chinese that is compared here")
    assert other.tables["cat_chinese"].frame["head"].tolist()[0] == "6.5"
    assert np.isfinite(other.tables["cat_chinese"].frame["on 猫"]).all()
