"""The row reader against sums written out in plain Python."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from probe.scores.rivals import rival_accuracy
from probe.scores.rows import Plan, Reading, Rows, read
from probe.targets import Row, Unit


def unit(n: int, *rows: Row, words: tuple[tuple[int, ...], ...] = ()) -> Unit:
    return Unit("item", "cluster", tuple(range(n)), rows, words or tuple((p,) for p in range(n)))


def causal(n: int) -> Tensor:
    return torch.ones(n, n).tril().bool()[None, None]


def read_of(pattern: Tensor, visible: Tensor, units: list[Unit], shift: int = 0) -> Reading:
    """The queries' rows cut from full patterns (unit, head, query, key), and read."""
    asked = [[q for r in u.rows for q in r.query] for u in units]
    most = max(map(len, asked))
    index = torch.tensor([[*q, *[q[-1]] * (most - len(q))] for q in asked]) + shift
    units_of = torch.arange(len(units))[:, None]
    cut = [
        t.expand(len(units), -1, -1, -1).transpose(1, 2)[units_of, index].transpose(1, 2) for t in (pattern, visible)
    ]
    return read(Rows(*cut, queries=index), Plan.of(units, asked, shift=[shift] * len(units), n_keys=pattern.shape[-1]))


def one(pattern: Tensor, u: Unit, visible: Tensor) -> dict[str, Tensor]:
    got = read_of(pattern, visible, [u])
    return {name: getattr(got, name)[0] for name in got.FIELDS}


def plain(weights: list[float], row: Row, words: tuple[tuple[int, ...], ...], visible: list[bool]) -> dict[str, float]:
    """Every statistic of one averaged attention row, with no tensor in sight."""
    mass = sum(weights[k] for k in row.target)
    foils = [sum(weights[k] for k in foil) for foil in row.foils]
    own = next(w for w in words if row.query[0] in w)
    others = [w for w in words if w is not own]
    best = max(others, key=lambda w: sum(weights[k] for k in w))
    ties = 1 + sum(f == mass for f in foils)
    return {
        "target": mass,
        "foil": max(foils),
        "correct": 0.0 if max(foils) > mass else 1 / ties,
        "word_correct": float(any(k in row.target for k in best)),
        "first": weights[0],
        "entropy": -sum(w * math.log(w) for w in weights if w > 0),
        "entropy_max": math.log(sum(visible)),
        "chance": sum((k <= q) / (q + 1) for q in row.query for k in row.target) / len(row.query),
    }


def test_every_statistic_equals_plain_python_on_random_patterns() -> None:
    rng = random.Random(0)
    for _ in range(200):
        n = rng.randrange(6, 14)
        pattern = torch.randn(1, 3, n, n).masked_fill(~causal(n), -torch.inf).softmax(-1)
        start = rng.randrange(4, n - 1)
        query = (start, start + 1)[: rng.randrange(1, 3)]
        words = ((0,), (1, 2), (3,), *((p,) for p in range(4, start)), query, *((p,) for p in range(query[-1] + 1, n)))
        row = Row(query, (1, 2), ((0,), (3,)))
        got = one(pattern, unit(n, row, words=words), causal(n))
        for head in range(3):
            weights = [sum(pattern[0, head, q, k].item() for q in query) / len(query) for k in range(n)]
            visible = [k <= query[-1] for k in range(n)]
            for name, value in plain(weights, row, words, visible).items():
                assert got[name][head, 0].item() == pytest.approx(value, abs=1e-6), name


def test_perfect_attention_scores_one_uniform_scores_chance_and_all_on_first_scores_zero() -> None:
    n = 6
    perfect, uniform, first = torch.zeros(n, n), torch.ones(n, n).tril(), torch.zeros(n, n)
    perfect[range(1, n), range(n - 1)] = 1
    perfect[0, 0] = first[:, 0] = 1
    pattern = torch.stack([perfect, uniform / uniform.sum(-1, keepdim=True), first])[None]
    u = unit(n, *(Row((q,), (q - 1,)) for q in range(2, n)))
    got = one(pattern, u, causal(n))
    assert got["target"][0].tolist() == [1.0] * 4
    assert torch.allclose(got["target"][1], got["chance"][1])
    assert got["chance"][1].tolist() == pytest.approx([1 / 3, 1 / 4, 1 / 5, 1 / 6])
    assert got["target"][2].tolist() == [0.0] * 4
    assert got["first"][2].tolist() == [1.0] * 4
    assert got["entropy"][0].tolist() == [0.0] * 4
    assert torch.allclose(got["entropy"][1], got["entropy_max"][1])


