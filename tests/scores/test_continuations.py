"""What a model says next, against its own logits and generations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.errors import PromptError, UnsupportedModel
from probe.scores.continuations import (
    SETTINGS,
    Setting,
    by_temperature,
    likeliest,
    next_token,
    sampled,
    token_text,
    word_probabilities,
)
from probe.subject import Subject

TEXT = "The cat didn't jump onto the table because it was too"
TINY = "the cat did not reach the shelf because it was too"


def own_logits(subject: Subject, ids: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        return subject.model(torch.tensor([ids])).logits[0].double().numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_ten_likeliest_tokens_are_the_models(smollm2: Subject) -> None:
    found = next_token(smollm2, TEXT)
    p = softmax(own_logits(smollm2, smollm2.encode(TEXT).ids)[-1])
    order = np.argsort(-p)[:10]
    assert found.top["id"].tolist() == order.tolist()
    assert found.top["probability"].tolist() == pytest.approx(p[order].tolist(), rel=1e-4)
    assert [t.replace("␣", " ") for t in found.top["token"]] == [smollm2.tokenizer.decode([i]) for i in order]


def test_the_block_from_which_a_token_leads_is_after_the_last_that_disagrees(tiny: Subject) -> None:
    found = next_token(tiny, TINY)
    ranks = found.lens["rank"].tolist()
    assert all(r == 1 for r in ranks[found.leads_from - 1 :])
    assert found.leads_from == 1 or ranks[found.leads_from - 2] > 1


def test_a_words_probability_is_the_product_over_its_tokens(smollm2: Subject) -> None:
    words = ["tired", "slippery", "unfathomable"]
    found = word_probabilities(smollm2, {"it": TEXT, "so": "So it was"}, words).set_index("word")
    for name, head in (("it", TEXT), ("so", "So it was")):
        for word in words:
            start, whole = smollm2.encode(head).ids, smollm2.encode(f"{head} {word}").ids
            product = 1.0
            for at in range(len(start), len(whole)):
                product *= softmax(own_logits(smollm2, whole[:at])[-1])[whole[at]]
            assert found.loc[word, name] == pytest.approx(product, rel=1e-3)
    assert found.loc["tired", "tokens"] == 1
    assert found.loc["unfathomable", "tokens"] > 1


def test_a_word_without_tokens_of_its_own_is_refused(tiny: Subject) -> None:
    with pytest.raises(PromptError, match="the tokens of '' do not follow those of 'the cat'"):
        word_probabilities(tiny, {"it": "the cat"}, ["did", ""])


def test_entropy_and_kept_tokens_of_each_setting(smollm2: Subject) -> None:
    settings = [Setting(0.0), Setting(0.7), Setting(top_k=10), Setting(top_p=0.5)]
    found = sampled(smollm2, TEXT, settings, runs=2, tokens=1, seed=0).set_index("setting")
    logits = own_logits(smollm2, smollm2.encode(TEXT).ids)[-1]
    p = np.sort(softmax(logits))[::-1]
    n = int(np.searchsorted(np.cumsum(p), 0.5)) + 1
    kept = {"temperature 1, top-k 10": p[:10] / p[:10].sum(), "temperature 1, top-p 0.5": p[:n] / p[:n].sum()}
    kept["temperature 0.7"] = softmax(logits / 0.7)
    for name, q in kept.items():
        assert found.loc[name, "entropy"] == pytest.approx(float(-(q * np.log(q)).sum()), rel=1e-4)
        assert found.loc[name, "kept"] == len(q)
    assert (found.loc["temperature 0", "entropy"], found.loc["temperature 0", "kept"]) == (0, 1)


def test_runs_differ_within_a_seed_and_repeat_with_it(tiny: Subject) -> None:
    settings = [*SETTINGS, Setting(top_k=1)]
    found = sampled(tiny, TINY, settings, runs=12, tokens=4, seed=3).set_index("setting")
    assert found["repeated"].all()
    assert found.loc["temperature 0", "distinct"] == found.loc["temperature 1, top-k 1", "distinct"] == 1
    ids = torch.tensor([tiny.encode(TINY).ids] * 12)
    written = tiny.model.generate(ids, max_new_tokens=4, temperature=1.5, seed=3)[:, ids.shape[1] :]
    assert found.loc["temperature 1.5", "distinct"] == len(written.unique(dim=0)) > 1
    assert found.loc["temperature 1.5", "example"] == tiny.tokenizer.decode(written[0].tolist())


def test_temperature_flattens_the_likeliest_tokens() -> None:
    logits = torch.tensor([3.0, 1.0, 2.0, 0.0]).double()
    found = by_temperature(logits, ranks=3)
    assert found["temperature"].unique().tolist() == [f"temperature {t}" for t in (0.3, 0.7, 1, 1.5)]
    half = found[found["temperature"] == "temperature 0.7"]["probability"].tolist()
    assert half == pytest.approx(np.sort(softmax(logits.numpy() / 0.7))[::-1][:3].tolist())


def test_parts_of_characters_go_by_their_names(smollm2: Subject) -> None:
    part = smollm2.tokenizer("💛").input_ids[0]
    assert token_text(smollm2.tokenizer, part) == smollm2.tokenizer.convert_ids_to_tokens(part)
    assert token_text(smollm2.tokenizer, smollm2.tokenizer(" cat").input_ids[0]) == "␣cat"


def test_likeliest_ranks_by_logit(tiny: Subject) -> None:
    logits = torch.zeros(len(tiny.tokenizer)).double()
    logits[7], logits[9] = 2.0, 3.0
    found = likeliest(tiny, logits, 2)
    assert found["id"].tolist() == [9, 7]
    assert found["probability"][1] == pytest.approx(float(np.exp(2) / (np.exp(2) + np.exp(3) + len(logits) - 2)))


def test_an_encoder_has_no_next_token(minilm: Subject) -> None:
    for ask in (next_token, lambda s, t: word_probabilities(s, {"": t}, ["tired"])):
        with pytest.raises(UnsupportedModel, match="minilm predicts no next token: it has no language-model head"):
            ask(minilm, TEXT)
