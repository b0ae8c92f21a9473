"""The synthetic language: gold labels agree with a plain reading of the text, no rule of thumb solves it, and training
never meets a test item.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from importlib import import_module
from itertools import pairwise

import pytest
from tokenizers.pre_tokenizers import Whitespace

from probe.data import language
from probe.data.language.parts import LONGEST, reserved
from probe.data.texts import Dataset, Labelled, Span
from probe.errors import DataError, UnknownName

TASKS = ("coreference", "agreement", "brackets", "repeats", "facts")
NEW = TASKS[1:]
CLOSERS = {"(": ")", "[": "]", "{": "}", "<": ">"}
ADVERBS = {"often", "never", "always", "still", "sometimes", "rarely", "usually", "seldom"}
DRAWS = 4000  # of each task

every_task = pytest.mark.parametrize("task", TASKS)
every_new_task = pytest.mark.parametrize("task", NEW)


def labelled(dataset: Dataset) -> list[Labelled]:
    return [item for item in dataset.items if isinstance(item, Labelled)]


ITEMS = {task: labelled(language.dataset(task)) for task in TASKS}


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[list[str]]]:
    """Training texts of every task, as words."""
    rng = random.Random(5)
    return {task: [language.draw(rng, [task]).split() for _ in range(DRAWS)] for task in TASKS}


def at(item: Labelled, span: Span) -> int:
    """Which word of the text a span is."""
    assert span.text(item.text) == item.text.split()[len(item.text[: span.start].split())]
    return len(item.text[: span.start].split())


def before_answer(item: Labelled) -> list[str]:
    assert item.question is not None
    return item.text[: item.question.read_at].split()


# Plain readings: for each task, the words before the answer -> where the query looks, what else it could look at
# (None: not said), and the words that may follow.


def read_agreement(words: list[str]) -> tuple[int, set[int], str]:
    nouns = [n for n, word in enumerate(words) if n and words[n - 1] == "the"]
    subject = words.index("that") + 2 if "that" in words else 1
    return subject, set(nouns) - {subject}, "plural" if words[subject].endswith("s") else "singular"


def read_brackets(words: list[str]) -> tuple[int, set[int], str]:
    blocks = "begin" in words
    stack, openers = [], set()
    for n, word in enumerate(words):
        if (blocks and n and words[n - 1] == "begin") or word in CLOSERS:
            openers.add(n)
            stack.append(n)
        elif (blocks and n and words[n - 1] == "end") or word in CLOSERS.values():
            opener = words[stack.pop()]
            assert word == (opener if blocks else CLOSERS[opener])
    return stack[-1], openers - {stack[-1]}, words[stack[-1]] if blocks else CLOSERS[words[stack[-1]]]


def read_repeats(words: list[str]) -> tuple[int, None, str]:
    (copy,) = [n for n, word in enumerate(words[:-1]) if word == words[-1]]
    return copy + 1, None, words[copy + 1]


def read_facts(words: list[str]) -> tuple[int, set[int], str]:
    what, verb, name, colon = words[-4:]
    assert (what, colon) == ("what", ":")
    values = {words[n - 1]: n + 1 for n, word in enumerate(words[:-4]) if word == verb}
    return values[name], set(values.values()) - {values[name]}, words[values[name]]


READ = {"agreement": read_agreement, "brackets": read_brackets, "repeats": read_repeats, "facts": read_facts}


@every_new_task
def test_gold_labels_are_those_of_a_plain_reading(task: str) -> None:
    for item in ITEMS[task]:
        words = before_answer(item)
        target, foils, answer = READ[task](words)
        assert at(item, item.target) == target
        assert foils is None or {at(item, f) for f in item.foils} == foils
        assert at(item, item.query) == len(words) - 1
        assert item.question is not None
        right, wrong = item.question.right, item.question.wrong
        assert item.text.split()[len(words)] == right
        assert len({right, *wrong}) == 1 + len(wrong) >= 2
        if task == "agreement":
            assert (right.endswith("s"), answer) in {(True, "singular"), (False, "plural")}
            assert {right.removesuffix("s"), *(w.removesuffix("s") for w in wrong)} == {right.removesuffix("s")}
        else:
            assert right == answer


def test_a_repeat_shows_a_whole_part_of_the_string_again_and_all_else_is_there_once() -> None:
    for item in ITEMS["repeats"]:
        words, shown = before_answer(item), int(item.tags["shown"])
        string, again = words[:-shown], words[-shown:]
        assert len(set(string)) == len(string)
        target = at(item, item.target)
        assert string[target - shown : target] == again
        copy = target - 1
        assert copy in {at(item, f) for f in item.foils}
        assert len(item.foils) == int(item.tags["chunks"]) + 1


@every_new_task
def test_wrong_answers_could_be_read_off_the_other_candidates(task: str) -> None:
    for item in ITEMS[task]:
        assert item.question is not None
        seen = {f.text(item.text) for f in item.foils}
        if item.tags.get("family") == "brackets":
            assert {*item.question.wrong, item.question.right} == set(CLOSERS.values())
        elif task != "agreement":
            assert set(item.question.wrong) <= seen


@every_new_task
def test_a_pair_differs_in_the_cue_alone_and_swaps_target_foil_and_answer(task: str) -> None:
    by_name = {item.item: item for item in ITEMS[task]}
    for item in ITEMS[task]:
        other = by_name[item.pair or ""]
        assert (other.pair, other.cluster) == (item.item, item.cluster)
        assert len(item.text.split()) == len(other.text.split())
        mine, theirs = before_answer(item), before_answer(other)
        assert len(mine) == len(theirs)
        differing = {n for n, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b}
        cue = item.cue or item.query
        assert cue.start <= item.query.start
        first = len(item.text[: cue.start].split())
        assert differing <= set(range(first, first + len(cue.text(item.text).split())))
        assert differing
        assert at(item, item.query) == at(other, other.query)
        assert at(other, other.target) in {at(item, f) for f in item.foils}
        assert at(item, item.target) in {at(other, f) for f in other.foils}
        assert item.question is not None
        assert other.question is not None
        assert (item.question.wrong[0], other.question.wrong[0]) == (other.question.right, item.question.right)


@every_task
def test_no_rule_of_thumb_is_right_much_more_often_than_half_of_the_time(task: str) -> None:
    nearest = first = longer = 0.0
    offsets: Counter[int] = Counter()
    for item in ITEMS[task]:
        foils = [at(item, f) for f in item.foils]
        target, query = at(item, item.target), at(item, item.query)
        assert max(target, *foils) < query
        nearest += target > max(foils)
        first += target < min(foils)
        longer += 1 / (1 + len(foils))  # every candidate is one token
        offsets[query - target] += 1
    n = len(ITEMS[task])
    assert nearest / n <= 0.5
    assert first / n <= 0.5
    assert longer / n <= 0.5
    assert max(offsets.values()) / n <= 0.35


@every_task
def test_items_are_many_in_at_least_40_frames_and_named_once(task: str) -> None:
    frames = Counter(item.cluster for item in ITEMS[task])
    assert len(frames) >= 40
    assert set(frames.values()) == {16}
    assert len({item.item for item in ITEMS[task]}) == len(ITEMS[task])
    if task in NEW:
        assert len({item.text for item in ITEMS[task]}) == len(ITEMS[task])


def test_every_frame_of_agreement_is_balanced_over_subject_and_number() -> None:
    for items in clusters("agreement").values():
        assert Counter(i.tags["subject"] == "first" for i in items) == {True: 8, False: 8}
        assert Counter((i.tags["subject"] == "first", i.tags["number"]) for i in items) == {
            (first, number): 4 for first in (True, False) for number in ("singular", "plural")
        }
        for item in items:
            assert len(item.foils) == int(item.tags["others"])
            assert item.tags["number"] == read_agreement(before_answer(item))[2]
            plural = item.target.text(item.text).endswith("s")
            assert any(f.text(item.text).endswith("s") != plural for f in item.foils)


def test_every_frame_of_brackets_has_the_innermost_closed_in_half_of_its_items() -> None:
    for cluster, items in clusters("brackets").items():
        assert Counter(i.tags["innermost"] for i in items) == {"open": 8, "closed": 8}
        family, depth, place, _ = cluster.split("-")
        groups = {"none": 0, "around": 2}.get(place, 1)
        for item in items:
            assert ("begin" in item.text) == (family == "blocks") == (item.tags["family"] == "blocks")
            assert len(item.foils) + 1 == int(depth) + groups
            assert int(item.tags["depth"]) == int(depth) - (item.tags["innermost"] == "closed")


def test_each_fact_of_a_list_is_asked_for_equally_often_and_half_of_the_lists_have_asides() -> None:
    for n in range(2, 9):
        items = [i for i in ITEMS["facts"] if i.tags["n"] == str(n)]
        asked = Counter(i.tags["index"] for i in items)
        assert set(asked) == {str(k) for k in range(n)}
        assert max(asked.values()) - min(asked.values()) <= 1
        assert Counter(i.tags["asides"] for i in items) == {"yes": 48, "no": 48}
        for item in items:
            candidates = sorted((item.target, *item.foils))
            assert candidates.index(item.target) == int(item.tags["index"])
            assert len(candidates) == n
            sentences = before_answer(item).count(".")
            assert (sentences > n) == (item.tags["asides"] == "yes")


def test_every_chunk_of_a_string_comes_again_about_equally_often() -> None:
    for chunks in (2, 3, 4):
        asked = Counter(i.tags["chunk"] for i in ITEMS["repeats"] if i.tags["chunks"] == str(chunks))
        assert set(asked) == {str(k) for k in range(chunks)}
        assert min(asked.values()) >= 0.7 * 256 / chunks


def clusters(task: str) -> dict[str, list[Labelled]]:
    found: dict[str, list[Labelled]] = defaultdict(list)
    for item in ITEMS[task]:
        found[item.cluster].append(item)
    return found


# What is kept for testing, read off texts: the combinations that a training text or an item holds.


def combinations(task: str, words: list[str]) -> set[tuple[str, ...]]:
    if task == "agreement":
        found = set()
        for sentence in " ".join(words).split(" .")[:-1]:
            verb = re.search(rf"(\w+) (?:{'|'.join(ADVERBS)}) (\w+)", sentence)
            assert verb is not None
            last, lemma = (w.removesuffix("s") for w in verb.groups())
            found.add((sentence.split()[1].removesuffix("s"), last, lemma))
        return found
    if task == "brackets":
        opener = ("begin",) if "begin" in words else tuple(CLOSERS)
        places = [n + ("begin" in opener) for n, word in enumerate(words) if word in opener]
        return {(words[n], words[n + 1]) for n in places}
    if task == "facts":
        names = {*language.HE, *language.SHE}
        verb = next(words[n + 1] for n, word in enumerate(words) if word in names)
        return {(a, verb, words[n + 2]) for n, a in enumerate(words) if a in names}
    return set(zip(words, words[1:], words[2:], strict=False))


def asked(task: str, item: Labelled) -> set[tuple[str, ...]]:
    """The combinations of an item that decide: what is asked in it."""
    words, target = before_answer(item), at(item, item.target)
    if task == "agreement":
        return combinations(task, item.text.split())
    if task == "brackets":
        return {(words[target], words[target + 1])}
    return {tuple(words[target - 2 : target + 1])}


@every_new_task
def test_training_never_holds_what_an_item_asks_for(task: str, drawn: dict[str, list[list[str]]]) -> None:
    trained = {c for words in drawn[task] for c in combinations(task, words)}
    for seed in (0, 1, 2):
        tested = {c for item in labelled(language.dataset(task, seed)) for c in asked(task, item)}
        assert len(tested) >= 25
        assert all(reserved(*c) for c in tested)
        assert not tested & trained
    assert not any(reserved(*c) for c in trained)


def test_training_holds_nearly_all_that_is_not_kept_for_testing(drawn: dict[str, list[list[str]]]) -> None:
    facts = {c for words in drawn["facts"] for c in combinations("facts", words)}
    assert 0.7 * 40 * 6 * 48 <= len(facts) <= 0.92 * 40 * 6 * 48
    assert len({(name, value) for name, _, value in facts}) > 0.99 * 40 * 48
    neighbours = {pair for words in drawn["repeats"] for pair in pairwise(words)}
    assert len(neighbours) > 0.99 * 48 * 47


@pytest.mark.parametrize("per_frame", [8, 16, 24])
def test_no_coreference_sentence_for_training_begins_like_an_item_of_the_default_seed(
    per_frame: int, drawn: dict[str, list[list[str]]]
) -> None:
    tested = {" ".join(before_answer(i)) for i in labelled(language.coreference(per_frame=per_frame))}
    begun = {" ".join(words[:n]) for words in drawn["coreference"] for n in range(len(words))}
    assert len(tested) > 5 * len(language.frames())
    assert not tested & begun


def test_coreference_items_stay_what_they_were() -> None:
    """Committed reports name them by this hash."""
    assert language.coreference().hash == "593aaef41bc7f331c1878289ead05f783ef13fbc01c8c7a5b027c52ee4eb56a7"
    assert language.coreference(1, 8).hash == "645cb2b00e376bc21ced95c7d566b2cd52fa1ee1a6beba49804eb7d4c8a61763"


# Training texts.


@every_task
def test_training_texts_fit_64_tokens_and_the_vocabulary(task: str, drawn: dict[str, list[list[str]]]) -> None:
    assert {w for words in drawn[task] for w in words} <= set(language.WORDS)
    assert max(len(words) for words in drawn[task]) <= LONGEST == 62
    assert max(len(item.text.split()) for item in ITEMS[task]) <= LONGEST
    assert {w for item in ITEMS[task] for w in item.text.split()} <= set(language.WORDS)
    assert len({" ".join(words) for words in drawn[task]}) >= 0.9 * DRAWS


def test_the_vocabulary_is_small_sorted_and_one_token_a_word() -> None:
    assert len(language.WORDS) < 600
    assert list(language.WORDS) == sorted(set(language.WORDS))
    for word in language.WORDS:
        assert Whitespace().pre_tokenize_str(word) == [(word, (0, len(word)))]
    for task in TASKS:
        for item in ITEMS[task][:50]:
            assert [w for w, _ in Whitespace().pre_tokenize_str(item.text)] == item.text.split()


def test_verbs_agree_in_training_texts(drawn: dict[str, list[list[str]]]) -> None:
    relative = 0
    for words in drawn["agreement"]:
        for sentence in " ".join(words).split(" .")[:-1]:
            said = sentence.split()
            (adverb,) = [n for n, word in enumerate(said) if word in ADVERBS]
            number = read_agreement(said[: adverb + 1])[2]
            assert said[adverb + 1].endswith("s") == (number == "singular")
            if "that" in said:
                relative += 1
                assert said[-2] == ("are" if said[1].endswith("s") else "is")
    assert relative > DRAWS / 2


def test_all_that_is_opened_is_closed_in_training_texts(drawn: dict[str, list[list[str]]]) -> None:
    kinds = Counter()
    for words in drawn["brackets"]:
        depth, deepest = 0, 0
        for word in words:
            depth += (word in CLOSERS or word == "begin") - (word in CLOSERS.values() or word == "end")
            deepest = max(deepest, depth)
            assert depth >= 0
        assert depth == 0
        assert deepest <= 4
        kinds["begin" in words] += 1
        read_brackets([*words, "begin", "x"] if "begin" in words else [*words, "("])  # asserts that closers match
    assert min(kinds.values()) > 0.4 * DRAWS


def test_training_texts_answer_their_questions_right_and_never_contradict_themselves(
    drawn: dict[str, list[list[str]]],
) -> None:
    names, questions, again = {*language.HE, *language.SHE}, 0, 0
    for words in drawn["facts"]:
        known: dict[str, str] = {}
        for n, word in enumerate(words):
            if word not in names:
                continue
            if words[n + 1] == ":":
                questions += 1
                assert words[n - 2 : n] == ["what", words[n - 1]]
                assert words[n + 2] == known[word]
            elif word in known:
                again += 1
                assert words[n + 2] == known[word]
            else:
                assert words[n + 2] not in known.values()
                known[word] = words[n + 2]
        assert 2 <= len(known) <= 8
    assert questions / DRAWS > 3
    assert again / DRAWS > 2


def test_most_of_a_string_for_training_follows_from_what_came_before(drawn: dict[str, list[list[str]]]) -> None:
    """Where a word comes again, the word that followed it the last time is a good guess."""
    guesses = hits = 0
    for words in drawn["repeats"]:
        after: dict[str, str] = {}
        for word, following in pairwise(words):
            if word in after:
                guesses += 1
                hits += after[word] == following
            after[word] = following
    assert guesses / DRAWS > 24
    assert hits / guesses > 0.75


# Calls.


def test_tasks_and_what_they_measure() -> None:
    assert language.tasks() == TASKS
    phenomena = [language.dataset(task, per_frame=4).phenomenon for task in TASKS]
    assert phenomena == ["coreference", "agreement", "brackets", "induction", "retrieval"]
    for task in TASKS:
        dataset = language.dataset(task, per_frame=4)
        assert (dataset.name, dataset.statistic, dataset.rule) == (f"synthetic-{task}", "accuracy", None)
        assert dataset.rivals == ("nearest", "first", "longer", "offset", "same word")
        assert dataset.hash == getattr(language, task)(per_frame=4).hash


@every_task
def test_the_seed_decides_everything(task: str) -> None:
    assert language.dataset(task, 3, 4).hash == language.dataset(task, 3, 4).hash
    assert language.dataset(task, 3, 4).hash != language.dataset(task, 4, 4).hash
    one, two = ([language.draw(random.Random(7), [task]) for _ in range(3)] for _ in range(2))
    assert one == two


def test_each_task_is_drawn_equally_often() -> None:
    rng = random.Random(0)
    texts = [language.draw(rng).split() for _ in range(5000)]
    objects = {w for item in ITEMS["repeats"] for w in item.text.split()}
    counts = {
        "facts": sum("what" in words for words in texts),
        "brackets": sum(bool({"begin", *CLOSERS} & set(words)) for words in texts),
        "agreement": sum(bool(ADVERBS & set(words)) for words in texts),
        "repeats": sum(set(words) <= objects for words in texts),
    }
    counts["coreference"] = len(texts) - sum(counts.values())
    assert all(0.18 <= n / len(texts) <= 0.22 for n in counts.values()), counts


def test_the_documented_examples_are_in_the_language() -> None:
    modules = [language, *(import_module(f"probe.data.language.{task}") for task in TASKS)]
    examples = [e for m in modules for e in re.findall(r"(?:  |^)`([^`\n]+ [^`\n]+)`", m.__doc__ or "", re.MULTILINE)]
    assert len(examples) == 17
    for example in examples:
        assert set(example.split()) <= set(language.WORDS), example


def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(UnknownName, match=r"no task of the synthetic language named 'fact'\. Did you mean 'facts'"):
        language.dataset("fact")
    with pytest.raises(UnknownName, match=r"named 'induction'\..* Known: agreement, brackets, coreference"):
        language.draw(random.Random(0), ["induction"])
    with pytest.raises(DataError, match="tasks is empty: name at least one of coreference, agreement"):
        language.draw(random.Random(0), [])
    with pytest.raises(DataError, match=r"per_frame=6 cannot be balanced over subject and number: .* nearest is 8"):
        language.agreement(per_frame=6)
    with pytest.raises(DataError, match=r"per_frame=0 .* positive multiple of 4; the nearest is 4"):
        language.facts(per_frame=0)
    for generate in (language.brackets, language.repeats):
        with pytest.raises(DataError, match=r"per_frame=5 .* positive multiple of 2; the nearest is 4"):
            generate(per_frame=5)
