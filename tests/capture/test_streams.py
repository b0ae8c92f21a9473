"""Streamed statistics against the same statistics of whole patterns, in plain torch and float64."""

from __future__ import annotations

import pytest
import torch

import probe
from probe import edits
from probe.capture import streams
from probe.errors import OutOfRange, ProbeError
from probe.subject import Subject

TEXTS = {
    "tiny": ["Anna thanked Ben after the long walk home because she Anna was late .", "the dog met the cats ."],
    "english": [
        "When the long rain stopped at last, the two old dogs ran out of the house and she followed them slowly.",
        "Mary thanked John.",
    ],
}


def check(subject: Subject, texts: list[str], batch_size: int) -> None:
    groups = [[[1, 2], [0]], [[2], [3]]]
    made = subject.stream(texts, groups=groups, offsets=[-3, -1, 0, 2], batch_size=batch_size)
    run = subject.run(texts, "pattern")
    for at, layer in enumerate(made.layers):
        for i, prompt in enumerate(run.prompts):
            n = len(prompt)
            pattern = run["pattern", layer][i, :, :n, :n].double()
            entropy = -(pattern * pattern.clamp(min=1e-300).log()).sum(-1)
            assert (made.entropy[i, at, :, :n] - entropy).abs().max() <= 2e-5
            assert torch.allclose(made.first[i, at, :, :n].double(), pattern[..., 0], atol=1e-6)
            top = pattern.gather(2, made.argmax[i, at, :, :n].unsqueeze(2)).squeeze(2)
            assert (top >= pattern.amax(-1) - 1e-6).all()
            for number, keys in enumerate(groups[i]):
                assert torch.allclose(made.mass[i, at, :, :n, number].double(), pattern[..., keys].sum(-1), atol=1e-6)
            for place, offset in enumerate([-3, -1, 0, 2]):
                told = made.offsets[i, at, :, place]
                if subject.is_causal and offset > 0:
                    assert told.isnan().all()
                else:
                    mean = torch.diagonal(pattern, offset, 1, 2).mean(-1)
                    assert torch.allclose(told.double(), mean, atol=1e-6)
            assert made.entropy[i, at, :, n:].isnan().all()
            assert (made.argmax[i, at, :, n:] == -1).all()


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("name", ["tiny", "minilm", "smollm2"])
def test_streamed_statistics_equal_those_of_whole_patterns(
    name: str, batch_size: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "BUDGET", 1)  # chunks of eight rows
    check(request.getfixturevalue(name), TEXTS["tiny" if name == "tiny" else "english"], batch_size)


