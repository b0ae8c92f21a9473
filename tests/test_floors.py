"""The shape of the house: imports run downward, files and functions stay small, names resolve, starting is quick."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe

ROOT = Path(probe.__file__).parents[1]
MOST_LINES, MOST_FUNCTION_LINES = 400, 65
FLOORS = {
    **dict.fromkeys(("errors", "exits", "tty", "sites", "targets", "stats", "threads"), 0),
    **dict.fromkeys(("data", "by_hand"), 1),
    "models": 2,
    "anatomy": 2.5,
    **dict.fromkeys(("capture", "tokens", "subject"), 3),
    "scores": 4,
    "causal": 4.5,
    "compatibility": 4,
    "runner": 5,
    "verify": 5.5,
    "health": 5.5,
    "report": 6,
    "cost": 6.2,
    "execution": 6.4,
    "studies": 6.5,
    **dict.fromkeys(("cli", "cli_run", "cli_train", "cli_verify", "cli_view", "cli_doctor", "__main__"), 7),
}
HEAVY = ("torch", "transformers", "numpy", "pandas", "matplotlib", "scipy")


def sources() -> dict[str, Path]:
    """Module name -> file. studies/ is the package probe.studies, through a link."""
    files = [p for p in (ROOT / "probe").rglob("*.py") if p.parent.name != "studies"]
    found = {p: ("probe", *p.relative_to(ROOT / "probe").with_suffix("").parts) for p in files}
    found |= {p: ("probe", "studies", p.stem) for p in (ROOT / "studies").glob("*.py")}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in sorted(found.items())}


SOURCES = sources()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}
every_module = pytest.mark.parametrize("module", SOURCES)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported when the code runs; what only a type checker reads is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        yield from imported(node)


def part(name: str) -> str | None:
    """The part of the house a full name belongs to; None for other packages and for `probe` itself."""
    package, _, rest = name.partition(".")
    return rest.partition(".")[0] or None if package == "probe" else None


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def in_fresh_python(code: str) -> list[str]:
    """The heavy packages that are in memory after `code` ran in a Python of its own."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_module_stands_on_a_floor() -> None:
    assert {part(m) for m in SOURCES if m != "probe"} == set(FLOORS)


@every_module
def test_imports_run_downward_only(module: str) -> None:
    mine = part(module)
    upward = [
        f"line {line}: {name}"
        for line, name in imported(TREES[module])
        if (theirs := part(name)) is not None and FLOORS.get(theirs, 99) > (FLOORS[mine] if mine else 99)
    ]
    assert upward == [], f"{module} (floor {FLOORS.get(mine or '')}) imports from above"


@every_module
def test_only_studies_and_users_import_the_public_names(module: str) -> None:
    whole = [line for line, name in imported(TREES[module]) if name == "probe"]
    assert whole == [] or part(module) == "studies"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    def home(name: str) -> str | None:
        return next((n for n in (name, name.rpartition(".")[0]) if n in SOURCES and n != "probe"), None)

    below = {m: {h for _, n in imported(t) if (h := home(n))} - {m} for m, t in TREES.items()}
    while leaves := [m for m, needs in below.items() if not needs & below.keys()]:
        for leaf in leaves:
            del below[leaf]
    # a package that re-exports its modules, which import siblings through it, is the one accepted circle
    circles = {m: needs & below.keys() for m, needs in below.items()}
    assert {part(m) for m in circles} <= {"report"}, circles


def test_reports_import_nothing_that_knows_a_model() -> None:
    banned = {"probe.capture", "probe.subject", "probe.models", "torch", "transformers"}
    found = [
        f"{module}:{line} {name}"
        for module in SOURCES
        if part(module) == "report"
        for line, name in imported(TREES[module])
        if any(name == b or name.startswith(f"{b}.") for b in banned)
    ]
    assert found == []


def test_writing_reports_loads_neither_torch_nor_transformers() -> None:
    loaded = in_fresh_python("import probe.report, probe.report.page, probe.report.index, probe.runner.results")
    assert not {"torch", "transformers"} & set(loaded)
    assert "matplotlib" in loaded, "the check sees what is loaded"


@every_module
def test_no_import_is_relative(module: str) -> None:
    assert [n.lineno for n in ast.walk(TREES[module]) if isinstance(n, ast.ImportFrom) and n.level] == []


@every_module
def test_no_file_is_longer_than_its_one_idea(module: str) -> None:
    assert len(SOURCES[module].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@every_module
def test_no_function_is_longer_than_a_page(module: str) -> None:
    lengths = {f"{f.name} (line {f.lineno})": f.end_lineno - f.lineno + 1 for f in functions(TREES[module])}
    assert {name: n for name, n in lengths.items() if n > MOST_FUNCTION_LINES} == {}


@every_module
def test_every_module_says_what_it_is(module: str) -> None:
    assert (ast.get_docstring(TREES[module]) or "").strip(), f"{SOURCES[module]} has no docstring"


@every_module
def test_every_public_function_and_class_has_a_docstring(module: str) -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [n for n in TREES[module].body if isinstance(n, kinds) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []


@every_module
def test_no_source_names_a_folder_of_one_machine(module: str) -> None:
    assert re.findall(r"/(?:home|root|Users|work)/\w+", SOURCES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", probe.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(probe, name) is not None
    assert name in dir(probe)


def test_public_names_are_sorted_and_complete() -> None:
    assert probe.__all__ == sorted(set(probe.__all__))
    assert set(probe.__all__) == {*probe._HOMES, *probe._MODULES, "__version__"}


def test_an_unknown_public_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'lode'; it has Asked, .*load"):
        probe.lode  # noqa: B018


def test_type_checkers_see_the_names_that_are_loaded_late() -> None:
    shown = {
        alias.asname: f"{node.module}.{alias.name}"
        for block in TREES["probe"].body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    late = {name: f"{home}.{name}" for name, home in probe._HOMES.items()}
    assert shown == late | probe._MODULES


@pytest.mark.parametrize("module", [m for m, t in TREES.items() if m != "probe" and "__all__" in ast.unparse(t)])
def test_packages_export_what_they_list(module: str) -> None:
    found = importlib.import_module(module)
    assert [n for n in found.__all__ if not hasattr(found, n)] == []


@pytest.mark.parametrize("code", ["import probe", "import probe.cli", "import probe.errors, probe.sites, probe.tty"])
def test_importing_loads_nothing_heavy(code: str) -> None:
    assert in_fresh_python(code) == []


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['probe', *{words!r}]\n"
        "import probe.cli\n"
        "try:\n    probe.cli.main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code"
    )
    assert in_fresh_python(code) == []


def test_the_check_for_heavy_packages_sees_one() -> None:
    assert "torch" in in_fresh_python("import probe; probe.load")
