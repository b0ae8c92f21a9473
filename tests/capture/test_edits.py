"""Edits against independent oracles: changed weights, the model's own masks, blocks run by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.capture.edit import HEAD_SITES
from probe.errors import CaptureError, OutOfRange, ProbeError, UnknownName, UnsupportedModel
from probe.subject import Subject
from tests.capture.conftest import Case, blocks, projects

EDITABLE = (
    *("q", "k", "rot_q", "rot_k", "v", "scores", "pattern", "z", "result"),
    *("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"),
)


def answer(subject: Subject, inputs: dict[str, Tensor], changes: Any = ()) -> Tensor:
    """Logits, or last hidden states where there are none."""
    with torch.no_grad(), Capture(subject.anatomy, edits=changes):
        out = subject.model(**inputs)
    return out.logits if subject.has_logits else out.last_hidden_state


@pytest.mark.parametrize("layer", [0, -1])
def test_a_zeroed_head_is_a_head_whose_output_weights_are_zero(case: Case, layer: int) -> None:
    inputs, subject = case.inputs("right"), case.subject
    width, head = subject.d_head, subject.n_heads - 1
    for site in ("z", "result"):
        edited = answer(subject, inputs, [edits.zero(site, layer, heads=-1)])
        weight = projects(subject)[layer].weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight[:, head * width : (head + 1) * width] = 0
            expected = answer(subject, inputs)
            weight.copy_(kept)
        assert (edited - expected).abs().max() <= 2e-5 * expected.abs().max()
        assert not torch.allclose(edited, answer(subject, inputs), atol=1e-3)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_knocked_out_edge_is_a_cell_that_the_mask_hides(case: Case, side: str) -> None:
    """Every head at once is what a mask of the model's own can do."""
    inputs, subject = case.inputs(side), case.subject
    whole = dict(inputs)
    length = inputs["input_ids"].shape[1]
    visible = inputs["attention_mask"].bool()[:, None, None, :].expand(-1, 1, length, -1).clone()
    if subject.is_causal:
        visible &= torch.ones(length, length, dtype=torch.bool).tril()
    query, key = (5, 2) if side == "right" else (length - 1, length - 3)
    visible[:, :, query, key] = False
    cut = [edits.knock_out(layer, query, key) for layer in range(subject.n_layers)]
    edited = answer(subject, inputs, cut)
    additive = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    if subject.family == "tiny":
        own = subject.model.base_model.mask
        subject.model.base_model.mask = lambda *args: additive
        expected = answer(subject, inputs)
        subject.model.base_model.mask = own
    else:
        whole["attention_mask"] = additive if subject.attention == "eager" else visible
        expected = answer(subject, whole)
    real = inputs["attention_mask"].bool()
    assert (edited - expected)[real].abs().max() <= 1e-4 * expected.abs().max()
    assert (edited - answer(subject, inputs))[real].abs().max() > 1e-3


def test_an_edge_can_be_cut_for_one_head_of_one_prompt(case: Case) -> None:
    inputs, subject = case.inputs("right"), case.subject
    cut = edits.knock_out(-1, query=4, key=[1, 2], heads=-1, prompts=0)
    with torch.no_grad():
        with Capture(subject.anatomy, ["pattern", "z"]) as plain:
            subject.model(**inputs)
        with Capture(subject.anatomy, ["pattern", "z"], edits=[cut]) as seen:
            subject.model(**inputs)
    last = subject.n_layers - 1
    before, after = plain["pattern", last], seen["pattern", last]
    assert (after[0, -1, 4, 1:3] == 0).all()
    kept = before[0, -1, 4].clone()
    kept[1:3] = 0
    assert torch.allclose(after[0, -1, 4], kept / kept.sum(), atol=1e-6)
    elsewhere = torch.ones_like(before, dtype=torch.bool)
    elsewhere[0, -1, 4] = False
    assert torch.equal(before[elsewhere], after[elsewhere])
    untouched = torch.ones_like(plain["z", last], dtype=torch.bool)
    untouched[0, 4] = False
    assert torch.equal(plain["z", last][untouched], seen["z", last][untouched])


def test_every_site_can_be_edited_and_reaches_the_output(case: Case) -> None:
    """What is captured after the edit is what was put there, and the answer is another."""
    inputs, subject = case.inputs("right", case.texts[:1]), case.subject
    plain = answer(subject, inputs)
    last = subject.n_layers - 1
    for site in EDITABLE:
        layer = 0 if site in ("resid_post", "q", "k", "rot_q", "rot_k", "scores") else last
        change = edits.scale(site, layer, 0.5, **({"heads": -1} if site in HEAD_SITES else {}))
        with torch.no_grad():
            with Capture(subject.anatomy, site) as before:
                subject.model(**inputs)
            with Capture(subject.anatomy, site, edits=[change]) as seen:
                subject.model(**inputs)
        edited = answer(subject, inputs, [change])
        assert not torch.equal(plain, edited), site
        old, new = before[site, layer], seen[site, layer]
        if site in HEAD_SITES:
            assert torch.equal(old[:, :, :-1], new[:, :, :-1]), site
            old, new = old[:, :, -1], new[:, :, -1]
        hidden = old < -1e30  # masked scores stay what they are
        assert torch.allclose(new, torch.where(hidden, old, old * 0.5), atol=1e-6), site
    edited = answer(subject, inputs, [edits.scale("embed", None, 0.5)])
    assert not torch.equal(plain, edited)


