"""Positions: what is exact for any weights, against plain arithmetic; what a short training can and cannot learn."""

from __future__ import annotations

import math
from itertools import permutations

import pandas as pd
import pytest
import torch

import probe
from probe.errors import ProbeError, PromptError
from probe.models import order
from probe.models.gpt import GPT, Config
from probe.scores import positions, schemes
from probe.scores.schemes import KINDS, SCHEMES, new_model

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY = 32
SIZES = {"n_heads": 4, "d_model": 32}


def model_of(scheme: str, *, seed: int = 0, n_layers: int = 2, max_positions: int = 64, **parts: object) -> GPT:
    config = Config(
        VOCABULARY, n_layers, position=scheme, max_positions=max_positions, init_scale=None, **parts, **SIZES
    )
    return new_model(config, seed)


# order ----------------------------------------------------------------------------------------------------------------


def test_an_encoder_without_positions_is_equivariant_to_every_permutation() -> None:
    model, ids = model_of("none", visible="bidirectional"), torch.tensor([[3, 4, 5, 6]])
    changes = [positions.permuted_change(model, ids, p) for p in permutations(range(4))]
    assert max(changes) <= 1e-6
    with torch.no_grad():
        plain, turned = (model(i).last_hidden_state[0] for i in (ids, ids.flip(1)))
    assert torch.allclose(plain, turned.flip(0), atol=1e-6)


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s != "none"])
def test_with_positions_an_encoder_is_not(scheme: str) -> None:
    model, ids = model_of(scheme, visible="bidirectional"), torch.tensor([[3, 4, 5, 6]])
    assert positions.permuted_change(model, ids, [1, 2, 3, 0]) > 1e-3
    assert positions.permuted_change(model, ids, [0, 1, 2, 3]) == 0


def test_the_causal_mask_alone_tells_the_order_of_what_came_before_from_two_layers_on() -> None:
    one, other = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[4, 3, 5, 6]])
    assert positions.last_change(model_of("none", n_layers=1), one, other) <= 1e-6
    assert positions.last_change(model_of("none", n_layers=2), one, other) > 1e-3
    assert positions.last_change(model_of("none", visible="bidirectional"), one, other) <= 1e-6


def test_both_orders_of_a_pair_use_the_same_words() -> None:
    ids = order.both_orders([("cat", "dog"), ("owl", "rat")])
    assert ids.shape == (4, 5)
    assert ids[0].tolist() == [1, order.IDS["cat"], order.IDS["chases"], order.IDS["dog"], order.IDS[":"]]
    assert all(sorted(a) == sorted(b) and a != b for a, b in zip(ids[:2].tolist(), ids[2:].tolist(), strict=True))
    assert not set(order.HELD_OUT) & set(order.TRAINED)
    assert len(order.HELD_OUT) + len(order.TRAINED) == math.comb(len(order.ANIMALS), 2)


def test_the_share_of_right_answers_is_counted_as_in_a_plain_loop() -> None:
    model = new_model(Config(len(order.IDS), 1, max_positions=8, init_scale=None, **SIZES), 0)
    right = 0.0
    for a, b in order.HELD_OUT:
        for first, second in ((a, b), (b, a)):
            with torch.no_grad():
                logits = model(torch.tensor([order.sentence(first, second)])).logits[0, -1]
            right += float(logits[order.IDS[first]] > logits[order.IDS[second]])
    assert order.tells_order(model, order.HELD_OUT) == right / (2 * len(order.HELD_OUT))


def test_two_causal_layers_learn_order_without_positions_where_an_encoder_and_one_layer_cannot() -> None:
    accuracy = {}
    for kind, parts in KINDS.items():
        config = Config(len(order.IDS), position="none", max_positions=8, **parts, **schemes.SIZES)
        accuracy[kind] = order.tells_order(order.learn_order(config, steps=250, seed=0), order.HELD_OUT)
    assert accuracy["decoder, 2 layers"] > 0.9
    assert accuracy["encoder, 2 layers"] == pytest.approx(0.5, abs=0.06)
    assert accuracy["decoder, 1 layer"] == pytest.approx(0.5, abs=0.06)


# distance -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["none", "rope", "alibi"])
def test_moving_the_whole_prompt_changes_nothing_where_distance_alone_counts(scheme: str) -> None:
    scores, logits = positions.shifted_change(model_of(scheme), positions.random_ids(VOCABULARY, (2, 16), 0), 40)
    assert scores < 1e-4
    assert logits < 1e-4


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned"])
def test_added_positions_change_the_scores_when_the_prompt_moves(scheme: str) -> None:
    scores, logits = positions.shifted_change(model_of(scheme), positions.random_ids(VOCABULARY, (2, 16), 0), 40)
    assert scores > 0.01
    assert logits > 0.01


