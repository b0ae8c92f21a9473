"""Reads a folder of findings and checks it: files against their hashes, findings.json against what it may say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from probe.errors import ProbeError, ResultsError
from probe.report.folder import parquet_table
from probe.runner.findings import (
    FINDINGS,
    Asked,
    Findings,
    Kind,
    Linked,
    Listing,
    Log,
    Part,
    Plot,
    Prompts,
    Section,
    Table,
    table_file,
)
from probe.runner.manifest import Manifest


@dataclass(frozen=True)
class Outcome:
    """A complete, verified folder of findings."""

    manifest: Manifest
    findings: Findings


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Table(_Strict):
    part: Literal["table"]
    name: str
    caption: str
    digits: int
    shown: bool


class _Plot(_Strict):
    part: Literal["plot"]
    name: str
    table: str
    kind: Kind
    x: str
    y: str
    caption: str
    value: str | None
    by: str | None
    panel: str | None
    low: str | None
    high: str | None
    log: Log
    marks: dict[str, float]
    x_label: str | None
    y_label: str | None


class _Listing(_Strict):
    part: Literal["listing"]
    text: str
    caption: str


class _Prompts(_Strict):
    table: str
    tokens: str
    caption: str


class _Linked(_Strict):
    part: Literal["linked"]
    name: str
    panels: tuple[_Plot, ...]
    caption: str
    prompts: _Prompts | None


class _Asked(_Strict):
    part: Literal["asked"]
    name: str
    prompts: _Prompts
    by: str | None


_Part = _Table | _Plot | _Listing | _Linked | _Asked


class _Section(_Strict):
    title: str
    text: tuple[str, ...]
    parts: tuple[Annotated[_Part, Field(discriminator="part")], ...]


class _Findings(_Strict):
    answer: str
    sections: tuple[_Section, ...]
    method: tuple[str, ...]
    notes: tuple[str, ...]


def holds_findings(manifest: Manifest) -> bool:
    """Whether a folder holds findings; otherwise it holds scores of heads."""
    return FINDINGS in manifest.outputs


def read_findings(folder: Path) -> Outcome:
    """Read and verify a whole folder of findings.

    Raises ResultsError naming the file, and the field in it, that is missing, changed or malformed.
    """
    manifest = Manifest.read(folder)
    if not holds_findings(manifest):
        raise ResultsError(f"{folder / 'manifest.json'} does not list {FINDINGS} in its outputs.")
    files, path = manifest.read_outputs(folder), folder / FINDINGS
    try:
        raw = _Findings.model_validate_json(files[FINDINGS])
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise ResultsError(f"{path} is malformed: {field}: {first['msg']}.") from error
    sections = tuple(
        Section(section.title, section.text, tuple(_part(part, files, folder) for part in section.parts))
        for section in raw.sections
    )
    try:
        findings = Findings(answer=raw.answer, sections=sections, method=raw.method, notes=raw.notes)
    except ProbeError as error:
        raise ResultsError(f"{path} is malformed: {error}") from error
    return Outcome(manifest, findings)


def _part(part: _Part, files: dict[str, bytes], folder: Path) -> Part:
    if isinstance(part, _Listing):
        return Listing(part.text, part.caption)
    if isinstance(part, _Plot):
        return _plot(part)
    if isinstance(part, _Linked):
        prompts = None if part.prompts is None else Prompts(**part.prompts.model_dump())
        return Linked(part.name, tuple(map(_plot, part.panels)), part.caption, prompts)
    if isinstance(part, _Asked):
        return Asked(part.name, Prompts(**part.prompts.model_dump()), part.by)
    name = table_file(part.name)
    if name not in files:
        raise ResultsError(f"{folder / 'manifest.json'} does not list {name}, the file of the table {part.name!r}.")
    frame = parquet_table(files[name], folder / name, ())
    return Table(frame=frame, **part.model_dump(exclude={"part"}))


def _plot(part: _Plot) -> Plot:
    return Plot(**part.model_dump(exclude={"part"}))
