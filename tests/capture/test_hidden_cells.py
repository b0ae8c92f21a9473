"""Cells of scores and patterns that a mask hides stay hidden, whatever an edit does and in whatever precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.errors import CaptureError
from probe.subject import Subject

ENGLISH = [
    "Mary thanked her friend John.",
    "The cat didn't jump onto the table because it was too tired.",
    "It rains all day.",
]
SYNTHETIC = [
    "the dog met the cats .",
    "Anna thanked Ben after the long walk home because she Anna was late .",
    "Anna .",
]


def bloom() -> Any:
    """A model that never asks for its attention function."""
    torch.manual_seed(0)
    config = tf.BloomConfig(vocab_size=400, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)
    return tf.BloomForCausalLM(config).eval()


@pytest.fixture(params=["smollm2", "smollm2, eager", "minilm", "tiny", "bloom"])
def subject(request: pytest.FixtureRequest, tiny: Subject, minilm: Subject, smollm2: Subject) -> Subject:
    if request.param == "smollm2, eager":
        return probe.load("smollm2", attention="eager")
    made = {"tiny": tiny, "minilm": minilm, "smollm2": smollm2}
    return made[request.param] if request.param in made else probe.load(bloom(), tiny.tokenizer, name="bloom")


CHANGES = {
    "zero scores": lambda: edits.zero("scores", 0),
    "other scores": lambda: edits.replace("scores", 0, torch.tensor(1.5)),
    "turned scores": lambda: edits.scale("scores", 0, -1.0),
    "more pattern": lambda: edits.add("pattern", 0, torch.tensor(0.1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_edit_of_every_cell_is_the_same_alone_and_in_a_batch(subject: Subject, change: str) -> None:
    texts = SYNTHETIC if subject.tokenizer.vocab_size < 1000 else ENGLISH
    site: Any = "logits" if subject.has_logits else ("resid_post", subject.n_layers - 1)
    name = site if isinstance(site, str) else site[0]
    edit = CHANGES[change]()
    together = subject.run(texts, name, edits=[edit])[site]
    moved = 0.0
    for i, text in enumerate(texts):
        alone, plain = (subject.run(text, name, edits=made)[site][0] for made in ([edit], []))
        assert (together[i, : len(alone)] - alone).abs().max() <= 1e-4 * alone.abs().max(), text
        moved = max(moved, float((plain - alone).abs().max()))
    assert moved > 1e-3, "the edit changes something"


@pytest.mark.parametrize("change", CHANGES)
def test_no_edit_lets_a_query_see_a_later_key(tiny: Subject, smollm2: Subject, change: str) -> None:
    for subject, text in ((tiny, SYNTHETIC[1]), (smollm2, ENGLISH[1])):
        pattern = subject.run(text, layers=0, edits=[CHANGES[change]()])["pattern", 0][0]
        assert (pattern.triu(1) == 0).all()
        assert (pattern.diagonal(dim1=1, dim2=2) > 0).all()


def test_even_scores_leave_even_attention_to_what_is_visible(smollm2: Subject) -> None:
    pattern = smollm2.run(ENGLISH, layers=0, edits=[edits.zero("scores", 0)])["pattern", 0]
    for i, text in enumerate(ENGLISH):
        n = len(smollm2.encode(text).ids)
        expected = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
        assert torch.allclose(pattern[i, :, :n, :n], expected.expand(9, -1, -1), atol=1e-6)


def test_written_text_under_edited_scores_is_one_full_pass(tiny: Subject) -> None:
    change = [edits.zero("scores", 0), edits.add("pattern", 1, torch.tensor(0.05))]
    texts = ["Anna thanked Ben after the walk because", "the dog met"]
    written = tiny.generate(texts, max_new_tokens=5, sites=["pattern", "resid_post"], edits=change)
    for i, ids in enumerate(written.ids):
        ((_, seen),) = tiny.captured([ids[:-1]], ["pattern", "resid_post"], edits=change)
        n = len(ids) - 1
        for layer in (0, 1, 3):
            assert torch.allclose(written["pattern", layer][i, :, :n, :n], seen["pattern", layer][0], atol=1e-5)
            assert torch.allclose(written["resid_post", layer][i, :n], seen["resid_post", layer][0], atol=1e-4)


@pytest.mark.parametrize(("query", "key"), [(2, 5), ([1, 2], [3, 4])])
def test_a_cut_of_an_edge_that_is_not_there_is_refused(subject: Subject, query: Any, key: Any) -> None:
    text = SYNTHETIC[0] if subject.tokenizer.vocab_size < 1000 else ENGLISH[0] + ENGLISH[2]
    cut = [edits.knock_out(1, query, key)]
    if not subject.is_causal:
        subject.run(text, "z", edits=cut)  # an encoder looks both ways
        return
    with pytest.raises(CaptureError, match=r"knock out scores of layer 1\) changes nothing: none of its"):
        subject.run(text, "z", edits=cut)
    some = [edits.knock_out(1, [4, 5], [2, 5])]  # the edge from 4 to 5 is not there, three others are
    subject.run(text, "z", edits=some)


# half precision


@pytest.fixture(scope="module", params=["float16", "bfloat16"])
def half(request: pytest.FixtureRequest) -> Subject:
    return probe.load("smollm2", dtype=request.param)


def test_a_row_cut_off_from_every_key_is_refused_in_half_precision(half: Subject) -> None:
    with pytest.raises(CaptureError, match="cuts every key that a row can see"):
        half.run(ENGLISH[1], layers=[3], edits=[edits.knock_out(3, 0, 0)])


def test_cut_rows_see_no_later_key_and_no_padding_in_half_precision(half: Subject, smollm2: Subject) -> None:
    cut = [edits.knock_out(3, [2, 3], [0, 1])]
    seen = half.run(ENGLISH, layers=[3], edits=cut, padding="left")["pattern", 3].nan_to_num()
    whole = smollm2.run(ENGLISH, layers=[3], edits=cut)["pattern", 3].nan_to_num()
    for i, text in enumerate(ENGLISH):
        n = len(smollm2.encode(text).ids)
        rows = seen[i, :, :n, :n]
        assert (rows.triu(1) == 0).all()
        assert torch.allclose(rows.sum(-1), torch.ones(9, n), atol=1e-3)
        assert (rows[:, 2:4, :2] == 0).all()
    assert (seen - whole).abs().max() < 0.1, "half precision itself differs a little"


def test_patterns_are_read_in_float32_under_autocast(smollm2: Subject) -> None:
    ids = torch.tensor([smollm2.encode(ENGLISH[1]).ids])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = smollm2.model(ids).logits
        with Capture(smollm2.model, ["rot_q", "rot_k", "pattern"], layers=29) as seen:
            output = smollm2.model(ids).logits
    assert torch.equal(plain, output)
    q, k = (seen[name, 29][0].double().transpose(0, 1) for name in ("rot_q", "rot_k"))
    scores = q @ k.repeat_interleave(3, 0).transpose(1, 2) / 8
    expected: Tensor = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
    assert (seen["pattern", 29][0].double() - expected).abs().max() < 1e-5


# scores lower than masks used to be (TransformerLens#385)


def test_no_score_is_so_low_that_its_key_counts_as_hidden(smollm2: Subject, tiny: Subject) -> None:
    """A model that gives its mask, and one that never asks, each with scores below -10,000."""
    wild = bloom()
    with torch.no_grad():
        for block in wild.transformer.h:
            block.self_attention.query_key_value.weight.mul_(3000)
    asked = (smollm2, ENGLISH[1], [edits.scale("rot_q", 5, 1e5)], 5)
    for subject, text, made, layer in (asked, (probe.load(wild, tiny.tokenizer), SYNTHETIC[1], [], 1)):
        ((_, seen),) = subject.captured([subject.encode(text).ids], ["scores", "pattern"], edits=made)
        n = len(subject.encode(text).ids)
        back = torch.ones(n, n, dtype=torch.bool).tril()
        scores = seen["scores", layer][0]
        assert scores[:, back].min() < -10_000
        assert torch.equal(seen.visible[layer].expand(1, scores.shape[0], n, n)[0], back.expand_as(scores))
        assert (seen["pattern", layer][0].triu(1) == 0).all()
        expected = scores.double().masked_fill(~back, -torch.inf).softmax(-1)
        assert torch.allclose(seen["pattern", layer][0].double(), expected, atol=1e-5)
