"""The logit lens at every depth and position, against the models' own modules and against edits of the last block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import probe
from probe.data import language
from probe.errors import OutOfRange, PromptError, UnsupportedModel
from probe.models.tokenizer import word_tokenizer
from probe.scores.components import questions
from probe.scores.lens import ahead_from, answer_lens, by_depth, lens, sides
from probe.scores.stream import logit_lens
from probe.subject import Subject
from probe.targets import Answer, Unit

TEXT = "The cat didn't jump because it was too"
TOKENIZER = word_tokenizer(tuple("abcdefgh"))


def test_at_the_last_position_it_says_what_the_model_says_with_the_stream_put_there(tiny: Subject) -> None:
    text = "Anna thanked Ben because she"
    found, swapped = lens(tiny, text), logit_lens(tiny, text)
    last = found[(found["position"] == found["position"].max()) & (found["site"] == "resid_post")].reset_index()
    assert last["likeliest"].tolist() == swapped["likeliest"].tolist()
    assert last["probability"].tolist() == pytest.approx(swapped["likeliest_probability"].tolist(), rel=1e-4)
    assert last["entropy"].tolist() == pytest.approx(swapped["entropy"].tolist(), rel=1e-4)


def test_every_depth_and_position_is_read_by_the_models_own_norm_and_matrix() -> None:
    tiny = probe.load("tiny")  # its own, for it is hooked
    text = "Anna thanked Ben because she Anna was late ."
    found, model = lens(tiny, text), tiny.model
    ids = tiny.encode(text).ids
    halves: list[torch.Tensor] = []
    for block in model.base_model.blocks:
        block.norm_attention.register_forward_pre_hook(lambda _, args: halves.append(args[0][0]))
        block.norm_mlp.register_forward_pre_hook(lambda _, args: halves.append(args[0][0]))
    model.base_model.norm.register_forward_pre_hook(lambda _, args: halves.append(args[0][0]))
    with torch.no_grad():
        model(torch.tensor([ids]))
        p = [
            model.unembed(model.base_model.norm(half)).double().softmax(-1) for half in halves[: 2 * tiny.n_layers + 1]
        ]
    assert found["depth"].unique().tolist() == [n / 2 for n in range(2 * tiny.n_layers + 1)]
    assert len(found) == len(p) * len(ids)
    for depth, own in enumerate(p):
        rows = found[found["depth"] == depth / 2].set_index("position")
        for position in range(len(ids) - 1):
            follows = own[position, ids[position + 1]]
            assert rows.loc[position, "next_probability"] == pytest.approx(float(follows), rel=1e-3)
            assert rows.loc[position, "next_rank"] == 1 + int((own[position] > follows).sum())
        assert np.isnan(rows.loc[len(ids) - 1, "next_rank"])


def test_planted_answers_are_there_after_the_block_that_writes_them() -> None:
    planted = probe.load("planted:induction")
    units, _ = questions(planted, language.repeats(per_frame=2), 24)
    found = by_depth(answer_lens(planted, units), seed=0).set_index("depth")
    assert found["ahead"].to_dict() == {0.0: 0.0, 1.0: 0.0, 2.0: 1.0}
    assert found.loc[2.0, "difference"] == pytest.approx(20, abs=0.1)
    assert found.loc[2.0, "right_rank"] == 1
    tasks = found.reset_index().assign(task="repeats")
    assert ahead_from(tasks).to_dict("records")[0]["ahead_from"] == 2.0
    both = sides(tasks)
    assert len(both) == 6
    assert both[both["answer"] == "its rival"]["probability"].tolist() == found["wrong_probability"].tolist()


def unit(*ids: int) -> Unit:
    return Unit("a", "a", ids, (), answer=Answer(len(ids) - 1, (4,), ((7,),)))


@pytest.mark.parametrize("kind", ["gemma2", "gptj", "granite"])
def test_the_last_depth_is_the_models_own_answer_softcap_bias_and_factor_included(kind: str) -> None:
    torch.manual_seed(0)
    small = {"vocab_size": 11, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    grouped = {**small, "intermediate_size": 32, "num_key_value_heads": 1}
    config = {
        "gemma2": lambda: transformers.Gemma2Config(**grouped, head_dim=8, final_logit_softcapping=0.5),
        "granite": lambda: transformers.GraniteConfig(**grouped, logits_scaling=4.0),
        "gptj": lambda: transformers.GPTJConfig(
            vocab_size=11, n_embd=16, n_layer=2, n_head=2, n_positions=16, rotary_dim=4
        ),
    }[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.2, std=0.3)
    found = answer_lens(probe.load(model, TOKENIZER), [unit(3, 5, 8, 6)]).iloc[-1]
    with torch.no_grad():
        own = model(torch.tensor([[3, 5, 8, 6]])).logits[0, -1].double()
    assert found["difference"] == pytest.approx(float(own[4] - own[7]), abs=1e-4)
    assert found["right_probability"] == pytest.approx(float(own.softmax(-1)[4]), rel=1e-3)
    assert found["wrong_probability"] == pytest.approx(float(own.softmax(-1)[7]), rel=1e-3)
    assert found["right_rank"] == 1 + int((own > own[4]).sum())
    assert found["wrong_rank"] == 1 + int((own > own[7]).sum())


def test_what_no_lens_can_read_is_refused(minilm: Subject, tiny: Subject) -> None:
    with pytest.raises(UnsupportedModel, match="minilm predicts no next token"):
        lens(minilm, TEXT)
    with pytest.raises(PromptError, match="a asks nothing: the lens needs"):
        answer_lens(tiny, [Unit("a", "a", (1, 5, 6), ())])
    with pytest.raises(OutOfRange, match="right answer of a, token 9999 does not exist: allowed are 0 to 345"):
        answer_lens(tiny, [Unit("a", "a", (1, 5, 6), (), answer=Answer(2, (9999,), ((7,),)))])
    with pytest.raises(PromptError, match="the table has 0 rows"):
        by_depth(answer_lens(tiny, []), seed=0)
