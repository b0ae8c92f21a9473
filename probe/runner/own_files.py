"""Studies in files of the user's own: `probe run my_study.py`."""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from probe.errors import ProbeError, UsageError
from probe.runner import registry
from probe.runner.registry import Study, all_studies, find_study


def is_own_file(asked: str) -> bool:
    """Whether a study was asked for by path rather than by name."""
    return asked.endswith(".py")


def find(asked: str) -> tuple[Study, ...]:
    """The studies that are meant: one by name, or all that a file of the user's decorates.

    Raises UnknownName, or UsageError for a file that is not there, fails, holds no study, or takes the name of a study
    that ships with probe.
    """
    return load_file(Path(asked)) if is_own_file(asked) else (find_study(asked),)


def load_file(path: Path) -> tuple[Study, ...]:
    """Run a Python file and return the studies it decorates, in their order. Raises as `find`.

    Its folder can be imported from, as that of a script can; the files it imports from there are part of its results'
    keys.
    """
    if not path.is_file():
        raise UsageError(f"the study file {path} does not exist.")
    path = path.resolve()
    shipped, before = dict(all_studies()), dict(registry._studies)
    try:
        _execute(path)
        made = [s for name, s in registry._studies.items() if before.get(name) is not s]
    finally:
        registry._studies.clear()
        registry._studies.update(before)  # the user's are found by path, not by name
    own = [s for s in made if s.source.resolve() == path]
    if not own:
        raise UsageError(f"{path} holds no study: decorate a function with @probe.study(models=...).")
    if taken := [s.name for s in own if s.name in shipped]:
        raise UsageError(f"{path} names a study {taken[0]!r}, as one that ships with probe is; give it another name.")
    helpers = tuple(sorted(_imported(path, path.parent) - {path}))
    return tuple(replace(s, file=path, helpers=helpers) for s in own)


def _execute(path: Path) -> None:
    """Run the file as a module. Raises UsageError, naming the line, for whatever it raises."""
    spec = importlib.util.spec_from_file_location(f"probe_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look a module up there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # and stays: studies import when they run
    try:
        spec.loader.exec_module(module)
    except ProbeError as error:
        raise UsageError(f"{path}: {error}") from error
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        raise UsageError(f"{path} is not Python: {line}{error.msg}.") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" at line {lines[-1]}" if lines else ""
        said = next(iter(str(error).splitlines()), "")
        raise UsageError(f"{path} failed{where}: {type(error).__name__}: {said}") from error


def _imported(path: Path, folder: Path, seen: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """The file and all it imports from the folder, at any depth, also what is imported only when a function runs."""
    seen |= {path}
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return seen  # whoever imports it will hear of it
    for name in set(_names(tree)) - {"probe"}:
        package = folder / name
        for file in (package.with_suffix(".py"), *(package.rglob("*.py") if package.is_dir() else ())):
            if file.is_file() and file not in seen:
                seen = _imported(file, folder, seen)
    return seen


def _names(tree: ast.AST) -> Iterator[str]:
    """The first part of each module's name that is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
