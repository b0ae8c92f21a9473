"""Decoding by hand chooses, counts and keeps what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from probe.anatomy.stacks import Anatomy, dissect
from probe.cost.decoding import (
    Decoder,
    bytes_per_token,
    check_decodes,
    compare,
    kept_bytes,
    projected,
    step_times,
    write,
)
from probe.errors import UnsupportedModel
from probe.models.gpt import GPT, Config


@pytest.fixture(scope="module")
def gpt() -> GPT:
    torch.manual_seed(1)
    return GPT(Config(vocab_size=40, n_layers=2, n_heads=2, d_model=16, max_positions=32)).eval()


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=40, n_layer=2, n_head=2, n_embd=16, n_positions=32, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(params=["gpt", "gpt2"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    return request.getfixturevalue(request.param)


def test_logits_with_a_cache_are_the_models_own(model: torch.nn.Module) -> None:
    decoder, ids = Decoder(model), [3, 1, 4, 1, 5, 9]
    cache = decoder.new_cache()
    with torch.no_grad():
        own = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(decoder.logits(ids[:4], cache), own[3])
    torch.testing.assert_close(decoder.logits(ids[4:5], cache), own[4])
    torch.testing.assert_close(decoder.logits(ids), own[5])
    assert kept_bytes(cache) == 5 * 2 * 2 * 16 * 4


def test_both_ways_of_writing_give_the_greedy_text(model: torch.nn.Module) -> None:
    ids = [7, 8, 9]
    for _ in range(6):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    decoder, anatomy = Decoder(model), dissect(model)
    plain, cached = (write(decoder, anatomy, ids[:3], 6, cached=kept) for kept in (False, True))
    assert plain.new_ids == cached.new_ids == tuple(ids[3:])
    assert (plain.projected, cached.projected) == (3 + 4 + 5 + 6 + 7 + 8, 3 + 5)
    assert min(plain.seconds, cached.seconds) > 0
    found = compare(decoder, ids[:3], 6)
    assert (found.new_ids, found.same) == (tuple(ids[3:]), 6)
    assert 0 <= found.difference < 1e-5 < found.margin


def test_a_cache_that_is_wrong_is_seen(gpt: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(gpt)
    right = decoder.logits
    monkeypatch.setattr(decoder, "logits", lambda ids, cache=None: right(ids, cache) * (1 if cache is None else -1))
    found = compare(decoder, [7, 8, 9], 3)
    assert found.same == 0
    assert found.difference > found.margin


def test_the_output_projection_is_not_counted_and_hooks_are_gone_afterwards(gpt: GPT, gpt2: GPT2LMHeadModel) -> None:
    for model, name in ((gpt, "qkv"), (gpt2, "c_attn")):
        with projected(dissect(model)) as tally, torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))
            model(torch.tensor([[1, 2], [3, 4]]))
        assert tally == {name: {0: 7, 1: 7}}
        assert not any(module._forward_hooks for module in model.modules())


def test_one_more_token_adds_its_keys_and_values(model: torch.nn.Module) -> None:
    assert bytes_per_token(Decoder(model)) == 2 * 2 * 16 * 4
    assert bytes_per_token(Decoder(model), n=3) == 2 * 2 * 16 * 4


def test_times_are_taken_within_the_context(gpt: GPT) -> None:
    times = step_times(Decoder(gpt), 29, 2, seed=0)  # 29 + 1 unmeasured + 2 = 32, all the model reads
    for spread in times:
        assert 0 < spread.low <= spread.median <= spread.high


def test_random_ids_begin_alike_and_are_never_special(gpt2: GPT2LMHeadModel) -> None:
    decoder = Decoder(gpt2)
    ids = decoder.random_ids(300, seed=2)
    assert ids[:10] == decoder.random_ids(10, seed=2)
    assert ids[:10] != decoder.random_ids(10, seed=3)
    assert set(ids) <= set(range(1, 40))


@pytest.fixture(scope="module")
def anatomy(gpt: GPT) -> Anatomy:
    return dissect(gpt)


def test_what_has_no_cache_is_refused_with_the_reason(anatomy: Anatomy) -> None:
    check_decodes(anatomy)
    hybrid = replace(anatomy, stack=replace(anatomy.stack, n_layers=5))
    with pytest.raises(UnsupportedModel, match="GPT has no KV cache to measure: only 2 of its 5 layers have keys"):
        check_decodes(hybrid)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1, "vocab_size": 40}
    t5 = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    with pytest.raises(UnsupportedModel, match=r"T5ForConditionalGeneration has no KV .*: it is an encoder-decoder"):
        check_decodes(dissect(t5))
