"""The causal leg on the page: every number it prints is in the folder, and a leg that was not measured says why."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.causal.leg import _empty
from probe.errors import ResultsError
from probe.report import card, write_report
from probe.report.causal import COLUMNS, OPTIONAL, legs
from probe.report.folder import read_results
from probe.runner.results import CAUSAL
from tests.report.test_report_page import Make, Text, rewrite

GATE: dict[str, Any] = {
    "accuracy": 0.8, "accuracy_low": 0.74, "accuracy_high": 0.85, "chance": 0.5, "paired": 2.67, "paired_low": 2.45,
    "paired_high": 2.96, "n_units": 168, "n_pairs": 160, "n_clusters": 42, "reason": None,
}  # fmt: skip


def table(name: str = "coreference") -> pd.DataFrame:
    """Two heads that were tested, of 4 x 4: 2.1 passes, 3.3 does not."""
    layer, head = np.indices((4, 4))
    made = pd.DataFrame({"phenomenon": name, "verdict": "not supported", "layer": layer.ravel(), "head": head.ravel()})
    for column in COLUMNS[4:]:
        made[column] = False if column in ("picked", "tested", "passed") else np.nan
    made[["n_units", "n_clusters"]] = 84, 21
    for row, values in {
        9: ("supported", True, 1.234, 0.46, 0.0004),
        15: ("attention only", False, 0.111, 0.04, 0.81),
    }.items():
        made.loc[row, ["verdict", "passed", "patch", "share", "p_holm"]] = values
        made.loc[row, "tested"] = True
        made.loc[row, ["low", "high", "limit"]] = values[2] - 0.2, values[2] + 0.3, 0.32
    return made.astype({"passed": bool, "tested": bool})


def with_leg(folder: Path, causal: pd.DataFrame, gates: dict[str, Any]) -> Path:
    import json

    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    rewrite(folder, "result.json", json.dumps({**result, "gates": gates}).encode())
    rewrite(folder, CAUSAL, causal.to_parquet(index=False))
    return folder


def test_what_was_measured_is_printed(make_folder: Make, tmp_path: Path) -> None:
    group = {"heads": ["2.1", "3.3"], "lost": 1.1, "singly": 1.345, "limit": 0.25, "n_random": 100}
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), table(), {"coreference": {**GATE, "group": group}})
    text = " ".join(Text(write_report(folder).read_text(encoding="utf-8")).text.split())
    assert "not measured in this report" not in text
    assert "moves its answer by 2.67 nats [2.450, 2.960] (160 prompts with an aligned minimal pair)" in text
    assert "accuracy is 0.80 [0.740, 0.850] on 168 questions (chance 0.50)" in text
    assert "1 supported, 1 attention only" in text
    assert "2.1✓ passsupported1.23[1.034, 1.534]0.460.320.0004" in text
    assert "Mean-ablated together, the heads 2.1, 3.3 cost the answer 1.10 nats; singly, they cost 1.34" in text
    assert text.index("2.1✓") < text.index("3.3✕")


def test_a_leg_that_was_not_measured_says_why(make_folder: Make, tmp_path: Path) -> None:
    gate = {**dict.fromkeys(GATE), "n_units": 0, "n_pairs": 0, "reason": "the model has no language-model head"}
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), table(), {"coreference": gate})
    text = " ".join(Text(write_report(folder).read_text(encoding="utf-8")).text.split())
    assert "Untestable here: the model has no language-model head." in text
    assert "supported" not in text.lower()
    (leg,) = read_results(folder).legs.values()
    assert leg.gate == ""


def test_a_table_without_its_gate_or_a_column_is_refused(make_folder: Make, tmp_path: Path) -> None:
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), table("agreement"), {"coreference": GATE})
    with pytest.raises(ResultsError, match=r"causal\.parquet has rows of 'agreement', which result\.json has no gate"):
        write_report(folder)
    rewrite(folder, CAUSAL, table().drop(columns="share").to_parquet(index=False))
    with pytest.raises(ResultsError, match=r"causal\.parquet lacks the columns share"):
        write_report(folder)


def test_the_page_reads_the_columns_that_are_written() -> None:
    class Sizes:
        n_layers, n_heads = 4, 4

    written = {"phenomenon", "verdict", *_empty(Sizes()).columns}  # type: ignore[arg-type]
    assert {*COLUMNS, *OPTIONAL, "why", "against"} == written
    assert legs(table(), {"coreference": GATE}, Path("x"))["coreference"].rows[0].kind == "pass"


def test_the_card_of_a_head_has_every_number_beside_its_control(make_folder: Make, tmp_path: Path) -> None:
    causal = table()
    causal.loc[9, ["pattern", "mean", "resample", "edge", "unrelated_loss", "screen", "norm"]] = range(1, 8)
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), causal, {"coreference": {**GATE, "most_loss": 0.1}})
    results = read_results(folder)
    main, heads = results.main, pd.read_parquet(folder / "heads.parquet")
    row = heads[(heads.phenomenon == "coreference") & (heads.layer == 2) & (heads["head"] == 1)].iloc[0]
    assert card.outcome(results, main, 9) == "supported (attention leg: pass, causal leg: pass)"
    assert card.outcome(results, main, 0).startswith("not supported (attention leg: ")
    looks = {line.field: (line.value, line.control) for line in card.attention(main, 9) if line.shown}
    assert looks["value"] == (
        f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]", "chance 0.500 · nearest 0.572 · best random head 0.603"
    )  # fmt: skip
    assert looks["mass"] == (f"{row.mass:.3f}", "if uniform 0.070")
    loses = {line.field: (line.value, line.control) for line in card.causal(results, main, 9) if line.shown}
    assert loses["patch"] == ("1.23 [1.034, 1.534]", "heads that write as much, 95th percentile 0.32")
    assert loses["share"] == ("0.46", "paired difference 2.67 nats")
    assert loses["unrelated_loss"] == ("5.000", "allowed 0.1")
    assert set(loses) == {name for name, _ in card.CAUSAL if name != "why"}
    assert not any(line.shown for line in card.causal(results, results.phenomena[1], 9))


def test_what_a_head_fails_on_and_was_compared_with_is_shown(make_folder: Make, tmp_path: Path) -> None:
    causal = table()
    causal["why"] = ""
    causal["n_peers"] = 0
    causal.loc[9, ["pattern", "edge", "p_pattern", "p_edge", "p_mean", "n_peers"]] = 0.5, 0.3, 0.2, 0.04, 0.6, 20
    causal.loc[15, ["p_pattern", "p_edge", "n_peers"]] = 0.06, 0.9, 5
    causal.loc[15, "why"] = "without it the answer is better (mean)"
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), causal, {"coreference": GATE})
    results = read_results(folder)
    supported, looks = results.legs["coreference"].rows
    assert supported.cells[3:8] == ("0.32", "0.0004", "0.50", "0.30", "edge")
    assert supported.why == ""
    assert looks.cells[3] == "0.32 (of 5 only)"
    assert looks.cells[7] == "not shown"
    assert looks.why == "without it the answer is better (mean)"
    page = Text(write_report(folder).read_text(encoding="utf-8")).text
    assert "attention onlywithout it the answer is better (mean)" in page
    loses = {line.field: (line.value, line.control) for line in card.causal(results, results.main, 15) if line.shown}
    assert loses["why"][0] == "without it the answer is better (mean)"
    assert loses["patch"][1] == "heads that write as much, 95th percentile 0.32 (of 5 only)"
    edge = {line.field: (line.value, line.control) for line in card.causal(results, results.main, 9)}["edge"]
    assert edge == ("0.30", "p 0.0400")
    causal["n_peers"] = 0
    folder = with_leg(make_folder(tmp_path / "none", 4, 4, 1), causal, {"coreference": GATE})
    assert read_results(folder).legs["coreference"].rows[0].cells[3] == "no such head"


def test_what_each_prompt_loses_is_shown(make_folder: Make, tmp_path: Path) -> None:
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), table(), {"coreference": GATE})
    rows = read_results(folder).rows
    patch = np.full(rows.shape[:3], np.nan, dtype=np.float32)
    patch[3, 2, 1] = -0.456
    buffer = io.BytesIO()
    np.savez_compressed(buffer, rows=rows, patch=patch)
    rewrite(folder, "examples.npz", buffer.getvalue())
    text = Text(write_report(folder).read_text(encoding="utf-8")).text
    assert text.count("patched −0.46 nats") == 1
    np.savez_compressed(buffer := io.BytesIO(), rows=rows, patch=patch[:, :1])
    rewrite(folder, "examples.npz", buffer.getvalue())
    with pytest.raises(ResultsError, match=r"patch has shape \(12, 1, 4\), expected \(12, 4, 4\)"):
        write_report(folder)


def test_a_causal_table_of_other_heads_is_refused(make_folder: Make, tmp_path: Path) -> None:
    folder = with_leg(make_folder(tmp_path / "run", 4, 4, 1), table().iloc[:8], {"coreference": GATE})
    with pytest.raises(ResultsError, match=r"'coreference' has 8 heads, the scores have 16"):
        write_report(folder)