def test_an_edit_of_what_lies_between_the_halves_reaches_the_mlp_and_the_stream_beside_it(case: Case) -> None:
    inputs, subject = case.inputs("right", case.texts[:1]), case.subject
    last = subject.n_layers - 1
    with torch.no_grad(), Capture(subject.anatomy, ["resid_post"], edits=[edits.zero("resid_mid", last)]) as seen:
        subject.model(**inputs)
    block, nothing = blocks(subject)[last], torch.zeros_like(seen["resid_post", last])
    with torch.no_grad():
        if subject.family == "bert":
            expected = block.output(block.intermediate(nothing), nothing)
        else:
            norm = block.norm_mlp if subject.family == "tiny" else block.post_attention_layernorm
            expected = block.mlp(norm(nothing))
    assert torch.allclose(seen["resid_post", last], expected, atol=1e-5)


def test_a_stream_patched_from_another_prompt_goes_on_as_that_prompt(case: Case) -> None:
    subject, text = case.subject, case.texts[0]
    words = text.split()
    other = " ".join([words[2], *words[1:]])
    if len(subject.encode(other)) != len(subject.encode(text)):
        pytest.skip("the two prompts have different numbers of tokens")
    final = subject.n_layers - 1
    source = subject.run([other], ["resid_pre", "resid_post"])
    run = subject.run([text], ["resid_post"], edits=[edits.patch("resid_pre", 1, source)])
    assert torch.allclose(run["resid_post", final], source["resid_post", final], atol=1e-5)
    plain = subject.run([text], ["resid_post"])
    assert not torch.allclose(plain["resid_post", final], source["resid_post", final], atol=1e-2)


@pytest.mark.parametrize("padding", ["right", "left"])
def test_edits_that_differ_by_prompt_equal_those_prompts_run_alone(case: Case, padding: Any) -> None:
    subject, texts = case.subject, case.texts
    each = [
        [edits.zero("z", 0, heads=0, rows=-1)],
        [edits.knock_out(1, 2, 1, heads=-1), edits.scale("mlp_out", 0, 2.0, rows=[1])],
        [],
    ]
    final = subject.n_layers - 1
    together = subject.run(texts, ["resid_post", "pattern"], layers=[1, final], edits=each, padding=padding)
    for i, text in enumerate(texts):
        alone = subject.run([text], ["resid_post", "pattern"], layers=[1, final], edits=each[i])
        n = len(alone.prompts[0])
        for site in ("resid_post", "pattern"):
            a, b = together[site, final][i], alone[site, final][0]
            a, b = (a[:, :n, :n], b) if site == "pattern" else (a[:n], b)
            assert (a - b).abs().max() <= 2e-5 * b.abs().max().clamp(min=1), (i, site)
    # rows=-1 is a prompt's own last token, not the padding after it
    plain = subject.run(texts[:1], "z", layers=0)["z", 0][0]
    one = subject.run(texts, "z", layers=0, edits=each, padding=padding)["z", 0][0]
    assert (one[len(plain) - 1, 0] == 0).all()
    assert torch.allclose(one[: len(plain) - 1], plain[:-1], atol=1e-5)


def test_edits_of_one_site_are_made_in_the_order_given(tiny: Subject) -> None:
    one = torch.ones(tiny.d_model)
    double, plus = edits.scale("resid_post", 0, 2.0), edits.add("resid_post", 0, one)
    text = "Anna thanked Ben ."
    plain = tiny.run(text, "resid_post", layers=0)["resid_post", 0]
    first = tiny.run(text, "resid_post", layers=0, edits=[double, plus])["resid_post", 0]
    second = tiny.run(text, "resid_post", layers=0, edits=[plus, double])["resid_post", 0]
    assert torch.allclose(first, 2 * plain + 1)
    assert torch.allclose(second, 2 * (plain + 1))


def test_means_and_resamples_come_from_their_reference_run(tiny: Subject) -> None:
    texts = ["Anna thanked Ben .", "the dog met the cats .", "Ben met Anna ."]
    run = tiny.run(texts, ["z", "resid_pre"])
    ablated = tiny.run(texts[:1], "z", edits=[edits.mean("z", 1, run, heads=3, rows=[2])])["z", 1]
    real = torch.cat([run["z", 1][i, : len(p)] for i, p in enumerate(run.prompts)])
    assert torch.allclose(ablated[0, 2, 3], real[:, 3].mean(0), atol=1e-5)
    assert torch.allclose(ablated[0, 2, :3], run["z", 1][0, 2, :3], atol=1e-5)
    drawn = tiny.run(texts, "z", layers=1, edits=[edits.resample("z", 1, run, seed=3, rows=[1, 2])])["z", 1]
    for i in range(3):
        sources = [j for j in range(3) if torch.equal(drawn[i, 1:3], run["z", 1][j, 1:3])]
        assert len(sources) == 1
        assert sources[0] != i
    again = tiny.run(texts, "z", layers=1, edits=[edits.resample("z", 1, run, seed=3, rows=[1, 2])])["z", 1]
    assert torch.equal(drawn.nan_to_num(), again.nan_to_num())


