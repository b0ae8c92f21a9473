"""What each table of a cost folder was measured with: machines, versions and commands may differ between tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from probe.errors import ResultsError
from probe.models import store

MACHINES = "machines.json"
UNKNOWN = "not recorded"

Machines = Mapping[str, Mapping[str, str]]
"""The file name of a table -> what it was measured with, name of a fact -> value."""


def kept(folder: Path) -> dict[str, dict[str, str]]:
    """What the folder says of its tables, if anything. Raises ResultsError for a file that says something else."""
    path = folder / MACHINES
    if not path.exists():
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ResultsError(f"{path} cannot be read: {error}. It must be JSON: table -> fact -> text.") from error
    if not (isinstance(said, dict) and all(isinstance(facts, dict) for facts in said.values())):
        raise ResultsError(f"{path} does not say what was measured with what. It must be table -> fact -> text.")
    for table, facts in said.items():
        for fact, value in facts.items():
            if not isinstance(value, str):
                raise ResultsError(f"{path} gives {value!r} for {fact!r} of {table}; a fact must be a text.")
    return said


def keep(folder: Path, machines: Machines) -> None:
    """Write them into the folder, as `kept` reads them, all or nothing."""
    store.write_json(folder / MACHINES, dict(machines))


def markdown(machines: Machines) -> str:
    """A row for each fact; a column for each table, or a single one where all say the same. Empty without facts."""
    longest_first = sorted(machines.values(), key=len, reverse=True)  # whose order is that of the rows
    facts = list(dict.fromkeys(fact for known in longest_first for fact in known))
    if not facts:
        return ""
    alike = all(known == longest_first[0] for known in longest_first)
    columns = {"": longest_first[0]} if alike else machines
    rows = [["measured with", *columns], ["---"] * (1 + len(columns))]
    rows += [[fact, *(known.get(fact, UNKNOWN) for known in columns.values())] for fact in facts]
    return "\n".join(f"| {' | '.join(_cell(text) for text in row)} |" for row in rows) + "\n"


def _cell(text: str) -> str:
    """A text in a single cell of a table."""
    return " ".join(text.replace("|", "\\|").split())
