"""Whatever is typed, written in a manifest or given as a text ends in a result or a ProbeError, never in a traceback.

PROBE_EXAMPLES=10000 python -m pytest tests/test_properties.py tries ten thousand of each at random; the suite tries a
few, the same ones every time.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import probe
from probe.data.texts import Dataset, Labelled, Span
from probe.errors import ProbeError
from probe.runner import registry
from probe.runner.manifest import Manifest, finished
from probe.scores.words import word_attention
from probe.verify.comparison import compare
from probe.verify.recorded import read_recorded
from tests.test_cli import command

N = os.environ.get("PROBE_EXAMPLES")
examples = settings(
    max_examples=int(N or 25),
    derandomize=N is None,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)

# what may stand on a command line: no NUL; halves of surrogate pairs are bytes that are not UTF-8
ARGUMENTS = st.text(st.characters(exclude_characters="\x00"), max_size=20)
SENTENCES = st.lists(
    st.sampled_from(
        [
            "Anna",
            "Ben",
            "thanked",
            "because",
            "she",
            "was",
            "it",
            "the",
            "cat",
            ".",
            ",",
            "(",
            ")",
            "Paris",
            "''",
            "猫",
            "é",
            "\u200d",
            "👩\u200d👧",
            "x",
        ]
    ),
    max_size=9,
).map(" ".join)
TEXTS = st.one_of(SENTENCES, st.text(st.characters(exclude_categories=()), max_size=30))


def squares(*, profile: str = "quick", seed: int = 0, n: int = 3, kind: bool = False) -> probe.Findings:
    """How fast do squares grow?"""
    frame = pd.DataFrame({"n": range(min(n, 9)), "square": [i * i for i in range(min(n, 9))]})
    return probe.Findings(f"To {n}.", (probe.Section("Squares", (), (probe.Table("squares", frame, ""),)),))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one result in done/squares/run, and files of other kinds."""
    folder = tmp_path_factory.mktemp("properties")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # as text, the annotations are read in this module
        study = registry.Study("squares", "How fast do squares grow?", squares, (), needs_data=False)
        registry.all_studies()
        patch.setitem(registry._studies, "squares", study)
        Path("notes.txt").write_text("mine")
        Path("page.html").write_text("<p>mine</p>")
        Path("broken.json").write_text('{"schema": 2')
        Path("mine.py").write_text("import probe\n1 / 0\n")
        Path("folder").mkdir()
        assert command("run", "squares", "--out", "done").code == 0
        yield folder


