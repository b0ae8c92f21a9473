"""What is timed as scoring is the scoring, beside plain passes that are the same work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from probe.cost import scoring
from probe.cost.harness import SCORING_COLUMNS, ask_scoring, measure_scoring
from probe.errors import ProbeError
from probe.scores.measure import Measured
from probe.subject import Subject


def test_the_sweep_is_one_of_every_head_and_its_plain_pass_has_a_row_for_each(smollm2: Subject) -> None:
    plain, sweep, times = scoring.sweeping(smollm2, 0)
    passes: list[int] = []
    hook = smollm2.anatomy.backbone.register_forward_hook(lambda *args: passes.append(len(args[2][0])))
    plain()
    hook.remove()
    assert passes == [2 * scoring.PAIRS * smollm2.n_heads]
    assert times == smollm2.n_layers
    assert callable(sweep)


def test_nine_phenomena_are_read_in_every_row(smollm2: Subject) -> None:
    plain, score, times = scoring.nine(smollm2, 0, n=2, tokens=32)
    measured: list[Measured] = score()  # type: ignore[assignment]
    assert times == 1
    assert len({m.targets.phenomenon for m in measured}) == len(measured) == 9
    assert {len(u.rows) for u in measured[1].targets.units} == {32}
    assert measured[0]["target"].shape == (30, 9, 2)
    assert plain() is None


def test_the_table_is_made_from_the_pairs() -> None:
    def fake(words: Sequence[str]) -> dict[str, Any]:
        assert words[1:] == ["smollm2", "--repeats", "2", "--threads", "2", "--seed", "0"]
        return {"plain": [10.0, 10.0, 10.0], "contender": [5.0, 6.0]}

    table = measure_scoring(2, ask=fake)
    assert tuple(table.columns) == SCORING_COLUMNS
    assert list(table["task"]) == list(scoring.TASKS)
    assert table.iloc[0].tolist()[2:] == pytest.approx([2, 0.55, 0.5, 0.6, 10, 5.5])
    with pytest.raises(ProbeError, match="sweep on smollm2 failed: no memory"):
        measure_scoring(1, ask=lambda words: {"failed": "no memory"})


def test_an_unknown_model_is_named() -> None:
    assert "smolm2" in ask_scoring(["sweep", "smolm2"])["failed"]
