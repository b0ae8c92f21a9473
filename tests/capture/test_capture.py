"""Capturing changes nothing, and what it reads is what the model computed."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

import probe
from probe.capture.capture import Capture
from probe.errors import CaptureError, OutOfRange, UnknownName, UnsupportedModel
from probe.sites import kv_head
from probe.subject import Subject
from tests.capture.conftest import SITES, Case, attentions, blocks, eager_attentions, projects


def output(case: Case, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        made = case.subject.model(**inputs)
    return made.logits if case.subject.has_logits else made.last_hidden_state


def all_sites(case: Case) -> list[str]:
    return [*SITES, "logits"] if case.subject.has_logits else SITES


@pytest.mark.parametrize("side", ["right", "left"])
def test_captured_outputs_equal_uncaptured_ones_bit_for_bit(case: Case, side: str) -> None:
    inputs = case.inputs(side)
    plain = output(case, inputs)
    with Capture(case.subject.model, all_sites(case)):
        captured = output(case, inputs)
    assert torch.equal(plain, captured)


@pytest.mark.parametrize("side", ["right", "left"])
def test_patterns_equal_the_models_own_eager_attention(case: Case, side: str) -> None:
    inputs = case.inputs(side)
    real = inputs["attention_mask"].bool()
    with Capture(case.subject.model, "pattern") as seen:
        output(case, inputs)
    expected = eager_attentions(case, inputs)
    assert len(expected) == case.subject.n_layers
    # A model run under sdpa hands later layers hidden states that differ from the eager run's by rounding.
    tolerance = 1e-6 if case.subject.attention == "eager" else 5e-6
    for layer, pattern in enumerate(expected):
        difference = (seen["pattern", layer] - pattern).abs().amax((1, 3))  # (batch, query)
        assert difference[real].max() <= (1e-6 if layer == 0 else tolerance)


def test_chosen_rows_and_heads_equal_those_of_the_full_pattern(case: Case) -> None:
    inputs = case.inputs("left")
    last = inputs["input_ids"].shape[1] - 1
    rows = torch.tensor([[last, last - 3], [last - 1, last], [last - 2, last]])
    heads = [case.subject.n_heads - 1, 0]
    with Capture(case.subject.model, "pattern") as full:
        output(case, inputs)
    with Capture(case.subject.model, ["pattern", "z", "resid_post"], rows=rows, heads=heads) as some:
        output(case, inputs)
    with Capture(case.subject.model, ["z", "resid_post"]) as whole:
        output(case, inputs)
    layer = case.subject.n_layers - 1
    for b in range(3):
        expected = full["pattern", layer][b][heads][:, rows[b]]
        assert (some["pattern", layer][b] - expected).abs().max() <= 1e-6
        assert torch.equal(some["z", layer][b], whole["z", layer][b][rows[b]][:, heads])
        assert torch.equal(some["resid_post", layer][b], whole["resid_post", layer][b][rows[b]])


def test_chosen_heads_bring_the_key_value_heads_they_read(case: Case) -> None:
    s, inputs = case.subject, case.inputs("right", case.texts[:1])
    chosen = [s.n_heads - 1, s.n_heads - 2, 0]
    with Capture(s.model, ["v", "rot_k", "rot_q"], layers=-1) as whole:
        output(case, inputs)
    with Capture(s.model, ["v", "rot_k", "rot_q"], layers=-1, heads=chosen) as some:
        output(case, inputs)
    kept = list(dict.fromkeys(h // (s.n_heads // s.n_kv_heads) for h in chosen))
    for site in ("v", "rot_k"):
        assert torch.equal(some[site, -1], whole[site, -1][:, :, kept])
    assert torch.equal(some["rot_q", -1], whole["rot_q", -1][:, :, chosen])


def test_rotated_queries_and_keys_give_the_pattern(case: Case) -> None:
    """Trap 9 and 10: rot_q·rot_k through the softmax is the pattern, for the last query head of the last layer too."""
    inputs = case.inputs("right", case.texts[:1])
    with Capture(case.subject.model, ["rot_q", "rot_k", "pattern"]) as seen:
        output(case, inputs)
    s = case.subject
    for layer in (0, s.n_layers - 1):
        for head in (0, s.n_heads - 1):
            q = seen["rot_q", layer][0, :, head]
            k = seen["rot_k", layer][0, :, kv_head(head, s.n_heads, s.n_kv_heads)]
            scores = (q @ k.T).double() / s.d_head**0.5
            if s.is_causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            assert (scores.softmax(-1) - seen["pattern", layer][0, head]).abs().max() <= 1e-5


def test_z_is_the_pattern_times_the_values_of_its_key_value_head(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    with Capture(case.subject.model, ["z", "v", "pattern"]) as seen:
        output(case, inputs)
    s, layer = case.subject, case.subject.n_layers - 1
    for head in range(s.n_heads):
        values = seen["v", layer][0, :, kv_head(head, s.n_heads, s.n_kv_heads)]
        expected = seen["pattern", layer][0, head] @ values
        assert (seen["z", layer][0, :, head] - expected).abs().max() <= 1e-5


def test_q_and_k_are_the_projections_before_rotary(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    with Capture(case.subject.model, ["q", "k", "rot_q", "rot_k", "resid_pre"]) as seen:
        output(case, inputs)
    layer = case.subject.n_layers - 1
    block, x = blocks(case.subject)[layer], seen["resid_pre", layer]
    attention = attentions(case.subject)[layer]
    with torch.no_grad():
        if case.subject.family == "llama":
            q, k = (p(block.input_layernorm(x)) for p in (attention.q_proj, attention.k_proj))
        elif case.subject.family == "bert":
            q, k = attention.query(x), attention.key(x)
        else:
            q, k, _ = attention.qkv(block.norm_attention(x)).split(case.subject.d_model, -1)
    assert (seen["q", layer].flatten(2) - q).abs().max() <= 1e-5
    assert (seen["k", layer].flatten(2) - k).abs().max() <= 1e-5
    rotates = case.subject.family != "bert"
    assert torch.equal(seen["q", layer], seen["rot_q", layer]) is not rotates
    assert torch.equal(seen["rot_k", layer][:, 0], seen["k", layer][:, 0])  # position 0 is not turned


def test_the_residual_stream_adds_up(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    with Capture(case.subject.model, ["resid_pre", "resid_mid", "resid_post"]) as seen:
        output(case, inputs)
    for layer, block in enumerate(blocks(case.subject)):
        pre, mid, post = (seen[s, layer] for s in ("resid_pre", "resid_mid", "resid_post"))
        if layer:
            assert torch.equal(pre, seen["resid_post", layer - 1])
        with torch.no_grad():
            if case.subject.family == "bert":
                again = block.output(block.intermediate(mid), mid)
            else:
                norm = block.norm_mlp if case.subject.family == "tiny" else block.post_attention_layernorm
                again = mid + block.mlp(norm(mid))
        assert torch.equal(again, post)


def test_each_half_of_a_block_writes_what_its_sites_say(case: Case) -> None:
    with Capture(case.subject.model, ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"]) as seen:
        output(case, case.inputs("right", case.texts[:1]))
    for layer, block in enumerate(blocks(case.subject)):
        pre, attn, mid, mlp, post = (
            seen[s, layer] for s in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
        )
        if case.subject.family == "bert":
            with torch.no_grad():
                assert torch.equal(block.attention.output.LayerNorm(attn + pre), mid)
                assert torch.equal(block.output.LayerNorm(mlp + mid), post)
        else:
            assert torch.equal(pre + attn, mid)
            assert torch.equal(mid + mlp, post)


def test_the_heads_results_and_the_bias_add_up_to_attn_out(case: Case) -> None:
    """Trap 12, for the last layer too."""
    with Capture(case.subject.model, ["result", "attn_out", "z"]) as seen:
        output(case, case.inputs("right", case.texts[:1]))
    for layer in (0, case.subject.n_layers - 1):
        project = projects(case.subject)[layer]
        bias = 0 if project.bias is None else project.bias
        total = seen["result", layer].sum(2) + bias
        scale = seen["attn_out", layer].abs().max()
        assert (total - seen["attn_out", layer]).abs().max() <= 1e-5 * scale
        head, d = case.subject.n_heads - 1, case.subject.d_head
        by_hand = seen["z", layer][:, :, head] @ project.weight[:, head * d :].T
        assert (seen["result", layer][:, :, head] - by_hand).abs().max() <= 1e-5 * scale


def test_the_softmax_of_the_scores_is_the_pattern_and_masked_cells_are_told(case: Case) -> None:
    inputs = case.inputs("left")
    real = inputs["attention_mask"].bool()
    with Capture(case.subject.model, ["scores", "pattern", "rot_q", "rot_k"]) as seen:
        output(case, inputs)
    s, layer = case.subject, case.subject.n_layers - 1
    scores, pattern = seen["scores", layer], seen["pattern", layer]
    assert (scores.softmax(-1) - pattern).abs().amax((1, 3))[real].max() <= 1e-6
    visible = seen.visible[layer].expand_as(scores)
    masked = ~visible & real[:, None, :, None]
    assert masked.any()
    assert (pattern[masked] == 0).all()
    head = s.n_heads - 1
    k = seen["rot_k", layer][:, :, kv_head(head, s.n_heads, s.n_kv_heads)]
    dots = seen["rot_q", layer][:, :, head] @ k.transpose(1, 2) / s.d_head**0.5
    wanted = visible[:, head] & real[:, :, None]
    assert (dots - scores[:, head])[wanted].abs().max() <= 1e-4


def test_embed_is_the_embedding_of_the_tokens_alone(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    with Capture(case.subject.model, ["embed", "resid_pre"], rows=[1, 2]) as seen:
        output(case, inputs)
    with torch.no_grad():
        expected = case.subject.anatomy.stack.embedding.module.weight[inputs["input_ids"][:, [1, 2]]]
    assert torch.equal(seen["embed"], expected)
    assert torch.equal(seen["embed"], seen["resid_pre", 0]) == (case.subject.family != "bert")


def test_two_captures_at_once_read_the_same_and_end_apart(case: Case) -> None:
    inputs = case.inputs("right")
    with Capture(case.subject.model, "pattern", layers=-1) as outer:
        with Capture(case.subject.model, ["pattern", "q"], layers=[0, -1]) as inner:
            output(case, inputs)
        with Capture(case.oracle.model, "z", layers=0) as other, torch.no_grad():
            case.oracle.model(**inputs)
    assert torch.equal(outer["pattern", -1], inner["pattern", -1])
    assert other["z", 0].shape[2] == case.subject.n_heads


def test_after_an_exception_nothing_is_left_behind(case: Case) -> None:
    import importlib

    from transformers.modeling_utils import AttentionInterface

    from probe.models.gpt import AttentionLookup

    modules = [importlib.import_module(type(a).__module__) for a in attentions(case.subject)[:1]]
    before = [AttentionInterface.get_interface, AttentionLookup.get_interface, *(vars(m).copy() for m in modules)]

    class Boom(Exception):
        pass

    def fail(*_: object) -> None:
        raise Boom

    handle = blocks(case.subject)[-1].register_forward_hook(fail)
    try:
        with pytest.raises(Boom), Capture(case.subject.model, all_sites(case)):
            output(case, case.inputs("right"))
    finally:
        handle.remove()
    after = [AttentionInterface.get_interface, AttentionLookup.get_interface, *(vars(m).copy() for m in modules)]
    assert before == after
    hooks = [m for m in case.subject.model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert hooks == []


def test_another_thread_is_not_heard(case: Case) -> None:
    one, other = case.inputs("right", case.texts[:1]), case.inputs("right", case.texts[1:2])
    with Capture(case.subject.model, ["pattern", "resid_post"]) as seen:
        thread = threading.Thread(target=lambda: output(case, other))
        thread.start()
        thread.join()
        output(case, one)
    assert seen["pattern", 0].shape[-1] == one["input_ids"].shape[1]
    assert seen["resid_post", 0].shape[1] == one["input_ids"].shape[1]


def test_a_capture_without_a_forward_pass_is_an_error(case: Case) -> None:
    with pytest.raises(CaptureError, match="pattern of layer 0 was not seen"), Capture(case.subject.model, "pattern"):
        pass


def test_a_second_forward_pass_in_one_capture_is_an_error(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    with Capture(case.subject.model, "resid_pre"):
        output(case, inputs)
        with pytest.raises(CaptureError, match="resid_pre of layer 0 was seen twice"):
            output(case, inputs)


def test_a_value_overwritten_after_capture_is_an_error(case: Case) -> None:
    with Capture(case.subject.model, "z") as seen:
        output(case, case.inputs("right", case.texts[:1]))
    seen["z", 0].zero_()
    with pytest.raises(CaptureError, match="z of layer 0 was overwritten"):
        seen["z", 0]


def test_wrong_sites_layers_and_heads_name_what_is_allowed(case: Case) -> None:
    model, last = case.subject.model, case.subject.n_layers - 1
    with pytest.raises(UnknownName, match=r"no site named 'patern'\. Did you mean 'pattern'\?"):
        Capture(model, "patern")
    with pytest.raises(OutOfRange, match=rf"layer {last + 1} does not exist: allowed are 0 to {last}"):
        Capture(model, "pattern", layers=[0, last + 1])
    with pytest.raises(OutOfRange, match="head 99 does not exist"):
        Capture(model, "pattern", heads=99)
    if not case.subject.has_logits:
        with pytest.raises(UnsupportedModel, match="no language-model head"):
            Capture(model, "logits")


def test_rows_may_count_from_the_end_and_are_checked(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    size = inputs["input_ids"].shape[1]
    with Capture(case.subject.model, ["pattern", "z"], rows=[-1, 0]) as seen:
        output(case, inputs)
    with Capture(case.subject.model, ["pattern", "z"], rows=[size - 1, 0]) as same:
        output(case, inputs)
    assert torch.equal(seen["pattern", 0], same["pattern", 0])
    assert torch.equal(seen["z", 0], same["z", 0])
    with (
        pytest.raises(OutOfRange, match=f"row 50 does not exist: allowed are 0 to {size - 1}"),
        Capture(case.subject.model, "pattern", rows=[50]),
    ):
        output(case, inputs)


def test_an_open_capture_cannot_be_opened_again(case: Case) -> None:
    with Capture(case.subject.model, "resid_pre", layers=0) as seen:
        with pytest.raises(CaptureError, match="open already"):
            seen.__enter__()
        output(case, case.inputs("right", case.texts[:1]))
    assert not blocks(case.subject)[0]._forward_pre_hooks


def test_heads_come_in_the_order_they_were_asked_for(case: Case) -> None:
    inputs, heads = case.inputs("right", case.texts[:1]), list(range(case.subject.n_heads))
    with Capture(case.subject.model, ["pattern", "z"], layers=0) as whole:
        output(case, inputs)
    with Capture(case.subject.model, ["pattern", "z"], layers=0, heads=heads[::-1]) as reverse:
        output(case, inputs)
    assert torch.equal(reverse["pattern", 0], whole["pattern", 0].flip(1))
    assert torch.equal(reverse["z", 0], whole["z", 0].flip(2))


def test_captures_work_in_inference_mode(case: Case) -> None:
    inputs = case.inputs("right", case.texts[:1])
    with torch.inference_mode(), Capture(case.subject.model, all_sites(case)) as seen:
        case.subject.model(**inputs)
    with Capture(case.subject.model, ["pattern"]) as plain:
        output(case, inputs)
    assert torch.equal(seen["pattern", -1], plain["pattern", -1])


def test_training_mode_with_dropout_is_refused() -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertModel(config).train()
    with pytest.raises(UnsupportedModel, match="training mode"), Capture(model, "pattern"):
        model(torch.ones(1, 4, dtype=torch.long))


def test_an_attention_whose_mask_probe_cannot_read_is_refused_by_name(tiny: Subject) -> None:
    import transformers as tf
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("mine", sdpa_attention_forward)
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        vocab_size=400, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    model = tf.LlamaForCausalLM(config).eval()
    model.set_attn_implementation("mine")
    with pytest.raises(
        UnsupportedModel, match=r"cannot be read under the attention implementation 'mine'.*eager, sdpa"
    ):
        probe.load(model, tiny.tokenizer)
