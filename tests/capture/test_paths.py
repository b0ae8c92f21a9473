"""Path patching against the same computation written out by hand on the tiny GPT, whose every step is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import probe
from probe import edits
from probe.capture.capture import Capture
from probe.errors import OutOfRange, ProbeError, UnknownName, UnsupportedModel
from probe.models.gpt import GPT, Config
from probe.subject import Subject


@pytest.fixture(scope="module")
def learned(tiny: Subject) -> Subject:
    """Random weights, with positions that are added: easy to write out by hand."""
    torch.manual_seed(0)
    model = GPT(Config(len(tiny.tokenizer), max_positions=64, init_scale=0.2))
    return Subject(model, tiny.tokenizer, "random", "synthetic")


TEXT, OTHER = "Anna thanked Ben because she", "Ben thanked Anna because she"


def by_hand(
    subject: Subject, ids: Tensor, writer: tuple[int, int], reader: tuple[int, int], new: Tensor, into: str
) -> Tensor:
    """Last hidden state (pos, d_model) of one prompt, with the writer's part replaced by `new` for one reader alone."""
    model = subject.model.base_model
    x = model.embed(ids) + model.positions(torch.arange(len(ids)))
    width, heads = subject.d_head, subject.n_heads
    mask = torch.ones(len(ids), len(ids)).tril().log()
    change = torch.zeros_like(x)
    for layer, block in enumerate(model.blocks):
        own, side = (
            block.attention.qkv(block.norm_attention(stream)).split(subject.d_model, -1) for stream in (x, x + change)
        )
        zs = []
        for head in range(heads):
            at = slice(head * width, (head + 1) * width)
            reads = (layer, head) == reader
            q, k, v = ((s if reads and n in into else o)[:, at] for n, o, s in zip("qkv", own, side, strict=True))
            zs.append((q @ k.T / width**0.5 + mask).softmax(-1) @ v)
        z = torch.cat(zs, -1)
        if layer == writer[0]:
            at = slice(writer[1] * width, (writer[1] + 1) * width)
            change = new - z[:, at] @ block.attention.out.weight[:, at].T
        x = x + block.attention.out(z)
        x = x + block.mlp(block.norm_mlp(x))
    return model.norm(x)


@pytest.mark.parametrize("into", ["q", "k", "v", "qkv"])
@pytest.mark.parametrize(("writer", "reader"), [((0, 3), (2, 1)), ((1, 0), (3, 3))])
def test_a_path_is_what_it_is_by_hand(
    into: str, writer: tuple[int, int], reader: tuple[int, int], learned: Subject
) -> None:
    source = learned.run(OTHER, "result")
    ids = torch.tensor(learned.encode(TEXT).ids)
    for run, new in (
        (source, source["result", writer[0]][0, :, writer[1]]),
        (None, torch.zeros(len(ids), learned.d_model)),
    ):
        change = edits.path(writer, reader, run=run, into=list(into))
        with torch.no_grad():
            expected = by_hand(learned, ids, writer, reader, new, into)
            with Capture(learned.model, edits=[change]):
                found = learned.model(ids[None]).last_hidden_state[0]
            plain = learned.model(ids[None]).last_hidden_state[0]
        assert torch.allclose(found, expected, atol=1e-5)
        assert not torch.allclose(found, plain, atol=1e-5)


def test_only_the_reader_sees_the_change(smollm2: Subject) -> None:
    """smollm2's heads share keys and values by three, and still only one reads the other write."""
    text = "The cat chased the dog because it was hungry."
    sites = ["z", "resid_pre", "rot_k", "v"]
    plain = smollm2.run(text, sites, layers=[20])
    run = smollm2.run(text, sites, layers=[20], edits=[edits.path((3, 8), (20, 7), into=["k", "v"])])
    assert torch.equal(plain["resid_pre", 20], run["resid_pre", 20])
    assert torch.equal(plain["v", 20], run["v", 20])
    others = [h for h in range(9) if h != 7]
    assert torch.equal(plain["z", 20][:, :, others], run["z", 20][:, :, others])
    assert not torch.equal(plain["z", 20][:, :, 7], run["z", 20][:, :, 7])


