"""What is captured and edited while text is written equals one full forward pass over the finished text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.errors import OutOfRange, ProbeError, PromptError, UnsupportedModel
from probe.subject import Subject

SITES = ["q", "k", "v", "rot_k", "scores", "pattern", "z", "resid_post", "mlp_out"]
TEXTS = {
    "tiny": ["Anna thanked Ben after the walk because", "the dog met"],
    "smollm2": ["The capital of France is", "One, two, three, four, five, six,"],
}


def full(subject: Subject, ids: tuple[int, ...], sites: list[str], changes: Any = ()) -> Capture:
    """One pass over a finished text, but its last token, which nothing has read."""
    ((_, seen),) = subject.captured([ids[:-1]], sites, edits=changes)
    return seen


def window() -> Any:
    """Sliding windows in every other layer, shorter than the text."""
    import transformers as tf

    torch.manual_seed(0)
    config = tf.Gemma2Config(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=4,
        initializer_range=0.3,
        layer_types=["sliding_attention", "full_attention"],
    )
    return tf.Gemma2ForCausalLM(config).eval()


@pytest.fixture(params=["tiny", "smollm2", "window"])
def writer(request: pytest.FixtureRequest, tiny: Subject, smollm2: Subject) -> tuple[Subject, list[str]]:
    if request.param == "window":
        return probe.load(window(), tiny.tokenizer), TEXTS["tiny"]
    return (tiny if request.param == "tiny" else smollm2), TEXTS[request.param]


def test_rows_of_cached_decoding_equal_rows_of_one_full_pass(writer: tuple[Subject, list[str]]) -> None:
    subject, texts = writer
    written = subject.generate(texts, max_new_tokens=6, sites=[*SITES, "logits"])
    for i, prompt in enumerate(written.prompts):
        ids = written.ids[i]
        assert ids[: len(prompt)] == prompt.ids
        assert ids[len(prompt) :] == written.new_ids[i]
        seen = full(subject, ids, [*SITES, "logits"])
        n = len(ids) - 1
        for layer in range(subject.n_layers):
            hidden = ~seen.visible[layer].expand_as(seen["pattern", layer])
            for site in SITES:
                a, b = written[site, layer][i], seen[site, layer][0]
                a = a[:, :n, :n] if site in ("scores", "pattern") else a[:n]
                if site == "scores":
                    a, b = a.masked_fill(hidden[0], 0), b.masked_fill(hidden[0], 0)
                assert (a - b).abs().max() <= 2e-4 * b.abs().max().clamp(min=1), (site, layer)
        chose = seen["logits"][0, len(prompt) - 1 :]
        assert torch.allclose(written["logits"][i, : len(chose)], chose, atol=1e-3 * float(chose.abs().max()))
        assert written.new_ids[i] == tuple(chose.argmax(-1).tolist())


def test_edits_hold_while_text_is_written(writer: tuple[Subject, list[str]]) -> None:
    subject, texts = writer
    last = subject.n_layers - 1
    changes = [
        edits.zero("z", last, heads=-1),
        edits.knock_out(0, query=[3, 7], key=1, heads=0),
        edits.scale("v", 1, 0.5, rows=[2]),
        edits.scale("q", 1, 0.7),
        edits.scale("q", 0, 3.0, rows=[0]),
        edits.scale("k", 0, 2.0, rows=[1, 7]),
        edits.scale("resid_mid", 0, 1.1, rows=[6, 7]),
        edits.scale("mlp_out", last, 1.2),
    ]
    texts = [max(texts, key=len)]
    sites = ["q", "k", "z", "resid_post", "pattern"]
    written = subject.generate(texts, max_new_tokens=5, sites=sites, edits=changes)
    ids = written.ids[0]
    n = len(ids) - 1
    assert n > 7
    seen = full(subject, ids, sites, changes)
    for layer in (0, 1, last):
        for site in sites:
            a, b = written[site, layer][0], seen[site, layer][0]
            assert (a - b).abs().max() <= 2e-4 * b.abs().max().clamp(min=1), (site, layer)
    assert (written["z", last][0, :, -1] == 0).all()
    assert (written["pattern", 0][0, 0, [3, 7], 1] == 0).all()
    plain = subject.generate(texts, max_new_tokens=5, sites=["resid_post"], layers=last)
    assert not torch.allclose(plain["resid_post", last][0, 0], written["resid_post", last][0, 0], atol=1e-3)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_decoder_that_reads_an_encoder_is_captured_while_it_writes(kind: str, tiny: Subject) -> None:
    import transformers as tf

    torch.manual_seed(0)
    special = {"pad_token_id": 0, "eos_token_id": 199, "bos_token_id": 198, "decoder_start_token_id": 0}
    if kind == "t5":
        config: Any = tf.T5Config(
            vocab_size=400, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, initializer_factor=1.0, **special
        )
        model: Any = tf.T5ForConditionalGeneration(config)
    else:
        sizes = {
            f"{side}_{n}": v
            for side in ("encoder", "decoder")
            for n, v in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32))
        }
        config = tf.BartConfig(vocab_size=400, d_model=32, max_position_embeddings=64, init_std=0.3, **sizes, **special)
        model = tf.BartForConditionalGeneration(config)
    subject = probe.load(model.eval(), tiny.tokenizer)
    sites = [
        "pattern",
        "z",
        "resid_post",
        "cross.pattern",
        "cross.z",
        "cross.k",
        "encoder.pattern",
        "encoder.resid_post",
    ]
    texts = TEXTS["tiny"]
    written = subject.generate(texts, max_new_tokens=6, sites=sites)
    for i, text in enumerate(texts):
        read = [0, *written.new_ids[i][:-1]]
        run = subject.run(text, sites, decoder=[read])
        for layer in (0, 1):
            for site in sites:
                whole = run[site, layer][0]
                part = written[site, layer][i][tuple(slice(0, size) for size in whole.shape)]
                assert (part - whole).abs().max() <= 1e-4 * whole.abs().max().clamp(min=1), (site, layer, i)
    assert written["cross.pattern", 1].shape[2:] == (6, max(len(p) for p in written.prompts))


def test_a_model_that_cannot_find_prompts_behind_padding_says_so(tiny: Subject) -> None:
    """BART's decoder counts positions by column and takes no position ids."""
    import transformers as tf

    torch.manual_seed(0)
    config = tf.BartConfig(
        vocab_size=400, d_model=32, max_position_embeddings=64, init_std=0.3, decoder_layers=1, decoder_ffn_dim=32
    )
    subject = probe.load(tf.BartForCausalLM(config).eval(), tiny.tokenizer)
    right = subject.run(TEXTS["tiny"], "pattern")["pattern", 0]
    for i, text in enumerate(TEXTS["tiny"]):
        alone = subject.run(text, "pattern", padding="left")["pattern", 0][0]
        n = alone.shape[-1]
        assert torch.allclose(alone, right[i, :, :n, :n], atol=1e-5)
    with pytest.raises(UnsupportedModel, match="left padding would move its prompts"):
        subject.run(TEXTS["tiny"], "pattern", padding="left")


