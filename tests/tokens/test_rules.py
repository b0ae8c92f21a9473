"""Where rules say tokens look, on prompts small enough to read."""

from __future__ import annotations

import pytest

import probe
from probe.data.texts import Text
from probe.errors import UnknownName
from probe.subject import Subject
from probe.tokens.rules import RULES, rows

TEXT = "the cat saw the dog. the cat slept"
#  <bos>? minilm: 0 [CLS] 1 the 2 cat 3 saw 4 the 5 dog 6 . 7 the 8 cat 9 slept 10 [SEP]
EXPECTED = {
    "previous": {q: (q - 1,) for q in range(2, 10)},
    "next": {q: (q + 1,) for q in range(1, 9)},
    "self": {q: (q,) for q in range(1, 10)},
    "first": dict.fromkeys(range(1, 10), (0,)),
    "offset -3": {q: (q - 3,) for q in range(4, 10)},
    "offset +8": {1: (9,)},
    "delimiter": {q: (0, 10) if q == 6 else (0, 6, 10) for q in range(1, 10)},
    "duplicate": {4: (1,), 7: (1, 4), 8: (2,)},
    "after duplicate": {4: (2,), 7: (2, 5), 8: (3,)},
}


@pytest.mark.parametrize("rule", EXPECTED)
def test_every_rule_on_a_prompt_that_can_be_read(minilm: Subject, rule: str) -> None:
    prompt = minilm.encode(TEXT)
    assert len(prompt) == 11
    assert {r.query[0]: r.target for r in rows(rule, prompt, is_causal=False)} == EXPECTED[rule]


def test_all_rules_are_tried() -> None:
    assert set(RULES) < set(EXPECTED)


def test_a_causal_model_looks_at_nothing_later(minilm: Subject) -> None:
    prompt = minilm.encode(TEXT)
    assert rows("next", prompt, is_causal=True) == ()
    assert {r.query[0]: r.target for r in rows("delimiter", prompt, is_causal=True)} == {
        q: (0,) if q <= 6 else (0, 6) for q in range(1, 10)
    }


def test_what_cannot_be_measured_is_counted(smollm2: Subject) -> None:
    texts = [Text("a", "c", "One two three."), Text("b", "c", "one two one two three")]
    bound = smollm2.bind(probe.data.duplicate_token(texts))
    assert [u.item for u in bound.units] == ["b"]
    assert bound.exclusions == {"no token has anywhere to look by the rule 'duplicate'": 1}


def test_unknown_rules_name_the_nearest(minilm: Subject) -> None:
    dataset = probe.data.position.by_rule("odd", "duplicates", [Text("a", "c", TEXT)])
    with pytest.raises(UnknownName, match="Did you mean 'duplicate'"):
        minilm.bind(dataset)