def test_learned_positions_cannot_move_beyond_their_table() -> None:
    with pytest.raises(ProbeError, match="there are 64 learned positions, not 66"):
        positions.shifted_change(model_of("learned"), positions.random_ids(VOCABULARY, (1, 16), 0), 50)


def test_sinusoids_and_rope_fall_off_by_the_same_mean_of_cosines() -> None:
    table = positions.likeness_by_distance(8, [0, 1, 7, 30])
    for distance, sinusoidal, rope in table.itertuples(index=False):
        expected = sum(math.cos(distance * 10_000 ** (-2 * i / 8)) for i in range(4)) / 4
        assert sinusoidal == pytest.approx(expected, abs=1e-5)
        assert rope == pytest.approx(expected, abs=1e-5)
    moved = positions.likeness_by_distance(8, [0, 1, 7, 30], start=25)
    assert moved["rope"].tolist() == pytest.approx(table["rope"].tolist(), abs=1e-5)


def test_alibis_bias_is_a_line_whose_slope_halves_from_head_to_head() -> None:
    table = positions.alibi_by_distance(8, [0, 1, 5]).set_index(["head", "distance"])["bias"]
    assert [table[head, 1] for head in range(8)] == pytest.approx([-(2.0 ** -(head + 1)) for head in range(8)])
    assert table[2, 5] == pytest.approx(5 * table[2, 1])
    assert table[0, 0] == 0


# beyond the trained length --------------------------------------------------------------------------------------------


def test_a_lengthened_model_reads_on_and_computes_the_same_where_it_could_read_before() -> None:
    for scheme in ("none", "sinusoidal", "rope", "alibi"):
        short, ids = model_of(scheme, max_positions=16), positions.random_ids(VOCABULARY, (2, 40), 0)
        long = positions.lengthened(short, 40)
        with torch.no_grad():
            assert torch.allclose(long(ids).logits[:, :16], short(ids[:, :16]).logits, atol=1e-5)
        with pytest.raises(PromptError):
            short(ids)


def test_learned_positions_cannot_be_lengthened() -> None:
    with pytest.raises(ProbeError, match="has learned 16 positions and has no vector for the others up to 40"):
        positions.lengthened(model_of("learned", max_positions=16), 40)


def test_loss_by_position_equals_a_plain_loop() -> None:
    model, windows = model_of("rope"), positions.random_ids(VOCABULARY, (5, 9), 1)
    found = positions.loss_by_position(model, windows, batch_size=2)
    expected = [0.0] * 8
    for row in windows.tolist():
        with torch.no_grad():
            chances = model(torch.tensor([row])).logits[0].log_softmax(-1)
        for at in range(8):
            expected[at] -= float(chances[at, row[at + 1]]) / 5
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_ranges_stop_where_learned_positions_end() -> None:
    windows = positions.random_ids(VOCABULARY, (2, schemes.LONGEST + 1), 0)
    reaches = {s: schemes.by_range(model_of(s), windows)[-1][1] for s in ("learned", "rope")}
    assert reaches == {"learned": 63, "rope": 255}


def test_what_heads_look_at_equals_the_eager_pattern() -> None:
    from probe.models.repeats import Repeats

    model = model_of("learned", max_positions=16)
    windows = positions.random_ids(VOCABULARY, (3, 12), 0)
    subject = probe.load(model, Repeats(symbols=VOCABULARY - 3).tokenizer)
    found = positions.heads_by_position(subject, windows)
    ((_, seen),) = subject.captured(windows.tolist(), ["pattern"])
    for row in found.itertuples():
        weights = seen["pattern", row.layer][:, row.head].tolist()
        previous = [prompt[q][q - 1] for prompt in weights for q in range(2, 12)]
        first = [prompt[q][0] for prompt in weights for q in range(2, 12)]
        assert row.previous == pytest.approx(sum(previous) / len(previous), abs=1e-6)
        assert row.first == pytest.approx(sum(first) / len(first), abs=1e-6)


def test_the_study_tells_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.studies import positions as module

    monkeypatch.setattr(module, "QUICK", {"order": 2, "language": 2})
    found = module.positions(profile="quick", seed=0)
    claim = found.tables["claim"].frame.set_index("without positions")["the claim"].to_dict()
    assert claim == {
        "encoder, 2 layers": "right",
        "decoder, 1 layer": "right for its last token",
        "decoder, 2 layers": "wrong",
    }
    beyond = found.tables["loss_by_range"].frame.set_index("positions")
    assert pd.isna(beyond.loc["learned", "192 to 255"])
    assert beyond.drop("learned").notna().all(axis=None)
    assert found.answer.endswith("learned positions end at 63.")