def test_a_pattern_patched_from_another_prompt_is_that_prompts(smollm2: Subject) -> None:
    a, b = "The cat chased the dog because it was hungry.", "The dog chased the cat because it was hungry."
    source = smollm2.run([b], "pattern", layers=5)
    run = smollm2.run([a], "pattern", layers=5, edits=[edits.patch("pattern", 5, source, heads=[2, 8], rows=[-1, 4])])
    plain = smollm2.run([a], "pattern", layers=5)["pattern", 5]
    for head, row in ((2, 4), (8, 4), (2, -1), (8, -1)):
        assert torch.equal(run["pattern", 5][0, head, row], source["pattern", 5][0, head, row])
    assert torch.equal(run["pattern", 5][0, 3], plain[0, 3])
    assert torch.equal(run["pattern", 5][0, 2, 3], plain[0, 2, 3])


def test_an_edit_of_a_key_value_head_touches_its_whole_group(smollm2: Subject) -> None:
    """smollm2 has three query heads for each key-value head; 8 is the last."""
    text = "The cat sat on the mat."
    plain = smollm2.run(text, ["v", "z"], layers=29)
    run = smollm2.run(text, ["v", "z"], layers=29, edits=[edits.zero("v", 29, heads=8)])
    assert (run["v", 29][:, :, 2] == 0).all()
    assert torch.equal(run["v", 29][:, :, :2], plain["v", 29][:, :, :2])
    assert (run["z", 29][:, :, 6:] == 0).all()
    assert torch.equal(run["z", 29][:, :, :6], plain["z", 29][:, :, :6])


def test_an_open_edit_leaves_nothing_behind(case: Case) -> None:
    inputs, subject = case.inputs("right", case.texts[:1]), case.subject
    plain = answer(subject, inputs)
    with pytest.raises(
        ProbeError, match=r"of shape \(7,\) does not fit into a part of resid_mid of shape \(1, \d+, \d+\)"
    ):
        answer(subject, inputs, [edits.add("resid_mid", 0, torch.ones(7))])
    assert torch.equal(plain, answer(subject, inputs))


def test_edits_that_cannot_be_are_refused_with_the_reason(tiny: Subject, smollm2: Subject) -> None:
    with pytest.raises(UnknownName, match="no site named 'zz'"):
        edits.zero("zz", 0)
    with pytest.raises(ProbeError, match="logits cannot be edited"):
        edits.zero("logits")
    with pytest.raises(ProbeError, match="z has a layer"):
        edits.zero("z")
    with pytest.raises(ProbeError, match="embed has no layer"):
        edits.zero("embed", 0)
    with pytest.raises(ProbeError, match="resid_pre has no heads; edit z or result"):
        edits.zero("resid_pre", 0, heads=1)
    with pytest.raises(ProbeError, match="keys are columns of scores and pattern; z has none"):
        edits.zero("z", 0, keys=1)
    with pytest.raises(OutOfRange, match="head 9 does not exist: allowed are 0 to 8"):
        smollm2.run("A cat.", edits=[edits.zero("z", 0, heads=9)])
    with pytest.raises(OutOfRange, match="layer 30 does not exist: allowed are 0 to 29"):
        smollm2.run("A cat.", edits=[edits.zero("z", 30)])
    with pytest.raises(OutOfRange, match="row 8 does not exist"):
        tiny.run("Anna thanked Ben .", edits=[edits.zero("z", 0, rows=8)])
    with pytest.raises(CaptureError, match="cuts every key that a row can see"):
        tiny.run("Anna thanked Ben .", edits=[edits.knock_out(0, 2, [0, 1, 2])])
    with pytest.raises(ProbeError, match="columns of pattern are positions"):
        edits.mean("pattern", 0, tiny.run("Anna thanked Ben ."))
    with pytest.raises(ProbeError, match=r"made by probe\.edits"):
        tiny.run("Anna thanked Ben .", edits=["zero"])  # type: ignore[list-item]
    with pytest.raises(OutOfRange, match="lists of edits were given for 1 prompts, but there are 2"):
        tiny.run(["Anna thanked Ben .", "Ben met Anna ."], edits=[[]])
    long, patch = "the dog met the cats because the dogs met the cat .", tiny.run("Anna thanked Ben .", "z")
    with pytest.raises(OutOfRange, match="source has 1 prompts of at most"):
        tiny.run(long, edits=[edits.patch("z", 0, patch)])
    with pytest.raises(UnsupportedModel, match=r"has no encoder\.z: it is no encoder-decoder model"):
        tiny.run("Anna thanked Ben .", edits=[edits.zero("encoder.z", 0)])
    assert probe.edits is edits
