"""Gradients at sites against finite differences made with edits, which share no code with autograd."""

from __future__ import annotations

import pytest
import torch
import transformers as tf
from torch import Tensor

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.errors import CaptureError
from probe.subject import Subject

SITES = (
    *("q", "k", "v", "rot_q", "rot_k", "scores", "pattern", "z", "result"),
    *("embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"),
)
TEXT = {"tiny": "Anna thanked Ben because she", "smollm2": "The cat chased the dog because", "minilm": "The cat sat ."}


def metric(answer: Tensor) -> Tensor:
    """A difference of two logits (or hidden coordinates) at the last position."""
    return answer[-1, 5] - answer[-1, 9]


@pytest.mark.parametrize("name", ["tiny", "minilm", "smollm2"])
def test_gradients_equal_what_a_small_edit_changes(name: str, request: pytest.FixtureRequest) -> None:
    subject: Subject = request.getfixturevalue(name)
    layer, text = subject.n_layers - 1, TEXT[name]
    found = subject.gradients(text, metric, SITES, layers=layer)
    torch.manual_seed(0)

    def measured(change: edits.Edit) -> float:
        ids = [subject.encode(text).ids]
        ((batch, _),) = subject.captured(ids, [])
        with torch.no_grad(), Capture(subject.anatomy, edits=[change]):
            output = subject.model(**batch.inputs)
        return float(metric((output.logits if subject.has_logits else output.last_hidden_state)[0].double()))

    for site in SITES:
        at = None if site == "embed" else layer
        gradient = found[site if at is None else (site, at)][0]
        values = subject.run(text, site, layers=layer)[site if at is None else (site, at)][0]
        direction = torch.randn_like(gradient) * values.abs().clamp(max=10).nan_to_num()
        if site == "scores":  # the cells that the mask hides are not the model's to move
            direction = torch.randn_like(gradient).tril()
        step = 2e-2 / float(direction.norm().clamp(min=1e-6)) * float(values[values > -1e4].norm())
        move = step * direction
        plus, minus = (measured(edits.add(site, at, sign * move)) for sign in (1, -1))
        slope = (plus - minus) / (2 * step)
        expected = float((gradient * direction).sum())
        assert abs(slope - expected) <= 0.05 * max(abs(expected), 0.02 * float(gradient.norm() * direction.norm())), (
            site
        )


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_gradients_of_an_encoder_decoder_reach_its_encoder_and_cross_attention(kind: str, tiny: Subject) -> None:
    subject = _encoder_decoder(kind, tiny)
    texts, decoder = ["Anna thanked Ben .", "Ben smiled ."], [[0, 7, 30], [0, 12, 9, 21]]
    sites = ("z", "cross.z", "cross.pattern", "cross.v", "encoder.z", "encoder.pattern", "encoder.resid_post")
    found = subject.gradients(texts, metric, sites, layers=1, decoder=decoder)
    assert found.ids == tuple(map(tuple, decoder))
    torch.manual_seed(0)
    plain = subject.run(texts, (*sites, "logits"), layers=1, decoder=decoder)
    for site in sites:
        gradient, values = found[site, 1], plain[site, 1]
        assert gradient.shape == values.shape
        for prompt in range(2):
            real = ~gradient[prompt].isnan()
            own = tuple(slice(int(real.sum(d).max())) for d in range(real.dim()))  # without what fills it up
            direction = torch.randn_like(values[prompt][own]) * values[prompt][own].abs()
            step, size = 1e-3, float(gradient[prompt][own].norm() * direction.norm())

            def measured(sign: int, site: str = site, prompt: int = prompt, move: Tensor = step * direction) -> float:
                change = edits.add(site, 1, sign * move)
                alone = subject.run(texts[prompt], "logits", decoder=[decoder[prompt]], edits=[change])
                return float(metric(alone["logits"][0].double()))

            slope = (measured(1) - measured(-1)) / (2 * step)
            expected = float((gradient[prompt][own] * direction).sum())
            assert slope == pytest.approx(expected, rel=0.01, abs=2e-3 * size), (site, prompt)
            assert size > 1e-3


def _encoder_decoder(kind: str, tiny: Subject) -> Subject:
    torch.manual_seed(0)
    if kind == "t5":
        return probe.load(
            tf.T5ForConditionalGeneration(
                tf.T5Config(
                    vocab_size=400, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=2, num_heads=4
                )
            ).eval(),
            tiny.tokenizer,
        )
    config = tf.BartConfig(
        vocab_size=400, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64, init_std=0.3,
    )  # fmt: skip
    return probe.load(tf.BartForConditionalGeneration(config).eval(), tiny.tokenizer)


def test_one_backward_pass_attributes_every_head(tiny: Subject) -> None:
    """Attribution patching: gradient times difference of z, for all heads at once, close to exact patching."""
    clean, other = "Anna thanked Ben because she", "Ben thanked Anna because she"
    source = tiny.run(other, "z")
    plain = tiny.run(clean, ["z", "logits"])
    gradient = tiny.gradients(clean, metric, "z")
    exact, estimate = [], []
    for layer in range(tiny.n_layers):
        by_head = (gradient["z", layer] * (source["z", layer] - plain["z", layer]))[0].sum((0, 2))
        for head in range(tiny.n_heads):
            patched = tiny.run(clean, "logits", edits=[edits.patch("z", layer, source, heads=head)])
            exact.append(float(metric(patched["logits"][0]) - metric(plain["logits"][0])))
            estimate.append(float(by_head[head]))
    assert torch.corrcoef(torch.tensor([exact, estimate]))[0, 1] > 0.8


def test_gradients_of_prompts_in_a_batch_equal_those_alone(smollm2: Subject) -> None:
    texts = [TEXT["smollm2"], "One, two, three, four, five, six, seven,"]
    together = smollm2.gradients(texts, metric, ["z", "pattern"], layers=[3])
    for i, text in enumerate(texts):
        alone = smollm2.gradients(text, metric, ["z", "pattern"], layers=[3])
        n = alone["z", 3].shape[1]
        assert torch.allclose(together["z", 3][i, :n], alone["z", 3][0], atol=1e-4)
        assert torch.allclose(together["pattern", 3][i, :, :n, :n], alone["pattern", 3][0], atol=1e-4)


def test_gradients_that_cannot_be_had_say_why(tiny: Subject) -> None:
    ids = torch.tensor([tiny.encode("Anna thanked Ben .").ids])
    with torch.no_grad(), Capture(tiny.model, "z", gradients=True) as seen:
        output = tiny.model(ids)
    with pytest.raises(CaptureError, match=r"run the model outside torch\.no_grad"):
        seen.gradients(output.logits.sum())
    with Capture(tiny.model, "z") as seen:
        output = tiny.model(ids)
    with pytest.raises(CaptureError, match="open the capture with gradients=True"):
        seen.gradients(output.logits.sum())
    with Capture(tiny.model, "z", gradients=True) as seen:
        tiny.model(ids)
    with pytest.raises(CaptureError, match="depends on z in no layer"):
        seen.gradients(torch.ones(1, requires_grad=True).sum())
