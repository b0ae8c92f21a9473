"""Subjects: what they read, how they count positions, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import probe
from probe.errors import CaptureError, OutOfRange, ProbeError, PromptError, UnknownName, UnsupportedModel
from probe.models.store import TINY
from probe.subject import Run, Subject

TEXTS = ["The cat sat.", "When the long rain stopped at last, the two old dogs ran out.", "Hi"]


def same(a: Run, b: Run, tolerance: float) -> None:
    for key, tensor in a.values.items():
        assert torch.equal(torch.isnan(tensor), torch.isnan(b.values[key]))
        assert (tensor - b.values[key]).abs().nan_to_num().max() <= tolerance, key


def test_left_padding_batches_and_order_change_nothing(minilm: Subject, smollm2: Subject) -> None:
    """Traps 1 and 2."""
    for subject in (minilm, smollm2):
        sites = ["pattern", "resid_post", "rot_k"]
        right = subject.run(TEXTS, sites, layers=[0, -1])
        same(right, subject.run(TEXTS, sites, layers=[0, -1], padding="left"), 2e-3)
        last = subject.n_layers - 1
        for i, text in enumerate(TEXTS):
            alone = subject.run(text, sites, layers=[0, -1])
            n = len(alone.prompts[0])
            difference = (right["pattern", last][i, :, :n, :n] - alone["pattern", last][0]).abs().max()
            assert difference <= 1e-5


@pytest.mark.parametrize("extra", [0, 1, 3, 8])
def test_left_padding_leaves_real_logits_alone(smollm2: Subject, extra: int) -> None:
    """The prompt stands beside one that is longer by `extra` tokens, so that many are put before it."""
    text = TEXTS[0]
    longer = text + " indeed" * extra
    assert len(smollm2.encode(longer).ids) == len(smollm2.encode(text).ids) + extra
    ids = torch.tensor([smollm2.encode(text).ids])
    with torch.no_grad():
        plain = smollm2.model(ids).logits[0]
    padded = smollm2.run([text, longer], "logits", padding="left", batch_size=2)["logits"][0, : ids.shape[1]]
    assert (plain - padded).abs().max() <= 1e-3
    assert torch.equal(plain.argmax(-1), padded.argmax(-1))


def test_positions_count_real_tokens_and_the_rest_is_nan(minilm: Subject) -> None:
    run = minilm.run(TEXTS, ["pattern", "z", "k"], layers=0, padding="left")
    lengths = [len(p) for p in run.prompts]
    pattern = run["pattern", 0]
    assert pattern.shape == (3, 12, max(lengths), max(lengths))
    for i, n in enumerate(lengths):
        assert torch.allclose(pattern[i, :, :n, :n].sum(-1), torch.ones(12, n), atol=1e-5)
        assert pattern[i, :, n:].isnan().all()
        assert pattern[i, :, :, n:].isnan().all()
        assert run["z", 0][i, n:].isnan().all()
        assert not run["k", 0][i, :n].isnan().any()


def test_rows_of_each_prompt_equal_those_of_the_whole_pattern(smollm2: Subject) -> None:
    whole = smollm2.run(TEXTS, ["pattern", "z", "v"], layers=-1)
    rows = [[-1], [3, 0, 5], [0]]
    for side in ("left", "right"):
        some = smollm2.run(TEXTS, ["pattern", "z", "v"], layers=-1, rows=rows, padding=side)
        assert some.rows == ((len(some.prompts[0]) - 1,), (3, 0, 5), (0,))
        assert some["v", 29].shape == whole["v", 29].shape
        for i, chosen in enumerate(some.rows):
            n = len(whole.prompts[i])
            for j, row in enumerate(chosen):
                assert (some["pattern", 29][i, :, j, :n] - whole["pattern", 29][i, :, row, :n]).abs().max() <= 1e-5
                assert (some["z", 29][i, j] - whole["z", 29][i, row]).abs().max() <= 1e-4
            assert some["pattern", 29][i, :, len(chosen) :].isnan().all()


def test_logits_are_those_of_the_model(tiny: Subject, smollm2: Subject) -> None:
    for subject, text in ((tiny, "Anna thanked Ben because she"), (smollm2, TEXTS[1])):
        run = subject.run(text, "logits", rows=[-1])
        ids = torch.tensor([run.prompts[0].ids])
        with torch.no_grad():
            expected = subject.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1]
        assert torch.equal(run["logits"][0, 0], expected)


def test_tiny_answers_with_the_antecedent(tiny: Subject) -> None:
    run = tiny.run(["Anna thanked Ben because she", "Anna thanked Ben because he"], "logits", rows=[-1])
    words = [tiny.tokenizer.convert_ids_to_tokens(int(row[0].argmax())) for row in run["logits"]]
    assert words == ["Anna", "Ben"]


def test_a_model_object_is_measured_as_it_is_in_memory(tiny: Subject) -> None:
    model = probe.load("tiny").model
    with torch.no_grad():
        model.base_model.embed.weight[7] += 1
    changed = probe.load(model, tiny.tokenizer, name="mine")
    assert changed.name == "mine"
    assert changed.weights_hash != tiny.weights_hash
    assert probe.load("tiny").weights_hash == tiny.weights_hash
    with pytest.raises(ProbeError, match=r"a model object \(GPT\) needs its tokenizer"):
        probe.load(model)


def test_random_copies_share_the_shape_and_nothing_else(minilm: Subject) -> None:
    a, again, b = minilm.random_copy(0), minilm.random_copy(0), minilm.random_copy(1)
    assert a.weights_hash == again.weights_hash
    assert len({a.weights_hash, b.weights_hash, minilm.weights_hash}) == 3
    assert (a.n_layers, a.n_heads, a.attention) == (6, 12, minilm.attention)


def test_random_copies_leave_the_callers_random_state_alone(tiny: Subject) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tiny.random_copy(0)
    assert torch.equal(torch.rand(3), expected)


def test_nan_in_the_weights_is_named_by_site_and_layer(tiny: Subject) -> None:
    model = probe.load("tiny").model
    with torch.no_grad():
        model.base_model.blocks[2].attention.qkv.bias[3] = torch.nan
    broken = probe.load(model, tiny.tokenizer)
    with pytest.raises(CaptureError, match="pattern of layer 2 of GPT holds NaN"):
        broken.run("Anna thanked Ben .")


def test_unreadable_prompts_say_what_is_wrong(tiny: Subject, minilm: Subject) -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        minilm.run("  \n")
    with pytest.raises(PromptError, match="no prompts were given"):
        minilm.run([])
    with pytest.raises(PromptError, match=r"a prompt is a text \(str\), not int"):
        minilm.run([3])  # type: ignore[list-item]
    with pytest.raises(PromptError, match="602 tokens; this model reads at most 512"):
        minilm.run("cat " * 600)
    with pytest.raises(PromptError, match="does not know 'astronaut'"):
        tiny.run("the astronaut slept .")


def test_rows_and_sites_out_of_range_say_what_is_allowed(minilm: Subject) -> None:
    with pytest.raises(OutOfRange, match=r"row 9 does not exist: allowed are 0 to 5"):
        minilm.run(TEXTS[0], rows=[9])
    with pytest.raises(OutOfRange, match="rows were given for 2 prompts, but there are 3"):
        minilm.run(TEXTS, rows=[[0], [1]])
    with pytest.raises(UnsupportedModel, match="no logits that probe can find: it has no language-model head"):
        minilm.run(TEXTS, "logits")
    with pytest.raises(OutOfRange, match="was not captured: sites pattern; layers of pattern"):
        _ = minilm.run(TEXTS, "pattern", layers=1)["pattern", 0]


def test_wrong_model_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"no model named 'smolm2'\. Did you mean 'smollm2'\?"):
        probe.load("smolm2")
    with pytest.raises(UnknownName, match="no attention implementation named 'flash'"):
        probe.load("tiny", attention="flash")


def test_folders_that_hold_no_safe_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"has no config\.json"):
        probe.load(tmp_path)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_head": 1, "n_embd": 8})
    )
    torch.save({}, pickled / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="safetensors; pickled weights and remote code are not run"):
        probe.load(pickled)


def test_a_tiny_gpt_in_a_folder_of_ones_own_loads(tmp_path: Path, tiny: Subject) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((TINY / name).read_bytes())
    weights = load_file(TINY / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors")
    assert probe.load(tmp_path).weights_hash == tiny.weights_hash
    weights.pop("base_model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="do not fit"):
        probe.load(tmp_path)


def test_a_model_without_heads_is_refused() -> None:
    from transformers import MambaConfig, MambaModel

    model = MambaModel(MambaConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(UnsupportedModel, match="MambaModel has no attention heads that probe can read: none was seen"):
        Subject(model, None, "mamba")


def test_other_families_of_the_same_build_are_read_too() -> None:
    """Llama-type and BERT-type relatives, tiny and random: patterns equal their own eager attention."""
    import transformers as tf

    small = {"vocab_size": 30, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama = {**small, "intermediate_size": 32, "num_key_value_heads": 2}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    cases = [
        (tf.LlamaForCausalLM, tf.LlamaConfig(**llama), True),
        (tf.MistralForCausalLM, tf.MistralConfig(**llama, sliding_window=3), True),
        (tf.Qwen2ForCausalLM, tf.Qwen2Config(**llama), True),
        (tf.Qwen3ForCausalLM, tf.Qwen3Config(**llama, head_dim=16), True),
        (tf.Gemma2ForCausalLM, tf.Gemma2Config(**llama, head_dim=16, sliding_window=3), True),
        (tf.Olmo2ForCausalLM, tf.Olmo2Config(**llama), True),
        (tf.BertForMaskedLM, tf.BertConfig(**small, intermediate_size=32), True),
        (tf.RobertaModel, tf.RobertaConfig(**small, intermediate_size=32, pad_token_id=1), True),
        (tf.GPT2LMHeadModel, tf.GPT2Config(vocab_size=30, n_embd=32, n_layer=2, n_head=4), True),
        (tf.DistilBertModel, tf.DistilBertConfig(vocab_size=30, dim=32, n_layers=2, n_heads=4, hidden_dim=32), True),
        (tf.ModernBertModel, tf.ModernBertConfig(**small, intermediate_size=32, local_attention=4, **special), True),
        (tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig(**small, intermediate_size=32), False),
        (tf.CohereForCausalLM, tf.CohereConfig(**llama, **special), False),
        (tf.OPTForCausalLM, tf.OPTConfig(**small, ffn_dim=32, word_embed_proj_dim=32), False),
    ]
    ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])
    for cls, config, has_mid in cases:
        torch.manual_seed(0)
        model = cls(config).eval()
        sites = ["scores", "pattern", "q", "k", "z", "result", "attn_out", "resid_pre", "resid_post"]
        sites += ["resid_mid"] if has_mid else []
        with torch.no_grad():
            plain = model(ids)[0]
            with probe.Capture(model, sites) as seen:
                captured = model(ids)[0]
            model.set_attn_implementation("eager")
            expected = model(ids, output_attentions=True).attentions
        assert torch.equal(plain, captured), cls
        for layer, pattern in enumerate(expected):
            assert (seen["pattern", layer] - pattern).abs().max() <= 1e-6, (cls, layer)
            assert (seen["scores", layer].softmax(-1) - pattern).abs().max() <= 1e-6, (cls, layer)
            bias = seen.anatomy.stack.layers[layer].attention.project.module.bias
            total = seen["result", layer].sum(2) + (0 if bias is None else bias)
            assert torch.allclose(total, seen["attn_out", layer], atol=1e-6), (cls, layer)
        if not has_mid:
            with pytest.raises(UnsupportedModel, match="has no resid_mid of layer 0 that probe can find"):
                probe.Capture(model, "resid_mid")
        elif config.model_type == "modernbert":
            assert torch.allclose(seen["resid_pre", 1] + seen["attn_out", 1], seen["resid_mid", 1], atol=1e-6)
        elif config.model_type == "olmo2":
            written = model.model.layers[1].post_attention_layernorm(seen["attn_out", 1])
            assert torch.allclose(seen["resid_pre", 1] + written, seen["resid_mid", 1], atol=1e-6)
        elif config.model_type not in ("bert", "roberta", "distilbert"):
            block = seen.anatomy.stack.layers[1].block.module
            for name in ("pre_feedforward_layernorm", "post_attention_layernorm", "ln_2"):
                if hasattr(block, name):
                    break
            mlp = block.mlp(getattr(block, name)(seen["resid_mid", 1]))
            mlp = block.post_feedforward_layernorm(mlp) if name.startswith("pre_") else mlp
            assert torch.allclose(seen["resid_mid", 1] + mlp, seen["resid_post", 1], atol=1e-6), cls


def test_q_under_a_partial_rotary_embedding_is_told_by_running_attention_without_the_rotation() -> None:
    import transformers as tf

    config = tf.PhiConfig(
        vocab_size=30, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4
    )
    model = tf.PhiModel(config).eval()
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad(), probe.Capture(model, ["q", "k", "rot_q", "resid_pre"]) as seen:
        model(ids)
    block = model.layers[0]
    with torch.no_grad():
        normed = block.input_layernorm(seen["resid_pre", 0])
        expected = {"q": block.self_attn.q_proj(normed), "k": block.self_attn.k_proj(normed)}
    for name, whole in expected.items():
        assert torch.equal(seen[name, 0], whole.view(1, 3, 4, 8)), name
    assert not torch.equal(seen["q", 0][:, 1:], seen["rot_q", 0][:, 1:])


def test_left_padding_leaves_position_ids_that_do_not_start_at_zero_alone(minilm: Subject) -> None:
    """RoBERTa-type models count positions from their padding index on."""
    import transformers as tf

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    for cls, config in (
        (tf.RobertaModel, tf.RobertaConfig(vocab_size=40, pad_token_id=1, max_position_embeddings=40, **small)),
        (tf.XLMRobertaModel, tf.XLMRobertaConfig(vocab_size=40, pad_token_id=1, max_position_embeddings=40, **small)),
        (tf.BertModel, tf.BertConfig(vocab_size=40, **small)),
        (tf.DistilBertModel, tf.DistilBertConfig(vocab_size=40, dim=32, n_layers=2, n_heads=4, hidden_dim=32)),
        (tf.ModernBertModel, tf.ModernBertConfig(vocab_size=40, **small, pad_token_id=0)),
        (tf.GPTNeoXModel, tf.GPTNeoXConfig(vocab_size=40, **small)),
        (
            tf.OPTModel,
            tf.OPTConfig(
                vocab_size=40,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                ffn_dim=32,
                word_embed_proj_dim=32,
            ),
        ),
        (tf.GPT2Model, tf.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4)),
    ):
        torch.manual_seed(0)
        subject = probe.load(cls(config), minilm.tokenizer)
        prompts = [[5, 6, 7], [5, 6, 7, 8, 9], [3, 4]]
        ((one, right),) = subject.captured(prompts, ["pattern"])
        ((_, left),) = subject.captured(prompts, ["pattern"], padding="left")
        for i, n in enumerate(one.lengths):
            a, b = right["pattern", 1][i, :, :n, :n], left["pattern", 1][i, :, 5 - n :, 5 - n :]
            assert (a - b).abs().max() <= 1e-5, cls
    assert probe.load(tf.RobertaModel(tf.RobertaConfig(vocab_size=40, **small)), minilm.tokenizer).max_positions == 510


def test_whether_a_model_looks_back_only_is_seen_and_not_believed(
    tiny: Subject, minilm: Subject, smollm2: Subject
) -> None:
    import transformers as tf

    assert (tiny.is_causal, minilm.is_causal, smollm2.is_causal) == (True, False, True)
    assert (tiny.d_head, minilm.d_head, smollm2.d_head) == (32, 32, 64)
    config = tf.LlamaConfig(
        vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = tf.LlamaModel(config)
    del model.layers[0].self_attn.is_causal
    assert probe.load(model, tiny.tokenizer).is_causal


def test_heads_are_counted_where_they_attend_whatever_the_configuration_says(tiny: Subject) -> None:
    import transformers as tf

    model = tf.LlamaModel(
        tf.LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=4)
    )
    model.config.num_attention_heads = model.config.num_key_value_heads = 2
    subject = probe.load(model, tiny.tokenizer)
    assert (subject.n_heads, subject.n_kv_heads, subject.d_head) == (4, 4, 4)


def test_damaged_files_are_told_and_not_traced(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((TINY / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(UnsupportedModel, match="do not fit"):
        probe.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="could not be loaded"):
        probe.load(tmp_path)
    with pytest.raises(UnknownName, match="no dtype named 'int8'"):
        probe.load("tiny", dtype="int8")
    with pytest.raises(ProbeError, match="not NoneType"):
        probe.load(None)  # type: ignore[arg-type]


def test_runs_and_targets_show_what_they_hold_in_a_line(minilm: Subject) -> None:
    run = minilm.run(TEXTS, ["pattern", "embed"], layers=[1, 2])
    assert repr(run) == "Run(3 prompts, pattern (layers 1 to 2), embed)"
    targets = minilm.bind(probe.data.coreference(2))
    assert repr(targets) == "Targets(coreference in coreference-sentences: 120 units, 0 excluded)"


def test_dtype_and_attention_are_what_was_asked_for() -> None:
    subject = probe.load("minilm", dtype="bfloat16", attention="eager")
    assert (subject.dtype, subject.attention) == ("bfloat16", "eager")
    pattern = subject.run(TEXTS[0], "pattern", layers=0)["pattern", 0]
    assert np.allclose(pattern.float().sum(-1), 1, atol=2e-2)
