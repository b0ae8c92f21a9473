"""The command `probe`: exit codes, messages in one line, and what it leaves on disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import torch

import probe
from probe import cli

CAT = "The cat didn't jump onto the table because it was too tired."
SHELF = "the cat did not reach the shelf because it was too tired ."


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def command(*words: object) -> Ended:
    """`probe` with these words, in this Python, through the same entry point as the installed script."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["probe", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return Ended(code, out.getvalue(), err.getvalue())


def one_error(ended: Ended) -> str:
    """The message of a command that failed: one line on stderr, no traceback, nothing on stdout."""
    assert ended.out == ""
    assert "Traceback" not in ended.err
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """One real run of two models, of which the first is a folder that holds none."""
    out = tmp_path_factory.mktemp("cli") / "reports"
    empty = tmp_path_factory.mktemp("cli") / "empty"
    empty.mkdir()
    return command("run", "coreference", "-m", empty, "-m", "tiny", "--out", out), out


# list, models, help


def test_list_names_each_study_with_its_question_and_models() -> None:
    ended = command("list")
    assert (ended.code, ended.err) == (0, "")
    for study in cli_studies():
        (line,) = [x for x in ended.out.splitlines() if x.split()[:1] == [study.name]]
        assert study.question in line
        assert (", ".join(study.models) or "none needed") in line


def cli_studies() -> list:
    from probe.runner.registry import all_studies

    return list(all_studies().values())


def test_models_names_each_model_and_where_its_weights_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").write_text("{}")
    monkeypatch.setattr("probe.models.fetch.cache_dir", lambda: tmp_path)
    ended = command("models")
    assert ended.code == 0
    lines = {line.split()[0]: line for line in ended.out.splitlines() if line.strip()}
    assert "ships with probe" in lines["tiny"]
    assert "not fetched yet" in lines["smollm2"]
    assert "not fetched yet" not in lines["minilm"]
    assert str(tmp_path / "minilm") in "".join(ended.out.split())


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["attend", "--help"], ["report", "--help"]])
def test_help_ends_well(words: list[str]) -> None:
    ended = command(*words)
    assert ended.code == 0
    assert "Usage" in ended.out


def test_no_command_shows_the_help() -> None:
    ended = command()
    assert "attend" in ended.out + ended.err
    assert ended.code in (0, cli.USAGE)


