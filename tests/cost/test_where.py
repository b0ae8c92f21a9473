"""Where a pass's time goes: every kind of work is there, and what a way of reading adds is where it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from probe.cost import where
from probe.cost.contenders import CONTENDERS
from probe.cost.harness import WHERE_COLUMNS, ask_where, measure_where
from probe.cost.write import where_markdown
from probe.errors import ProbeError


def test_reading_patterns_adds_products_and_softmax_beside_the_kernel() -> None:
    plain, streams = (where.seconds_by_kind("smollm2", 64, CONTENDERS[name], 0) for name in ("plain", "probe-streams"))
    assert set(plain) == set(streams) == {*where.KINDS, where.REST}
    apart = "products of queries, keys and values, apart"
    assert plain["softmax"] == plain[apart] == 0
    assert streams["softmax"] > 0
    assert streams[apart] > 0
    assert plain["the fused attention kernel"] > 0
    assert plain["products with weights"] > 0.2 * sum(plain.values())


def test_the_table_is_made_from_the_answers() -> None:
    def fake(words: Sequence[str]) -> dict[str, Any]:
        assert words[:2] == ["smollm2", "256"]
        return {"seconds": {"softmax": 0.5 * where.WATCHED.index(words[2]), "everything else": 1.0}}

    table = measure_where(256, ask=fake)
    assert tuple(table.columns) == WHERE_COLUMNS
    lines = where_markdown(table).splitlines()
    assert lines[0].startswith("| smollm2, 256 tokens: seconds | plain forward pass | probe: q, k, v")
    assert lines[2:] == [
        "| softmax | 0.00 | 0.50 | 1.00 | 1.50 |",
        "| everything else | 1.00 | 1.00 | 1.00 | 1.00 |",
        "| all | 1.00 | 1.50 | 2.00 | 2.50 |",
    ]
    with pytest.raises(ProbeError, match="plain on smollm2 failed: no memory"):
        measure_where(256, ask=lambda words: {"failed": "no memory"})


def test_an_unknown_model_is_named() -> None:
    assert "smolm2" in ask_where(["smolm2", "64", "plain"])["failed"]
