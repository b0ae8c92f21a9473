"""The study of what each kind of transformer may look at, on a short training."""

from __future__ import annotations

import pytest
import torch

from probe.models import reversal
from probe.runner.findings import Findings
from probe.scores import reversing
from probe.scores.reversing import Learned
from probe.studies import lineages as module
from probe.subject import Subject

N = 20


@pytest.fixture(scope="module")
def study() -> tuple[Findings, list[Learned]]:
    """The findings, and what was trained for them: two seeds, forty steps each."""
    learned: list[Learned] = []
    own = reversing.learn

    def spy(*given: object) -> Learned:
        learned.append(own(*given))
        return learned[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reversing, "learn", spy)
        patch.setitem(module.STEPS, "quick", 60)
        patch.setitem(module.SEEDS, "quick", 2)
        patch.setattr(module, "N_STRINGS", N)
        patch.setattr(module, "N_TEXTS", 4)
        return module.lineages(), learned


@pytest.fixture(scope="module")
def found(study: tuple[Findings, list[Learned]]) -> Findings:
    return study[0]


def test_decoders_put_exactly_nothing_on_later_tokens(found: Findings) -> None:
    table = found.tables["directions"].frame.set_index(["model", "stack"])
    largest = table["largest weight on a later token"]
    assert largest["tiny", "decoder"] == largest["reverser", "decoder"] == 0
    assert min(largest["minilm", "encoder"], largest["reverser", "encoder"]) > 0.01
    assert (table[["earlier", "itself", "later"]].sum(axis=1) - 1).abs().max() < 1e-5
    assert "tiny: 0% of its attention on later tokens" in found.answer


def test_shares_are_those_of_the_models_own_attention(found: Findings, minilm: Subject) -> None:
    """MiniLM's patterns from transformers itself, under eager attention."""
    from transformers import AutoModel

    encoder = module._encoder()
    texts = encoder.texts[: len(encoder.texts)][:: len(encoder.texts) // 4][:4]
    model = AutoModel.from_config(minilm.model.config, attn_implementation="eager").eval()
    model.load_state_dict(minilm.model.state_dict())
    later = []
    for text in texts:
        ids = torch.tensor([minilm.encode(text).ids])
        with torch.no_grad():
            patterns = torch.stack(model(ids, output_attentions=True).attentions)[:, 0]
        n = ids.shape[1]
        total = sum(float(patterns[:, :, q, k].mean()) for q in range(n) for k in range(q + 1, n))
        later.append(total / n)
    row = found.tables["directions"].frame.set_index("model").loc["minilm"]
    assert row["later"] == pytest.approx(sum(later) / len(later), abs=1e-4)


def test_a_changed_token_reaches_nothing_before_it_in_a_decoder(found: Findings) -> None:
    table = found.tables["reach"].frame.set_index(["model", "read at"])
    assert table.loc[("tiny", "all tokens before it"), ["that differ", "largest difference"]].tolist() == [0, 0]
    assert table.loc[("reverser", "the decoder before it"), "that differ"] == 0
    for place in [("minilm", "all tokens before it"), ("reverser", "the source before it")]:
        assert table.loc[place, "that differ"] == table.loc[place, "positions"] > 0
    assert table.loc[("reverser", "all the decoder reads"), "that differ"] == len(module.SHOWN) + 1


def test_the_aim_of_every_head_is_counted_on_the_half_that_did_not_pick(
    study: tuple[Findings, list[Learned]],
) -> None:
    found, (first, _) = study
    table = found.tables["cross_heads"].frame.set_index("head")
    strings = reversal.held_out(N, seed=0)[N // 2 :]
    hits, steps = torch.zeros(2, 4), 0
    for string in strings:
        ids = torch.tensor([reversal.tokenizer()(reversal.source(string)).input_ids])
        run = first.subject.run(reversal.source(string), "cross.pattern", decoder=[[1, *reversal.answer(string)[:-1]]])
        for step in range(len(string)):
            symbol = string[len(string) - 1 - step]
            steps += 1
            for layer in range(2):
                at = run["cross.pattern", layer][0, :, step].argmax(-1)
                mirror = len(string) - step
                assert ids[0, mirror] == 3 + reversal.SYMBOLS.index(symbol)
                hits[layer] += (at == mirror).float()
    for layer in range(2):
        for head in range(4):
            assert table.loc[f"{layer}.{head}", "share"] == pytest.approx(float(hits[layer, head] / steps))
    chance = sum(map(len, strings)) and sum(len(s) / (len(s) + 2) for s in strings) / steps
    assert found.tables["cross_seeds"].frame["chance"][0] == pytest.approx(chance)


def test_drawn_cross_attention_is_the_best_heads(study: tuple[Findings, list[Learned]]) -> None:
    found, (first, _) = study
    frame = found.tables["cross_pattern"].frame
    layer, head = map(int, found.tables["cross_seeds"].frame["head"][0].split("."))
    run = first.subject.run(
        reversal.source(module.SHOWN), "cross.pattern", decoder=[reversal.read_by_decoder(module.SHOWN)]
    )
    wanted = run["cross.pattern", layer][0, head].flatten().tolist()
    assert frame[frame["model"] == "trained"]["weight"].tolist() == pytest.approx(wanted, abs=1e-6)
    assert frame[frame["model"] == "untrained"]["weight"].tolist() != pytest.approx(wanted, abs=1e-3)
    assert frame["query"].unique().tolist() == ["1 d", "2 h", "3 e", "4 f", "5 a", "6 c", "7 ."]


def test_each_training_has_its_row_with_an_interval(study: tuple[Findings, list[Learned]]) -> None:
    found, learned = study
    table = found.tables["learned"].frame
    assert table["seed"].tolist() == [0, 1]
    assert table["right"].tolist() == [each.right / N for each in learned]
    assert (table["low"] <= table["right"]).all()
    assert (table["right"] <= table["high"]).all()
    assert table["loss"][0] == pytest.approx(sum(learned[0].losses) / 60)
    assert f"it writes {learned[0].right} of {N} backwards" in found.answer


def test_passes_for_a_text(found: Findings) -> None:
    table = found.tables["passes"].frame.set_index("model")
    assert table.loc["tiny", ["encoder", "decoder"]].tolist() == [0, module.WRITTEN]
    assert table.loc["tiny", "decoder positions"] == table.loc["tiny", "prompt"] + module.WRITTEN - 1
    assert table.loc["minilm", ["encoder", "decoder", "written"]].tolist() == [1, 0, 0]
    assert table.loc["minilm", "encoder positions"] == table.loc["minilm", "prompt"]
    row = table.loc["reverser"]
    assert row[["encoder", "encoder positions"]].tolist() == [1, len(module.SHOWN) + 2]
    assert row["decoder"] == row["decoder positions"] == row["written"]


def test_sites_that_exist_can_be_read_and_others_are_refused(
    study: tuple[Findings, list[Learned]], tiny: Subject
) -> None:
    found, (first, _) = study
    table = found.tables["sites"].frame.set_index("site")
    both = first.subject
    columns = {"": "reverser, decoder", "encoder.": "reverser, encoder", "cross.": "reverser, cross"}
    for prefix, column in columns.items():
        names = [prefix + site for site in table.index[table[column] == "yes"]]
        run = both.run("a b .", names)
        assert {name for name, _ in run.values} == set(names)
    assert table["tiny"].eq("yes").all()
    assert table.index[table["minilm"] == "–"].tolist() == ["logits"]
