"""The tiny models themselves: all there, drawn from their seed alone, and not blind."""

from __future__ import annotations

import pytest
import torch

from probe.compatibility import configs
from probe.compatibility.composites import COMPOSITES, NOTES, TWINS
from probe.compatibility.configs import Pair, mapped, note, pairs, tiny_config, tiny_inputs, tiny_model
from probe.compatibility.sizes import DECODER_LENGTH, LENGTH
from probe.compatibility.table import NOT_TEXT, TABLE, TASK_TABLE
from probe.errors import UnknownName, UnsupportedModel


def test_every_mapped_type_runs_on_tokens_or_says_why_not() -> None:
    known = {p.model_type for p in mapped()}
    assert {p.model_type for p in pairs()} | NOT_TEXT.keys() >= known
    assert not {p.model_type for p in pairs()} & NOT_TEXT.keys()
    assert all(NOT_TEXT.values())


def test_the_table_names_only_pairs_that_exist() -> None:
    here = {p.model_type for p in pairs()}
    assert set(TABLE) | set(COMPOSITES) | set(TWINS) <= here
    assert set(TWINS.values()) <= here
    assert set(NOTES) == set(COMPOSITES)
    assert {Pair(*key) for key in TASK_TABLE} <= set(pairs())


def test_unknown_pairs_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean 'llama \(causal\)'"):
        tiny_config(Pair("lama", "causal"))
    with pytest.raises(UnsupportedModel, match="adds a frame of audio"):
        tiny_config(Pair("voxtral_realtime", "seq2seq"))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_seed_alone_draws_the_weights(name: str) -> None:
    pair = Pair(name, "causal")
    torch.manual_seed(1)
    first = tiny_model(pair, "eager")
    before = torch.get_rng_state()
    again = tiny_model(pair, "eager")
    assert torch.equal(torch.get_rng_state(), before)
    other = tiny_model(pair, "eager", seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert not first.training
    assert {p.dtype for p in first.parameters()} == {torch.float32}


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("pair", [Pair("gpt2", "causal"), Pair("roberta", "masked"), Pair("t5", "seq2seq")], ids=str)
def test_inputs_are_ordinary_tokens_and_run(pair: Pair, padding: str | None) -> None:
    model = tiny_model(pair, "eager")
    inputs = tiny_inputs(model, pair, padding)  # type: ignore[arg-type]
    ids = inputs["input_ids"]
    assert ids.shape == (2, LENGTH)
    kept = inputs.get("attention_mask", torch.ones_like(ids)).bool()
    special = {getattr(model.config, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    assert special.isdisjoint(ids[kept].tolist())
    assert (~kept).sum() == (3 if padding else 0)
    length = DECODER_LENGTH if pair.task == "seq2seq" else LENGTH
    with torch.no_grad():
        logits = model(**inputs).logits
    assert logits.shape[:2] == (2, length)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(
    ("pair", "composite", "error"),
    [
        (Pair("gemma4_unified_assistant", "causal"), {"text_config": {}}, "shared_kv_states cannot be None"),
        (
            Pair("voxtral_realtime", "seq2seq"),
            {"text_config": {}, "audio_config": {"num_hidden_layers": 1}},
            "exactly one of input_features or encoder_inputs_embeds",
        ),
    ],
    ids=str,
)
def test_what_is_left_out_does_not_run_on_tokens(
    pair: Pair, composite: dict[str, object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "NOT_TEXT", {})
    monkeypatch.setitem(COMPOSITES, pair.model_type, composite)
    model = tiny_model(pair, "eager")
    with pytest.raises(ValueError, match=error):
        model(**tiny_inputs(model, pair))


def test_composites_run_on_text_alone() -> None:
    pair = Pair("gemma3n", "causal")
    assert note(pair) == "run on text alone, without its image tower"
    assert note(Pair("llama", "causal")) == ""
    model = tiny_model(pair, "eager")
    with torch.no_grad():
        assert model(**tiny_inputs(model, pair, "left")).logits.shape == (2, LENGTH, 99)