COMMANDS = [
    "list",
    "models",
    "doctor",
    "run",
    "report",
    "attend",
    "verify",
    "compare",
    "fetch",
    "train",
    "view",
    "nosuch",
]
STUDIES = ["squares", "sqares", "coreference_gap", "mine.py", "none.py", "notes.txt", "folder"]
PLACES = [
    "done", "done/squares/run", "done/squares/run/report.html", "done/squares/run/manifest.json", "notes.txt",
    "page.html", "broken.json", "folder", "nowhere", "", "a" * 300,
]  # fmt: skip
MODELS = ["tiny", "planted:induction", "planted:nosuch", "minilmm", "nobody/nothing", "folder", "", " "]
OPTIONS = {
    "--model": st.sampled_from(MODELS),
    "--seed": st.sampled_from(["0", "1", "-1", "x", "99999999999999999999"]),
    "--profile": st.sampled_from(["quick", "full", "fast"]),
    "--set": st.sampled_from(["n=2", "n=x", "n=-4", "kind=yes", "kind=3", "m=1", "seed=1", "n", "=", "n=", "n=1=2"]),
    "--data": st.sampled_from(PLACES),
    "--out": st.sampled_from(["done", "other", "notes.txt", "folder", "notes.txt/below"]),
    "--jobs": st.sampled_from(["1", "0", "x"]),
    "--executor": st.sampled_from(["local", "rya"]),
    "--address": st.just("nowhere:1"),
    "--threads": st.sampled_from(["0", "x"]),
    "--html": st.sampled_from(["ab.html", "notes.txt/ab.html", "folder"]),
    "--absolute": st.sampled_from(["0", "-1", "nan", "1e-3"]),
    "--query": ARGUMENTS,
    "--occurrence": st.sampled_from(["0", "-1", "7"]),
    "--top": st.sampled_from(["0", "1", "99"]),
    "--study": st.sampled_from(PLACES),
    "--recipe": st.sampled_from(["nosuch", ""]),
    "--steps": st.sampled_from(["0", "-1", "x"]),
    "--help": st.none(),
}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with arguments and options, mostly its own, sometimes none."""
    command = draw(st.sampled_from(COMMANDS))
    arguments = {
        "run": st.sampled_from(STUDIES),
        "report": st.sampled_from(PLACES),
        "verify": st.sampled_from(PLACES),
        "compare": st.sampled_from(PLACES),
        "attend": st.one_of(st.sampled_from(MODELS), SENTENCES, ARGUMENTS),
        "train": st.sampled_from(["nowhere", "folder", "page.html/x"]),  # a text that is there would be trained on
        "view": st.sampled_from(MODELS),
        "fetch": st.sampled_from(["nosuch", "", "smolm2"]),
    }.get(command, ARGUMENTS)
    most = 1 if command in ("report", "train") else 2 if command in ("compare", "attend") else 3
    words = [draw(arguments) for _ in range(draw(st.integers(0, most)))]
    for option in draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=4)):
        value = draw(OPTIONS[option])
        words += [option] if value is None else [option, value]
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(ARGUMENTS))
    return [command, *words]


@examples
@given(line=lines())
def test_a_command_line_ends_in_a_code_that_is_known(place: Path, line: list[str]) -> None:
    ended = command(*line)
    assert ended.code in (0, 1, 2, 3), line
    assert "Traceback" not in ended.out + ended.err, line
    assert ended.code in (0, 3) or ended.err or "absent" in ended.out or "missing" in ended.out, line


# manifests

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[list[int], str, Any]]:
    """Changes to a JSON value: which part (numbers that choose a key or index at each depth), what to do, with what."""
    kinds = st.sampled_from(["replace", "remove", "add"])
    return draw(st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=4), kinds, JSON), max_size=3))


def mutated(value: Any, changes: list[tuple[list[int], str, Any]]) -> Any:
    value = copy.deepcopy(value)
    for path, kind, new in changes:
        at = value
        for depth, number in enumerate(path):
            if not isinstance(at, dict | list) or not at:
                break
            key = sorted(at)[number % len(at)] if isinstance(at, dict) else number % len(at)
            if depth < len(path) - 1 and isinstance(at[key], dict | list) and at[key]:
                at = at[key]
            elif kind == "remove":
                del at[key]
                break
            elif kind == "add" and isinstance(at, dict):
                at[f"{key}x"] = new
                break
            else:
                at[key] = new
                break
    return value


@examples
@given(changes=mutations(), schema=st.sampled_from([1, 2]), cut=st.one_of(st.none(), st.integers(0, 3000)))
def test_a_manifest_is_read_or_refused(place: Path, changes: list, schema: int, cut: int | None) -> None:
    folder = place / "mutated" / "squares" / "run"
    shutil.rmtree(place / "mutated", ignore_errors=True)
    shutil.copytree(place / "done" / "squares" / "run", folder)
    record = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if schema == 1:
        for name in ("sha256", "asked", "machine"):
            del record[name]
        record["schema"] = 1
    text = json.dumps(mutated(record, changes))[:cut]
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    with suppress(ProbeError):
        manifest = Manifest.read(folder)
        found = read_recorded(folder)
        assert found.manifest == manifest
        compare(found, read_recorded(place / "done" / "squares" / "run"))
    assert command("report", place / "mutated").code in (0, 1)
    assert len(finished(place / "mutated")) == 1


# prompts and spans


@examples
@given(text=TEXTS, query=TEXTS, occurrence=st.one_of(st.none(), st.integers(-1, 3)))
def test_words_are_found_or_refused(tiny: probe.Subject, text: str, query: str, occurrence: int | None) -> None:
    with suppress(ProbeError):
        span = Span.of(text, query, occurrence)
        assert span.text(text) == query
        found = word_attention(tiny, text, query, occurrence=occurrence)
        assert found.mass.shape[-1] == len(found.words)


SPANS = st.builds(Span, st.integers(-2, 40), st.integers(-2, 40))


@examples
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=3),
    spans=st.lists(SPANS, min_size=3, max_size=3),
    cue=st.one_of(st.none(), SPANS),
)
def test_labelled_texts_are_bound_or_refused(
    tiny: probe.Subject, minilm: probe.Subject, texts: list[str], spans: list[Span], cue: Span | None
) -> None:
    query, target, foil = spans
    for subject in (tiny, minilm):
        with suppress(ProbeError):
            items = tuple(Labelled(f"i{i}", "c", t, query, target, (foil,), cue) for i, t in enumerate(texts))
            data = Dataset("drawn", "any", "accuracy", ("nearest",), items, "drawn", "none")
            assert len(data.hash) == 64
            targets = subject.bind(data)
            assert len(targets.units) + sum(targets.exclusions.values()) == len(items)


@examples
@given(text=TEXTS)
def test_a_prompt_is_read_or_refused(tiny: probe.Subject, minilm: probe.Subject, text: str) -> None:
    for subject in (tiny, minilm):
        with suppress(ProbeError):
            run = subject.run(text, sites=["pattern"], layers=[0])
            assert run["pattern", 0].shape[-1] == len(subject.encode(text))
