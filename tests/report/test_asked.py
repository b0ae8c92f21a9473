"""Prompts without a figure: checked when findings are made, kept, and shown apart by a column of theirs."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import probe
from probe.errors import ResultsError, UnknownName
from probe.report import write_report
from probe.report.behind import ROOM, listed
from probe.report.findings_folder import read_findings
from probe.runner.findings import Asked, Findings, Prompts, Section, Table
from tests.report.linked_examples import HEADS, HOSTILE, ROLES, WORDS, asked, tokens

Make = Callable[..., Path]
PART = Asked("shown", Prompts("asked", "words", "The first ones."), by="index")


def of(part: Asked = PART, per_place: int = 3, words: tuple[str, ...] = WORDS, **change: object) -> Findings:
    table = asked(per_place)
    named = list(table["prompt"][~table["prompt"].str.startswith(f"list-{per_place}-")])
    tables = (
        Table("asked", table.assign(**change), "Prompts.", digits=2, shown=False),
        Table("words", tokens(named, words, ROLES), "Tokens.", shown=False),
    )
    return Findings("So.", (Section("One", (), (*tables, part)),))


def test_it_is_public_and_kept_as_it_is(make_findings: Make, tmp_path: Path) -> None:
    assert probe.Asked is Asked
    for number, part in enumerate((PART, replace(PART, by=None))):
        outcome = read_findings(make_findings(tmp_path / str(number), of(part)))
        assert outcome.findings.sections[0].parts[-1] == part


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        (replace(PART, by="indx"), {}, "no column of the table 'asked' named 'indx'. Did you mean 'index'?"),
        (replace(PART, prompts=Prompts("askd", "words", "")), {}, "no table of the list of prompts 'shown' named 'a"),
        (replace(PART, prompts=Prompts("asked", "asked", "")), {}, "no column of the table 'asked' named 'token'."),
        (PART, {"index": None}, "the list of prompts 'shown' is told apart by the column 'index', in which some"),
        (PART, {"correct": 1.5}, "the list of prompts 'shown' reads the column 'correct', which goes from 0 (wrong)"),
        (PART, {"prompt": "one"}, "the table 'asked' has more than one row at prompt = one."),
        (
            PART,
            {"correct": pd.array([None] * 16, dtype="Float64")},
            "the list of prompts 'shown' reads the column 'corr",
        ),
        (
            PART,
            {"index": [[k] for k in range(16)]},
            "the list of prompts 'shown' is told apart by the column 'index', w",
        ),
        (replace(PART, name="asked"), {}, "'asked' names more than one table or figure."),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(part: Asked, change: dict[str, object], said: str) -> None:
    with pytest.raises((UnknownName, ResultsError)) as error:
        of(part, **change)
    assert str(error.value).startswith(said)


def test_sixteen_groups_are_shown_and_seventeen_refused() -> None:
    def told(n: int) -> Findings:
        names = [f"prompt {k}" for k in range(n)]
        table = Table("asked", pd.DataFrame({"index": range(n), "prompt": names, "correct": 1.0}), "Prompts.")
        tokens = Table("words", pd.DataFrame({"prompt": names, "token": "a", "role": ""}), "", shown=False)
        return Findings("So.", (Section("One", (), (table, tokens, PART)),))

    assert len(listed(PART, told(16).tables).behind.places) == 16
    with pytest.raises(ResultsError, match=r"the list of prompts 'shown' is told apart by 17 values of 'index'; 16 ca"):
        told(17)


def test_a_list_of_which_no_prompt_has_tokens_is_counted(make_findings: Make, tmp_path: Path) -> None:
    nothing = Table("words", pd.DataFrame({"prompt": [], "token": [], "role": []}), "", shown=False)
    made = Findings("So.", (Section("One", (), (of().tables["asked"], nothing, PART)),))
    html = write_report(make_findings(tmp_path / "run", made)).read_text(encoding="utf-8")
    assert "4 more prompts asked here are in table-asked.parquet." in html


def test_groups_may_be_texts_and_truths(make_findings: Make, tmp_path: Path) -> None:
    """Each is written as a page of its own, in a Python that drew nothing before."""
    for number, values in enumerate((["he", "she - 彼女"] * 8, [True, False] * 8)):
        folder = make_findings(tmp_path / str(number), of(replace(PART, by="kind"), kind=values))
        code = f"from probe.report import write_report; from pathlib import Path; write_report(Path({str(folder)!r}))"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
        titles = re.findall(r"<summary>kind: (.+?): \d+ of 8 right", (folder / "report.html").read_text("utf-8"))
        assert titles == [["he", "she - 彼女"], ["yes", "no"]][number]


def test_groups_that_look_alike_when_rounded_are_told_apart() -> None:
    made = of(replace(PART, by="close"), per_place=3, close=[0.101 + 0.001 * (k % 4) for k in range(16)])
    shown = listed(replace(PART, by="close"), made.tables).behind
    assert [place.title for place in shown.places] == ["close: 0.101", "close: 0.102", "close: 0.103", "close: 0.104"]


def test_each_value_has_its_prompts_and_its_tally() -> None:
    made = of()
    table, shown = made.tables["asked"].frame, listed(PART, made.tables).behind
    assert [place.title for place in shown.places] == [f"index: {x}" for x in (0, 3, 7, 14)]
    for place, (_, mine) in zip(shown.places, table.groupby("index", sort=False), strict=True):
        assert place.tally == f"{int(mine['correct'].sum())} of {len(mine)} right"
        assert len(place.prompts) == 3
        assert place.left_out == "1 more prompt asked here is in table-asked.parquet."
        assert all(name in html for name, html in zip(mine["prompt"], place.prompts, strict=False))
        assert "index:" not in place.prompts[0], "what they are told apart by is said once"
    (whole,) = listed(replace(PART, by=None), made.tables).behind.places
    assert (whole.title, whole.tally) == ("", f"{int(table['correct'].sum())} of {len(table)} right")
    assert "index: 0" in re.sub(r"<[^>]*>", "", whole.prompts[0])


def test_colours_are_the_first_heads_and_every_heads_codes_are_there() -> None:
    made = of()
    shown = listed(PART, made.tables).behind
    assert json.loads(shown.names) == [HEADS[0], HEADS[2]]
    html = str(shown.places[0].prompts[0])
    words = made.tables["words"].frame
    mine = words[words["prompt"] == "list-0-00"]
    found = re.search(r'data-codes="([^"]+)"', html)
    assert found is not None
    codes = np.frombuffer(base64.b64decode(found[1]), np.uint8).reshape(2, -1)
    np.testing.assert_allclose((codes / 255) ** 2, mine[[HEADS[0], HEADS[2]]].to_numpy().T, atol=0.004)


def test_the_page_has_it_with_its_script_and_within_its_room(make_findings: Make, tmp_path: Path) -> None:
    html = write_report(make_findings(tmp_path / "run", of(per_place=9))).read_text(encoding="utf-8")
    assert html.count('<figure class="linked prompts" role="group" aria-label="Prompts"') == 1
    assert "script-src 'sha256-" in html
    assert "one byte each" in html
    assert html.count('<details class="asked">') == 4
    many = of(per_place=9, words=HOSTILE)
    whole, cut = (listed(PART, many.tables, room).behind for room in (ROOM, 9_000))
    assert cut.size <= 9_000 < whole.size
    assert 0 < sum(len(place.prompts) for place in cut.places) < sum(len(place.prompts) for place in whole.places)
