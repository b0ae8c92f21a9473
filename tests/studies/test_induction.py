"""Induction: the strings, the scores of heads against plain loops and a planted circuit, and what grows in training."""

from __future__ import annotations

import math
import random

import pandas as pd
import pytest
import torch

import probe
from probe.errors import ProbeError, UnsupportedModel
from probe.models.gpt import GPT, Config
from probe.models.planted.kinds import HEADS, build
from probe.models.repeats import Repeated, Repeats
from probe.models.tokenizer import BEGIN_ID, SPECIAL
from probe.models.train import Recipe
from probe.scores import growth
from probe.scores.induction import (
    InductionTest,
    best_offset,
    copying,
    followers,
    guess_among_seen,
    induction_targets,
)
from probe.subject import Subject

pytestmark = pytest.mark.usefixtures("one_thread")
CORPUS = Repeats()
PLANTED = Repeats(symbols=40, longest=48, sizes=(4, 8), gaps=(0, 6))
SMALL = Repeats(symbols=12, longest=32, sizes=(3, 5), gaps=(0, 3))


def random_model(n_layers: int = 2, **parts: object) -> Subject:
    torch.manual_seed(1)
    config = Config(len(SMALL.tokenizer), n_layers, d_model=32, max_positions=32, init_scale=None, ffn="none", **parts)
    return probe.load(GPT(config), SMALL.tokenizer)


def patterns(subject: Subject, ids: tuple[int, ...]) -> list[torch.Tensor]:
    """Each layer's weights (head, query, key), worked out from the model's own matrices."""
    model, found = subject.model, []
    config = model.config
    x = model.base_model.embed.weight[list(ids)] + model.base_model.positions.weight[: len(ids)]
    for block in model.base_model.blocks:
        q, k, v = block.attention.qkv(block.norm_attention(x)).split(config.d_model, dim=-1)
        heads = [p.view(len(ids), config.n_heads, -1).transpose(0, 1) for p in (q, k, v)]
        scores = heads[0] @ heads[1].transpose(1, 2) / math.sqrt(config.head_width)
        later = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(later, -math.inf).softmax(-1)
        found.append(pattern)
        x = x + block.attention.out((pattern @ heads[2]).transpose(0, 1).reshape(len(ids), -1))
    return found


# the strings ----------------------------------------------------------------------------------------------------------


def test_every_copy_is_the_same_string_and_its_symbols_are_nowhere_else() -> None:
    rng = random.Random(3)
    for _ in range(50):
        prompt = CORPUS.draw(rng)
        assert len(prompt.ids) == CORPUS.longest
        assert prompt.ids[0] == BEGIN_ID
        copies = {prompt.ids[at : at + prompt.size] for at in prompt.copies}
        assert len(copies) == 1
        assert len(prompt.copies) >= 2
        (string,) = copies
        assert len(set(string)) == prompt.size
        inside = {at + i for at in prompt.copies for i in range(prompt.size)}
        last = max(inside)
        assert not {t for p, t in enumerate(prompt.ids[: last + 1]) if p not in inside} & set(string)


def test_gaps_and_strings_vary_so_that_no_offset_is_right_often() -> None:
    offset, mass = best_offset(induction_targets([p.ids for p in CORPUS.held_out(64)]))
    assert -30 < offset < -6
    assert 0.05 < mass < 0.12


def test_the_best_offset_of_strings_without_gaps_is_always_right() -> None:
    fixed = Repeats(sizes=(10, 10), gaps=(0, 0), longest=32)
    targets = induction_targets([[BEGIN_ID, *fixed.draw(random.Random(0)).ids[1:21]]])
    assert best_offset(targets) == (-9, pytest.approx(1.0))


def test_held_out_prompts_are_the_same_each_time_and_not_those_of_a_training() -> None:
    assert CORPUS.held_out(4) == Repeats().held_out(8)[:4]
    trained = {tuple(row) for row in CORPUS.batch(random.Random(0), 64)[0].tolist()}
    assert not trained & {p.ids for p in CORPUS.held_out(64)}


