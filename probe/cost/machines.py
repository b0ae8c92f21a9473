"""What each table of a cost folder was measured on: tables may come from runs on different machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from probe.errors import ResultsError

MACHINES_CSV, COLUMNS = "machines.csv", ("table", "fact", "value")
UNKNOWN = "not recorded"

Machines = Mapping[str, Mapping[str, str]]
"""The name of a table -> facts about the machine it was measured on, name -> value."""


def kept(folder: Path, tables: Iterable[str]) -> dict[str, dict[str, str]]:
    """What the folder says of each of the tables, in this order; nothing of one measured before facts were kept.

    Raises ResultsError for a file that says something else.
    """
    path = folder / MACHINES_CSV
    frame = (
        pd.read_csv(path, dtype=str, keep_default_na=False) if path.exists() else pd.DataFrame(columns=list(COLUMNS))
    )
    if list(frame.columns) != list(COLUMNS):
        raise ResultsError(f"{path} does not say what was measured where: its columns are {', '.join(frame.columns)}.")
    return {
        name: {str(row.fact): str(row.value) for row in frame[frame["table"] == name].itertuples()} for name in tables
    }


def keep(folder: Path, machines: Machines) -> None:
    """Write them into the folder, as `kept` reads them."""
    rows = [(table, fact, value) for table, facts in machines.items() for fact, value in facts.items()]
    pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(folder / MACHINES_CSV, index=False)


def markdown(machines: Machines) -> str:
    """A row for each fact; a column for each table, or a single one where all were measured alike."""
    facts = list(dict.fromkeys(fact for known in machines.values() for fact in known))
    alike = len({tuple(sorted(known.items())) for known in machines.values()}) == 1
    columns = {"": next(iter(machines.values()))} if alike else machines
    lines = [f"| machine | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {fact} | {' | '.join(known.get(fact, UNKNOWN) for known in columns.values())} |" for fact in facts]
    return "\n".join(lines)
