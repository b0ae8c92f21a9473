"""The built-in coreference sentences: balanced exactly, in true minimal pairs, and free of randomness."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from probe.data.coreference import coreference
from probe.data.texts import Labelled, Span, Text
from probe.errors import DataError

PRONOUNS = {
    "masculine": {"he", "him", "his"},
    "feminine": {"she", "her"},
    "singular": {"it", "its", "he", "him", "she"},
    "plural": {"they", "them", "their"},
}


def labelled(items: tuple[Text, ...]) -> list[Labelled]:
    assert all(isinstance(item, Labelled) for item in items)
    return [item for item in items if isinstance(item, Labelled)]


ITEMS = labelled(coreference().items)
BY_NAME = {item.item: item for item in ITEMS}
TEMPLATES: dict[str, list[Labelled]] = defaultdict(list)
for _item in ITEMS:
    TEMPLATES[_item.cluster].append(_item)


def words(text: str) -> list[str]:
    return re.findall(r"[\w']+", text)


def deciding(item: Labelled) -> Span:
    return item.cue or item.query


def first_candidate(item: Labelled) -> Span:
    return min(item.target, item.foils[0])


def test_dataset_says_what_it_is() -> None:
    dataset = coreference()
    assert (dataset.name, dataset.phenomenon, dataset.statistic, dataset.rule) == (
        "coreference-sentences",
        "coreference",
        "accuracy",
        None,
    )
    assert dataset.rivals == ("nearest", "first", "longer", "offset", "same word")
    assert (dataset.licence, dataset.source) == ("Apache-2.0", "written for this project")


def test_there_are_60_templates_of_24_items_in_three_families() -> None:
    assert {len(items) for items in TEMPLATES.values()} == {24}
    assert Counter(cluster.split("-")[0] for cluster in TEMPLATES) == {"gender": 22, "number": 18, "cue": 20}
    assert all(item.tags["family"] == item.cluster.split("-")[0] for item in ITEMS)
    assert len(ITEMS) == 1440


def test_no_item_and_no_text_is_there_twice() -> None:
    assert len(BY_NAME) == len({item.text for item in ITEMS}) == len(ITEMS)
    assert all(re.fullmatch(rf"{item.cluster}-0(0[1-9]|1\d|2[0-4])", item.item) for item in ITEMS)


def test_no_two_templates_share_their_verb_phrases() -> None:
    frames: dict[str, set[str]] = defaultdict(set)
    for item in ITEMS:
        candidates = {span.text(item.text) for span in (item.target, *item.foils)}
        candidates |= {deciding(item).text(item.text), item.query.text(item.text), "the", "The"}
        if item.tags["distance"] == "near":
            frames[" ".join(w for w in words(item.text) if w not in candidates)].add(item.cluster)
    assert all(len(clusters) == 1 for clusters in frames.values())
    assert len(frames) == len(TEMPLATES)


@pytest.mark.parametrize(
    ("text", "antecedent"),
    [
        ("The cat didn't jump onto the table because it was too tired.", "cat"),
        ("The cat didn't jump onto the table because it was too high.", "table"),
        ("The lawyer hired the assistant because she needed help.", "lawyer"),
        ("The lawyer hired the assistant because she needed work.", "assistant"),
        ("The lawyer hired the assistant because he needed help.", "lawyer"),
        ("The lawyer hired the assistant because he needed work.", "assistant"),
    ],
)
def test_the_well_known_sentences_are_there(text: str, antecedent: str) -> None:
    (item,) = [item for item in ITEMS if item.text == text]
    assert item.target.text(text) == antecedent
    assert item.cue is not None
    assert text.endswith(item.cue.text(text) + ".")


def test_a_pair_differs_in_the_deciding_word_alone_and_swaps_target_and_foil() -> None:
    for item in ITEMS:
        assert item.pair is not None
        other = BY_NAME[item.pair]
        assert (other.pair, other.cluster) == (item.item, item.cluster)
        mine, theirs = words(item.text), words(other.text)
        assert len(mine) == len(theirs)
        different = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
        assert different == [(deciding(item).text(item.text), deciding(other).text(other.text))]
        assert item.text[: deciding(item).start] == other.text[: deciding(other).start]
        assert item.text[deciding(item).end :] == other.text[deciding(other).end :]
        assert item.target.text(item.text) == other.foils[0].text(other.text)
        assert item.foils[0].text(item.text) == other.target.text(other.text)


def test_spans_are_whole_words_that_are_there_once() -> None:
    for item in ITEMS:
        assert len(item.foils) == 1
        for span in (item.target, item.foils[0], item.query):
            assert Span.of(item.text, span.text(item.text)) == span
        assert words(deciding(item).text(item.text)) == [deciding(item).text(item.text)]


def test_no_candidate_is_part_of_the_other() -> None:
    for item in ITEMS:
        target, foil = item.target.text(item.text), item.foils[0].text(item.text)
        assert target not in foil
        assert foil not in target


def test_candidates_come_before_the_pronoun_and_a_cue_after_it() -> None:
    for item in ITEMS:
        assert max(item.target.end, item.foils[0].end) < item.query.start
        assert (item.cue is not None) == (item.tags["family"] == "cue")
        assert item.cue is None or item.query.end < item.cue.start


def test_tags_say_what_the_text_shows() -> None:
    for item in ITEMS:
        tags = item.tags
        right_first = item.target == first_candidate(item)
        assert tags["right"] == ("first" if right_first else "second")
        kind = tags.get("gender") or tags["number"]
        assert item.query.text(item.text).lower() in PRONOUNS[kind]
        if tags["family"] == "cue":
            assert tags["order"] == "fixed"
        else:
            first_kind = {"male first": "masculine", "female first": "feminine"}.get(
                tags["order"], tags["order"].removesuffix(" first")
            )
            assert right_first == (kind == first_kind)


def test_a_plural_pronoun_has_a_plural_antecedent_and_a_singular_foil() -> None:
    for item in ITEMS:
        if item.tags["family"] == "number":
            plural = item.tags["number"] == "plural"
            assert item.target.text(item.text).endswith("s") == plural
            assert item.foils[0].text(item.text).endswith("s") != plural


def test_a_name_is_always_of_the_same_gender() -> None:
    genders: dict[str, set[str]] = defaultdict(set)
    for item in ITEMS:
        if item.tags["family"] == "gender":
            genders[item.target.text(item.text)].add(item.tags["gender"])
    assert all(len(found) == 1 for found in genders.values())
    assert Counter(next(iter(found)) for found in genders.values()) == {"masculine": 10, "feminine": 10}


@pytest.mark.parametrize("cluster", TEMPLATES)
def test_every_template_is_balanced_exactly(cluster: str) -> None:
    items = TEMPLATES[cluster]
    family = items[0].tags["family"]
    assert Counter(item.target == first_candidate(item) for item in items) == {True: 12, False: 12}
    assert Counter((item.tags["right"], item.tags["distance"]) for item in items) == {
        (right, distance): 6 for right in ("first", "second") for distance in ("near", "far")
    }
    if family != "cue":
        kind = "gender" if family == "gender" else "number"
        cells = Counter((item.tags["order"], item.tags[kind], item.tags["distance"]) for item in items)
        assert len(cells) == 8
        assert set(cells.values()) == {3}


@pytest.mark.parametrize("cluster", TEMPLATES)
def test_the_longer_candidate_is_right_as_often_as_the_shorter(cluster: str) -> None:
    unequal = [i for i in TEMPLATES[cluster] if len(i.target.text(i.text)) != len(i.foils[0].text(i.text))]
    longer = sum(len(i.target.text(i.text)) > len(i.foils[0].text(i.text)) for i in unequal)
    assert 2 * longer == len(unequal)


def test_he_and_she_are_equally_frequent_where_a_cue_decides_between_people() -> None:
    for items in TEMPLATES.values():
        if items[0].tags["family"] == "cue" and "gender" in items[0].tags:
            assert Counter(item.query.text(item.text) for item in items) == {"he": 12, "she": 12}


def test_far_items_have_6_to_10_more_words_before_the_pronoun_than_near_ones() -> None:
    for items in TEMPLATES.values():
        between: dict[str, set[int]] = defaultdict(set)
        for item in items:
            gap = item.text[max(item.target.end, item.foils[0].end) : item.query.start]
            between[item.tags["distance"]].add(len(words(gap)))
        (near,), (far,) = between["near"], between["far"]
        assert 6 <= far - near <= 10, items[0].cluster


def test_sentences_are_clean() -> None:
    for item in ITEMS:
        assert re.fullmatch(r"[A-Z][A-Za-z', ]+(\. [A-Z][A-Za-z', ]+)?\.", item.text), item.text
        assert "  " not in item.text
        assert " ," not in item.text
        assert not re.search(r"\b(\w+) \1\b", item.text)


def test_the_same_call_gives_the_same_items() -> None:
    assert coreference().hash == coreference().hash
    assert coreference(items_per_template=24).hash == coreference().hash


@pytest.mark.parametrize("n", range(2, 25, 2))
def test_a_part_keeps_whole_pairs_and_as_much_balance_as_it_can(n: int) -> None:
    part = labelled(coreference(items_per_template=n).items)
    names = {item.item for item in part}
    assert all(BY_NAME[item.item] == item and item.pair in names for item in part)
    off = 0 if n % 4 == 0 else 2
    for cluster in TEMPLATES:
        items = [item for item in part if item.cluster == cluster]
        assert len(items) == n
        assert Counter(item.tags["right"] for item in items) == {"first": n // 2, "second": n // 2}
        for tag in ("distance", "order"):
            counts = Counter(item.tags[tag] for item in items)
            if set(counts) != {"fixed"}:
                assert max(counts.values()) - (n - max(counts.values())) == off
    for family in ("gender", "number", "cue"):
        counts = Counter(item.tags["distance"] for item in part if item.tags["family"] == family)
        assert counts["near"] == counts["far"]


def test_the_parts_grow_into_each_other_and_vary_the_words() -> None:
    parts = [{i.item for i in coreference(items_per_template=n).items} for n in (8, 16, 24)]
    assert parts[0] < parts[1] < parts[2]
    for cluster in TEMPLATES:
        some = [i for i in labelled(coreference(items_per_template=8).items) if i.cluster == cluster]
        assert len({min(i.target, i.foils[0]).text(i.text).removesuffix("s") for i in some}) >= 3


@pytest.mark.parametrize(
    ("n", "nearest"),
    [
        (0, "the nearest is 2."),
        (-4, "the nearest is 2."),
        (1, "the nearest is 2."),
        (7, "the nearest are 6 and 8."),
        (25, "the nearest is 24, which is all of them."),
        (100, "the nearest is 24, which is all of them."),
    ],
)
def test_a_number_of_items_that_cannot_be_had_is_refused(n: int, nearest: str) -> None:
    with pytest.raises(DataError) as error:
        coreference(items_per_template=n)
    assert str(error.value) == (
        f"items_per_template={n}: a template has whole minimal pairs only, so it must be an even number "
        f"from 2 to 24; {nearest}"
    )
