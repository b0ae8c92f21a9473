"""What is drawn from: transformers' own warpers as the oracle, and the draws themselves."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from probe.errors import ProbeError
from probe.models.distribution import distribution, entropy
from probe.models.sampling import choose

LOGITS = torch.randn(3, 40, generator=torch.Generator().manual_seed(1)).double() * 2


@pytest.mark.parametrize(
    ("options", "warpers"),
    [
        ({"temperature": 0.3}, [TemperatureLogitsWarper(0.3)]),
        ({"temperature": 1.5}, [TemperatureLogitsWarper(1.5)]),
        ({"top_k": 5}, [TopKLogitsWarper(5)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        (
            {"temperature": 0.7, "top_k": 9, "top_p": 0.6},
            [TemperatureLogitsWarper(0.7), TopKLogitsWarper(9), TopPLogitsWarper(0.6)],
        ),
    ],
)
def test_probabilities_are_those_of_transformers(options: dict[str, float], warpers: list) -> None:
    scores = LOGITS
    for warper in warpers:
        scores = warper(None, scores)
    wanted = scores.softmax(-1)
    found = distribution(LOGITS, **options)
    assert torch.equal(found > 0, wanted > 0)
    assert torch.allclose(found, wanted, atol=1e-12)


def test_temperature_zero_is_certain_of_the_likeliest() -> None:
    found = distribution(LOGITS, temperature=0, top_k=3)
    assert found.sum(-1).tolist() == [1, 1, 1]
    assert found.argmax(-1).tolist() == LOGITS.argmax(-1).tolist()


def test_draws_come_as_often_as_it_says() -> None:
    options = {"temperature": 1.3, "top_k": 6, "top_p": 0.9}
    n = 20_000
    drawn = choose(LOGITS[:1].expand(n, -1), **options, draws=torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=40) / n
    assert (shares - distribution(LOGITS[0], **options)).abs().max() < 0.015


def test_entropy_is_in_nats() -> None:
    p = [0.5, 0.25, 0.25, 0.0]
    wanted = -sum(x * math.log(x) for x in p if x)
    assert entropy(torch.tensor([p, [0.25] * 4, [1.0, 0, 0, 0]])).tolist() == pytest.approx([wanted, math.log(4), 0])


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ProbeError, match="top_p=0"):
        distribution(LOGITS, top_p=0)