def test_a_path_from_the_prompts_own_run_changes_nothing(smollm2: Subject) -> None:
    texts = ["The cat chased the dog because it was hungry.", "One, two, three."]
    own = smollm2.run(texts, ["result", "logits"], layers=[5])
    for padding in ("right", "left"):
        same = smollm2.run(texts, "logits", edits=[edits.path((5, 2), (9, 4), run=own)], padding=padding)  # type: ignore
        for i, prompt in enumerate(own.prompts):
            n = len(prompt)
            assert torch.allclose(same["logits"][i, :n], own["logits"][i, :n], atol=2e-3)


def test_paths_of_single_prompts_equal_those_run_alone(tiny: Subject) -> None:
    texts = [TEXT, OTHER]
    change = edits.path((0, 1), (3, 2))
    plain, alone = tiny.run(texts, "logits"), tiny.run(TEXT, "logits", edits=[change])
    both = tiny.run(texts, "logits", edits=[[change], []])
    assert torch.allclose(both["logits"][0], alone["logits"][0], atol=1e-5)
    assert torch.allclose(both["logits"][1], plain["logits"][1], atol=1e-5)


@pytest.mark.parametrize("site", ["pattern", "scores"])
def test_a_pattern_that_the_reader_does_not_use_is_refused(tiny: Subject, site: str) -> None:
    """The pass itself holds the pattern without the path; other layers' are what they are."""
    change = edits.path((0, 1), (2, 2))
    with pytest.raises(ProbeError, match=rf"{site} of layer 2 cannot be read beside a path from head 0\.1 to 2\.2"):
        tiny.run(TEXT, site, edits=[change])
    assert tiny.run(TEXT, site, layers=[1, 3], edits=[change])[site, 3].shape[1] == 4


def test_paths_that_cannot_be_are_refused(tiny: Subject, minilm: Subject) -> None:
    import transformers as tf

    with pytest.raises(ProbeError, match="layer 1 reads before layer 2 writes"):
        edits.path((2, 0), (1, 0))
    with pytest.raises(UnknownName, match="no input of a head named 'z'"):
        edits.path((0, 0), (1, 0), into="z")
    with pytest.raises(OutOfRange, match="head 4 does not exist"):
        tiny.run(TEXT, edits=[edits.path((0, 4), (1, 0))])
    with pytest.raises(UnsupportedModel, match="normed before later layers read it"):
        minilm.run("A cat sat.", edits=[edits.path((0, 0), (1, 0))])
    torch.manual_seed(0)
    config = tf.Gemma2Config(
        vocab_size=400, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=8
    )
    gemma = probe.load(tf.Gemma2ForCausalLM(config).eval(), tiny.tokenizer)
    with pytest.raises(UnsupportedModel, match=r"no path from head 0\.0 to 1\.0"):
        gemma.run(TEXT, edits=[edits.path((0, 0), (1, 0))])
    with pytest.raises(OutOfRange, match="has no prompt 0 of"):
        tiny.run(TEXT, "logits", edits=[edits.path((0, 0), (1, 0), run=tiny.run("Anna .", "result"))])


def test_a_path_counts_as_much_of_the_write_as_the_stream_does(tiny: Subject) -> None:
    """Granite adds 0.3 times what its attention writes."""
    import transformers as tf

    torch.manual_seed(0)
    config = tf.GraniteConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        residual_multiplier=0.3,
        initializer_range=0.3,
    )
    subject = probe.load(tf.GraniteForCausalLM(config).eval(), tiny.tokenizer)
    run = subject.run(TEXT, ["result", "resid_pre", "pattern", "z"])
    block = subject.model.model.layers[1]
    moved = run["resid_pre", 1][0] - 0.3 * run["result", 0][0, :, 2]
    with torch.no_grad():
        values = block.self_attn.v_proj(block.input_layernorm(moved))[:, 8:16]
    expected = run["pattern", 1][0, 1] @ values
    seen = subject.run(TEXT, ["z"], edits=[edits.path((0, 2), (1, 1), into="v")])["z", 1][0]
    assert torch.allclose(seen[:, 1], expected, atol=1e-5)
    assert not torch.allclose(seen[:, 1], run["z", 1][0, :, 1], atol=1e-3)
    others = [0, 2, 3]
    assert torch.equal(seen[:, others], run["z", 1][0][:, others])