def test_a_prompt_too_short_for_two_copies_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"longest=40 tokens do not hold two copies of a string of 18 .* they need 61"):
        Repeats(longest=40)
    with pytest.raises(ProbeError, match=r"symbols=18 leave none for the gaps"):
        Repeats(symbols=18)


def test_guessing_among_the_symbols_seen_costs_the_logarithm_of_their_number() -> None:
    first = len(SPECIAL)
    ids = (BEGIN_ID, first, first + 1, first + 2, first + 3, first, first + 1, first + 2)
    prompt = Repeated(ids, (1, 5), 3)
    assert guess_among_seen([prompt]) == pytest.approx(math.log(4))


# what is measured -----------------------------------------------------------------------------------------------------


def test_followers_are_the_positions_after_earlier_copies() -> None:
    a, b, c = range(len(SPECIAL), len(SPECIAL) + 3)
    assert followers([BEGIN_ID, a, b, a, c, a, b]) == {3: (2,), 5: (2, 4), 6: (3,)}
    assert followers([BEGIN_ID, a, BEGIN_ID, b]) == {}


def test_masses_equal_plain_loops_over_the_models_own_arithmetic() -> None:
    subject, strings = random_model(), SMALL.held_out(6)
    heads = InductionTest(strings).read(subject).heads.set_index(["layer", "head"])
    induction, previous, first = (dict.fromkeys(heads.index, 0.0) for _ in range(3))
    for prompt in strings:
        ids = prompt.ids
        for layer, pattern in enumerate(patterns(subject, ids)):
            for head in range(subject.n_heads):
                weights, matched, sunk = pattern[head].tolist(), [], []
                for q in range(1, len(ids)):
                    earlier = [j for j in range(1, q) if ids[j] == ids[q]]
                    if earlier:
                        matched.append(sum(weights[q][j + 1] for j in earlier))
                        sunk.append(weights[q][0])
                before = [weights[q][q - 1] for q in range(2, len(ids))]
                for total, column in ((induction, matched), (previous, before), (first, sunk)):
                    total[layer, head] += sum(column) / len(column) / len(strings)
    for name, expected in (("induction", induction), ("previous", previous), ("first", first)):
        assert heads[name].to_dict() == pytest.approx(expected, abs=1e-6)


def test_losses_equal_a_plain_loop_over_the_copies() -> None:
    subject, strings = random_model(), SMALL.held_out(6)
    reading = InductionTest(strings).read(subject)
    first, later = [], []
    for prompt in strings:
        with torch.no_grad():
            chances = subject.model(torch.tensor([prompt.ids])).logits[0].log_softmax(-1)
        losses = [
            [-float(chances[at - 1, prompt.ids[at]]) for at in range(start + 1, start + prompt.size)]
            for start in prompt.copies
        ]
        first.append(sum(losses[0]) / len(losses[0]))
        rest = [x for copy in losses[1:] for x in copy]
        later.append(sum(rest) / len(rest))
    assert reading.first == pytest.approx(sum(first) / len(first), abs=1e-5)
    assert reading.later == pytest.approx(sum(later) / len(later), abs=1e-5)
    assert reading.in_context == reading.later - reading.first


def test_the_planted_induction_head_scores_one_and_its_helper_looks_back() -> None:
    subject = probe.load(build("induction", noise=1e-4), SMALL.tokenizer, check=False)
    n = subject.model.config.vocab_size
    assert n > PLANTED.symbols + len(SPECIAL)
    heads = InductionTest(PLANTED.held_out(8)).read(subject).heads.set_index(["layer", "head"])
    ((previous,), (induction,)) = HEADS["induction"]["previous_token"], HEADS["induction"]["induction"]
    assert heads.loc[previous, "previous"] > 0.99
    assert heads.loc[induction, "induction"] > 0.99
    assert heads.loc[induction, "copying"] > 0.9
    assert heads.loc[induction, "copied"] == 1
    others = heads.drop([previous, induction])
    assert others["induction"].max() < 0.3
    assert others["previous"].max() < 0.3


