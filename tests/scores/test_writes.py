"""What heads write: planted copiers score one, and everything equals plain arithmetic on the model's own matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import probe
from probe.data import language
from probe.errors import OutOfRange, PromptError
from probe.models import planted
from probe.models.tokenizer import word_tokenizer
from probe.scores.writes import copying, top_tokens
from probe.subject import Subject

COPIERS = ("previous_token", "first_token", "duplicate_token", "induction")
TEXT = "ruby coal silk dog fox wolf"


@pytest.mark.parametrize("kind", COPIERS)
def test_planted_copiers_score_one_and_idle_heads_write_nothing(kind: str) -> None:
    found = copying(probe.load(f"planted:{kind}"), [TEXT]).set_index(["layer", "head"])
    ((layer, head),) = planted.HEADS[kind][kind]
    own = found.loc[(layer, head)]
    assert own["copying"] == own["among"] == own["low"] == pytest.approx(1, abs=1e-6)
    assert (own["first"], own["rank"], own["tokens"]) == (1, 1, 6)
    idle = found.drop(index=[at for places in planted.HEADS[kind].values() for at in places])
    assert len(idle) >= 3
    assert idle["copying"].isna().all()


def test_a_head_that_writes_against_the_token_scores_minus_one() -> None:
    model = planted.build("previous_token")
    with torch.no_grad():
        model.unembed.weight.neg_()
    subject = Subject(model, word_tokenizer(language.WORDS), "against", "synthetic")
    found = copying(subject, [TEXT]).iloc[0]
    assert found["copying"] == pytest.approx(-1, abs=1e-6)
    assert found["rank"] == len(subject.tokenizer)


def test_scores_are_those_of_plain_arithmetic(smollm2: Subject) -> None:
    text, layer, head = "river apple seven", 20, 7
    found = copying(smollm2, [text]).set_index(["layer", "head"]).loc[(layer, head)]
    ids, model = smollm2.encode(text).ids, smollm2.model
    group, width = head // 3, smollm2.d_head
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[layer][0]
        block = model.model.layers[layer]
        values = (block.input_layernorm(hidden) @ block.self_attn.v_proj.weight.T)[
            :, group * width : (group + 1) * width
        ]
        written = values @ block.self_attn.o_proj.weight[:, head * width : (head + 1) * width].T
        logits = ((written * model.model.norm.weight) @ model.lm_head.weight.T).double().numpy()
    shares, among, ranks = [], [], []
    for row, token in zip(logits, ids, strict=True):
        raised = np.maximum(row - row.mean(), 0)
        shares.append(2 * raised[token] / raised.sum() - 1)
        among.append(2 * raised[token] / raised[list(ids)].sum() - 1 if raised[list(ids)].any() else -1)
        ranks.append(1 + (row > row[token]).sum())
    assert found["copying"] == pytest.approx(np.mean(shares), abs=1e-5)
    assert found["among"] == pytest.approx(np.mean(among), abs=1e-5)
    assert found["rank"] == pytest.approx(np.median(ranks), rel=0.01)
    assert found["tokens"] == len(ids) == 3


def test_random_weights_copy_nothing(tiny: Subject) -> None:
    trained, random = copying(tiny, [TEXT]), copying(tiny.random_copy(0), [TEXT])
    assert random["copying"].max() < -0.8
    assert trained["copying"].max() > random["copying"].max()


def test_a_planted_induction_head_writes_the_answer() -> None:
    subject = probe.load("planted:induction")
    found = top_tokens(subject, "ruby coal silk dog ruby", [(1, 0), (0, 0)], k=2)
    first = found[(found["head"] == "1.0") & (found["rank"] == 1)].iloc[0]
    assert (first["raised"], first["looked_at"]) == ("coal", "coal")
    assert first["logit"] == pytest.approx(20 * (1 - 1 / len(subject.tokenizer)), rel=1e-4)
    assert first["weight"] == pytest.approx(1, abs=1e-3)
    note = found[(found["head"] == "0.0") & (found["rank"] == 1)].iloc[0]
    assert (note["looked_at"], note["logit"]) == ("dog", 0), "what it notes, no logit reads"


def test_what_heads_write_adds_up_to_the_logits(tiny: Subject) -> None:
    """Centred logits of all heads, MLPs and biases make up the model's; the heads' are those of attribution."""
    from probe.scores.attribution import direct_logit_attribution
    from probe.targets import Answer, Unit

    text = "Anna thanked Ben because she"
    found = top_tokens(tiny, text, [(3, 1)], k=1).iloc[0]
    up, down = (tiny.tokenizer.convert_tokens_to_ids(found[side]) for side in ("raised", "lowered"))
    ids = tiny.encode(text).ids
    unit = Unit("a", "a", ids, (), answer=Answer(len(ids) - 1, (up,), ((down,),)))
    parts = direct_logit_attribution(tiny, [unit], heads=True).set_index(["component", "layer", "head"])["value"]
    assert found["logit"] - found["its logit"] == pytest.approx(parts["head", 3, 1], abs=1e-5)


def test_no_texts_are_refused(tiny: Subject) -> None:
    with pytest.raises(PromptError, match="no prompts were given"):
        copying(tiny, [])
    with pytest.raises(PromptError, match="one text was given, 'ruby coal': copying takes a list"):
        copying(tiny, "ruby coal")


def test_heads_and_tokens_that_are_not_there_are_refused(tiny: Subject) -> None:
    for k in (0, -1, 347):
        with pytest.raises(OutOfRange, match=f"k={k} tokens were asked for: allowed are 1 to 346"):
            top_tokens(tiny, TEXT, [(0, 0)], k=k)
    assert len(top_tokens(tiny, TEXT, [(0, 0)], k=346)) == 346
    with pytest.raises(OutOfRange, match="names none: give at least one"):
        top_tokens(tiny, TEXT, [])


def test_a_bare_pair_is_no_list_of_heads(tiny: Subject) -> None:
    with pytest.raises(OutOfRange, match=r"heads=\(0, 1\): give \(layer, head\) for each, such as \[\(0, 1\)\]"):
        top_tokens(tiny, "Anna thanked Ben .", (0, 1))  # type: ignore[arg-type]
