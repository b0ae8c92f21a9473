"""Answers without groups of heads are those of plain edits, and the planted head is missed where it should be."""

from __future__ import annotations

import numpy as np
import pytest

import probe
from probe import edits
from probe.causal.behaviour import candidate_scores, share_right
from probe.causal.controls import random_groups
from probe.causal.masking import Masked, compared, masked
from probe.causal.readout import asked
from probe.causal.sweep import mean_z
from probe.errors import ProbeError
from probe.subject import Subject
from probe.targets import Unit


@pytest.fixture(scope="module")
def units(tiny: Subject) -> tuple[Unit, ...]:
    return tiny.bind(probe.data.language.facts(per_frame=4)).units[::14]


def norms(subject: Subject) -> np.ndarray:
    return 1.0 + np.arange(subject.n_layers * subject.n_heads, dtype=float).reshape(subject.n_layers, -1)


def test_answers_without_heads_are_those_of_plain_edits(tiny: Subject, units: tuple[Unit, ...]) -> None:
    heads = [(1, 0), (2, 3)]
    found = masked(tiny, units, heads, norms(tiny), groups=3, seed=1)
    drawn = random_groups(tiny, heads, norms(tiny), 3, seed=1)
    mean = mean_z(tiny, [p.ids for p in asked(tiny, units)])
    plain = candidate_scores(tiny, units)
    assert found.correct.shape == (5, len(units))
    for u, unit in enumerate(units[:4]):
        assert unit.answer is not None
        assert found.correct[0, u] == share_right(plain[u])
        for row, group in ((1, heads), (3, drawn[1])):
            changes = [edits.replace("z", layer, mean[layer, head], heads=head) for layer, head in group]
            ids = unit.ids[: unit.answer.read_at + 1]
            for _, seen in tiny.captured([ids], ["logits"], edits=changes):
                logs = seen["logits"][0, -1].log_softmax(-1)
            scores = np.array([float(logs[c[0]]) for c in (unit.answer.right, *unit.answer.wrong)])
            assert found.correct[row, u] == share_right(scores)
            assert found.log_p[row, u] == pytest.approx(scores[0] - np.log(np.exp(scores).sum()), abs=1e-4)


def test_random_groups_leave_the_chosen_heads_alone(tiny: Subject) -> None:
    drawn = random_groups(tiny, [(0, 0), (3, 3)], norms(tiny), 20)
    assert all(len(set(group)) == 2 for group in drawn)
    assert not {(0, 0), (3, 3)} & {head for group in drawn for head in group}
    assert len(set(drawn)) > 5


def test_numbers_of_groups_are_means_over_questions() -> None:
    correct = np.array([[1.0, 1, 1, 0], [0, 0, 1, 0], [1, 1, 1, 1], [1, 0, 1, 0]])
    made = Masked(((0, 0),), correct, np.log(0.5 + correct / 4))
    plain, own, random = made.accuracy
    assert (plain, own, random.tolist()) == (0.75, 0.25, [1.0, 0.5])
    lost, theirs = made.nats
    assert lost == pytest.approx((made.log_p[0] - made.log_p[1]).mean())
    assert theirs[0] < 0 < theirs[1] < lost
    (row,) = compared([("one head", made)]).to_dict("records")
    assert row["without random: median"] == 0.75
    assert (row["lowest"], row["highest"]) == (0.5, 1.0)


def test_silence_is_refused(tiny: Subject) -> None:
    words = tiny.bind(probe.data.first_token([probe.data.Text("a", "a", "Anna thanked Ben .")]))
    with pytest.raises(ProbeError, match="none of the units has a question"):
        masked(tiny, words.units, [(0, 0)], norms(tiny))
