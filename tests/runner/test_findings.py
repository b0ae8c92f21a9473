"""Findings are checked when they are made, kept as they are, and run like any other study: once, and never lost."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import probe
from probe.data.texts import Dataset, Text
from probe.errors import ProbeError, ResultsError, UnknownName
from probe.report import write_report
from probe.runner import registry
from probe.runner.cells import Cell, run_cell
from probe.runner.findings import Findings, Listing, Plot, Section, Table, own_files
from probe.runner.manifest import Manifest, inputs_of, key_of
from probe.runner.registry import Study
from probe.runner.results import Result

ROOT = Path(probe.__file__).parents[1]
CALLS: list[dict[str, object]] = []
FILES = ["findings.json", "table-squares.parquet", "table-kept.parquet"]


def squares(*, profile: str = "quick", seed: int = 0, n: int = 3) -> Findings:
    """How fast do squares grow?"""
    CALLS.append({"profile": profile, "seed": seed, "n": n})
    frame = pd.DataFrame({"number": np.arange(n), "square": np.arange(n) ** 2 + seed})
    return Findings(
        answer=f"To {(n - 1) ** 2 + seed} at {n - 1}.",
        sections=(
            Section(
                "Squares",
                ("They grow.",),
                (
                    Table("squares", frame, "Numbers and squares."),
                    Table("kept", frame * 1.5, "Kept.", digits=1, shown=False),
                    Plot("curve", "squares", "lines", "number", "square", "A curve.", marks={"nine": np.float32(9)}),
                    Listing("n * n", "The program."),
                ),
            ),
        ),
        notes=("Small numbers only.",),
        data=(Dataset("words", "echo", "mass", (), (Text("one", "c", "the cat"),), "here", "none"),),
    )


def measured(subject: probe.Subject, *, profile: str = "quick", seed: int = 0) -> Findings:
    """How many layers does it have?"""
    CALLS.append({"layers": subject.n_layers})
    return Findings(f"It has {subject.n_layers}.", ())


SQUARES = Study("squares", "How fast do squares grow?", squares, (), needs_data=False)
MEASURED = Study("measured", "How many layers does it have?", measured, ("tiny",), needs_data=False)


def run(out: Path, **more: Any) -> Cell:
    return run_cell(SQUARES, None, out=out, **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(autouse=True)
def _afresh() -> None:
    CALLS.clear()


@pytest.fixture
def done(tmp_path: Path) -> Cell:
    """A finished cell with its report."""
    cell = run(tmp_path)
    write_report(cell.folder)
    CALLS.clear()
    return cell


# what findings may be

FRAME = pd.DataFrame({"x": [1, 2], "y": [0.5, 0.25], "word": ["a", "b"], "flag": [True, False]})


def of(*parts: Table | Plot | Listing, frame: pd.DataFrame = FRAME) -> Findings:
    return Findings("So.", (Section("One", (), (Table("t", frame, ""), *parts)),))


def plot(kind: str = "lines", **more: Any) -> Plot:
    return Plot(**{"name": "p", "table": "t", "kind": kind, "x": "x", "y": "y", "caption": "", **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"table": "tt"}, "no table of the figure 'p' named 'tt'."),
        ({"y": "z"}, "no column of the table 't' named 'z'."),
        ({"by": "wrd"}, "no column of the table 't' named 'wrd'. Did you mean 'word'?"),
        ({"kind": "pie"}, "no kind of figure, asked for by 'p', named 'pie'."),
    ],
)
def test_a_figure_of_what_is_not_there_names_the_nearest(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownName) as error:
        of(plot(**more))
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (plot(name="P"), "'P' cannot name a table or figure: lower-case letters, digits, underscores."),
        (plot(name="../p"), "'../p' cannot name a table or figure"),
        (plot(name="t"), "'t' names more than one table or figure."),
        (plot(log="z"), "the figure 'p' asks for log='z'; allowed are '', 'x', 'y' and 'xy'."),
        (plot(y="word"), "the figure 'p' draws the column 'word', which holds str, not numbers."),
        (plot(y="flag"), "the figure 'p' draws the column 'flag', which holds bool, not numbers."),
        (plot(low="y"), "the figure 'p' needs both ends of its interval, low and high, or neither."),
        (plot(x="word", log="x"), "the figure 'p' asks for a logarithmic x axis, which needs lines or points over num"),
        (plot("bars", log="x"), "the figure 'p' asks for a logarithmic x axis, which needs lines or points over num"),
        (plot(value="y"), "the figure 'p' is of kind 'lines': a heat, and only it, takes the value that colours it."),
        (plot("heat"), "the figure 'p' is of kind 'heat': a heat, and only it, takes the value that colours it."),
        (plot("heat", value="y", by="word"), "the figure 'p' is a heat, which takes no by, low, high, log or marks."),
        (Table("u", FRAME.set_index("x"), ""), "the table 'u' has an index (x), which is not kept: use reset_index()"),
        (Table("u", FRAME, "", digits=-1), "the table 'u' has -1 digits; allowed are 0 to 12."),
        (Table("u", pd.DataFrame(), ""), "the columns of the table 'u' must be different names, they are []."),
        (Table("u", pd.DataFrame([[1]]), ""), "the columns of the table 'u' must be different names, they are [0]."),
    ],
)
def test_what_cannot_be_kept_or_drawn_is_refused_by_name(part: Table | Plot, said: str) -> None:
    with pytest.raises(ResultsError) as error:
        of(part)
    assert str(error.value).startswith(said)


def test_more_than_eight_lines_are_refused() -> None:
    frame = pd.DataFrame({"x": range(9), "y": 1.0, "word": list("abcdefghi")})
    with pytest.raises(ResultsError) as error:
        of(plot(by="word"), frame=frame)
    assert str(error.value) == "the figure 'p' has 9 values of 'word'; at most 8 can be told apart."
    assert of(plot(by="word"), frame=frame[:8]).plots


@pytest.mark.parametrize("asked", [plot("bars"), plot("heat", y="word", value="y")])
def test_two_values_for_one_place_are_refused(asked: Plot) -> None:
    with pytest.raises(ResultsError, match=r"the figure 'p' has more than one row at x = 1"):
        of(asked, frame=pd.concat([FRAME, FRAME[:1]]))


@pytest.mark.parametrize(
    "given",
    [{"sections": (Section("One", "One paragraph."),)}, {"method": "One paragraph."}, {"notes": "One paragraph."}],
)
def test_paragraphs_given_as_one_text_are_refused(given: dict[str, Any]) -> None:
    """A forgotten comma would print one letter a paragraph."""
    with pytest.raises(ResultsError, match=r"a tuple of texts, not as one text: 'One paragraph\.'"):
        Findings(**{"answer": "So.", "sections": (), **given})


def test_findings_lie_on_disk_as_json_and_one_table_each(tmp_path: Path) -> None:
    found = squares()
    assert found.write(tmp_path) == FILES
    written = json.loads((tmp_path / "findings.json").read_text(encoding="utf-8"))
    assert written["answer"] == "To 4 at 2."
    parts = written["sections"][0]["parts"]
    assert [part["part"] for part in parts] == ["table", "table", "plot", "listing"]
    assert parts[1] == {"part": "table", "name": "kept", "caption": "Kept.", "digits": 1, "shown": False}
    assert parts[2]["marks"] == {"nine": 9.0}
    frame = pd.read_parquet(tmp_path / "table-squares.parquet")
    assert frame.to_dict("list") == {"number": [0, 1, 2], "square": [0, 1, 4]}


def test_half_a_character_does_not_lose_the_findings(tmp_path: Path) -> None:
    """A token may end in the middle of an emoji."""
    Findings("Half \ud83d of \U0001f600.", ()).write(tmp_path)
    assert json.loads((tmp_path / "findings.json").read_bytes())["answer"] == "Half \ufffd of \U0001f600."


def test_a_table_of_mixed_kinds_is_told_by_its_name(tmp_path: Path) -> None:
    mixed = pd.DataFrame({"a": [1, "one", b"1"]}, dtype=object)
    with pytest.raises(ResultsError, match="the table 'mixed' cannot be kept as Parquet"):
        Findings("So.", (Section("One", (), (Table("mixed", mixed, ""),)),)).write(tmp_path)


# a study that takes no model


def test_its_cell_is_named_run(tmp_path: Path) -> None:
    said: list[str] = []
    cell = run(tmp_path, say=said.append)
    assert cell.folder == tmp_path / "squares" / "run"
    assert said == ["squares: computing"]
    assert set(contents(cell.folder)) == {*FILES, "manifest.json"}
    assert {p.name for p in cell.folder.parent.iterdir()} == {"run", ".run.lock"}
    assert cell.answer == "To 4 at 2."


def test_its_manifest_names_no_model_and_its_command_none(done: Cell) -> None:
    assert Manifest.read(done.folder) == done.manifest
    assert done.manifest.model is None
    assert json.loads((done.folder / "manifest.json").read_bytes())["schema"] == 2
    assert done.manifest.command == "probe run squares"
    assert done.manifest.outputs == {n: hashlib.sha256((done.folder / n).read_bytes()).hexdigest() for n in FILES}
    assert [data.name for data in done.manifest.data] == ["words"]
    assert done.manifest.device == "cpu"


@pytest.mark.parametrize(
    ("more", "folder", "command"),
    [
        ({"seed": 1}, "run+seed=1", "probe run squares --seed 1"),
        ({"params": {"n": "5"}}, "run+n=5", "probe run squares --set n=5"),
        ({"seed": 2, "params": {"n": "4"}}, "run+seed=2+n=4", "probe run squares --seed 2 --set n=4"),
    ],
)
def test_another_seed_or_parameter_lands_elsewhere(
    done: Cell, tmp_path: Path, more: dict[str, Any], folder: str, command: str
) -> None:
    before = contents(done.folder)
    cell = run(tmp_path, **more)
    assert cell.folder == done.folder.parent / folder
    assert cell.manifest.command == command
    assert cell.manifest.key != done.manifest.key
    assert contents(done.folder) == before


def test_it_is_not_computed_again_once_it_is_there(done: Cell, tmp_path: Path) -> None:
    before = contents(done.folder)
    again = run(tmp_path)
    assert (again.reused, again.answer, CALLS) == (True, "To 4 at 2.", [])
    assert contents(done.folder) == before


def test_its_code_changes_the_key(done: Cell, tmp_path: Path) -> None:
    import test_registry  # another file of this folder

    other = replace(SQUARES, function=test_registry.sample_without_model)
    asked: dict[str, Any] = {"profile": "quick", "seed": 0, "data": None, "params": {}}
    assert key_of(inputs_of(other, None, **asked)) != key_of(inputs_of(SQUARES, None, **asked)) == done.manifest.key


def test_a_model_given_to_it_is_refused_and_so_is_the_lack_of_one(tiny: probe.Subject, tmp_path: Path) -> None:
    with pytest.raises(ProbeError) as error:
        run_cell(SQUARES, tiny, out=tmp_path, model="tiny")
    assert str(error.value) == "squares takes no subject."
    for subject, model in ((None, None), (tiny, None), (None, "tiny")):
        with pytest.raises(ProbeError) as error:
            run_cell(MEASURED, subject, out=tmp_path, model=model)
        assert str(error.value) == "measured takes a subject and the name it was loaded by."
    assert list(tmp_path.iterdir()) == []


def test_findings_about_a_model_lie_under_its_name(tiny: probe.Subject, tmp_path: Path) -> None:
    cell = run_cell(MEASURED, tiny, out=tmp_path, model="tiny")
    assert cell.folder == tmp_path / "measured" / "tiny"
    assert cell.answer == f"It has {tiny.n_layers}."
    assert cell.manifest.model is not None
    assert cell.manifest.command == "probe run measured --model tiny"
    assert run_cell(MEASURED, tiny, out=tmp_path, model="tiny").reused


# what may be replaced, and what never is


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("how", ["tampered", "missing"])
def test_a_damaged_file_is_computed_again(done: Cell, tmp_path: Path, name: str, how: str) -> None:
    before, path = contents(done.folder), done.folder / name
    if how == "missing" and name == "findings.json":
        shutil.rmtree(done.folder / "figures")  # only findings.json knows whose they are
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    cell = run(tmp_path)
    assert not cell.reused
    assert cell.why.startswith("computing again: ")
    assert name in cell.why
    assert {n: contents(cell.folder)[n] for n in FILES} == {n: before[n] for n in FILES}
    assert run(tmp_path).reused


def test_its_own_figures_are_replaced(done: Cell, tmp_path: Path) -> None:
    assert (done.folder / "figures" / "curve.png").is_file()
    (done.folder / "table-squares.parquet").write_bytes(b"")
    assert not run(tmp_path).reused


@pytest.mark.parametrize(
    "name", ["notes.txt", "table-mine.parquet", "figures/mine.png", "figures/Curve.png", "thesis/a"]
)
@pytest.mark.parametrize("broken", ["table-squares.parquet", "manifest.json", "findings.json"])
def test_a_file_of_the_users_is_named_and_kept(done: Cell, tmp_path: Path, name: str, broken: str) -> None:
    (done.folder / name).parent.mkdir(exist_ok=True)
    (done.folder / name).write_text("mine")
    (done.folder / broken).write_bytes((done.folder / broken).read_bytes()[:-2])
    with pytest.raises(ResultsError, match=r"which is not a result of probe\. Choose another --out\."):
        run(tmp_path)
    assert (done.folder / name).read_text() == "mine"
    assert CALLS == []


def test_what_a_killed_run_left_behind_is_dropped(done: Cell, tmp_path: Path) -> None:
    half = done.folder.parent / ".new~run~abc"
    half.mkdir()
    (half / "table-squares.parquet").write_bytes(b"PAR1")
    assert run(tmp_path).reused
    assert not half.exists()


def test_a_result_caught_between_two_renames_is_brought_back(done: Cell, tmp_path: Path) -> None:
    before = contents(done.folder)
    done.folder.rename(done.folder.parent / ".old~run~")
    assert run(tmp_path).reused
    assert contents(done.folder) == before


def test_a_report_that_was_killed_is_no_obstacle(done: Cell, tmp_path: Path) -> None:
    (done.folder / ".report.html.partial").write_bytes(b"<!DOCTYPE")
    (done.folder / "findings.json").write_bytes(b"{}")
    shutil.rmtree(done.folder / "figures")
    assert not run(tmp_path).reused


def test_a_study_that_turned_from_scores_to_findings_replaces_its_old_result(
    tiny: probe.Subject, tmp_path: Path
) -> None:
    def heads(subject: probe.Subject, *, profile: str = "quick", seed: int = 0) -> Result:
        frame = pd.DataFrame({"layer": [0]})
        return Result("Yes.", frame, frame, (), np.zeros((0, 1, 1, 0), dtype=np.float32))

    old = run_cell(replace(MEASURED, function=heads), tiny, out=tmp_path, model="tiny")
    assert old.answer == "Yes."
    (old.folder / "result.json").unlink()
    new = run_cell(MEASURED, tiny, out=tmp_path, model="tiny")
    assert set(contents(new.folder)) == {"findings.json", "manifest.json"}


def test_the_names_of_own_files_survive_damage(done: Cell) -> None:
    path = done.folder / "findings.json"
    path.write_bytes(path.read_bytes().replace(b'"answer"', b"") + b"\xff")
    assert {"findings.json", "table-squares.parquet", "table-kept.parquet", "figures/curve.png"} <= own_files(
        done.folder
    )
    path.unlink()
    assert own_files(done.folder) == {"findings.json"}


def test_a_listing_cannot_claim_a_file(tmp_path: Path) -> None:
    Findings('"name": "answer"', (Section("One", (), (Listing('"name": "mine"', '"name": "mine"'),)),)).write(tmp_path)
    assert own_files(tmp_path) == {"findings.json"}


# manifests of before


def committed() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "reports").glob("*/*/manifest.json"))


@pytest.mark.skipif(not committed(), reason="no committed reports in this installation")
def test_manifests_written_before_studies_without_a_model_are_still_read() -> None:
    read = [Manifest.read(folder) for folder in committed()]
    assert [m.key for m in read] == [key_of(m) for m in read]
    assert any(m.model is not None and m.study == "coreference" for m in read)


# registering


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> dict[str, Study]:
    studies: dict[str, Study] = {}
    monkeypatch.setattr(registry, "_studies", studies)
    return studies


def test_a_study_without_models_is_registered_as_one(empty: dict[str, Study]) -> None:
    assert probe.study(models=())(squares) is squares
    assert empty == {"squares": SQUARES}
    assert SQUARES.runs_on(None) == SQUARES.runs_on([]) == (None,)
    assert MEASURED.runs_on(None) == ("tiny",)
    assert MEASURED.runs_on(["minilm", "tiny", "minilm"]) == ("minilm", "tiny")


def test_a_model_asked_of_a_study_without_one_is_refused() -> None:
    with pytest.raises(ProbeError) as error:
        SQUARES.runs_on(["tiny"])
    assert str(error.value) == "squares takes no model; leave out --model tiny."


@pytest.mark.parametrize(
    ("models", "function", "said"),
    [
        ((), measured, "must take no subject, only keywords after a *, as models=() says."),
        (("tiny",), squares, "must take a subject, before the *."),
    ],
)
def test_a_function_that_does_not_fit_its_models_is_refused(
    empty: dict[str, Study], models: tuple[str, ...], function: Callable[..., Findings], said: str
) -> None:
    with pytest.raises(ProbeError) as error:
        probe.study(models=models)(function)
    assert str(error.value) == f"the study {function.__name__} ({__file__}) {said}"
    assert empty == {}
