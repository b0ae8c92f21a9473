"""GAP (Webster et al. 2018): pronouns in Wikipedia snippets, each with two candidate names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from probe.data.texts import RIVALS, Dataset, Labelled, Span
from probe.errors import DataError

_COLUMNS = (
    *("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref"),
    *("B", "B-offset", "B-coref", "URL"),
)
_GENDER = {
    **dict.fromkeys(("she", "her", "hers", "herself"), "feminine"),
    **dict.fromkeys(("he", "him", "his", "himself"), "masculine"),
}


def gap(path: str | Path) -> Dataset:
    """The question: does a pronoun attend to the name it stands for rather than to the other name?

    path: one of GAP's TSV files, as published; the dataset is named after it. An item is one row, a cluster
    one Wikipedia page (its URL).
    Two kinds of rows are left out, for they have no target and foil to compare: those where neither name is
    the antecedent, and those where both are. `Dataset.source` says how many rows there are and how many stay.
    Tags: gender ("feminine" or "masculine", of the pronoun), right (the antecedent is the "first" name, A, or
    the "second", B) and side (the antecedent stands "before" or "after" the pronoun).
    Raises DataError, with path, line and field, for a file that is missing or malformed.

    Licence: Apache-2.0 for the annotation; the snippets are Wikipedia text.
    Source: Webster et al. 2018, "Mind the GAP", https://github.com/google-research-datasets/gap-coreference.
    """
    path = Path(path)
    rows = list(_rows(path))
    items = tuple(_item(row) for row in rows if row.first_right != row.second_right)
    return Dataset(
        name=path.stem,
        phenomenon="coreference",
        statistic="accuracy",
        rivals=RIVALS,
        items=items,
        source=f"GAP (Webster et al. 2018): {len(rows)} rows, {len(items)} with exactly one right candidate",
        licence="Apache-2.0",
    )


class _Row(NamedTuple):
    """One row, checked."""

    item: str
    url: str
    text: str
    gender: str
    pronoun: Span
    first: Span
    second: Span
    first_right: bool
    second_right: bool


def _item(row: _Row) -> Labelled:
    target, foil = (row.first, row.second) if row.first_right else (row.second, row.first)
    return Labelled(
        item=row.item,
        cluster=row.url,
        text=row.text,
        query=row.pronoun,
        target=target,
        foils=(foil,),
        tags={
            "gender": row.gender,
            "right": "first" if row.first_right else "second",
            "side": "before" if target < row.pronoun else "after",
        },
    )


def _rows(path: Path) -> Iterator[_Row]:
    """Every row of the file, also those without exactly one right candidate."""
    # Lines end at a line feed and nowhere else: str.splitlines would also cut at characters inside a snippet.
    # GAP quotes nothing, so a row is its line cut at the tabs.
    lines = _read(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    header = _fields(lines[0]) if lines else []
    if not any(header):
        raise DataError(f"{path}: the file is empty; its first line should be: {', '.join(_COLUMNS)}.")
    for column in _COLUMNS:
        if column not in header:
            raise DataError(f"{path}, line 1: there is no column {column!r}{_guess(column, header)}.")
    if len(lines) == 1:
        raise DataError(f"{path}, line 2: there are no rows after the header.")
    seen: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        fields = _fields(line)
        where = f"{path}, line {number}"
        if len(fields) != len(header):
            raise DataError(
                f"{where}: the row has {len(fields)} field{'' if len(fields) == 1 else 's'} between tabs, "
                f"the header has {len(header)}."
            )
        row = _row(dict(zip(header, fields, strict=True)), where)
        if row.item in seen:
            raise DataError(f"{where}, field 'ID': {row.item!r} is also the ID of line {seen[row.item]}.")
        seen[row.item] = number
        yield row


def _row(fields: Mapping[str, str], where: str) -> _Row:
    for name in ("ID", "URL"):
        if not fields[name]:
            raise DataError(f"{where}, field {name!r}: it is empty.")
    pronoun = fields["Pronoun"]
    if pronoun.lower() not in _GENDER:
        raise DataError(f"{where}, field 'Pronoun': {pronoun!r} is none of {', '.join(_GENDER)}.")
    return _Row(
        item=fields["ID"],
        url=fields["URL"],
        text=fields["Text"],
        gender=_GENDER[pronoun.lower()],
        pronoun=_span(fields, "Pronoun", where),
        first=_span(fields, "A", where),
        second=_span(fields, "B", where),
        first_right=_truth(fields, "A-coref", where),
        second_right=_truth(fields, "B-coref", where),
    )


def _span(fields: Mapping[str, str], name: str, where: str) -> Span:
    text, words, offset = fields["Text"], fields[name], fields[f"{name}-offset"]
    if not words:
        raise DataError(f"{where}, field {name!r}: it is empty.")
    if not (offset.isascii() and offset.isdigit()):
        raise DataError(f"{where}, field '{name}-offset': {offset!r} is not a whole number of characters.")
    span = Span(int(offset), int(offset) + len(words))
    if span.text(text) != words:
        nearest = min(_starts(text, words), key=lambda start: abs(start - span.start), default=None)
        hint = "it is not in the text" if nearest is None else f"the nearest one is at {nearest}"
        raise DataError(
            f"{where}, field '{name}-offset': at character {offset} the text has {span.text(text)!r}, "
            f"not {words!r}; {hint}."
        )
    return span


def _truth(fields: Mapping[str, str], name: str, where: str) -> bool:
    if fields[name] not in ("TRUE", "FALSE"):
        raise DataError(f"{where}, field {name!r}: {fields[name]!r} is neither TRUE nor FALSE.")
    return fields[name] == "TRUE"


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        beside = [p.name for p in path.parent.iterdir() if p.is_file()] if path.parent.is_dir() else []
        raise DataError(f"{path}: there is no such file{_guess(path.name, beside)}.") from None
    except OSError as error:
        raise DataError(f"{path}: it cannot be read ({error.strerror}).") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: it is not UTF-8 ({error.reason} at byte {error.start}).") from error


def _fields(line: str) -> list[str]:
    return line.removesuffix("\r").split("\t")


def _starts(text: str, words: str) -> list[int]:
    return [start for start in range(len(text)) if text.startswith(words, start)]


def _guess(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; the nearest is {nearest[0]!r}" if nearest else ""