def test_sampling_is_drawn_from_its_seed(tiny: Subject, smollm2: Subject) -> None:
    for subject, texts in ((tiny, TEXTS["tiny"]), (smollm2, TEXTS["smollm2"])):
        made = [
            subject.generate(texts[:1], max_new_tokens=6, temperature=1.5, top_k=50, seed=s).new_ids for s in (0, 0, 1)
        ]
        assert made[0] == made[1] != made[2]
        assert made[0] != subject.generate(texts[:1], max_new_tokens=6).new_ids


def test_what_cannot_be_written_is_refused(tiny: Subject, minilm: Subject) -> None:
    with pytest.raises(UnsupportedModel, match="BertModel writes no text"):
        minilm.generate("A cat.", max_new_tokens=2)
    with pytest.raises(PromptError, match=r"outgrow what GPT reads, 64; max_new_tokens can be at most 59"):
        tiny.generate("Anna thanked Ben met .", max_new_tokens=61)
    with pytest.raises(ProbeError, match="max_new_tokens is 0"):
        tiny.generate("Anna thanked Ben .", max_new_tokens=0)
    with pytest.raises(ProbeError, match="paths are not patched while text is written"):
        tiny.generate("Anna thanked Ben .", max_new_tokens=2, edits=[edits.path((0, 0), (1, 0))])
    with pytest.raises(OutOfRange, match="count from a prompt's start while text is written"):
        tiny.generate("Anna thanked Ben .", max_new_tokens=2, edits=[edits.zero("z", 0, rows=-1)])


# a checkpoint's own wishes


def bart_writer(tiny: Subject) -> Subject:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.BartConfig(
        vocab_size=400,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        init_std=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_bos_token_id=None,
        forced_eos_token_id=None,
    )
    return probe.load(tf.BartForConditionalGeneration(config).eval(), tiny.tokenizer)


WISHES = {
    "repetition_penalty": 5.0,
    "num_beams": 3,
    "no_repeat_ngram_size": 1,
    "forced_bos_token_id": 7,
    "suppress_tokens": [1, 2, 3, 11, 17],
    "do_sample": True,
    "min_new_tokens": 6,
}


@pytest.mark.parametrize("kind", ["smollm2", "bart"])
def test_a_checkpoint_cannot_ask_for_beams_penalties_or_forced_tokens(
    kind: str, tiny: Subject, smollm2: Subject
) -> None:
    subject, texts = (smollm2, TEXTS["smollm2"]) if kind == "smollm2" else (bart_writer(tiny), TEXTS["tiny"])
    plain = subject.generate(texts, max_new_tokens=6, sites=["z", "logits"])
    asked = subject.model.generation_config
    kept = {name: getattr(asked, name) for name in WISHES}
    for name, wish in WISHES.items():
        setattr(asked, name, wish)
    try:
        written = subject.generate(texts, max_new_tokens=6, sites=["z", "logits"])
        assert subject.model.generation_config is asked
        assert {name: getattr(asked, name) for name in WISHES} == WISHES, "the checkpoint's own are left alone"
    finally:
        for name, wish in kept.items():
            setattr(asked, name, wish)
    assert written.new_ids == plain.new_ids
    last = subject.n_layers - 1
    assert written["z", last].shape[0] == len(texts)
    assert torch.equal(written["z", last].nan_to_num(), plain["z", last].nan_to_num())
    for i, new in enumerate(written.new_ids):
        chosen = written["logits"][i, : len(new)].argmax(-1)
        assert tuple(chosen.tolist()) == new, "greedy: each token is the likeliest of the logits that were captured"
