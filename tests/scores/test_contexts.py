"""One word in two texts: cosines against the models' own hidden states, and the comparisons themselves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from probe.data import senses
from probe.data.senses import Comparison, Use
from probe.data.texts import Span
from probe.scores.contexts import by_kind, similarity
from probe.subject import Subject


def test_cosines_are_those_of_the_hidden_states(minilm: Subject) -> None:
    one, other = Use("We bought an unfathomable seal", "unfathomable"), Use("unfathomable it was", "unfathomable")
    found = similarity(minilm, [Comparison("k", "w", one, other)]).set_index("blocks")["cosine"]
    states = []
    for use in (one, other):
        prompt = minilm.encode(use.text)
        with torch.no_grad():
            hidden = minilm.model(torch.tensor([prompt.ids]), output_hidden_states=True).hidden_states
        at = list(prompt.positions(Span.of(use.text, use.word)))
        assert len(at) > 1, "the word is cut into pieces, which are averaged"
        states.append([h[0, at].double().numpy().mean(0) for h in hidden])
    for blocks, (a, b) in enumerate(zip(*states, strict=True)):
        assert found[blocks] == pytest.approx(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-5)
    assert len(found) == minilm.n_layers + 1


def test_a_decoder_holds_nothing_of_what_comes_after_a_word(smollm2: Subject, minilm: Subject) -> None:
    same_token = senses.neighbours()[:1]
    assert similarity(smollm2, same_token)["cosine"].tolist() == pytest.approx([1] * 31, abs=1e-9)
    encoder = similarity(minilm, same_token)["cosine"]
    assert encoder[0] == pytest.approx(1)
    assert encoder[1:].max() < 0.99


@pytest.mark.parametrize(("made", "n"), [(senses.english(), 8), (senses.synthetic(), 8)])
def test_every_word_has_the_same_comparisons(made: tuple[Comparison, ...], n: int) -> None:
    per_word = Counter((c.word, c.kind) for c in made)
    assert len({word for word, _ in per_word}) == n
    wanted = {senses.SAME_SENSE: 2, senses.OTHER_SENSE: 4, senses.OTHER_WORD: 2}
    assert all(count == wanted[kind] for (_, kind), count in per_word.items())
    for c in made:
        assert all(use.text.endswith(use.word) for use in (c.one, c.other))
        assert (c.one.word == c.other.word) == (c.kind != senses.OTHER_WORD)


def test_the_tiny_gpt_knows_its_words(tiny: Subject) -> None:
    found = similarity(tiny, senses.synthetic())
    assert len(found) == 8 * 8 * (tiny.n_layers + 1)
    start = found[found["blocks"] == 0].groupby("kind")["cosine"].mean()
    assert start[senses.SAME_SENSE] == pytest.approx(1)
    assert start[senses.OTHER_SENSE] == pytest.approx(1)


def test_means_are_over_words_with_an_interval(tiny: Subject) -> None:
    found = similarity(tiny, senses.synthetic())
    drawn = by_kind(found, seed=0).set_index(["kind", "blocks"])
    for (kind, blocks), group in found.groupby(["kind", "blocks"]):
        row = drawn.loc[(kind, blocks)]
        assert row["cosine"] == pytest.approx(group.groupby("word")["cosine"].mean().mean())
        assert row["low"] - 1e-9 <= row["cosine"] <= row["high"] + 1e-9