def test_streams_of_windows_biases_sinks_and_models_that_never_ask(tiny: Subject) -> None:
    import transformers as tf

    size = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = {**size, "intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 16, "initializer_range": 0.3}
    for cls, config in (
        (tf.MistralForCausalLM, tf.MistralConfig(**llama, sliding_window=4)),
        (tf.GptOssForCausalLM, tf.GptOssConfig(**llama, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)),
        (tf.BloomForCausalLM, tf.BloomConfig(vocab_size=400, hidden_size=32, n_layer=2, n_head=4)),
        (tf.OPTForCausalLM, tf.OPTConfig(**size, ffn_dim=32, word_embed_proj_dim=32)),
    ):
        torch.manual_seed(0)
        check(probe.load(cls(config).eval(), tiny.tokenizer), TEXTS["tiny"], 2)


def test_a_sink_outside_the_keys_takes_its_part_of_the_entropy(tiny: Subject) -> None:
    """Two cells of 1/4 and a sink of 1/2: the entropy of the cells is 2 · 1/4 · ln 4."""
    pattern = torch.tensor([[[[0.25, 0.25]]]])
    scores = torch.tensor([[[[1.0, 1.0]]]])
    told = streams._entropy(pattern, scores, pattern.argmax(-1))
    assert told.item() == pytest.approx(0.5 * torch.tensor(4.0).log().item())


def test_groups_that_do_not_fit_are_refused(tiny: Subject) -> None:
    text = "Anna thanked Ben ."
    with pytest.raises(OutOfRange, match="key 9 does not exist: allowed are 0 to"):
        tiny.stream(text, groups=[[[9]]])
    with pytest.raises(ProbeError, match="key 1 of prompt 0 is in two groups, 0 and 1"):
        tiny.stream(text, groups=[[[1], [1, 2]]])
    with pytest.raises(OutOfRange, match="groups were given for 2 prompts, but there are 1"):
        tiny.stream(text, groups=[[[1]], [[1]]])


def encoder_decoder(kind: str, tiny: Subject) -> Subject:
    """Another number of layers in encoder and decoder, sharp enough that heads differ."""
    import transformers as tf

    torch.manual_seed(0)
    model: torch.nn.Module
    if kind == "t5":
        config = tf.T5Config(
            vocab_size=400, d_model=32, d_kv=8, d_ff=32, num_layers=3, num_decoder_layers=2, num_heads=4
        )
        model = tf.T5ForConditionalGeneration(config)
    else:
        sizes = {"encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
        room = {"vocab_size": 400, "max_position_embeddings": 64, "init_std": 0.3}
        model = tf.BartForConditionalGeneration(
            tf.BartConfig(d_model=32, encoder_ffn_dim=32, decoder_ffn_dim=32, **sizes, **room)
        )
    return probe.load(model.eval(), tiny.tokenizer)


DECODER = [[0, 7, 9, 11, 13], [0, 5, 3]]


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("site", ["pattern", "encoder.pattern", "cross.pattern"])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_streams_of_encoder_decoders(
    kind: str, site: str, batch_size: int, tiny: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each of the three kinds of attention, with texts of different lengths on both sides."""
    monkeypatch.setattr(streams, "BUDGET", 1)
    subject, texts = encoder_decoder(kind, tiny), TEXTS["tiny"]
    offsets = [] if site == "cross.pattern" else [-2, 0, 1]
    groups = [[[1, 2], [0]], [[2], [0]]]
    made = subject.stream(texts, site=site, decoder=DECODER, groups=groups, offsets=offsets, batch_size=batch_size)
    run = subject.run(texts, site, decoder=DECODER)
    assert made.layers == tuple(range(3 if site == "encoder.pattern" else 2))
    for at, layer in enumerate(made.layers):
        for i, prompt in enumerate(run.prompts):
            n_q = len(prompt) if site == "encoder.pattern" else len(DECODER[i])
            n_k = len(DECODER[i]) if site == "pattern" else len(prompt)
            pattern = run[site, layer][i, :, :n_q, :n_k].double()
            assert torch.allclose(pattern.sum(-1), torch.ones(4, n_q, dtype=torch.double), atol=1e-5)
            entropy = -(pattern * pattern.clamp(min=1e-300).log()).sum(-1)
            assert (made.entropy[i, at, :, :n_q] - entropy).abs().max() <= 2e-5
            assert torch.allclose(made.first[i, at, :, :n_q].double(), pattern[..., 0], atol=1e-6)
            top = pattern.gather(2, made.argmax[i, at, :, :n_q].unsqueeze(2)).squeeze(2)
            assert (top >= pattern.amax(-1) - 1e-6).all()
            for number, keys in enumerate(groups[i]):
                assert torch.allclose(made.mass[i, at, :, :n_q, number].double(), pattern[..., keys].sum(-1), atol=1e-6)
            for place, offset in enumerate(offsets):
                told = made.offsets[i, at, :, place]
                if site == "pattern" and offset > 0:
                    assert told.isnan().all()
                else:
                    assert torch.allclose(told.double(), torch.diagonal(pattern, offset, 1, 2).mean(-1), atol=1e-6)
            assert made.entropy[i, at, :, n_q:].isnan().all()
            assert (made.argmax[i, at, :, n_q:] == -1).all()


def test_streams_of_encoder_decoders_can_be_edited(tiny: Subject) -> None:
    """Cross-attention with one edge knocked out, beside the whole pattern under the same edit."""
    subject, text = encoder_decoder("bart", tiny), TEXTS["tiny"][1]
    change = edits.zero("encoder.z", layer=1, heads=2)
    made = subject.stream(text, site="cross.pattern", decoder=DECODER[:1], edits=[change])
    whole = subject.run(text, "cross.pattern", decoder=DECODER[:1], edits=[change])
    plain = subject.stream(text, site="cross.pattern", decoder=DECODER[:1])
    for layer in range(2):
        assert torch.allclose(made.first[0, layer], whole["cross.pattern", layer][0, :, :, 0], atol=1e-6)
    assert (made.first - plain.first).abs().max() > 1e-4


def test_streams_that_there_are_not_are_refused(tiny: Subject) -> None:
    subject, text = encoder_decoder("bart", tiny), TEXTS["tiny"][1]
    with pytest.raises(ProbeError, match="cross-attention has no offsets"):
        subject.stream(text, site="cross.pattern", offsets=[-1])
    assert subject.stream(text, site="cross.pattern").offsets.shape[-1] == 0
    with pytest.raises(ProbeError, match=r"no pattern to stream named 'cross\.patern'\. Did you mean 'cross\.pattern'"):
        subject.stream(text, site="cross.patern")
    with pytest.raises(ProbeError, match="it is no encoder-decoder model"):
        tiny.stream(text, site="encoder.pattern")
    with pytest.raises(OutOfRange, match=r"pattern is in none of the layers asked for, \(2,\)"):
        subject.stream(text, layers=2)
    for read in (tiny.stream, tiny.run):
        with pytest.raises(ProbeError, match="GPT is no encoder-decoder, its one stack reads the prompts"):
            read(text, decoder=[[1, 2]])