def test_exact_ties_count_as_a_fair_share() -> None:
    pattern = torch.tensor([[0.25, 0.25, 0.25, 0.25]]).expand(4, 4)[None, None]
    visible = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    assert one(pattern, unit(4, Row((3,), (0,), ((1,),))), visible)["correct"].item() == 0.5
    assert one(pattern, unit(4, Row((3,), (0,), ((1,), (2,)))), visible)["correct"].item() == pytest.approx(1 / 3)


def test_padding_and_masked_rows_never_enter_a_score() -> None:
    """Trap 7: the same prompt, alone and left-padded in a batch whose padding rows are NaN."""
    n, pad = 5, 3
    pattern = torch.randn(1, 2, n, n).masked_fill(~causal(n), -torch.inf).softmax(-1)
    u = unit(n, Row((4,), (1,), ((2,),)))
    alone = one(pattern, u, causal(n))
    padded = torch.full((1, 2, n + pad, n + pad), torch.nan)
    padded[:, :, pad:, pad:] = pattern
    padded[:, :, pad:, :pad] = 0
    visible = torch.zeros(1, 1, n + pad, n + pad, dtype=torch.bool)
    visible[:, :, pad:, pad:] = causal(n)
    got = read_of(padded, visible, [u], pad)
    for name in ("target", "foil", "correct", "word_correct", "entropy", "chance", "entropy_max"):
        assert torch.allclose(getattr(got, name)[0], alone[name]), name


def test_special_tokens_and_the_querys_own_word_are_no_answer() -> None:
    """Position 0 belongs to no word and gets most; the query's own two pieces get more than the target."""
    pattern = torch.zeros(1, 1, 6, 6)
    pattern[0, 0, 4] = torch.tensor([0.5, 0.2, 0.05, 0.1, 0.15, 0.0])
    words = ((1,), (2,), (3, 4), (5,))
    got = one(pattern, unit(6, Row((4,), (1,), ((2,),)), words=words), causal(6))
    assert got["word_correct"].item() == 1.0
    pattern[0, 0, 4, 1], pattern[0, 0, 4, 2] = 0.05, 0.2
    got = one(pattern, unit(6, Row((4,), (1,), ((2,),)), words=words), causal(6))
    assert got["word_correct"].item() == 0.0


def test_rows_of_words_that_are_not_scored_are_the_same() -> None:
    """Read where they lie, and not cut out and averaged first: several phenomena share the rows of a pass."""
    n = 7
    pattern = torch.randn(2, 3, n, n).masked_fill(~causal(n), -torch.inf).softmax(-1)
    units = [unit(n, Row((2,), (0, 1)), Row((5,), (4,))), unit(n, Row((6,), (3,)))]
    cut = read_of(pattern, causal(n), units)
    whole = read(Rows(pattern, causal(n)), Plan.of(units, [range(n)] * 2))
    for name in ("target", "first", "entropy", "entropy_max", "chance"):
        assert torch.allclose(getattr(whole, name), getattr(cut, name), atol=1e-6, equal_nan=True), name
    assert whole.target[0, :, 1].tolist() == pattern[0, :, 5, 4].tolist()
    assert whole.target[1, :, 0].tolist() == pattern[1, :, 6, 3].tolist()


def test_units_with_fewer_rows_are_averaged_over_their_own() -> None:
    long, short = unit(5, Row((3,), (0,)), Row((4,), (3,))), unit(5, Row((2,), (1,)))
    pattern = torch.rand(2, 1, 5, 5)
    got = read_of(pattern, torch.ones(1, 1, 5, 5, dtype=torch.bool), [long, short]).target
    assert got[0, 0].tolist() == pytest.approx([pattern[0, 0, 3, 0].item(), pattern[0, 0, 4, 3].item()])
    assert got[1, 0, 0].item() == pytest.approx(pattern[1, 0, 2, 1].item())
    assert torch.isnan(got[1, 0, 1])


