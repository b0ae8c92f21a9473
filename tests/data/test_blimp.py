"""BLiMP as published: the words that agree are found by rules, and what no rule fits is left out and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import probe
from probe.causal import behaviour
from probe.data.blimp import DETERMINERS, SETS
from probe.data.texts import Labelled
from probe.errors import DataError, UnknownName
from probe.subject import Subject

REFLEXIVES = ("herself", "himself", "itself", "themselves")


def line(uid: str, prefix: str, right: str, wrong: str, rest: str = ".") -> str:
    return json.dumps(
        {
            "sentence_good": f"{prefix} {right}{rest}",
            "sentence_bad": f"{prefix} {wrong}{rest}",
            "one_prefix_prefix": prefix,
            "one_prefix_word_good": right,
            "one_prefix_word_bad": wrong,
            "UID": uid,
        }
    )


def written(folder: Path, *lines: str) -> Path:
    path = folder / "blimp.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def found(folder: Path, uid: str, prefix: str, **options: str) -> tuple[str, ...] | None:
    """Query, target and foils of one sentence, or None where it is left out."""
    dataset = probe.data.blimp(written(folder, line(uid, prefix, "right", "wrong")), **options)
    items = [i for i in dataset.items if isinstance(i, Labelled)]
    if not items:
        return None
    (item,) = items
    return tuple(span.text(item.text) for span in (item.query, item.target, *item.foils))


ANAPHORS = {
    "Katherine can't help": "Katherine",
    "Karla could listen to": "Karla",
    "Clyde stunned": "Clyde",
    "Harvard University was scaring": "Harvard University",
    "The Clintons impressed": "Clintons",
    "A lot of girls could observe": "girls",
    "Most teachers hurt": "teachers",
    "Most teachers looked like": "teachers",
    "Some newspaper article hasn't hurt": "article",
    "Some newspaper article hurt": None,
    "Cashiers are helping": "Cashiers",
    "People listen to": "People",
}


@pytest.mark.parametrize(("prefix", "head"), ANAPHORS.items())
def test_antecedents_are_the_heads_of_what_sentences_begin_with(tmp_path: Path, prefix: str, head: str | None) -> None:
    expected = None if head is None else ("right", head)
    assert found(tmp_path, "anaphor_number_agreement", prefix) == expected


CLAUSES = {
    "A lot of patients who can sell some couch didn't investigate": ("patients", "couch"),
    "A lot of actresses that thought about Alice healed": ("actresses", "Alice"),
    "The government that hires Rodney listens to": ("government", "Rodney"),
    "That bank that wouldn't resemble those sketches is talking to": ("bank", "sketches"),
    "All men who can hug Winston Churchill liked": ("men", "Winston Churchill"),
    "A boy who hasn't loved a lot of actors finds": ("boy", "actors"),
    "Those adults who smile will admire": None,
    "Those adults who loved children will admire": None,
    "Those adults admire": None,
}


@pytest.mark.parametrize(("prefix", "heads"), CLAUSES.items())
def test_the_noun_between_is_the_object_of_the_relative_clause(
    tmp_path: Path, prefix: str, heads: tuple[str, str] | None
) -> None:
    expected = None if heads is None else ("right", *heads)
    assert found(tmp_path, "principle_A_c_command", prefix) == expected


SUBJECTS = {
    "A niece of most senators": ("niece", "senators"),
    "A newspaper article about the Borgias": ("article", "Borgias"),
    "A granddaughter of a lot of girls": ("granddaughter", "girls"),
    "The prints of Matt": ("prints", "Matt"),
    "The drawings of this water": ("drawings", "water"),
    "The senators": None,
}


@pytest.mark.parametrize(("prefix", "heads"), SUBJECTS.items())
def test_the_subject_is_before_of_or_about(tmp_path: Path, prefix: str, heads: tuple[str, str] | None) -> None:
    expected = None if heads is None else ("right", *heads)
    assert found(tmp_path, "distractor_agreement_relational_noun", prefix) == expected


def test_the_word_before_can_be_the_query_where_it_is_no_candidate(tmp_path: Path) -> None:
    sentence = "The government that hires Rodney listens to"
    assert found(tmp_path, "principle_A_c_command", sentence, query="before") == ("to", "government", "Rodney")
    with pytest.raises(UnknownName, match="no query named 'behind'"):
        found(tmp_path, "principle_A_c_command", sentence, query="behind")
    path = written(
        tmp_path,
        line("regular_plural_subject_verb_agreement_1", "Paula", "references", "reference", " Robert."),
        line("regular_plural_subject_verb_agreement_1", "Most boys", "see", "sees", " Robert."),
    )
    assert len(probe.data.blimp(path).items) == 2
    assert "2 left out: the word before is itself a candidate" in probe.data.blimp(path, query="before").source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("{", r"line 1: this is no JSON"),
        ("[1]", r"line 1: expected an object with the fields sentence_good"),
        (line("anaphor_gender_agreement", "Ann saw", "", "himself"), r"line 1, field 'one_prefix_word_good'"),
        (line("a", "b", "c", "d").replace('"b c.', '"B c.'), r"line 1, field 'sentence_good': 'B c.' does not begin"),
    ],
)
def test_what_is_malformed_is_named_with_its_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        probe.data.blimp(written(tmp_path, text))


def test_sets_without_labels_that_can_be_found_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"named 'anaphor_gender_agrement'\. Did you mean 'anaphor_gender_agreement'"):
        probe.data.blimp(written(tmp_path, line("anaphor_gender_agrement", "Ann saw", "herself", "himself")))
    with pytest.raises(DataError, match=r"none\.jsonl does not exist; BLiMP has files like anaphor_gender"):
        probe.data.blimp(tmp_path / "none.jsonl")


@pytest.fixture
def published(shared_data: Path) -> list[Path]:
    files = [shared_data / "blimp" / f"{name}.jsonl" for name in SETS]
    if not all(f.is_file() for f in files):
        pytest.skip("BLiMP is not here")
    return files


def test_the_published_files_are_read_and_what_is_left_out_is_counted(published: list[Path]) -> None:
    for path in published:
        dataset = probe.data.blimp(path)
        assert len(dataset.items) >= 970, dataset.source
        assert dataset.source.startswith(f"BLiMP (Warstadt et al. 2020): 1000 pairs, {len(dataset.items)} with words")
        for item in dataset.items:
            assert isinstance(item, Labelled)
            assert item.question is not None
            heads = [span.text(item.text) for span in (item.target, *item.foils)]
            assert not {h.lower() for h in heads} & (DETERMINERS - {"all"})
            assert item.target.end < item.question.read_at + 1
            assert len(item.foils) == SETS[path.stem][1]


def test_reflexives_agree_with_the_antecedent_that_was_found(published: list[Path]) -> None:
    """An independent check on number: -self goes with heads of one, -selves with heads of several."""
    for path in published[:3]:
        for item in probe.data.blimp(path).items:
            assert isinstance(item, Labelled)
            head, word = item.target.text(item.text), item.tags["word"]
            assert word in REFLEXIVES
            first = item.text.split(" ")[0].lower()
            if first in ("these", "those", "many", "most", "all") or item.text.startswith("A lot of"):
                assert word == "themselves", item.text
                assert head.endswith("s") or head in ("men", "women", "people", "children", "fish")
            elif first in ("every", "this", "that", "a", "an") and not item.text.startswith("A lot of"):
                assert word != "themselves", item.text


def test_a_causal_model_is_asked_and_prefers_what_agrees(smollm2: Subject, published: list[Path]) -> None:
    """Whole candidates; a hundred pairs. GPT-2 is right in .99 of this set (Warstadt et al. 2020)."""
    import dataclasses

    dataset = probe.data.blimp(published[1])
    targets = smollm2.bind(dataclasses.replace(dataset, items=dataset.items[::10]))
    found = behaviour(smollm2, targets)
    assert found.passed
    assert found.accuracy > 0.85
    assert found.n_pairs == 0, "both sentences share the words before the question"
