"""Where heads look by place, against loops over whole patterns; and texts that are what they are called."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import probe
from probe.errors import DataError
from probe.scores import placement
from probe.subject import Subject


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_every_number_is_that_of_a_plain_loop(name: str, request: pytest.FixtureRequest) -> None:
    subject: Subject = request.getfixturevalue(name)
    prompts = [
        "The cat slept on the mat near the old wooden door.",
        "One, two, three, four, five, six, seven, eight, nine",
    ]
    found = placement.placed(subject, prompts).set_index(["layer", "head"])
    run = subject.run(prompts, "pattern")
    for layer, head in ((0, 0), (2, 5), (subject.n_layers - 1, subject.n_heads - 1)):
        first, entropy, distance, offsets, usual = [], [], [], {-1: [], 0: [], -3: []}, []
        for i, prompt in enumerate(run.prompts):
            n = len(prompt)
            pattern = run["pattern", layer][i, head, :n, :n].double().numpy()
            first.append(np.mean([pattern[q, 0] for q in range(1, n)]))
            visible = [q + 1 if subject.is_causal else n for q in range(n)]
            entropy.append(
                np.mean(
                    [
                        -(p * np.log(np.maximum(p, 1e-30))).sum() / np.log(v)
                        for p, v in zip(pattern[1:], visible[1:], strict=True)
                    ]
                )
            )
            distance.append(sum(pattern[q, k] * abs(q - k) for q in range(n) for k in range(n)) / n)
            for o, values in offsets.items():
                values.append(np.mean([pattern[q, q + o] for q in range(n) if 0 <= q + o < n]))
            usual += [int(pattern[q].argmax()) - q for q in range(placement.FIRST_ROW, n)]
        row = found.loc[layer, head]
        assert row["first"] == pytest.approx(np.mean(first), abs=1e-5)
        assert row["entropy"] == pytest.approx(np.mean(entropy), abs=1e-4)
        assert row["distance"] == pytest.approx(np.mean(distance), abs=1e-3)
        for o, column in ((-1, "previous"), (0, "self"), (-3, "-3")):
            assert row[column] == pytest.approx(np.mean(offsets[o]), abs=1e-5)
        ((_, times),) = Counter(usual).most_common(1)
        assert row["share"] == pytest.approx(times / len(usual))
        assert usual.count(int(row["offset"])) == times


def test_the_planted_previous_token_head_is_positional() -> None:
    subject = probe.load("planted:previous_token")
    table = placement.placed(subject, placement.texts(subject, "random words", n=4)).set_index(["layer", "head"])
    row = table.loc[0, 0]
    assert row["previous"] == pytest.approx(1, abs=0.05)
    assert (row["offset"], row["share"]) == (-1, 1)
    assert row["distance"] == pytest.approx(1, abs=0.1)
    assert table.drop(index=(0, 0))["share"].max() < 0.5


@pytest.mark.parametrize("name", ["tiny", "minilm", "smollm2"])
def test_texts_are_what_they_are_called(name: str, request: pytest.FixtureRequest) -> None:
    subject: Subject = request.getfixturevalue(name)
    for kind in placement.KINDS:
        made = placement.texts(subject, kind, n=3, tokens=48)
        assert made == placement.texts(subject, kind, n=3, tokens=48)
        for text in made:
            assert 40 <= len(subject.encode(text)) <= 48
            words = text.split()
            if kind == "random words":
                assert len(set(words)) == len(words)
                assert len(subject.encode(text).words) == len(words)
            elif kind == "repeated words":
                string = [w for w, times in Counter(words).items() if times > 1]
                assert len(string) >= 8
                places = [i for i, w in enumerate(words) if w == string[0]]
                assert words[places[0] : places[0] + 8] == words[places[1] : places[1] + 8]


@pytest.mark.parametrize("name", ["tiny", "minilm"])
def test_the_longest_prompt_a_model_reads_is_filled(name: str, request: pytest.FixtureRequest) -> None:
    subject: Subject = request.getfixturevalue(name)
    assert subject.max_positions is not None
    (text,) = placement.texts(subject, "natural text", n=1, tokens=subject.max_positions)
    assert subject.max_positions - 12 <= len(subject.encode(text)) <= subject.max_positions


def test_a_model_that_reads_less_is_refused(tiny: Subject) -> None:
    with pytest.raises(DataError, match="tiny reads 64 tokens, not 80"):
        placement.texts(tiny, "natural text", tokens=80)
