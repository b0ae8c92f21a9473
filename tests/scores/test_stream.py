"""The residual stream's lengths and the logit lens, against the models' own hidden states."""

from __future__ import annotations

import pytest
import torch

from probe.errors import UnsupportedModel
from probe.models import reversal
from probe.models.gpt import GPT, Config
from probe.scores.stream import embeddings, logit_lens, norms, stream
from probe.subject import Subject, load

TEXT = "The cat didn't jump because it was too"


@pytest.fixture(scope="module")
def hidden(smollm2: Subject) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        return smollm2.model(torch.tensor([smollm2.encode(TEXT).ids]), output_hidden_states=True).hidden_states


def test_lengths_are_those_of_the_hidden_states(smollm2: Subject, hidden: tuple[torch.Tensor, ...]) -> None:
    found = stream(smollm2, TEXT).set_index(["layer", "position"])
    for layer in (0, 7, 28):
        before, after = hidden[layer][0].double(), hidden[layer + 1][0].double()
        for position in (0, 4, len(before) - 1):
            row = found.loc[(layer, position)]
            one, other = before[position], after[position]
            assert row["before"] == pytest.approx(float(one.norm()), rel=1e-5)
            assert row["after"] == pytest.approx(float(other.norm()), rel=1e-5)
            assert row["cosine"] == pytest.approx(float(one @ other / one.norm() / other.norm()), abs=1e-5)


def test_changes_of_a_pre_norm_block_are_what_its_halves_write(tiny: Subject) -> None:
    text = "the cat did not reach the shelf"
    found = stream(tiny, text).set_index(["layer", "position"])
    run = tiny.run(text, ["attn_out", "mlp_out"])
    for layer in range(tiny.n_layers):
        for name, site in (("attention", "attn_out"), ("mlp", "mlp_out")):
            wanted = run[site, layer][0].norm(dim=-1).tolist()
            assert found.loc[layer, name].tolist() == pytest.approx(wanted, rel=1e-4)


def test_drawn_lines_are_the_first_and_the_last_position(tiny: Subject) -> None:
    moved = stream(tiny, "the cat did not")
    drawn = norms(moved).set_index(["what", "block"])["norm"]
    by = moved.set_index(["layer", "position"])
    assert drawn["stream, last position", 2] == by.loc[(1, 4), "after"]
    assert drawn["stream, first position", 4] == by.loc[(3, 0), "after"]
    assert drawn["changed by MLP, last", 1] == by.loc[(0, 4), "mlp"]
    assert len(drawn) == 4 * tiny.n_layers


def test_embeddings_are_rows_of_the_matrix(tiny: Subject, smollm2: Subject) -> None:
    text = "the cat did"
    found = embeddings(tiny, text)
    ids, model = list(tiny.encode(text).ids), tiny.model.base_model
    assert found["embedding"].tolist() == pytest.approx(model.embed.weight[ids].norm(dim=-1).tolist(), rel=1e-6)
    assert found["changed"].tolist() == [0] * 4  # rotary positions are not added to the stream
    torch.manual_seed(0)
    learned = Subject(GPT(Config(len(tiny.tokenizer), n_layers=1)), tiny.tokenizer, "learned", "synthetic")
    added = learned.model.base_model.positions.weight[:4].norm(dim=-1).tolist()
    assert embeddings(learned, text)["changed"].tolist() == pytest.approx(added, rel=1e-5)
    assert embeddings(smollm2, TEXT)["changed"].tolist() == [0] * len(smollm2.encode(TEXT))


def test_the_lens_is_the_final_norm_and_unembedding_of_each_layer(
    smollm2: Subject, hidden: tuple[torch.Tensor, ...]
) -> None:
    found = logit_lens(smollm2, TEXT)
    with torch.no_grad():
        model = smollm2.model
        logits = [model.lm_head(model.model.norm(h[0, -1])) for h in hidden[1:-1]]
        logits.append(model(torch.tensor([smollm2.encode(TEXT).ids])).logits[0, -1])
    final = int(logits[-1].argmax())
    assert found["token"].unique().tolist() == [final]
    for layer in (0, 10, 20, 28, 29):
        row, p = found.iloc[layer], logits[layer].double().softmax(-1)
        assert row["probability"] == pytest.approx(float(p[final]), rel=1e-3)
        assert row["likeliest"] == int(p.argmax())
        assert row["likeliest_probability"] == pytest.approx(float(p.max()), rel=1e-3)
        assert row["entropy"] == pytest.approx(float(-(p * p.log()).sum()), rel=1e-3)
        assert row["rank"] == pytest.approx(1 + int((p > p[final]).sum()), rel=0.01)
    assert found["rank"].iloc[-1] == 1


def test_models_without_a_next_word_are_refused(minilm: Subject) -> None:
    with pytest.raises(UnsupportedModel, match="minilm predicts no next token: it has no language-model head"):
        logit_lens(minilm, TEXT)
    reverser = load(reversal.new_model(), reversal.tokenizer(), name="reverser", check=False)
    with pytest.raises(UnsupportedModel, match="reverser is an encoder-decoder: it has two streams"):
        stream(reverser, "a b .")
