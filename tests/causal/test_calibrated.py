"""Calibrated attention, against single passes over prompts written out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import probe
from probe.causal.calibrated import Calibrated, calibrated
from probe.causal.lookups import facts, lookups
from probe.errors import DataError
from probe.subject import Subject


def test_each_document_is_set_beside_a_dummy_of_its_length_in_its_place(smollm2: Subject) -> None:
    asked = lookups(smollm2, facts(smollm2, 3, lists=1))
    found = calibrated(smollm2, asked, dummy=["The river rose quietly during the night and the day."])
    dummy = smollm2.tokenizer("The river rose quietly during the night and the day.").input_ids
    one = asked[1]
    for d, document in list(enumerate(one.documents))[::2]:
        assert len(document) <= len(dummy)
        ids = list(one.ids)
        for k, position in enumerate(document):
            ids[position] = dummy[k]
        for prompt, array in ((list(one.ids), found.raw), (ids, found.dummy)):
            for _, seen in smollm2.captured([prompt], ["pattern"]):
                for layer, head in ((3, 0), (20, 7)):
                    row = seen["pattern", layer][0, head, -1]
                    expected = float(sum(row[p] for p in document)) / len(document)
                    assert array[layer, head, 1, d] == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(found.difference, found.raw - found.dummy)
    assert found.gold.tolist() == [0, 1, 2]
    assert list(found.table["index"]) == [0, 1, 2]


def test_the_planted_head_finds_what_is_asked_for() -> None:
    subject = probe.load("planted:retrieval")
    asked = [one for one in lookups(subject, probe.data.language.facts(per_frame=4)) if one.n == 4]
    words = " ".join(subject.tokenizer.decode([i]) for i in asked[0].ids[1:5])
    found = calibrated(subject, asked, dummy=[words])
    assert found.finds(found.raw, [(1, 0)]).min() == 1
    assert found.finds(found.raw).shape == (len(asked),)


def test_ties_and_heads_are_shared_out() -> None:
    weights = np.zeros((1, 2, 2, 3))
    weights[0, 0, :, 1] = 1.0
    weights[0, 1, 0, :2] = 5.0
    made = Calibrated(None, weights, 0 * weights, np.array([1, 0]))  # type: ignore[arg-type]
    assert made.finds(weights, [(0, 0)]).tolist() == [1, 0]
    assert made.finds(weights, [(0, 1)]).tolist() == [0.5, pytest.approx(1 / 3)]
    assert made.finds(weights).tolist() == [1, 0]


def test_unlike_questions_are_refused(smollm2: Subject) -> None:
    three = lookups(smollm2, facts(smollm2, 3, lists=1))
    with pytest.raises(DataError, match=r"questions have \[2, 3\] documents"):
        calibrated(smollm2, [three[0], dataclasses.replace(three[1], documents=three[1].documents[:2])])
    with pytest.raises(DataError, match="the dummy document has no tokens"):
        calibrated(smollm2, three, dummy=[""])