def test_copying_is_one_for_a_head_that_writes_the_token_back_and_minus_one_for_its_opposite() -> None:
    config = Config(vocab_size=8, n_layers=1, n_heads=2, d_model=16, ffn="none", norm="none", bias=False, tied=True)
    model = GPT(config)
    with torch.no_grad():
        model.base_model.embed.weight.copy_(torch.eye(8, 16))
        model.base_model.blocks[0].attention.out.weight.copy_(torch.cat([torch.eye(16, 8), -torch.eye(16, 8)], 1))
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    values = torch.eye(8)[ids][:, :, None].expand(-1, -1, 2, -1)  # each head's value says which token it is
    score, top = copying(model, 0, values, ids)
    assert score.tolist() == pytest.approx([1.0, -1.0])
    assert top.tolist() == [1.0, 0.0]


def test_copying_equals_plain_arithmetic() -> None:
    subject, strings = random_model(1), SMALL.held_out(2)
    heads = InductionTest(strings).read(subject).heads
    model, total, top = subject.model, [[] for _ in range(4)], [[] for _ in range(4)]
    attention, norm = model.base_model.blocks[0].attention, model.base_model.norm
    for prompt in strings:
        x = model.base_model.embed.weight[list(prompt.ids)] + model.base_model.positions.weight[:32]
        values = attention.qkv(model.base_model.blocks[0].norm_attention(x))[:, 64:]
        for place, token in enumerate(prompt.ids):
            for head in range(4 if token >= len(SPECIAL) else 0):
                part = slice(8 * head, 8 * head + 8)
                write = attention.out.weight[:, part] @ values[place, part]
                logits = (model.base_model.embed.weight @ ((write - write.mean()) * norm.weight)).tolist()
                mean = sum(logits) / len(logits)
                raised = [max(0.0, logit - mean) for logit in logits]
                total[head].append(2 * raised[token] / sum(raised) - 1)
                top[head].append(raised[token] == max(raised))
    assert heads["copying"].tolist() == pytest.approx([sum(t) / len(t) for t in total], abs=1e-5)
    assert heads["copied"].tolist() == pytest.approx([sum(t) / len(t) for t in top])


def test_another_kind_of_model_is_refused(minilm: Subject) -> None:
    with pytest.raises(UnsupportedModel, match="minilm is no tiny GPT"):
        InductionTest(SMALL.held_out(2)).read(minilm)


# what grows -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grown() -> growth.Grown:
    """A planted circuit in place of a training: what is known of it must come out."""
    test = InductionTest(PLANTED.held_out(8))
    subject = probe.load(build("induction", noise=1e-4), SMALL.tokenizer, check=False)
    heads = test.read(subject).heads.assign(step=0)
    return growth.Grown(subject, heads, pd.DataFrame())


def test_zeroing_the_planted_previous_token_head_ends_induction_and_no_other_does(grown: growth.Grown) -> None:
    assert growth.previous_heads(grown) == (0,)
    table = growth.dependence(grown, InductionTest(PLANTED.held_out(8)))
    whole = table[table["change"] == "none"].iloc[0]
    zeroed, keys, queries = (table[table["change"] == c].set_index("heads") for c in ("zero", "cut k", "cut q"))
    assert list(zeroed.index) == ["0", "1", "2", "3"]
    assert whole["induction"] > 0.99
    for changed in (zeroed, keys):
        assert changed.loc["0", "induction"] < 0.3
        assert changed.loc["0", "later"] > whole["later"] + 1
        assert changed.loc["1":, "induction"].min() > 0.99
    assert queries.loc["0", "induction"] > 0.99, "it is read through the keys alone"
    assert queries.loc["0", "later"] == pytest.approx(whole["later"], abs=0.05)


