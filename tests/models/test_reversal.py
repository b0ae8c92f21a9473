"""The reversal task: what is read, what is to be written, what is kept out of training."""

from __future__ import annotations

import random

import pytest
import torch

from probe.models import reversal
from probe.models.train import Recipe

STRING = ("c", "a", "f", "e")


def test_mirrored_positions_hold_the_symbols_to_be_written() -> None:
    tokenizer = reversal.tokenizer()
    read = tokenizer.convert_ids_to_tokens(tokenizer(reversal.source(STRING)).input_ids)
    assert read == ["<bos>", "c", "a", "f", "e", "."]
    assert [read[at] for at in reversal.mirrored(len(STRING))] == ["e", "f", "a", "c"]
    assert tokenizer.convert_ids_to_tokens(list(reversal.answer(STRING))) == ["e", "f", "a", "c", "."]
    assert tokenizer.convert_ids_to_tokens(list(reversal.read_by_decoder(STRING))) == ["<bos>", "e", "f", "a", "c"]


def test_the_vocabulary_is_the_models() -> None:
    assert len(reversal.tokenizer()) == reversal.new_model().config.vocab_size == 20


def test_held_out_strings_are_new_to_training(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    kept = {reversal.draw(rng) for _ in range(40)}  # what the first steps of seed 0 would draw
    seen: list[reversal.String] = []
    loss = reversal._loss

    def spy(model: object, strings: list[reversal.String]) -> torch.Tensor:
        seen.extend(strings)
        return loss(model, strings)

    monkeypatch.setattr(reversal, "_loss", spy)
    reversal.train(Recipe(steps=2, batch_size=8), kept)
    assert len(seen) == 16
    assert not kept & set(seen)


def test_held_out_strings_differ_and_have_the_length_asked_for() -> None:
    some = reversal.held_out(50, seed=3, length=12)
    assert len(set(some)) == 50
    assert {len(s) for s in some} == {12}
    assert some == reversal.held_out(50, seed=3, length=12) != reversal.held_out(50, seed=4, length=12)
    assert {len(s) for s in reversal.held_out(200, seed=0)} == set(range(4, 11))


def test_loss_is_the_models_own_on_one_string() -> None:
    model = reversal.new_model(1)
    ids = torch.tensor([reversal.tokenizer()(reversal.source(STRING)).input_ids])
    with torch.no_grad():
        own = model(input_ids=ids, labels=torch.tensor([reversal.answer(STRING)])).loss
        long, short, both = (
            float(reversal._loss(model, strings)) for strings in ([STRING], [STRING[:2]], [STRING, STRING[:2]])
        )
    # transformers begins the decoder with decoder_start_token_id, as read_by_decoder does
    assert long == pytest.approx(float(own), abs=1e-5)
    # padding changes nothing: the mean is over the 5 and the 3 tokens that are written
    assert both * 8 == pytest.approx(long * 5 + short * 3, abs=1e-4)


def test_training_repeats_and_leaves_the_callers_chance_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    once = reversal.train(Recipe(steps=3, batch_size=4, seed=2))
    assert torch.equal(torch.rand(1), expected)
    assert once.losses == reversal.train(Recipe(steps=3, batch_size=4, seed=2)).losses
    assert once.losses != reversal.train(Recipe(steps=3, batch_size=4, seed=3)).losses
    assert not once.model.training
