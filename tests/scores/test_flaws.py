"""What goes wrong where heads are scored by one number a pattern, as TransformerLens' `detect_head` does: here it is
measured as it should be, and beside it what that score would say.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import probe
from probe.capture.batch import alike
from probe.data.texts import Text
from probe.models.planted.circuit import VOCABULARY
from probe.scores import heads
from probe.scores import measure as module
from probe.scores.induction import induction_targets
from probe.scores.measure import measure
from probe.scores.rows import Plan, Rows, read
from probe.subject import Subject
from probe.targets import Row, Targets, Unit


def detect_head(pattern: Tensor, detection: Tensor, *, exclude_bos: bool = False) -> float:
    """One number for a pattern (query, key): the share of all its attention that lies on the detection pattern."""
    pattern = pattern.clone()
    if exclude_bos:
        pattern[:, 0] = 0
    return float((pattern * detection).sum() / pattern.sum())


def repeated(n: int = 20, length: int = 25) -> list[list[int]]:
    """<bos>, a random string, and the string once more."""
    rng = random.Random(0)
    strings = (rng.sample(range(3, len(VOCABULARY)), length) for _ in range(n))
    return [[1, *string, *string] for string in strings]


def detection(unit: Unit) -> Tensor:
    """Ones where the targets of a unit are."""
    found = torch.zeros(len(unit.ids), len(unit.ids))
    for row in unit.rows:
        found[row.query[0], list(row.target)] = 1
    return found


def test_a_perfect_head_scores_one_on_a_string_that_comes_twice() -> None:
    """Half of the queries have a target. The others rest on the first token, and are none of the score's business."""
    subject = probe.load("planted:induction")
    targets = induction_targets(repeated())
    found = measure(subject, targets, quiet=True)
    assert found["target"][1, 0].min() > 1 - 1e-5
    unit = targets.units[0]
    for _, seen in subject.captured([unit.ids], ["pattern"]):
        theirs = detect_head(seen["pattern", 1][0, 0], detection(unit))
    assert theirs == pytest.approx(25 / 51, abs=0.01), "the same head, by the share of all attention"


def test_a_partly_repeated_string_costs_a_perfect_head_nothing() -> None:
    subject = probe.load("planted:induction")
    for again in (1, 3, 10, 25):
        targets = induction_targets([ids[: 26 + again] for ids in repeated()])
        assert {len(u.rows) for u in targets.units} == {again}
        assert measure(subject, targets, quiet=True)["target"][1, 0].min() > 1 - 1e-5


def test_a_uniform_head_scores_chance() -> None:
    subject = probe.load("planted:induction")
    found = measure(subject, induction_targets(repeated()), quiet=True)
    idle = found["target"][0, 2]
    assert np.allclose(idle, found["chance"][0, 2], atol=1e-6)
    expected = np.mean([1 / (q + 1) for q in range(26, 51)])
    assert idle.mean() == pytest.approx(expected, abs=1e-6)


def test_a_head_that_only_looks_at_the_first_token_scores_zero_and_that_is_told() -> None:
    subject = probe.load("planted:first_token")
    found = measure(subject, induction_targets(repeated()), quiet=True)
    assert np.abs(found["target"][0, 0]).max() < 1e-5
    assert found["first"][0, 0].min() > 1 - 1e-5
    assert not np.isnan(found["target"]).any()


def test_one_percent_on_the_target_is_one_percent() -> None:
    n = 6
    pattern = torch.zeros(1, 1, n, n)
    pattern[..., 0], pattern[0, 0, 5, 2] = 0.99, 0.01
    pattern[0, 0, :5, 0] = 1.0
    unit = Unit("a", "a", tuple(range(n)), (Row((5,), (2,)),))
    plan = Plan.of([unit], [[5]])
    visible = torch.ones(n, n).tril().bool()[None, None, 5:]
    got = read(Rows(pattern[:, :, 5:], visible), plan)
    assert got.target.item() == pytest.approx(0.01)
    assert got.first.item() == pytest.approx(0.99)
    assert detect_head(pattern[0, 0], detection(unit), exclude_bos=True) == pytest.approx(1.0)


def test_scores_of_a_list_are_the_means_of_its_items(minilm: Subject) -> None:
    """Items of different lengths and numbers of rows: every item counts once, however many rows it has."""
    texts = [Text(str(n), str(n), t) for n, t in enumerate(("One two.", "He saw one, then he saw two more.", "Oh no!"))]
    together = heads(minilm, minilm.bind(probe.data.previous_token(texts)), quiet=True)
    alone = [heads(minilm, minilm.bind(probe.data.previous_token([t])), quiet=True) for t in texts]
    for column in ("value", "mass", "chance", "lift", "first_mass", "entropy", "entropy_max"):
        mean = np.mean([table[column] for table in alone], axis=0)
        assert np.allclose(together[column], mean, atol=1e-6), column


MASSES = ("target", "foil", "first", "chance")


@pytest.mark.parametrize("name", ["tiny", "minilm", "smollm2"])
def test_order_batch_size_and_padding_side_change_no_mass(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject: Subject = request.getfixturevalue(name)
    data = probe.data.language.coreference(per_frame=4) if name == "tiny" else probe.data.coreference(2)
    bound = subject.bind(data)
    some = replace(bound, units=bound.units[:: len(bound.units) // 8])
    assert len({len(u.ids) for u in some.units}) > 2
    plain = measure(subject, some, quiet=True)
    shuffled = random.Random(0).sample(range(len(some.units)), len(some.units))
    reordered = measure(subject, replace(some, units=tuple(some.units[i] for i in shuffled)), quiet=True)
    others = {mass: {"order": reordered[mass][..., np.argsort(shuffled)]} for mass in MASSES}
    with monkeypatch.context() as patch:
        patch.setattr(module, "alike", partial(alike, most_tokens=1))
        runs: list[int] = []
        hook = subject.anatomy.backbone.register_forward_hook(lambda *_: runs.append(1))
        singly = measure(subject, some, quiet=True)
        hook.remove()
    assert len(runs) == len({u.ids for u in some.units}), "each prompt was run by itself"
    with monkeypatch.context() as patch:
        patch.setattr(subject, "captured", partial(subject.captured, padding="left"))
        left = measure(subject, some, quiet=True)
    for mass in MASSES:
        others[mass] |= {"batch": singly[mass], "left": left[mass]}
        for how, values in others[mass].items():
            assert np.abs(values - plain[mass]).max() <= 1e-5, (how, mass)


def tied(n: int) -> Targets:
    """Prompts in which the target and each of n foils are one token, of a model that looks at all alike."""
    units = tuple(
        Unit(f"{c}-{i}", f"{c}", (1, *range(3, 12)), (Row((9,), (2,), tuple((3 + f,) for f in range(n))),))
        for c in range(8)
        for i in range(2)
    )
    return Targets("coreference", "ties", "accuracy", ("nearest", "first", "longer"), units)


@pytest.mark.parametrize("foils", [1, 2])
def test_exact_ties_count_as_a_fair_share_and_are_reported(foils: int) -> None:
    table = heads(probe.load("planted:first_token"), tied(foils), quiet=True)
    idle = table[table["head"] > 0]
    assert np.allclose(idle["value"], 1 / (1 + foils))
    assert (idle["tied"] == 1).all()
    assert not table["passed"].any()


def test_heads_of_real_models_do_not_tie(minilm: Subject) -> None:
    found = measure(minilm, minilm.bind(probe.data.coreference(2)), quiet=True)
    assert (found["tied"] == 0).all()
