"""The cache study on the tiny GPT and on a small Llama with shared keys and values: what is exact is right."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

import probe
from probe.errors import UnsupportedModel
from probe.studies import cache as study
from probe.subject import Subject

SMALL = study.Plan(4, (12, 5), 16, (8, 4, 2, 1), 2, (16, 32, 48))
LLAMA = {"layers": 3, "heads": 6, "kv_heads": 2, "d_head": 4}


@pytest.fixture(scope="module")
def small_plan() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.PLANS, "quick", SMALL)
        yield patch


@pytest.fixture(scope="module")
def on_tiny(tiny: Subject, small_plan: pytest.MonkeyPatch) -> probe.Findings:
    return study.cache(tiny)


@pytest.fixture(scope="module")
def llama(tiny: Subject) -> Subject:
    config = LlamaConfig(
        vocab_size=len(tiny.tokenizer),
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=LLAMA["layers"],
        num_attention_heads=LLAMA["heads"],
        num_key_value_heads=LLAMA["kv_heads"],
        head_dim=LLAMA["d_head"],
        max_position_embeddings=40,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    return probe.load(LlamaForCausalLM(config), tiny.tokenizer, name="llama")


@pytest.fixture(scope="module")
def on_llama(llama: Subject, small_plan: pytest.MonkeyPatch) -> probe.Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "PRINTED", (20, 6))
        return study.cache(llama, seed=3)


@pytest.fixture(params=["on_tiny", "on_llama"])
def found(request: pytest.FixtureRequest) -> probe.Findings:
    return request.getfixturevalue(request.param)


def rows(found: probe.Findings, table: str) -> list[dict[str, object]]:
    return found.tables[table].frame.to_dict("records")


def test_the_cache_changes_no_choice_and_logits_only_in_their_last_digits(found: probe.Findings, tiny: Subject) -> None:
    """In float32 these are a millionth of the largest logit (the tiny GPT's reach 16 or so; 1.06e-5 has been seen)."""
    largest = float(tiny.run(["the cat saw the dog ."], sites=["logits"])["logits"].abs().max())
    for row in rows(found, "identical"):
        assert row["same choice"] == row["new tokens"] == 4
        assert 0 <= row["largest logit difference"] < 1e-6 * max(10.0, largest)
        assert row["smallest margin"] > 0
    assert "makes the same choice at 16 of 16 steps (4 prompts)" in found.answer


def test_what_was_counted_on_the_tiny_gpt_is_what_the_passes_add_up_to(on_tiny: probe.Findings) -> None:
    mine, small = rows(on_tiny, "counts")
    assert mine["counted, no cache"] == mine["g·p + g·(g−1)/2"] == 12 + 13 + 14 + 15 + 16
    assert mine["counted, cache"] == mine["p + g − 1"] == 12 + 1 + 1 + 1 + 1
    assert (small["prompt"], small["new tokens"]) == (1000, 500)
    assert small["counted, no cache"] == small["g·p + g·(g−1)/2"] == sum(range(1000, 1500)) == 624_750
    assert small["counted, cache"] == small["p + g − 1"] == 1_499
    assert round(small["factor"]) == 417
    assert "(tiny: qkv; the same in every layer)" in on_tiny.tables["counts"].caption
    assert "of 16 tokens instead of 70 to write 5 tokens after 12, 4.4 times fewer (counted)" in on_tiny.answer
    assert "for 500 after 1,000 it is 417 times" in on_tiny.answer


def test_keys_and_values_of_a_llama_are_counted_at_its_three_projections(on_llama: probe.Findings) -> None:
    mine, small = rows(on_llama, "counts")
    assert (mine["counted, no cache"], mine["counted, cache"]) == (70, 16)
    assert (small["counted, no cache"], small["counted, cache"]) == (sum(range(20, 26)), 25)
    assert "(llama: q_proj, k_proj, v_proj; the same in every layer)" in on_llama.tables["counts"].caption


def test_bytes_are_those_of_the_key_value_heads_and_not_of_all(on_llama: probe.Findings) -> None:
    single, half, unshared, *_ = rows(on_llama, "bytes")
    a_token = 2 * LLAMA["layers"] * LLAMA["kv_heads"] * LLAMA["d_head"] * 4
    assert (single["numbers"], single["bytes a token"], single["measured"]) == ("float32", a_token, a_token)
    assert (half["numbers"], half["bytes a token"], half["measured"]) == ("float16", a_token // 2, a_token // 2)
    assert unshared["bytes a token"] == 3 * a_token
    assert pd.isna(unshared["measured"])
    assert "It costs 192 bytes a token, 0.007324 MiB for the 40 tokens it can read." in on_llama.answer
    (text,) = on_llama.sections[2].text
    assert "llama has 6 query heads but 2 key-value heads" in text
    assert "3 times smaller" in text


def test_bytes_of_the_tiny_gpt_and_of_known_models(on_tiny: probe.Findings) -> None:
    table = {(r["model"], r["numbers"]): r for r in rows(on_tiny, "bytes")}
    assert table["tiny", "float32"]["measured"] == table["tiny", "float32"]["bytes a token"] == 2 * 4 * 128 * 4
    assert table["smollm2", "float16"]["bytes a token"] == 2 * 30 * 3 * 64 * 2
    assert table["Llama 7B", "float16"]["KiB a token"] == 512
    assert table["Llama 7B", "float16"]["MiB at 4,096 tokens"] == 2048
    assert pd.isna(table["Llama 7B", "float16"]["measured"])


def test_the_ledger_adds_up_to_the_parameters_in_the_model(
    on_tiny: probe.Findings, on_llama: probe.Findings, tiny: Subject, llama: Subject
) -> None:
    for found, subject in ((on_tiny, tiny), (on_llama, llama)):
        *parts, total, counted = found.tables["parameters"].frame[subject.name]
        assert sum(parts) == total == counted == sum(p.numel() for p in subject.model.parameters())


def test_gpt3_and_adapters_are_as_large_as_they_should_be(on_tiny: probe.Findings) -> None:
    ledger = on_tiny.tables["parameters"].frame.set_index("part")["GPT-3"]
    assert round(ledger["total"] / 1e9, 1) == 174.6
    adapters = {(r["model"], r["rank"]): r for r in rows(on_tiny, "lora")}
    assert adapters["Llama 7B", 8]["trained"] == 32 * 2 * 8 * (4096 + 4096)
    assert round(adapters["Llama 7B", 8]["%"], 2) == 0.06
    assert round(adapters["Llama 7B", 128]["%"], 1) == 1.0
    (text,) = on_tiny.sections[-1].text
    assert "12·L·d² = 173.9 billion, with all else 174.6 (printed: 175)" in text
    assert "rank 8 on Llama 7B are 0.06 %" in text


def test_ten_times_the_tokens_are_a_hundred_times_the_comparisons(found: probe.Findings) -> None:
    table = found.tables["comparisons"].frame
    assert list(table["n·n"]) == [10**6, 10**8, 10**10]
    assert list(table["n·(n+1)/2, causal"]) == [500_500, 50_005_000, 5_000_050_000]
    assert list(table["MB of a pattern"]) == [4, 400, 40_000]


def test_times_are_positive_and_taken_at_contexts_that_fit(found: probe.Findings) -> None:
    decoding = found.tables["timing_decoding"].frame
    assert list(decoding["context"]) == [2, 4, 8, 16]
    attention = found.tables["timing_attention"].frame
    assert list(attention["tokens"].unique()) == [16, 32, 48]
    assert list(attention["comparisons of a head"].unique()) == [256, 1024, 2304]
    for frame in (decoding, attention, found.tables["timing_run"].frame):
        assert (frame.select_dtypes("number") > 0).all(axis=None)
    fits = found.tables["timing_growth"].frame
    assert set(fits["what"]) == {"scores", "scores, softmax, values", "fused kernel", "a whole pass"}
    assert ((fits["low"] <= fits["exponent"]) & (fits["exponent"] <= fits["high"])).all()


def test_all_but_the_times_is_the_same_again(on_llama: probe.Findings, llama: Subject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "PRINTED", (20, 6))
        again = study.cache(llama, seed=3)
    assert (again.answer, again.method, again.notes) == (on_llama.answer, on_llama.method, on_llama.notes)
    assert [(s.title, s.text) for s in again.sections] == [(s.title, s.text) for s in on_llama.sections]
    exact = [name for name in again.tables if not name.startswith("timing_")]
    assert exact == ["identical", "counts", "bytes", "comparisons", "parameters", "lora"]
    for name in exact:
        pd.testing.assert_frame_equal(again.tables[name].frame, on_llama.tables[name].frame)


def test_contexts_stay_within_what_the_subject_reads(tiny: Subject) -> None:
    assert study._room(tiny, tiny.max_positions - 3, 10) == 3
    assert study._room(tiny, 1, 10) == 10


def test_a_decoder_the_ledger_does_not_know_has_its_cache_measured_all_the_same(
    llama: Subject, small_plan: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "PRINTED", (20, 6))
        patch.setattr(study, "_known_sizes", lambda subject: None)
        found = study.cache(llama)
    assert [r["measured"] == r["bytes a token"] for r in rows(found, "bytes")[:2]] == [True, True]
    assert list(found.tables["parameters"].frame["part"]) == ["counted in the model's tensors"]
    assert set(found.tables["lora"].frame["model"]) == {"Llama 7B", "GPT-3"}


def test_an_encoder_is_refused(minilm: Subject) -> None:
    with pytest.raises(UnsupportedModel, match=r"BertModel has no KV cache to measure: its tokens see later ones"):
        study.cache(minilm)


def test_a_decoder_without_a_head_is_refused(llama: Subject) -> None:
    backbone = probe.load(LlamaModel(llama.model.config), llama.tokenizer)
    with pytest.raises(UnsupportedModel, match=r"no language-model head, so it writes no text\. .*smollm2 or tiny\."):
        study.cache(backbone)
