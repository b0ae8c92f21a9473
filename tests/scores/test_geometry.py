"""Norms, cosines, massive activations, anisotropy: of made-up streams by hand, of real ones by their hidden states."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.errors import PromptError
from probe.scores.geometry import anisotropy, geometry, growth, massive
from probe.subject import Subject

TEXTS = ["The cat sat on the mat.", "A dog ran home and slept."]


def made(*vectors: list[float]) -> np.ndarray:
    return np.array(vectors, dtype=np.float64)


def test_growth_and_turns_of_a_made_up_stream() -> None:
    before = [made([9, 0], [3, 4], [0, 1]), made([9, 9], [6, 8])]
    middle = [made([9, 0], [6, 8], [1, 1]), made([9, 9], [6, 9])]
    after = [made([8, 0], [6, 8], [1, 0]), made([9, 9], [6, 19])]
    found = growth([before, after], [middle]).set_index("blocks")
    assert found.loc[0, "norm"] == pytest.approx((5 + 1 + 10) / 3)
    assert found.loc[0, "first"] == pytest.approx((9 + np.sqrt(162)) / 2)
    assert found.loc[1, "attention"] == pytest.approx(((5 / 5 + 1 / 1) / 2 + 1 / 10) / 2)
    assert found.loc[1, "attention_cosine"] == pytest.approx(((1 + 0) / 2 + 0.8) / 2)
    assert found.loc[1, "mlp_cosine"] == pytest.approx(((0 - 1 / np.sqrt(2)) / 2 + 9 / np.sqrt(117)) / 2)
    assert np.isnan(found.loc[0, "cosine"])
    assert growth([before, after], None)["mlp"].isna().all()


def test_the_largest_number_is_found_with_its_place() -> None:
    draws = np.random.default_rng(0)
    streams = [draws.uniform(0.5, 1.5, (5, 8)) for _ in range(3)]
    streams[0][2, 5], streams[1][2, 5], streams[2][4, 1] = -3000, -2000, 50
    (row,) = massive([streams]).to_dict("records")
    assert (row["position"], row["dimension"], row["value"]) == (2, 5, -2500)
    assert row["share"] == row["massive"] == pytest.approx(2 / 3)
    assert row["times"] == pytest.approx(2000 / np.median(np.abs(streams[1])))


@pytest.mark.parametrize(
    ("size", "median", "share"),
    [(150, 0.1, 1.0), (-150, 0.1, 1.0), (90, 0.01, 0.0), (150, 0.2, 0.0), (90, 0.2, 0.0)],
    ids=["both", "negative", "not large", "not so many times the median", "neither"],
)
def test_a_massive_activation_is_large_and_many_times_the_median(size: float, median: float, share: float) -> None:
    """Sun et al. (2024): more than 100, and more than 1,000 times the median."""
    stream = np.full((4, 6), median)
    stream[0, 3] = size
    (row,) = massive([[stream, stream]]).to_dict("records")
    assert row["massive"] == share
    assert row["times"] == pytest.approx(abs(size) / median)


def test_anisotropy_is_the_mean_cosine_over_pairs_of_two_texts() -> None:
    draws = np.random.default_rng(1)
    texts = [draws.normal(size=(4, 6)) + np.array([9, 0, 0, 7, 0, 5]) for _ in range(3)]
    (row,) = anisotropy([texts]).to_dict("records")

    def mean(those: list[np.ndarray]) -> float:
        pairs = [
            float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
            for i, one in enumerate(those)
            for j, other in enumerate(those)
            if i != j
            for a in one[1:]
            for b in other[1:]
        ]
        return sum(pairs) / len(pairs)

    assert row["alike"] == pytest.approx(mean(texts))
    assert row["alike_rest"] == pytest.approx(mean([t[:, [1, 2, 4]] for t in texts]))
    assert row["alike"] > 0.9 > 0.5 > row["alike_rest"]


def test_real_norms_are_those_of_the_hidden_states(minilm: Subject) -> None:
    found = geometry(minilm, TEXTS)
    assert found["blocks"].tolist() == list(range(minilm.n_layers + 1))
    norms: list[list[float]] = [[] for _ in range(minilm.n_layers + 1)]
    for text in TEXTS:
        with torch.no_grad():
            hidden = minilm.model(torch.tensor([minilm.encode(text).ids]), output_hidden_states=True).hidden_states
        for blocks, state in enumerate(hidden):
            norms[blocks] += state[0, 1:].double().norm(dim=-1).tolist()
    assert found["norm"].tolist() == pytest.approx([sum(n) / len(n) for n in norms], rel=1e-5)


def test_one_text_is_refused(minilm: Subject) -> None:
    with pytest.raises(PromptError, match="at least two"):
        geometry(minilm, TEXTS[:1])
    with pytest.raises(PromptError, match="at least two"):
        geometry(minilm, "one text")