def test_output_that_is_piped_is_plain_and_not_cut_to_a_narrow_terminal() -> None:
    """In a process of its own: the question stands on one line, and no escape sequence is written."""
    done = subprocess.run(
        [sys.executable, "-m", "probe", "list"],
        capture_output=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "40", "LC_ALL": "C"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert "\x1b" not in text
    assert all(any(s.name in line and s.question in line for line in text.splitlines()) for s in cli_studies())


# asked for what is not there


def test_an_unknown_study_ends_in_two_with_the_nearest() -> None:
    ended = command("run", "corefrence", "-m", "tiny")
    assert ended.code == 2
    known = ", ".join(study.name for study in cli_studies())
    assert one_error(ended) == f"no study named 'corefrence'. Did you mean 'coreference'? Known: {known}."


def test_an_unknown_study_among_known_ones_runs_none(tmp_path: Path) -> None:
    ended = command("run", "coreference", "nosuch", "-m", "tiny", "--out", tmp_path / "out")
    assert ended.code == 2
    assert "nosuch" in one_error(ended)
    assert not (tmp_path / "out").exists()


def test_an_unknown_model_ends_in_two_with_the_nearest() -> None:
    ended = command("attend", "minilmm", CAT, "--query", "it")
    assert ended.code == 2
    from probe.models.loading import NAMES

    known = ", ".join(sorted(NAMES))
    assert one_error(ended) == f"no model named 'minilmm'. Did you mean 'minilm'? Known: {known}."


def test_a_name_unlike_any_other_may_be_a_hub_id() -> None:
    ended = command("attend", "gpt2", CAT, "--query", "it")
    assert ended.code == 2
    assert "a local folder or a hub id, but the hub was not asked: HF_HUB_OFFLINE is set." in one_error(ended)


def test_weights_of_an_unknown_name_cannot_be_fetched() -> None:
    ended = command("fetch", "smolm2")
    assert ended.code == 2
    assert "Did you mean 'smollm2'?" in one_error(ended)


def test_an_unknown_profile_ends_in_two_with_the_nearest() -> None:
    ended = command("run", "coreference", "-m", "tiny", "--profile", "ful")
    assert ended.code == 2
    assert one_error(ended) == "no profile named 'ful'. Did you mean 'full'? Known: full, quick."


@pytest.mark.parametrize(("name", "nearest"), [("smolm2", "smollm2"), ("planted:inducton", "planted:induction")])
def test_an_unknown_model_ends_in_two_before_anything_runs(tmp_path: Path, name: str, nearest: str) -> None:
    ended = command("run", "coreference", "-m", "tiny", "-m", name, "--out", tmp_path / "out")
    assert ended.code == 2
    assert one_error(ended).startswith(f"no model named {name!r}. Did you mean {nearest!r}?")
    assert not (tmp_path / "out").exists()


def test_an_unknown_hub_id_ends_in_two_before_anything_runs(tmp_path: Path) -> None:
    ended = command("run", "coreference", "-m", "tiny", "-m", "nobody/nothing", "--out", tmp_path / "out")
    assert ended.code == 2
    assert "a local folder or a hub id, but the hub was not asked: HF_HUB_OFFLINE is set." in one_error(ended)
    assert not (tmp_path / "out").exists()


def test_an_unknown_option_ends_in_two() -> None:
    ended = command("run", "coreference", "--modle", "tiny")
    assert ended.code == 2
    assert "--modle" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("value", ["items", "=3", "items="])
def test_a_parameter_without_name_or_value_is_refused(value: str) -> None:
    ended = command("run", "coreference", "-m", "tiny", "--set", value)
    assert ended.code == 2
    assert one_error(ended) == f"--set {value!r} is not of the form name=value."


def test_a_parameter_the_study_does_not_take_is_refused() -> None:
    ended = command("run", "coreference", "-m", "tiny", "--set", "sed=3")
    assert ended.code == 2
    assert one_error(ended).startswith("no parameter of coreference named 'sed'.")


@pytest.mark.parametrize("value", ["seed=1", "profile=full"])
def test_a_parameter_that_has_an_option_of_its_own_is_refused(value: str, tmp_path: Path) -> None:
    ended = command("run", "coreference", "-m", "tiny", "--set", value, "--out", tmp_path / "out")
    assert ended.code in (1, 2)
    assert value.partition("=")[0] in ended.err
    assert "Traceback" not in ended.err


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    ended = command("run", "coreference", "-m", "tiny", "--seed", "-1", "--out", tmp_path / "out")
    assert ended.code in (1, 2)
    assert "seed" in ended.err


def test_a_study_that_reads_a_file_asks_for_it() -> None:
    ended = command("run", "coreference_gap", "-m", "minilm")
    assert ended.code == 2
    assert one_error(ended) == "coreference_gap reads a data file of yours: give it with --data PATH."


def test_a_data_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = command("run", "coreference_gap", "-m", "minilm", "--data", tmp_path / "gap.tsv")
    assert ended.code == 2
    assert one_error(ended) == f"the data file {tmp_path / 'gap.tsv'} does not exist."


def test_a_malformed_data_file_is_named_and_leaves_no_result(tmp_path: Path) -> None:
    data, out = tmp_path / "gap.tsv", tmp_path / "out"
    data.write_text("this is not GAP\n")
    ended = command("run", "coreference_gap", "-m", "tiny", "--data", data, "--out", out)
    assert ended.code == 1
    assert ended.out == ""
    assert "Traceback" not in ended.err
    assert f"error: coreference_gap on tiny: {data}" in ended.err
    assert [p.name for p in out.rglob("*") if not p.name.endswith(".lock")] == ["coreference_gap"]


def test_an_out_that_is_a_file_is_named_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    ended = command("run", "coreference", "-m", "tiny", "--out", out)
    assert ended.code == 1
    assert one_error(ended).startswith(f"coreference on tiny: results cannot be written to {out / 'coreference'}")
    assert out.read_text() == "mine"


# a real run


def test_one_model_that_fails_does_not_stop_the_next(ran: tuple[Ended, Path]) -> None:
    ended, out = ran
    assert ended.code == 1
    first, second = ended.err.splitlines()
    assert re.match(r"error: coreference on \S+empty: the folder \S+empty has no config\.json", first)
    assert second == "coreference on tiny: computing"
    assert (out / "coreference" / "tiny" / "manifest.json").is_file()


def test_a_run_prints_its_pages_their_answers_and_the_index(ran: tuple[Ended, Path]) -> None:
    ended, out = ran
    report, answer, index = ended.out.splitlines()
    assert answer.strip() == json.loads((out / "coreference" / "tiny" / "result.json").read_text())["answer"]
    assert re.fullmatch(rf"{re.escape(str(out / 'coreference' / 'tiny' / 'report.html'))} \(\d+\.\d s\)", report)
    assert index == f"{out / 'index.html'} (open this in a browser)"


def test_a_run_leaves_a_report_figures_tables_and_an_index(ran: tuple[Ended, Path]) -> None:
    _, out = ran
    cell = out / "coreference" / "tiny"
    assert (cell / "report.html").stat().st_size > 10_000
    assert len(list((cell / "figures").glob("*.png"))) > 1
    assert "coreference/tiny/report.html" in (out / "index.html").read_text(encoding="utf-8")
    manifest = json.loads((cell / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["command"] == "probe run coreference --model tiny"
    assert {p.name for p in out.iterdir()} == {"coreference", "index.html"}
    assert {p.name for p in cell.parent.iterdir()} == {"tiny", ".tiny.lock"}


def test_a_second_run_says_that_it_is_there_already(ran: tuple[Ended, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, out = ran
    cell = out / "coreference" / "tiny"
    before = {p: p.read_bytes() for p in cell.iterdir() if p.is_file() and p.suffix != ".html"}
    monkeypatch.setattr("probe.runner.attention.attention_result", lambda *_, **__: pytest.fail("computed again"))
    ended = command("run", "coreference", "-m", "tiny", "--out", out)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == f"{cell / 'report.html'} (already there)"
    assert {p: p.read_bytes() for p in before} == before


def test_report_writes_pages_from_results_without_a_model(
    ran: tuple[Ended, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "copy"
    shutil.copytree(ran[1], out)
    page = out / "coreference" / "tiny" / "report.html"
    written = page.read_bytes()
    for made in (page, out / "index.html"):
        made.unlink()
    monkeypatch.setattr("probe.subject.load", lambda *_, **__: pytest.fail("a model was loaded"))
    ended = command("report", out)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [str(page), f"{out / 'index.html'} (open this in a browser)"]
    assert page.read_bytes() == written
    assert (out / "index.html").is_file()


def test_report_of_one_result_writes_its_page_alone(ran: tuple[Ended, Path], tmp_path: Path) -> None:
    cell = tmp_path / "alone"
    shutil.copytree(ran[1] / "coreference" / "tiny", cell)
    (cell / "report.html").unlink()
    ended = command("report", cell)
    assert ended.code == 0
    assert ended.out.splitlines() == [str(cell / "report.html")]
    assert not (tmp_path / "index.html").exists()
    assert not (cell / "index.html").exists()


def test_report_leaves_alone_what_a_killed_run_left_behind(ran: tuple[Ended, Path], tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(ran[1], out)
    left = out / "coreference" / ".old-minilm"
    shutil.copytree(out / "coreference" / "tiny", left)
    (left / "report.html").unlink()
    ended = command("report", out)
    assert ended.code == 0
    assert ".old-" not in ended.out
    assert not (left / "report.html").exists()


def test_report_of_a_tampered_result_is_an_error_that_names_the_file(ran: tuple[Ended, Path], tmp_path: Path) -> None:
    cell = tmp_path / "alone"
    shutil.copytree(ran[1] / "coreference" / "tiny", cell)
    (cell / "heads.parquet").write_bytes((cell / "heads.parquet").read_bytes() + b"x")
    ended = command("report", cell)
    assert ended.code == 1
    assert "heads.parquet" in one_error(ended)


@pytest.mark.parametrize("made", [True, False], ids=["empty", "missing"])
def test_report_of_a_folder_without_results_is_an_error(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "reports"
    if made:
        folder.mkdir()
    ended = command("report", folder)
    assert ended.code == 1
    assert one_error(ended) == (
        f"{folder} holds no finished results (<study>/<model>/manifest.json). Quick runs write to "
        "reports/quick: probe run coreference"
    )


@pytest.mark.parametrize(
    "interrupt", ["probe.runner.cells.run_cell", "probe.subject.load"], ids=["while computing", "while loading"]
)
def test_an_interrupt_ends_in_130_and_says_that_nothing_is_lost(
    interrupt: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupt, stop)
    ended = command("run", "coreference", "-m", "tiny", "--out", tmp_path)
    assert ended.code == 130
    assert "interrupted; what was finished is kept, and the same command goes on from there." in ended.err


# a study that takes no model


def squares(*, profile: str = "quick", seed: int = 0) -> probe.Findings:
    """How fast do squares grow?"""
    if seed == 13:
        raise probe.ProbeError("thirteen is refused.")
    frame = pd.DataFrame({"number": [1, 2, 3], "square": [1, 4, 9]})
    parts = (probe.Table("squares", frame, ""), probe.Plot("curve", "squares", "lines", "number", "square", ""))
    return probe.Findings(f"To 9 at 3, with seed {seed}.", (probe.Section("Squares", (), parts),))


@pytest.fixture
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.runner import registry

    study = registry.Study("squares", "How fast do squares grow?", squares, (), needs_data=False)
    monkeypatch.setitem(registry._studies, "squares", study)


@pytest.mark.usefixtures("_squares")
def test_list_says_that_a_study_needs_no_model() -> None:
    (line,) = [x for x in command("list").out.splitlines() if x.split()[:1] == ["squares"]]
    assert line.rstrip().endswith("  none needed")


@pytest.mark.usefixtures("_squares")
def test_a_study_without_a_model_runs_and_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.subject.load", lambda *_, **__: pytest.fail("a model was loaded"))
    ended = command("run", "squares", "--seed", "0", "--seed", "2", "--out", tmp_path)
    assert (ended.code, ended.err) == (0, "squares: computing\nsquares: computing\n")
    first, answer, second, other, index = ended.out.splitlines()
    assert first.startswith(f"{tmp_path / 'squares' / 'run' / 'report.html'} (")
    assert second.startswith(f"{tmp_path / 'squares' / 'run+seed=2' / 'report.html'} (")
    assert (answer.strip(), other.strip()) == ("To 9 at 3, with seed 0.", "To 9 at 3, with seed 2.")
    assert index == f"{tmp_path / 'index.html'} (open this in a browser)"
    assert (tmp_path / "squares" / "run" / "figures" / "curve.png").is_file()
    assert "squares/run/report.html" in (tmp_path / "index.html").read_text(encoding="utf-8")
    again = command("run", "squares", "--out", tmp_path)
    assert again.out.splitlines()[0] == f"{tmp_path / 'squares' / 'run' / 'report.html'} (already there)"


@pytest.mark.usefixtures("_squares")
@pytest.mark.parametrize("words", [["squares"], ["coreference", "squares"]])
def test_a_model_for_a_study_without_one_is_refused_before_anything_runs(tmp_path: Path, words: list[str]) -> None:
    ended = command("run", *words, "-m", "tiny", "--out", tmp_path / "out")
    assert ended.code == 2
    assert one_error(ended) == "squares takes no model; leave out --model tiny."
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("_squares")
def test_a_study_without_a_model_that_fails_is_named_alone(tmp_path: Path) -> None:
    ended = command("run", "squares", "--seed", "13", "--out", tmp_path)
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "error: squares: thirteen is refused."


# attend


def table(text: str) -> dict[str, dict[str, float]]:
    """Row -> word -> mass, from what `attend` prints; words that are there twice keep their larger mass."""
    rows = {}
    for line in text.splitlines():
        cells = re.split(r"\s{3,}", line.strip())
        if len(cells) == 4 and re.match(r"(head \d|mean of)", cells[0]):
            pairs = [pair.rsplit(" ", 1) for pair in re.split(r"\s{2,}", cells[1])]
            rows[cells[0]] = {word: float(mass) for word, mass in reversed(pairs)}
    return rows


def by_hand(subject: probe.Subject, text: str, query: str, word: str) -> torch.Tensor:
    """Attention (layer, head) from one word to another, read from whole patterns by the tokens' names."""
    (encoded,) = (run := subject.run(text)).prompts
    (q,), (k,) = ([i for i, p in enumerate(encoded.pieces) if p.strip() == w] for w in (query, word))
    return torch.stack([run["pattern", layer][0, :, q, k] for layer in range(subject.n_layers)])


def test_attend_shows_the_cat_that_was_tired(minilm: probe.Subject) -> None:
    ended = command("attend", "minilm", CAT, "--query", "it")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == f"minilm, from 'it' in: {CAT}"
    rows = table(ended.out)
    assert len(rows) == 10
    assert "cat" in rows["mean of all heads"]
    assert "mean of last layer (5)" in rows
    masses = by_hand(minilm, CAT, "it", "cat")
    shown = {name: row["cat"] for name, row in rows.items() if "cat" in row}
    for name, mass in shown.items():
        if name.startswith("head"):
            layer, head = map(int, name.removeprefix("head ").split("."))
            assert mass == pytest.approx(masses[layer, head].item(), abs=0.00501), name
    assert shown["mean of all heads"] == pytest.approx(masses.mean().item(), abs=0.00501)
    assert shown["mean of last layer (5)"] == pytest.approx(masses[-1].mean().item(), abs=0.00501)
    assert sum(name.startswith("head") for name in shown) > 1
    assert max(shown.values()) > 0.5


def test_attend_on_the_tiny_model_says_that_it_is_causal(tiny: probe.Subject) -> None:
    ended = command("attend", "tiny", SHELF, "--query", "it", "--top", "3")
    assert (ended.code, ended.err) == (0, "")
    assert "A causal model: 'it' sees only the words before it." in ended.out
    rows = table(ended.out)
    masses = by_hand(tiny, SHELF, "it", "because")
    compared = 0
    for name, row in rows.items():
        assert 1 <= len(row) <= 3
        assert not {"was", "too", "tired", "."} & set(row), "words after the query"
        if name.startswith("head") and "because" in row:
            layer, head = map(int, name.removeprefix("head ").split("."))
            assert row["because"] == pytest.approx(masses[layer, head].item(), abs=0.00501)
            compared += 1
    assert compared > 0


def test_attend_ranks_the_heads_by_their_hardest_look(minilm: probe.Subject) -> None:
    rows = table(command("attend", "minilm", CAT, "--query", "it").out)
    tops = [max(row.values()) for name, row in rows.items() if name.startswith("head")]
    assert len(tops) == 8
    assert tops == sorted(tops, reverse=True)


def test_attend_on_a_word_that_is_not_there_names_it() -> None:
    ended = command("attend", "minilm", CAT, "--query", "dog")
    assert ended.code == 1
    assert one_error(ended) == f"'dog' is not in the text: {CAT!r}"


def test_attend_on_a_word_that_is_there_twice_asks_for_occurrence() -> None:
    ended = command("attend", "minilm", "The dog saw the cat, and the dog ran.", "--query", "dog")
    assert ended.code == 1
    message = one_error(ended)
    assert message.startswith("'dog' is in the text 2 times (at characters 4, 29); ")
    assert "--occurrence" in message


@pytest.mark.parametrize("occurrence", ["0", "1"])
def test_attend_takes_the_occurrence_it_is_told(minilm: probe.Subject, occurrence: str) -> None:
    text = "The cat saw it and the cat ran."
    ended = command("attend", "minilm", text, "--query", "cat", "--occurrence", occurrence, "--top", "9")
    assert ended.code == 0
    encoded = minilm.encode(text)
    first, second = (p for p, piece in enumerate(encoded.pieces) if piece == " cat")
    query, key = (first, second) if occurrence == "0" else (second, first)
    run = minilm.run(text)
    mean = torch.stack([run["pattern", layer][0, :, query, key] for layer in range(6)]).mean()
    assert table(ended.out)["mean of all heads"]["cat"] == pytest.approx(mean.item(), abs=0.00501)


def test_attend_on_a_word_with_nothing_before_it_says_so() -> None:
    ended = command("attend", "tiny", "Anna met Ben .", "--query", "Anna")
    assert ended.code == 0
    assert ended.out == "'Anna' has no other word to look at in tiny.\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the prompt is empty: ''. Give at least one word."),
        ("the robot and it", "tiny reads its own synthetic language and does not know 'robot'."),
        ("cat " * 100 + "it", "the prompt has 102 tokens; this model reads at most 64."),
    ],
)
def test_attend_on_a_text_that_cannot_be_read_says_why(text: str, said: str) -> None:
    ended = command("attend", "tiny", text, "--query", "it")
    assert ended.code == 1
    assert one_error(ended).startswith(said)


def test_attend_shows_at_least_one_word() -> None:
    ended = command("attend", "tiny", SHELF, "--query", "it", "--top", "0")
    assert ended.code == 2
    assert "--top" in ended.err


def test_the_module_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(cli, "main", lambda: called.append("main"))
    runpy.run_module("probe", run_name="__main__")
    assert called == ["main"]
