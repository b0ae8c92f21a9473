"""From labelled characters to labelled tokens: nothing moves, nothing is guessed, nothing is dropped unsaid."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import probe
from probe.data.texts import Dataset, Labelled, Question, Span, Text
from probe.errors import DataError, SpanError
from probe.targets import Unit
from probe.tokens.binding import bind

CAT = "The cat didn't jump onto the table because it was too tired."
FOLLOWS = "the deciding words follow the query, where a causal model cannot look"
CANDIDATE_FOLLOWS = "a candidate follows the query, where a causal model cannot look"


@pytest.fixture(params=("minilm", "smollm2"))
def pretrained(request: pytest.FixtureRequest) -> probe.Subject:
    return request.getfixturevalue(request.param)


def labelled(text: str = CAT, query: str = "it", target: str = "cat", *foils: str, **more: object) -> Labelled:
    spans = tuple(Span.of(text, f) for f in foils)
    return Labelled("one", "c", text, Span.of(text, query), Span.of(text, target), spans, **more)


def dataset(*items: Text, rule: str | None = None) -> Dataset:
    return Dataset("mine", "coreference", "accuracy", ("nearest",), items, "here", "none", rule)


def decoded(subject: probe.Subject, unit: Unit, positions: tuple[int, ...]) -> str:
    return subject.tokenizer.decode([unit.ids[p] for p in positions]).strip()


# Span.of


def test_a_span_is_where_the_words_are() -> None:
    assert Span.of(CAT, "cat") == Span(4, 7)
    assert Span.of(CAT, "the table").text(CAT) == "the table"
    assert Span.of(CAT, ".") == Span(len(CAT) - 1, len(CAT))


def test_words_that_are_not_there_are_named_with_the_text() -> None:
    with pytest.raises(SpanError) as error:
        Span.of(CAT, "dog")
    assert str(error.value) == f"'dog' is not in the text: {CAT!r}"


def test_words_inside_another_word_only_are_refused_with_their_place() -> None:
    with pytest.raises(SpanError) as error:
        Span.of(CAT, "tab")
    at = CAT.index("tab")
    assert str(error.value) == (
        f"'tab' is not in the text as whole words (only inside another word, at character {at}): {CAT!r}"
    )


def test_words_inside_another_word_do_not_count_as_a_second_time() -> None:
    text = "It sat with its kitten; it slept."
    assert Span.of(text, "it") == Span(24, 26)


def test_words_found_twice_ask_which_one() -> None:
    text = "the cat saw the dog"
    with pytest.raises(SpanError) as error:
        Span.of(text, "the")
    assert str(error.value) == (
        f"'the' is in the text 2 times (at characters 0, 12); say which one (occurrence 0 to 1): {text!r}"
    )


@pytest.mark.parametrize(("occurrence", "start"), [(0, 0), (1, 12), (2, 20)])
def test_occurrence_says_which_one_counted_from_zero(occurrence: int, start: int) -> None:
    assert Span.of("the cat saw the dog the", "the", occurrence) == Span(start, start + 3)


@pytest.mark.parametrize("occurrence", [-1, 2, 7])
def test_an_occurrence_out_of_range_is_refused(occurrence: int) -> None:
    with pytest.raises(SpanError) as error:
        Span.of("the cat saw the dog", "the", occurrence)
    assert str(error.value) == f"'the' is in the text 2 times; there is no occurrence {occurrence}"


@pytest.mark.parametrize("words", ["", "  "])
def test_words_that_are_empty_are_refused(words: str) -> None:
    with pytest.raises(SpanError, match="the words to find are empty"):
        Span.of(CAT, words)


def test_a_script_without_spaces_has_words_inside_its_runs() -> None:
    assert Span.of("那只猫没跳上桌子因为它太累了", "它") == Span(10, 11)
    assert Span.of("那只猫没跳上桌子因为它太累了", "桌子") == Span(6, 8)


def test_a_letter_without_its_accent_is_not_a_whole_word() -> None:
    """In decomposed text the accent is a character of its own, and the word goes on through it."""
    with pytest.raises(SpanError, match="only inside another word"):
        Span.of("the cafe\u0301 closed", "cafe")


# the built-in English sentences


def test_every_minimal_pair_is_aligned_token_by_token(pretrained: probe.Subject) -> None:
    items = {i.item: i for i in probe.data.coreference().items}
    prompts = {name: pretrained.encode(i.text) for name, i in items.items()}
    for item in items.values():
        mine, theirs = prompts[item.item], prompts[item.pair]
        differing = [p for p, (a, b) in enumerate(zip(mine.ids, theirs.ids, strict=True)) if a != b]
        deciding = mine.positions(item.cue or item.query)
        assert differing == list(deciding), item.item
        assert len(differing) == 1, item.item
        assert items[item.pair].target in item.foils


def test_every_measurable_item_carries_its_pairs_ids(pretrained: probe.Subject) -> None:
    data = probe.data.coreference()
    items = {i.item: i for i in data.items}
    for unit in pretrained.bind(data).units:
        item = items[unit.item]
        assert unit.swapped == pretrained.encode(items[item.pair].text).ids, unit.item
        assert len(unit.swapped) == len(unit.ids)
        (at,) = [p for p, (a, b) in enumerate(zip(unit.ids, unit.swapped, strict=True)) if a != b]
        query = unit.rows[0].query
        assert query == (at,) if item.cue is None else at > query[-1]


def test_labels_decode_to_the_words_they_label(pretrained: probe.Subject) -> None:
    data = probe.data.coreference()
    items = {i.item: i for i in data.items}
    for unit in pretrained.bind(data).units:
        item, (row,) = items[unit.item], unit.rows
        lower = str.lower if pretrained.name == "minilm" else str
        for span, positions in zip(
            (item.query, item.target, *item.foils), (row.query, row.target, *row.foils), strict=True
        ):
            assert decoded(pretrained, unit, positions) == lower(span.text(item.text)), unit.item


def test_an_encoder_excludes_none_of_the_sentences(minilm: probe.Subject) -> None:
    data = probe.data.coreference()
    targets = minilm.bind(data)
    assert targets.excluded == ()
    assert targets.exclusions == {}
    assert [u.item for u in targets.units] == [i.item for i in data.items]
    assert {u.direction for u in targets.units} == {"before"}


def test_a_causal_model_excludes_exactly_the_items_whose_cue_it_has_not_read(smollm2: probe.Subject) -> None:
    data = probe.data.coreference()
    unread = [i.item for i in data.items if i.cue is not None and i.text.index(i.cue.text(i.text), i.query.end) > 0]
    assert len(unread) == sum(i.tags["family"] == "cue" for i in data.items) > 0
    targets = smollm2.bind(data)
    assert [e.item for e in targets.excluded] == unread
    assert targets.exclusions == {FOLLOWS: len(unread)}
    assert len(targets.units) + len(unread) == len(data.items)


def test_what_is_bound_keeps_the_datasets_name_statistic_and_rivals(pretrained: probe.Subject) -> None:
    data = probe.data.coreference(2)
    targets = pretrained.bind(data)
    assert (targets.phenomenon, targets.dataset) == ("coreference", "coreference-sentences")
    assert (targets.statistic, targets.rivals) == ("accuracy", ("nearest", "first", "longer", "offset", "same word"))
    clusters = {i.item: i.cluster for i in data.items}
    assert all(u.cluster == clusters[u.item] for u in targets.units)


def test_the_same_data_bound_twice_has_the_same_hash_and_other_data_another(pretrained: probe.Subject) -> None:
    data = probe.data.coreference(2)
    assert pretrained.bind(data).hash == pretrained.bind(data).hash
    assert pretrained.bind(data).hash != pretrained.bind(replace(data, items=data.items[:-2])).hash


# direction and exclusions, on sentences of our own


AFTER = "Because it was tired, the cat left the dog."
BOTH = "The dog barked, so it ran to the cat."


@pytest.mark.parametrize(
    ("item", "direction"),
    [
        (labelled(CAT, "it", "cat", "table"), "before"),
        (labelled(AFTER, "it", "cat", "dog"), "after"),
        (labelled(BOTH, "it", "dog", "cat"), "both"),
        (labelled(BOTH, "it", "cat", "dog"), "both"),
    ],
)
def test_direction_is_where_the_candidates_lie_seen_from_the_query(
    minilm: probe.Subject, item: Labelled, direction: str
) -> None:
    (unit,) = minilm.bind(dataset(item)).units
    assert unit.direction == direction


def test_a_causal_model_excludes_candidates_it_cannot_look_back_at(smollm2: probe.Subject) -> None:
    items = [
        replace(labelled(CAT, "it", "cat", "table"), item="before"),
        replace(labelled(AFTER, "it", "cat", "dog"), item="after"),
        replace(labelled(BOTH, "it", "dog", "cat"), item="foil after"),
        replace(labelled(BOTH, "it", "cat", "dog"), item="target after"),
        replace(labelled(CAT, "it", "cat", "table", cue=Span.of(CAT, "tired")), item="cue after"),
        replace(labelled(CAT, "it", "cat", "table", cue=Span.of(CAT, "jump")), item="cue before"),
    ]
    targets = smollm2.bind(dataset(*items))
    assert [u.item for u in targets.units] == ["before", "cue before"]
    assert targets.exclusions == {CANDIDATE_FOLLOWS: 3, FOLLOWS: 1}
    assert list(targets.exclusions) == [CANDIDATE_FOLLOWS, FOLLOWS], "most frequent first"
    assert [e.item for e in targets.excluded] == ["after", "foil after", "target after", "cue after"]


def test_an_item_the_model_cannot_read_is_excluded_with_the_reason(tiny: probe.Subject) -> None:
    known = "the cat saw the dog and it cat slept ."
    items = (
        replace(labelled(known, "it", "dog"), item="known"),
        Labelled("unknown", "c", "the zebra and it", Span(14, 16), Span(4, 9), ()),
    )
    targets = tiny.bind(dataset(*items))
    assert [u.item for u in targets.units] == ["known"]
    (excluded,) = targets.excluded
    assert excluded.item == "unknown"
    assert excluded.reason.startswith("unreadable prompt: tiny reads its own synthetic language")
    assert "'zebra'" in excluded.reason


def test_a_label_that_splits_a_token_is_excluded_and_said(pretrained: probe.Subject) -> None:
    start = CAT.index("table")
    bad = Labelled("bad", "c", CAT, Span.of(CAT, "it"), Span(start, start + 3), (Span.of(CAT, "cat"),))
    targets = pretrained.bind(dataset(bad, replace(labelled(), item="good")))
    assert [u.item for u in targets.units] == ["good"]
    assert targets.exclusions == {"a labelled span splits a token of this tokenizer": 1}


def test_a_label_on_nothing_but_space_is_excluded_and_said(minilm: probe.Subject) -> None:
    bad = Labelled("bad", "c", CAT, Span.of(CAT, "it"), Span(3, 4), ())
    targets = minilm.bind(dataset(bad, replace(labelled(), item="good")))
    assert targets.exclusions == {"a labelled span has no token of its own": 1}


@pytest.mark.parametrize("foil", ["The cat", "cat"])
def test_candidates_that_overlap_are_excluded_and_said(pretrained: probe.Subject, foil: str) -> None:
    targets = pretrained.bind(dataset(labelled(CAT, "it", "cat", foil), replace(labelled(), item="good")))
    assert targets.exclusions == {"the query and the candidates overlap": 1}


def test_a_dataset_with_nothing_measurable_is_an_error_with_all_reasons(smollm2: probe.Subject) -> None:
    after = labelled(AFTER, "it", "cat", "dog")
    items = after, replace(after, item="two"), replace(labelled(cue=Span.of(CAT, "tired")), item="three")
    with pytest.raises(DataError) as error:
        smollm2.bind(dataset(*items))
    assert str(error.value) == (f"nothing in mine can be measured on this model: {CANDIDATE_FOLLOWS}; {FOLLOWS}")


def test_a_thousand_reasons_are_not_all_told(tiny: probe.Subject) -> None:
    names = [f"word{i}" for i in range(1000)]
    items = [
        Labelled(n, "c", f"{n} saw it", Span.of(f"{n} saw it", "it"), Span.of(f"{n} saw it", n), ()) for n in names
    ]
    with pytest.raises(DataError, match=r"; and 997 other reasons$") as error:
        tiny.bind(dataset(*items))
    assert len(str(error.value)) < 1000


def test_a_dataset_without_items_is_an_error(pretrained: probe.Subject) -> None:
    with pytest.raises(DataError, match="nothing in mine can be measured on this model: it has no items"):
        pretrained.bind(dataset())


def test_english_sentences_cannot_be_measured_on_the_tiny_model(tiny: probe.Subject) -> None:
    with pytest.raises(DataError, match=r"nothing in coreference-sentences .*does not know"):
        tiny.bind(probe.data.coreference(2))


def test_two_items_of_one_name_are_refused() -> None:
    """The second must never lend its tokens to the labels of the first."""
    one, two = labelled(CAT, "it", "cat", "table"), labelled("A dog saw a cat and it ran.", "it", "cat", "dog")
    with pytest.raises(DataError, match="the item name 'one' is there more than once"):
        dataset(one, two)


# minimal pairs of one's own


def pair(first: str, second: str, query: str = "it", cues: tuple[str, str] | None = None) -> Dataset:
    one, two = (Span.of(t, c) for t, c in zip((first, second), cues, strict=True)) if cues else (None, None)
    cat, dog = (Span.of(first, w) for w in ("cat", "dog"))
    their_cat, their_dog = (Span.of(second, w) for w in ("cat", "dog"))
    a = Labelled("a", "c", first, Span.of(first, query), cat, (dog,), cue=one, pair="b")
    b = Labelled("b", "c", second, Span.of(second, query), their_dog, (their_cat,), cue=two, pair="a")
    return dataset(a, b)


def test_a_pair_that_differs_in_one_token_is_aligned(minilm: probe.Subject) -> None:
    one, two = minilm.bind(
        pair("The cat met the dog and it ran.", "The cat met the dog and it sat.", cues=("ran", "sat"))
    ).units
    assert (one.swapped, two.swapped) == (two.ids, one.ids)


def test_a_pair_of_another_length_is_not_aligned(pretrained: probe.Subject) -> None:
    units = pretrained.bind(pair("The cat met the dog and it ran.", "The cat met the dog and it ran far away.")).units
    assert [u.swapped for u in units] == [None, None]


def test_a_pair_whose_query_stands_elsewhere_is_not_aligned(pretrained: probe.Subject) -> None:
    units = pretrained.bind(pair("The cat met the dog and it ran off.", "The cat met the dog when then it ran.")).units
    assert len(units[0].ids) == len(units[1].ids), "same length, so only the query tells them apart"
    assert [u.swapped for u in units] == [None, None]


def test_a_pair_in_quite_other_words_is_not_aligned(pretrained: probe.Subject) -> None:
    """Of the same length and with the labels in the same places, but not one text with another cue."""
    units = pretrained.bind(pair("The cat met the dog and it ran.", "One cat bit some dog so it fell!")).units
    assert len(units[0].ids) == len(units[1].ids)
    assert [u.swapped for u in units] == [None, None]


def test_an_item_whose_pair_is_not_in_the_data_is_not_aligned(pretrained: probe.Subject) -> None:
    (unit,) = pretrained.bind(dataset(labelled(CAT, "it", "cat", "table", pair="elsewhere"))).units
    assert unit.swapped is None


# rules instead of labels


TEXTS = (Text("t1", "t1", "The cat sat."), Text("t2", "t2", "It slept."))


def test_previous_makes_every_token_but_the_first_look_one_back(smollm2: probe.Subject) -> None:
    one, two = smollm2.bind(probe.data.previous_token(TEXTS)).units
    assert len(one.ids) == 4
    assert [(r.query, r.target, r.foils) for r in one.rows] == [((1,), (0,), ()), ((2,), (1,), ()), ((3,), (2,), ())]
    assert len(two.rows) == len(two.ids) - 1


def test_previous_never_makes_a_special_token_query_or_target(minilm: probe.Subject) -> None:
    one, _ = minilm.bind(probe.data.previous_token(TEXTS)).units
    assert len(one.ids) == 6, "[CLS] the cat sat . [SEP]"
    assert [(r.query, r.target) for r in one.rows] == [((2,), (1,)), ((3,), (2,)), ((4,), (3,))]


def test_first_makes_every_token_look_at_position_zero(minilm: probe.Subject, smollm2: probe.Subject) -> None:
    for subject, queries in ((minilm, [1, 2, 3, 4]), (smollm2, [1, 2, 3])):
        one, _ = subject.bind(probe.data.first_token(TEXTS)).units
        assert [(r.query, r.target) for r in one.rows] == [((q,), (0,)) for q in queries]


def test_position_rules_are_described_by_mass_and_have_no_rivals(minilm: probe.Subject) -> None:
    for made in (probe.data.previous_token(TEXTS), probe.data.first_token(TEXTS)):
        targets = minilm.bind(made)
        assert (targets.statistic, targets.rivals) == ("mass", ())
        assert [u.item for u in targets.units] == ["t1", "t2"]


def test_a_text_of_a_single_token_has_no_previous_and_is_counted(smollm2: probe.Subject) -> None:
    targets = smollm2.bind(probe.data.previous_token((*TEXTS, Text("t3", "t3", "cat"))))
    assert [(e.item, e.reason) for e in targets.excluded] == [
        ("t3", "no token has anywhere to look by the rule 'previous'")
    ]


def test_texts_without_labels_or_rule_are_an_error(smollm2: probe.Subject) -> None:
    with pytest.raises(DataError, match=r"t1 has no labels and its dataset has no rule\."):
        smollm2.bind(dataset(*TEXTS))


# answers, on the synthetic language


def test_answers_decode_to_the_words_of_the_question(tiny: probe.Subject) -> None:
    data = probe.data.language.coreference(per_frame=4)
    items = {i.item: i for i in data.items}
    units = tiny.bind(data).units
    assert {items[u.item].tags["family"] for u in units} == {"gender", "number"}
    for unit in units:
        question, answer = items[unit.item].question, unit.answer
        assert tiny.tokenizer.decode(answer.right) == question.right
        assert [tiny.tokenizer.decode(w) for w in answer.wrong] == list(question.wrong)
        read = items[unit.item].text[: question.read_at]
        assert tiny.tokenizer.decode(unit.ids[1 : answer.read_at + 1]) == read
        assert unit.ids[answer.read_at + 1] == answer.right[0], "in this language the right answer follows"
        assert answer.right[0] != answer.wrong[0][0]


def test_an_answer_is_read_at_the_pronoun_where_it_follows_the_pronoun(tiny: probe.Subject) -> None:
    units = tiny.bind(probe.data.language.coreference(per_frame=4)).units
    assert all((u.answer.read_at,) == u.rows[0].query for u in units)


def test_the_tiny_model_excludes_the_sentences_whose_cue_comes_later(tiny: probe.Subject) -> None:
    data = probe.data.language.coreference(per_frame=4)
    families = Counter(i.tags["family"] for i in data.items)
    targets = tiny.bind(data)
    assert targets.exclusions == {FOLLOWS: families["cue"]}
    assert len(targets.units) == families["gender"] + families["number"]


def asked(text: str, read_at: int, right: str, *wrong: str) -> Dataset:
    return dataset(labelled(text, "it", "cat", question=Question(read_at, right, wrong)))


def test_an_answer_of_several_tokens_is_taken_whole(smollm2: probe.Subject) -> None:
    text = "The cat slept because it was electroencephalographic"
    end = text.index(" electro")
    (unit,) = smollm2.bind(asked(text, end, "electroencephalographic", "tired")).units
    assert len(unit.answer.right) > 1
    assert smollm2.tokenizer.decode(unit.answer.right) == " electroencephalographic"
    assert smollm2.tokenizer.decode(unit.ids[: unit.answer.read_at + 1]) == text[:end]
    assert [smollm2.tokenizer.decode(w) for w in unit.answer.wrong] == [" tired"]


def test_answers_that_share_their_first_token_are_no_question(smollm2: probe.Subject) -> None:
    text = "The cat slept because it was tired"
    right, wrong = "electroencephalographic", "electroencephalograph"
    first = {smollm2.encode(f"was {w}").ids[1] for w in (right, wrong)}
    assert len(first) == 1
    (unit,) = smollm2.bind(asked(text, len(text) - 6, right, wrong)).units
    assert unit.answer is None


def test_an_encoder_that_closes_its_prompts_is_asked_no_question(minilm: probe.Subject) -> None:
    (unit,) = minilm.bind(asked(CAT, 20, "cat", "table")).units
    assert unit.answer is None


def test_a_word_of_several_pieces_is_one_query_and_one_target(minilm: probe.Subject) -> None:
    text = "The electroencephalographer rested because unbelievableness won."
    item = labelled(text, "unbelievableness", "electroencephalographer")
    (unit,) = bind(dataset(item), minilm.encode, is_causal=False).units
    (row,) = unit.rows
    assert len(row.query) > 1
    assert len(row.target) > 1
    assert decoded(minilm, unit, row.query) == "unbelievableness"
    assert decoded(minilm, unit, row.target) == "electroencephalographer"
    assert {row.query, row.target} <= set(unit.words)
