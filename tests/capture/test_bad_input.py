"""What cannot be captured or edited is refused by a `ProbeError` that names what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.errors import CaptureError, OutOfRange, ProbeError, UnknownName
from probe.subject import Subject

TEXT = "Anna thanked Ben because she"


def captured(subject: Subject, **options: Any) -> Capture:
    ids = torch.tensor([subject.encode(TEXT).ids])
    with torch.no_grad(), Capture(options.pop("model", subject.model), options.pop("sites", "z"), **options) as seen:
        subject.model(ids)
    return seen


def edited(subject: Subject, *made: Any) -> Any:
    return subject.run(TEXT, "logits", edits=list(made))


CASES: dict[str, tuple[type[Exception], str, Callable[[Subject], Any]]] = {
    "a site that is a number": (UnknownName, "no site named '5'", lambda s: s.run(TEXT, 5)),
    "no site": (UnknownName, "no site named 'None'", lambda s: s.run(TEXT, None)),
    "half a layer": (OutOfRange, "a layer is a whole number, not 1.5", lambda s: s.run(TEXT, "z", layers=1.5)),
    "half a layer in a list": (OutOfRange, "not 1.5", lambda s: s.run(TEXT, "z", layers=[1.5])),
    "layers as a word": (OutOfRange, "a layer is a whole number, not 'all'", lambda s: s.run(TEXT, "z", layers="all")),
    "no layers": (OutOfRange, "no layer was chosen: give at least one of 0 to 3", lambda s: s.run(TEXT, layers=[])),
    "a head as a word": (OutOfRange, "a head is a whole number, not 'a'", lambda s: s.run(TEXT, "z", heads="a")),
    "no heads": (OutOfRange, "no head was chosen", lambda s: s.run(TEXT, "z", heads=[])),
    "half a row": (OutOfRange, "not 1.5", lambda s: s.run(TEXT, "z", rows=[1.5])),
    "a row as a word": (OutOfRange, "not 'a'", lambda s: s.run(TEXT, "z", rows="a")),
    "no texts": (ProbeError, "a text or a list of texts, not None", lambda s: s.run(None)),
    "half a batch": (OutOfRange, "batch_size=1.5", lambda s: s.run(TEXT, "z", batch_size=1.5)),
    "padding misspelt": (UnknownName, "no padding side named 'lefft'", lambda s: s.run(TEXT, "z", padding="lefft")),
    "an empty prompt of ids": (ProbeError, "prompt 0 has no tokens", lambda s: list(s.captured([[]], ["z"]))),
    "an id that is none": (OutOfRange, "1000000", lambda s: list(s.captured([[10**6]], ["z"]))),
    "capture: no rows": (OutOfRange, "rows are positions", lambda s: captured(s, rows=[])),
    "capture: half a row": (OutOfRange, "rows are positions", lambda s: captured(s, rows=[1.7])),
    "capture: a mask": (OutOfRange, "rows are positions", lambda s: captured(s, rows=torch.tensor([True, False]))),
    "capture: rows of two": (OutOfRange, "given for 2 prompts", lambda s: captured(s, rows=torch.tensor([[0], [1]]))),
    "capture: device": (ProbeError, "device='gpu'", lambda s: captured(s, device="gpu")),
    "capture: less than nothing": (CaptureError, "max_bytes=-1", lambda s: captured(s, max_bytes=-1)),
    "capture: a name": (ProbeError, "a capture reads a torch module, not 'tiny'", lambda s: captured(s, model="tiny")),
    "edit: head for heads": (UnknownName, "Did you mean 'heads'", lambda s: edits.zero("z", 0, head=1)),
    "edit: a layer as a word": (OutOfRange, "not 'a'", lambda s: edited(s, edits.zero("z", "a"))),  # type: ignore[arg-type]
    "edit: width": (ProbeError, r"shape \(7,\) does not fit", lambda s: edited(s, edits.add("z", 0, torch.ones(7)))),
    "edit: a list": (ProbeError, "is a tensor, not list", lambda s: edits.add("z", 0, [1.0])),  # type: ignore[arg-type]
    "edit: makes nothing": (
        ProbeError,
        r"change z of layer 0\) made None of a part of shape",
        lambda s: edited(s, edits.edit("z", 0, lambda part, where: None)),  # type: ignore[arg-type, return-value]
    ),
    "edit: no rows": (ProbeError, r"rows=\[\] of an edit of z chooses nothing", lambda s: edits.zero("z", 0, rows=[])),
    "edit: no heads": (ProbeError, r"heads=\[\] of an edit", lambda s: edits.zero("z", 0, heads=[])),
    "edit: a factor as a word": (ProbeError, "is a number, not 'a'", lambda s: edits.scale("z", 0, "a")),  # type: ignore[arg-type]
    "half a token": (ProbeError, "max_new_tokens is 1.5", lambda s: s.generate(TEXT, max_new_tokens=1.5)),
    "an offset as a word": (OutOfRange, "offset is a whole number, not .a.", lambda s: s.stream(TEXT, offsets=["a"])),
    "path: into nothing": (ProbeError, r"into=\[\] of a path", lambda s: edits.path((0, 0), (1, 0), into=[])),
    "path: writer edited": (
        ProbeError,
        r"result of layer 0 is edited and read by a path from head 0\.1 to 2\.0",
        lambda s: edited(s, edits.zero("result", 0, heads=1), edits.path((0, 1), (2, 0))),
    ),
    "path: its block's sum edited": (
        ProbeError,
        r"attn_out of layer 0 is edited and read by a path",
        lambda s: edited(s, edits.zero("attn_out", 0), edits.path((0, 1), (2, 0))),
    ),
    "gradients: of no site": (
        ProbeError,
        "name at least one site",
        lambda s: s.gradients(TEXT, lambda y: y[-1, 3], []),
    ),
    "gradients: of a float": (
        ProbeError,
        "the metric made 1.0, not a tensor with one number",
        lambda s: s.gradients(TEXT, lambda y: 1.0),  # type: ignore[arg-type, return-value]
    ),
    "gradients: of several": (
        ProbeError,
        r"the metric made a tensor of shape \(3,\), not",
        lambda s: s.gradients(TEXT, lambda y: y[-1, :3]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_the_reason(name: str, tiny: Subject) -> None:
    error, says, act = CASES[name]
    with pytest.raises(error, match=says):
        act(tiny)


def test_one_row_one_edit_and_numbers_of_numpy_and_torch_are_taken(tiny: Subject) -> None:
    import numpy as np

    assert captured(tiny, rows=2)["z", 0].shape[1] == 1
    plain, less = captured(tiny, sites="resid_post"), captured(tiny, sites="resid_post", edits=edits.zero("z", 0))
    assert not torch.equal(plain["resid_post", 3], less["resid_post", 3])
    for rows in (np.array([1, 2]), torch.tensor([1, 2]), [np.int64(1), torch.tensor(2)]):
        one = tiny.run(TEXT, "z", layers=np.int64(1), edits=[edits.zero("z", 1, rows=rows)])["z", 1][0]
        assert (one[[1, 2]] == 0).all()
        assert (one[[0, 3, 4]] != 0).any()


def test_a_model_in_training_mode_is_refused_where_its_answers_are_drawn(tiny: Subject) -> None:
    torch.manual_seed(0)
    config = tf.GPT2Config(vocab_size=400, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, resid_pdrop=0.5)
    subject = probe.load(tf.GPT2LMHeadModel(config), tiny.tokenizer)
    subject.run(TEXT, "z")
    subject.model.train()
    with pytest.raises(ProbeError, match=r"training mode with dropout.*subject\.model\.eval\(\)"):
        subject.run(TEXT, "z")
    with pytest.raises(ProbeError, match="training mode with dropout"):
        subject.generate(TEXT, max_new_tokens=2)
    subject.model.eval()
    subject.run(TEXT, "z")


# one key-value head


def test_falcon_as_it_was_first_made_has_one_key_value_head_that_is_read(tiny: Subject) -> None:
    torch.manual_seed(0)
    config = tf.FalconConfig(
        vocab_size=400,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        multi_query=True,
        new_decoder_architecture=False,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    subject = probe.load(tf.FalconForCausalLM(config).eval(), tiny.tokenizer)
    assert (subject.n_heads, subject.n_kv_heads) == (4, 1)
    run = subject.run(TEXT, ["rot_q", "rot_k", "v", "pattern", "z"])
    for layer in (0, 1):
        q, k, v = (run[name, layer][0].double() for name in ("rot_q", "rot_k", "v"))
        assert k.shape[1:] == v.shape[1:] == (1, 8)
        scores = torch.einsum("qhd,kd->hqk", q, k[:, 0]) / 8**0.5
        pattern = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
        assert (pattern - run["pattern", layer][0]).abs().max() < 1e-6
        assert (torch.einsum("hqk,kd->qhd", pattern, v[:, 0]) - run["z", layer][0]).abs().max() < 1e-5
    fused = subject.model.transformer.h[1].self_attention.query_key_value
    with torch.no_grad():
        mixed = fused(subject.model.transformer.h[1].input_layernorm(subject.run(TEXT, "resid_pre")["resid_pre", 1]))
    assert torch.allclose(mixed[0, :, -8:], run["v", 1][0, :, 0], atol=1e-6), "the last 8 columns are the values"
    plain = subject.run(TEXT, "logits")["logits"]
    for site in ("rot_k", "v"):
        changed = subject.run(TEXT, "logits", edits=[edits.scale(site, 0, 0.5, heads=2)])["logits"]
        assert (changed - plain).abs().max() > 1e-4, site