def test_what_is_left_is_summed_up_over_models(grown: growth.Grown) -> None:
    heads = pd.concat([grown.heads, grown.heads.assign(step=1)])
    heads.loc[(heads["layer"] == 0) & (heads["head"] == 2), "previous"] = 0.6
    two = growth.Grown(grown.subject, heads, grown.losses)
    assert growth.previous_heads(two) == (0, 2)
    models = [growth.Model("planted", 2, seed, two) for seed in (0, 1)]
    each = growth.dependence(two, InductionTest(PLANTED.held_out(4))).assign(model="planted")
    without = pd.concat([each.assign(seed=0), each.assign(seed=1, later=each["later"] + 1)])
    table = growth.summary_without(without, models).set_index("change")
    nothing = each[each["change"] == "none"].iloc[0]
    assert table.loc["nothing", "loss"] == pytest.approx(nothing["later"] + 0.5)
    assert table.loc["nothing", "highest loss"] - table.loc["nothing", "lowest loss"] == pytest.approx(1)
    both = each[(each["change"] == "zero") & (each["heads"] == "0 2")].iloc[0]
    assert table.loc["all previous-token heads zeroed", "mass"] == pytest.approx(both["induction"])
    others = each[(each["change"] == "zero") & each["heads"].isin(["1", "3"])]
    assert table.loc["another head of their layer zeroed", "lowest loss"] == pytest.approx(others["later"].max())


def test_half_way_lies_on_the_line_between_two_readings() -> None:
    assert growth.half_way(pd.Series([0.0, 0.2, 0.6, 0.8], index=[0, 100, 200, 300])) == pytest.approx(150)
    assert growth.half_way(pd.Series([0.8, 0.8], index=[0, 100])) == 0
    assert growth.half_way(pd.Series([0.0, 0.9, 0.2, 0.8], index=[0, 10, 20, 30])) == pytest.approx(10 * 0.4 / 0.9)
    assert math.isnan(growth.crossing(pd.Series([0.0, 0.3], index=[0, 10]), 0.4))


def test_a_training_is_read_at_its_steps_and_the_same_seed_grows_the_same() -> None:
    test = InductionTest(SMALL.held_out(4))
    config = growth.attention_only(2, None, SMALL)
    recipe = Recipe(steps=7, batch_size=4, every=7, seed=5)
    one, two = (growth.grow(config, recipe, SMALL, test, every=3) for _ in range(2))
    assert one.losses["step"].tolist() == [0, 3, 6, 7]
    assert len(one.heads) == 4 * 8
    assert one.losses.equals(two.losses)
    assert one.heads.equals(two.heads)
    last = test.read(one.subject)
    assert one.losses["later"].iloc[-1] == last.later
    best = one.best("induction", 1)
    assert last.heads.set_index(["layer", "head"]).loc[1, "induction"].max() == one.curve("induction", best).iloc[-1]


def test_the_study_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.studies import induction as module

    monkeypatch.setattr(
        module, "QUICK", {"scales": {"GPT-2's scale": (0.02, 4), "PyTorch's scale": (None, 2)}, "every": 2}
    )
    found = module.induction(profile="quick", seed=0)
    ends = found.tables["models"].frame
    assert ends["model"].tolist() == [
        "2 layers, GPT-2's scale",
        "2 layers, PyTorch's scale",
        "1 layer, GPT-2's scale",
        "1 layer, PyTorch's scale",
    ]
    assert (ends["prefix matching"] < 0.2).all()
    assert found.answer.startswith("Two, though not in every training: in 0 of 2 two-layer models")
    listing = found.sections[0].parts[0].text
    copies = [line.split()[1:] for line in listing.splitlines() if line.startswith(" copy")]
    assert len(copies) >= 2
    assert all(copy == copies[0][: len(copy)] for copy in copies)
