"""The retrieval score and its variants, against plain loops over whole patterns and a head that was written by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe.causal.fetching import by_place, counted, variants
from probe.causal.lookups import Lookup, facts, lookups, one_token
from probe.causal.retrieval import Retrieved, forced, generated, key_effect
from probe.causal.sweep import highest
from probe.errors import DataError
from probe.subject import Subject


@pytest.fixture(scope="module")
def asked(smollm2: Subject) -> list[Lookup]:
    return lookups(smollm2, facts(smollm2, 3, lists=2))


@pytest.fixture(scope="module")
def own(smollm2: Subject, asked: list[Lookup]) -> Retrieved:
    return generated(smollm2, asked)


def loops(subject: Subject, one: Lookup, wrote: tuple[int, ...], layer: int, head: int) -> dict[str, float]:
    """Everything about one head, from the whole pattern of one plain pass."""
    ids = (*one.ids, *wrote)
    for _, seen in subject.captured([ids], ["pattern"], layers=layer):
        pattern = seen["pattern", layer][0, head]
    needle, value, mass = set(), set(), []
    for step, token in enumerate(wrote):
        row = pattern[len(one.ids) - 1 + step]
        at = int(row.argmax())
        if at in one.needle and ids[at] == token:
            needle.add(token)
        if at in one.value and ids[at] == token:
            value.add(token)
        mass.append(float(sum(row[p] for p in one.needle)))
    first = pattern[len(one.ids) - 1]
    return {
        "share": len(needle) / len(set(one.needle_ids)),
        "value": len(value) / len(set(one.value_ids)),
        "first": float(sum(first[p] for p in one.value)),
        "mass": float(np.mean(mass)),
    }


def test_lookups_say_where_the_value_and_its_sentence_are(smollm2: Subject, asked: list[Lookup]) -> None:
    for one in asked:
        text = smollm2.tokenizer.decode(one.needle_ids)
        assert text.endswith(" at the market.")
        assert text.split()[0] == smollm2.tokenizer.decode(one.value_ids).strip()
        assert len(one.documents) == 3
        sentences = [smollm2.tokenizer.decode([one.ids[p] for p in d]).strip() for d in one.documents]
        assert all(s.split()[1] == "bought" and s.endswith("market.") for s in sentences)
        assert sentences[one.gold].endswith(text.strip())
        assert one.gold == one.index
        assert one.prompt.endswith(f"{sentences[one.gold].split()[0]} bought a")


def test_scores_of_forced_text_are_those_of_plain_loops(smollm2: Subject, asked: list[Lookup]) -> None:
    found = forced(smollm2, asked)
    assert list(found.table["item"]) == [one.item for one in asked]
    for q in (0, 4):
        for layer, head in ((0, 0), (12, 3), (20, 5), (29, 8)):
            expected = loops(smollm2, asked[q], asked[q].needle_ids, layer, head)
            for name, value in expected.items():
                assert getattr(found, name)[layer, head, q] == pytest.approx(value, abs=1e-4), name


def test_the_models_own_text_is_what_it_writes(smollm2: Subject, asked: list[Lookup], own: Retrieved) -> None:
    by_item = {one.item: one for one in asked}
    longest = max(len(one.needle) for one in asked)
    for q, row in enumerate(own.table.to_dict("records")[:2]):
        one = by_item[row["item"]]
        ids = torch.tensor([one.ids])
        with torch.no_grad():
            for _ in range(longest):
                ids = torch.cat([ids, smollm2.model(ids).logits[:, -1:].argmax(-1)], 1)
                if int(ids[0, -1]) == smollm2.tokenizer.eos_token_id:
                    break
        wrote = tuple(ids[0, len(one.ids) :].tolist())
        assert row["wrote"] == smollm2.tokenizer.decode(wrote)
        assert row["found"] == (wrote[: len(one.value)] == one.value_ids)
        assert own.share[20, 5, q] == pytest.approx(loops(smollm2, one, wrote, 20, 5)["share"])


def test_what_is_forced_is_found_where_the_model_would_write_it(
    smollm2: Subject, asked: list[Lookup], own: Retrieved
) -> None:
    text = forced(smollm2, asked).table.set_index("item")["found"].to_dict()
    assert own.table.set_index("item")["found"].to_dict() == text
    assert set(text.values()) == {True, False}


def test_an_absent_name_counts_for_the_value_that_is_named(smollm2: Subject) -> None:
    nobody = lookups(smollm2, facts(smollm2, 3, lists=2, absent=True))
    assert len(nobody) == 6
    assert [one.index for one in nobody] == [0, 1, 2] * 2
    assert len({one.ids for one in nobody}) == 2
    found = generated(smollm2, nobody)
    assert len(found.table) == 2
    for row in found.table.to_dict("records"):
        same = [one for one in nobody if one.list == row["list"]]
        named = [one.index for one in same if row["wrote"].startswith(smollm2.tokenizer.decode(one.value_ids))]
        assert bool(named) == row["found"]
        assert not named or named == [row["index"]]


def test_the_planted_head_looks_at_the_value_and_only_when_it_is_asked_for() -> None:
    subject = probe.load("planted:retrieval")
    dataset = probe.data.language.facts(per_frame=4)
    found = forced(subject, lookups(subject, dataset))
    assert found.value[1, 0].min() == 1
    assert found.first[1, 0].min() == pytest.approx(1, abs=1e-3)
    others = np.delete(found.value.reshape(-1, found.value.shape[-1]), subject.n_heads, axis=0)
    assert others.mean(-1).max() < 0.5
    assert highest(found.value.mean(-1), 1) == [(1, 0)]


def of(share: list[list[float]], index: list[int], found: list[bool], lists: list[str] | None = None) -> Retrieved:
    """One layer; a row of `share` for each head. The value step is the share."""
    names = lists or [f"l{i}" for i in range(len(index))]
    table = pd.DataFrame({"item": names, "list": names, "n": 5, "phrasing": "", "index": index, "found": found})
    values = np.array([share], dtype=float)
    return Retrieved(table.assign(wrote=""), values, values, values, values)


def test_only_answers_with_the_value_count_and_there_must_be_enough() -> None:
    index, found = [0, 1, 2, 3] * 10, [True, True, False, True] * 10
    seen = of([[1.0, 0.0, 1.0, 0.5] * 10], index, found)
    assert seen.untestable() is None
    assert seen.score()[0, 0] == pytest.approx(0.5)
    few = seen.only(np.arange(40) < 20)
    assert few.untestable() == "15 values were found, at 3 depths; the retrieval score takes 20 at 3"
    assert np.isnan(few.score()).all()
    two = seen.only(np.isin(index, [0, 1]))
    assert two.untestable() == "20 values were found, at 2 depths; the retrieval score takes 20 at 3"


def test_a_place_where_much_is_found_does_not_count_for_more() -> None:
    index = [0] * 20 + [1] * 4 + [2] * 6
    seen = of([[1.0] * 20 + [0.0] * 4 + [0.5] * 6], index, [True] * 30)
    assert seen.score()[0, 0] == pytest.approx(0.5)
    assert seen.value.mean() > 0.7
    assert seen.by_place("mass")[0, 0] == pytest.approx(0.5)


def test_variants_are_counted_where_they_can_be_tested() -> None:
    index, found = [0, 1, 2] * 10, [True] * 30
    own = of([[1.0] * 30, [0.05] * 30], index, found)
    text = of([[0.5] * 30, [0.2] * 30], index, found)
    nobody = of([[0.0] * 30, [1.0] * 30], index, [False] * 30)
    table = variants(own, text, nobody, nobody)
    counts = counted(table).set_index("measure")
    assert "score, absent name" not in counts.index
    assert counts.loc["score", "heads"] == 1
    assert counts.loc["value step, forced", "heads"] == 2
    assert counts.loc["score, forced, absent name", "best head"] == "0.1"
    assert list(table["head"]) == [0, 1]


def test_places_share_heads_or_do_not() -> None:
    index = [0, 1, 2] * 4
    at = np.array(index)
    shares = [(at == 0) * 1.0, (at == 0) * 0.5 + (at == 1) * 0.05, (at > 0) * 1.0, (at > 0) * 0.6]
    found = by_place(of([list(s) for s in shares], index, [True] * 12), 5, top=2)
    assert list(found["best head"]) == ["0.0", "0.2", "0.2"]
    assert list(found["shared"]) == [2, 0, 0]
    assert list(found["heads"]) == [2, 2, 2]


def test_the_effect_of_the_key_is_paired_by_list_and_place() -> None:
    rng = np.random.default_rng(0)
    lists = [f"l{i // 3:02}" for i in range(60)]
    index, base = [0, 1, 2] * 20, rng.random(60)
    asked = of([list(base + 0.3), list(base)], index, [True] * 60, lists)
    order = rng.permutation(60)
    absent = of([list(base[order])] * 2, [index[i] for i in order], [True] * 60, [lists[i] for i in order])
    found = key_effect(asked, absent, [(0, 0), (0, 1)])
    assert found["difference"].tolist() == pytest.approx([0.3, 0.0])
    assert found.loc[0, "p_holm"] < 0.001
    assert found.loc[1, "p_holm"] > 0.05
    assert (found["lists"] == 20).all()
    with pytest.raises(DataError, match="l19 is asked about, but not without its names"):
        key_effect(asked, absent.only((absent.table["list"] != "l19").to_numpy()), [(0, 0)])


def test_what_cannot_be_looked_up_is_named(smollm2: Subject) -> None:
    coreference = dataclasses.replace(probe.data.coreference(8), items=probe.data.coreference(8).items[:1])
    with pytest.raises(DataError, match="asks for nothing at an index"):
        lookups(smollm2, coreference)
    with pytest.raises(DataError, match="no question to read heads on"):
        forced(smollm2, [])


def test_words_of_one_token_behind_a_space_or_a_quotation_mark(smollm2: Subject) -> None:
    for before in (" ", '"'):
        fits = one_token(smollm2, before)
        ids = smollm2.tokenizer(f"{before}stone", add_special_tokens=False).input_ids
        assert fits("stone") == (len(ids) == 1 + bool(before.strip()))
        assert not fits("counterrevolutionaries")
