"""Corners that a capture once got wrong; each is a property of its own."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import probe
from probe import edits
from probe.anatomy import dissect
from probe.capture.capture import Capture
from probe.errors import CaptureError, OutOfRange, ProbeError, UnsupportedModel
from probe.models import planted
from probe.models.gpt import GPT, Config
from probe.subject import Subject

TEXT, OTHER = "Anna thanked Ben because she", "the dog met the cats because the dogs met the cat ."
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def bloom() -> Any:
    import transformers as tf

    torch.manual_seed(0)
    return tf.BloomForCausalLM(tf.BloomConfig(vocab_size=400, hidden_size=32, n_layer=2, n_head=4)).eval()


def t5() -> Any:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.T5Config(vocab_size=400, d_model=32, d_kv=8, d_ff=32, num_layers=3, num_decoder_layers=2, num_heads=4)
    return tf.T5ForConditionalGeneration(config).eval()


def test_a_prompt_patched_with_itself_is_unchanged_whatever_it_is_padded_with(tiny: Subject) -> None:
    texts = [TEXT, OTHER]
    for site in ("z", "pattern", "resid_mid"):
        source = tiny.run(texts, [site, "logits"])
        for padding in ("right", "left"):
            changes = [edits.patch(site, layer, source) for layer in range(4)]
            run = tiny.run(texts, "logits", edits=changes, padding=padding)  # type: ignore[arg-type]
            assert torch.allclose(run["logits"].nan_to_num(), source["logits"].nan_to_num(), atol=2e-5), site


def test_paths_into_one_reader_add_up(tiny: Subject) -> None:
    first, second = edits.path((0, 1), (2, 2)), edits.path((0, 3), (2, 2))
    both, swapped = (tiny.run(TEXT, "logits", edits=e)["logits"] for e in ([first, second], [second, first]))
    alone = [tiny.run(TEXT, "logits", edits=[e])["logits"] for e in (first, second)]
    assert torch.allclose(both, swapped, atol=1e-5)
    assert not any(torch.allclose(both, one, atol=1e-4) for one in alone)
    texts = [TEXT, OTHER]
    each = tiny.run(texts, "logits", edits=[[first], [first]])["logits"].nan_to_num()
    assert torch.allclose(each, tiny.run(texts, "logits", edits=[first])["logits"].nan_to_num(), atol=1e-5)
    with pytest.raises(ProbeError, match="one capture cannot do both"):
        tiny.run(TEXT, "logits", edits=[first, edits.zero("pattern", 2, heads=0)])


@pytest.mark.parametrize("model", ["tiny", "bloom"])
def test_streams_are_those_of_edited_patterns(model: str, tiny: Subject) -> None:
    subject = tiny if model == "tiny" else probe.load(bloom(), tiny.tokenizer)
    changes = [edits.scale("pattern", 1, 0.5, heads=0), edits.knock_out(0, 3, 0)]
    run, made = subject.run(TEXT, "pattern", edits=changes), subject.stream(TEXT, edits=changes)
    for layer in range(2):
        pattern = run["pattern", layer][0].double()
        entropy = -(pattern * pattern.clamp(min=1e-300).log()).sum(-1)
        assert torch.allclose(made.entropy[0, layer].double(), entropy, atol=1e-4)
        assert torch.allclose(made.first[0, layer].double(), pattern[..., 0], atol=1e-6)


def test_one_layers_attention_is_edited_by_one_of_two_open_captures(tiny: Subject) -> None:
    ids = torch.tensor([tiny.encode(TEXT).ids])
    one, two = edits.zero("pattern", 1, heads=0), edits.zero("pattern", 1, heads=1)
    with (
        pytest.raises(CaptureError, match="another open capture has edited"),
        torch.no_grad(),
        Capture(tiny.model, edits=[one]),
        Capture(tiny.model, edits=[two]),
    ):
        tiny.model(ids)
    with torch.no_grad(), Capture(tiny.model, edits=[one]), Capture(tiny.model, "pattern", layers=0) as inner:
        tiny.model(ids)
    assert inner["pattern", 0].shape[1] == 4


def test_encoder_sites_keep_all_rows_and_cross_keys_are_the_encoders() -> None:
    model = t5()
    inputs = {"input_ids": IDS, "decoder_input_ids": torch.tensor([[0, 5, 6]])}
    sites = ["encoder.result", "encoder.z", "cross.pattern"]
    cut = edits.knock_out(0, 0, 5, prefix="cross.")
    with torch.no_grad(), Capture(model, sites, rows=[0, 2], edits=[cut]) as seen:
        model(**inputs)
    assert seen["encoder.result", 2].shape == (1, 6, 4, 32)
    assert seen["encoder.z", 2].shape == (1, 6, 4, 8)
    assert (seen["cross.pattern", 0][0, :, 0, 5] == 0).all()
    assert (seen["cross.pattern", 0][0, :, 1, 5] > 0).all()


def test_prompts_heads_and_rows_that_do_not_fit_are_refused_and_not_ignored(tiny: Subject) -> None:
    texts = [TEXT, OTHER]
    with pytest.raises(OutOfRange, match="prompt 7 does not exist: allowed are 0 to 1"):
        tiny.run(texts, edits=[edits.zero("z", 1, prompts=7)])
    last = tiny.run(texts, "z", layers=1, edits=[edits.zero("z", 1, prompts=-1)])["z", 1]
    assert (last[1].nan_to_num() == 0).all()
    assert not (last[0].nan_to_num() == 0).all()
    for kept, what in ((tiny.run(TEXT, "z", heads=[3, 1]), "heads"), (tiny.run(TEXT, "z", rows=[2]), "rows")):
        for make in (edits.patch, edits.mean):
            with pytest.raises(ProbeError, match=f"kept only some {what} of z of layer 1"):
                make("z", 1, kept)
    with pytest.raises(ProbeError, match="these are both"):
        tiny.run(texts, edits=[edits.zero("z", 1), []])  # type: ignore[list-item]
    with pytest.raises(ProbeError, match="sources were given for 2 prompts"):
        tiny.run([*texts, TEXT], edits=[edits.patch("z", 1, tiny.run(texts, "z"), source=[0, 1])])


def test_a_blind_row_is_refused_in_models_that_never_ask() -> None:
    model = bloom()
    with (
        pytest.raises(CaptureError, match="cuts every key that a row can see"),
        torch.no_grad(),
        Capture(model, edits=[edits.knock_out(0, 2, [0, 1, 2])]),
    ):
        model(input_ids=IDS)


def test_another_thread_does_not_disturb_a_model_that_never_asks() -> None:
    model = bloom()
    with torch.no_grad():
        expected = model(input_ids=IDS).logits
        with Capture(model, ["pattern", "z"]) as seen:
            other = threading.Thread(target=lambda: model(input_ids=IDS.repeat(3, 1)))
            other.start()
            other.join()
            assert torch.equal(model(input_ids=IDS).logits, expected)
    assert seen["pattern", 1].shape == (1, 4, 6, 6)


def test_a_looked_at_model_can_be_forgotten_and_a_changed_one_is_looked_at_again() -> None:
    model = GPT(Config(vocab_size=50, n_layers=2, d_model=16, n_heads=2)).eval()
    first = dissect(model)
    assert dissect(model) is first
    model.base_model.blocks = model.base_model.blocks[:1]
    assert dissect(model).n_layers == 1
    gone = weakref.ref(model)
    del model, first
    gc.collect()
    assert gone() is None


def test_overlapping_captures_leave_compiling_as_it_was(tiny: Subject) -> None:
    from torch._dynamo import eval_frame

    before = eval_frame._stance.stance
    one, two = Capture(tiny.model), Capture(tiny.model)
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert eval_frame._stance.stance == "force_eager"
    two.__exit__(None, None, None)
    assert eval_frame._stance.stance == before


def test_an_empty_group_has_no_mass(tiny: Subject) -> None:
    made = tiny.stream([TEXT, OTHER], groups=[[[0], []], [[0], [1]]])
    assert made.mass.shape[-1] == 2
    assert (made.mass[0, ..., 1].nan_to_num() == 0).all()
    assert (made.mass[1, :, :, 1:, 1].nan_to_num() > 0).any()


def test_numbers_may_be_numpys_and_single_ones_need_no_list(tiny: Subject) -> None:
    change = edits.zero("z", np.int64(1), heads=np.int64(3), rows=np.array([1, 2]))
    run = tiny.run(TEXT, "z", layers=np.int64(1), edits=change, rows=-1)  # type: ignore[arg-type]
    assert run["z", 1].shape[1] == 1
    whole = tiny.run(TEXT, "z", edits=[change])["z", 1]
    assert (whole[0, 1:3, 3] == 0).all()
    assert not (whole[0, 3, 3] == 0).all()


def test_a_temperature_below_zero_is_refused_of_encoder_decoders_too(tiny: Subject) -> None:
    subject = probe.load(t5(), tiny.tokenizer)
    with pytest.raises(ProbeError, match="temperature is 0 or more"):
        subject.generate(TEXT, max_new_tokens=2, temperature=-1)


def test_gradients_of_frozen_weights_say_why(tiny: Subject) -> None:
    model = GPT(Config(vocab_size=50, n_layers=2, d_model=16, n_heads=2)).eval().requires_grad_(False)
    with Capture(model, "z", gradients=True) as seen:
        output = model(IDS)
    with pytest.raises(CaptureError, match="let the model's parameters require gradients"):
        seen.gradients(output.logits.sum())


def test_a_block_of_attention_alone_has_no_mlp_and_its_heads_reach_later_ones() -> None:
    """What one head writes, taken from what a later one reads as keys: the induction circuit of a planted model."""
    subject = probe.load("planted:induction")
    words = "ruby coal silk tin iron clay wool ruby coal silk"
    for site in ("resid_mid", "mlp_out"):
        with pytest.raises(UnsupportedModel, match=r"it has no MLP\. Ask for resid_post or attn_out"):
            subject.run(words, site)
    run = subject.run(words, ["resid_pre", "attn_out", "resid_post"])
    for layer in range(subject.n_layers):
        assert torch.equal(run["resid_pre", layer] + run["attn_out", layer], run["resid_post", layer])
    (writer,), (reader,) = planted.HEADS["induction"]["previous_token"], planted.HEADS["induction"]["induction"]
    tin = subject.tokenizer.convert_tokens_to_ids("tin")
    assert int(subject.run(words, "logits")["logits"][0, -1].argmax()) == tin
    for into, kept in (("q", True), ("k", False), ("v", True)):
        cut = subject.run(words, "logits", edits=[edits.path(writer, reader, into=into)])
        assert (int(cut["logits"][0, -1].argmax()) == tin) is kept, "it is through the keys that the notes are read"
