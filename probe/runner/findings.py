"""What a study returns that is not about scores of heads: an answer, and sections of text, tables and figures.

<folder>/findings.json           answer, sections, method, notes; tables and figures are named there
<folder>/table-<name>.parquet    one file for each table
<folder>/manifest.json           written last: its presence means the folder is complete

Figures are drawn by `probe.report` from the tables, so that a report stays a pure function of its folder.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from probe.data.texts import Dataset
from probe.errors import ResultsError
from probe.runner.linked import check_asked, check_linked
from probe.runner.parts import Asked as Asked
from probe.runner.parts import Kind as Kind
from probe.runner.parts import Linked as Linked
from probe.runner.parts import Listing as Listing
from probe.runner.parts import Log as Log
from probe.runner.parts import Part as Part
from probe.runner.parts import Plot as Plot
from probe.runner.parts import Prompts as Prompts
from probe.runner.parts import Table as Table
from probe.runner.parts import check_plot, check_table, described

FINDINGS = "findings.json"
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
TIMES = "timing_"  # how the names of tables begin that hold times, which are never the same twice


@dataclass(frozen=True)
class Section:
    """One step of the answer. text: paragraphs. parts: what they speak of, in order."""

    title: str
    text: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Findings:
    """A study's outcome. answer: the question's answer in one sentence with its number (and interval).

    method: paragraphs that say how it was measured. notes: caveats, in full sentences. data: the data sets that were
    measured, for the manifest. Raises ResultsError for names that are not unique, a table that cannot be kept and a
    figure that cannot be drawn; UnknownName for a figure of a table or column that is not there.
    """

    answer: str
    sections: tuple[Section, ...]
    method: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    data: tuple[Dataset, ...] = ()

    def __post_init__(self) -> None:
        for paragraphs in (self.method, self.notes, *(section.text for section in self.sections)):
            if isinstance(paragraphs, str):
                raise ResultsError(f"paragraphs come as a tuple of texts, not as one text: {paragraphs[:40]!r}...")
        tables, views = self.tables, self.views
        names = [part.name for part in self._parts() if not isinstance(part, Listing)]
        names += [plot.name for view in views for plot in view.panels]
        for name in names:
            if not NAME.fullmatch(name):
                raise ResultsError(f"{name!r} cannot name a table or figure: lower-case letters, digits, underscores.")
        if twice := [name for name, n in Counter(names).items() if n > 1]:
            raise ResultsError(f"{twice[0]!r} names more than one table or figure.")
        for table in tables.values():
            check_table(table)
        for plot in self.plots:
            check_plot(plot, tables)
        for view in views:
            check_linked(view, tables)
        for part in self._parts():
            if isinstance(part, Asked):
                check_asked(part, tables)

    @property
    def tables(self) -> dict[str, Table]:
        """Every table by its name."""
        return {part.name: part for part in self._parts() if isinstance(part, Table)}

    @property
    def views(self) -> tuple[Linked, ...]:
        """Every linked view, in order."""
        return tuple(part for part in self._parts() if isinstance(part, Linked))

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Every figure, in order; those of a linked view are figures, too."""
        drawn = (part for part in self._parts() if isinstance(part, Plot | Linked))
        return tuple(plot for part in drawn for plot in ((part,) if isinstance(part, Plot) else part.panels))

    def write(self, folder: Path) -> list[str]:
        """Write every file but the manifest into `folder`, which exists; returns the file names."""
        for table in self.tables.values():
            try:
                table.frame.to_parquet(folder / table_file(table.name), index=False)
            except (pa.ArrowException, UnicodeError) as error:
                raise ResultsError(f"the table {table.name!r} cannot be kept as Parquet: {error}") from error
        sections = [
            {"title": s.title, "text": s.text, "parts": [described(part) for part in s.parts]} for s in self.sections
        ]
        found = {"answer": self.answer, "sections": sections, "method": self.method, "notes": self.notes}
        text = json.dumps(found, ensure_ascii=False, indent=1)
        # half of a surrogate pair, which a cut text may end in, cannot be kept
        text = re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
        (folder / FINDINGS).write_text(text, encoding="utf-8")
        return [FINDINGS, *(table_file(name) for name in self.tables)]

    def _parts(self) -> Iterator[Part]:
        for section in self.sections:
            yield from section.parts


def table_file(name: str) -> str:
    """The file a table is kept in."""
    return f"table-{name}.parquet"


def figure_file(name: str) -> str:
    """The file a report draws a figure to."""
    return f"figures/{name}.png"


def own_files(folder: Path) -> set[str]:
    """The files that a run and its report leave in `folder`, by its findings.json, which may be damaged."""
    path = folder / FINDINGS
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    names = re.findall(rf'"name": "({NAME.pattern})"', text)
    return {FINDINGS, *map(table_file, names), *map(figure_file, names)}