def test_reading_twice_gives_the_same_and_changes_nothing() -> None:
    """Trap 14."""
    pattern = torch.rand(1, 2, 6, 6)
    before = pattern.clone()
    u = unit(6, Row((5,), (0,), ((1,),)))
    a, b = one(pattern, u, causal(6)), one(pattern, u, causal(6))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(pattern, before)


def test_rivals_answer_by_their_rule() -> None:
    u = unit(9, Row((8,), (1, 2), ((5,),)))  # the target is first and longer, the foil nearer
    answers = {name: rival_accuracy(name, [u]).tolist() for name in ("nearest", "first", "longer", "chance")}
    assert answers == {"nearest": [0.0], "first": [1.0], "longer": [1.0], "chance": [0.5]}
    tie = unit(9, Row((4,), (2,), ((6,),)))  # one on either side, equally far
    assert rival_accuracy("nearest", [tie]).tolist() == [0.5]
    before = unit(9, Row((2,), (4,), ((7, 8),)))  # both after the query: the target is nearer, the foil longer
    assert {n: rival_accuracy(n, [before]).tolist() for n in ("nearest", "first", "longer")} == {
        "nearest": [1.0],
        "first": [1.0],
        "longer": [0.0],
    }
    with pytest.raises(Exception, match=r"no rival named 'neerest'\. Did you mean 'nearest'\?"):
        rival_accuracy("neerest", [u])


def test_the_same_word_is_told_by_its_tokens() -> None:
    u = replace(unit(5, Row((4,), (1,), ((2, 3),))), ids=(9, 7, 8, 6, 7))
    assert rival_accuracy("same word", [u]).tolist() == [1.0]
    assert rival_accuracy("same word", [replace(u, ids=(9, 5, 8, 7, 7))]).tolist() == [0.0]
    assert rival_accuracy("same word", [replace(u, ids=(9, 5, 8, 6, 7))]).tolist() == [0.5]


def test_the_best_fixed_distance_is_tried_out_on_all_units() -> None:
    """Three targets stand four tokens before the query, where of the fourth's candidates there is none and a foil of
    the fifth; one and two tokens before the query there are foils.
    """
    rows = [
        Row((6,), (2,), ((5,),)),
        Row((8,), (4,), ((6,), (7,))),
        Row((5,), (0, 1), ((3,),)),
        Row((7,), (0,), ((6,),)),
        Row((7,), (1,), ((3,),)),
    ]
    found = rival_accuracy("offset", [unit(9, row) for row in rows])
    assert found.tolist() == pytest.approx([1, 1, 1, 0.5, 0])
    two = rival_accuracy("offset", [unit(9, rows[0], rows[4]), unit(9, rows[1])])
    assert two.tolist() == pytest.approx([0.5, 1])


def test_where_a_head_looks_is_told_from_the_query() -> None:
    """Distance and most frequent offset, by hand, with padding before the prompt and a query of two pieces."""
    pattern = torch.zeros(1, 2, 6, 6)
    pattern[0, 0, 4, [1, 3]] = torch.tensor([0.75, 0.25])  # three and one token before
    pattern[0, 0, 5, [4, 5]] = torch.tensor([0.5, 0.5])
    pattern[0, 1, 4, 5] = pattern[0, 1, 5, 5] = 1.0
    rows = Rows(pattern[:, :, 4:], torch.ones(1, 1, 2, 6, dtype=torch.bool), queries=torch.tensor([[4, 5]]))
    single = read(rows, Plan.of([unit(5, Row((3,), (0,)), Row((4,), (0,)))], [[3, 4]], shift=[1]))
    assert single.distance[0].tolist() == [[2.5, 0.5], [1.0, 0.0]]
    assert single.offset[0].tolist()[0][0] == -3.0
    assert single.offset[0].tolist()[1] == [1.0, 0.0]
    pieces = read(rows, Plan.of([unit(5, Row((3, 4), (0,)))], [[3, 4]], shift=[1]))
    assert pieces.distance[0].tolist() == [[1.5], [0.5]]
    assert pieces.offset[0].tolist() == [[-3.0], [1.0]]
    unknown = read(Rows(pattern[:, :, 4:], rows.visible), Plan.of([unit(5, Row((3,), (0,)))], [[3, 4]], shift=[1]))
    assert unknown.distance.isnan().all()
    assert unknown.offset.isnan().all()
