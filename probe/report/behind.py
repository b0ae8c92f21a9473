"""The prompts behind numbers, of a linked view or a section: right or wrong, tokens marked, coloured by attention."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from probe.report import strips
from probe.report.html import environment
from probe.report.numbers import count
from probe.report.strips import Piece
from probe.report.tables import Groups, about, coloured
from probe.report.words import cell
from probe.runner.findings import Asked, Linked, Prompts, Table, table_file
from probe.runner.linked import lines_of
from probe.runner.results import Example

KINDS = ("query", "target", "foil")
FEW = 4
"""Prompts of one place that a page shows at most."""
ROOM = 270_000
"""Bytes that the prompts of one view or list may take; 300 kB with a view's figures and numbers."""


@dataclass(frozen=True)
class Shown:
    """A prompt as the template shows it. outcome: "right", "wrong" or "tie". facts: (column, value) beside it.

    line, groups: the first of the view's lines that has attention, and the tokens coloured by it. codes: that of every
    line on every piece, (line, piece) bytes in base64. sums: (field the script fills, words, "≈ 0.94").
    """

    name: str
    outcome: str
    facts: tuple[tuple[str, str], ...]
    line: str
    groups: Groups
    codes: str
    sums: tuple[tuple[str, str, str], ...]
    left_out: int


@dataclass(frozen=True)
class Place:
    """Prompts of one x, or of one group. title: what is said of them before the tally; id: of their element, "" for
    none. tally: how many were right. prompts: as HTML. left_out: what is said of the others.
    """

    title: str
    id: str
    tally: str
    prompts: tuple[Markup, ...]
    left_out: str


@dataclass(frozen=True)
class Behind:
    """Prompts in places. lines: those whose attention is kept, by name; by: what they are. kinds: of the roles that are
    marked.
    """

    caption: str
    by: str
    lines: tuple[str, ...]
    kinds: tuple[str, ...]
    places: tuple[Place, ...]

    @property
    def names(self) -> str:
        """The lines as the script reads them."""
        return json.dumps(self.lines, ensure_ascii=False)

    @property
    def size(self) -> int:
        """Bytes of the prompts."""
        return sum(len(_bytes(prompt)) for place in self.places for prompt in place.prompts)


@dataclass(frozen=True)
class Listed:
    """Prompts without a figure, as the template shows them."""

    kind = "asked"
    name: str
    behind: Behind


def behind(
    view: Linked, tables: dict[str, Table], places: Sequence[tuple[float, str, str]], room: int = ROOM
) -> Behind | None:
    """The prompts asked at each of the places (x, title, id). None for a view without prompts."""
    if view.prompts is None:
        return None
    x, tokens = view.panels[0].x, tables[view.prompts.tokens].frame
    by = " or ".join(dict.fromkeys(_column(line, view, tables) for line in lines_of(tokens)))
    return _behind(view.prompts, tables, x, places, by, room)


def listed(part: Asked, tables: dict[str, Table], room: int = ROOM) -> Listed:
    """The prompts of a section, for each value of the column that they are told apart by."""
    values = [] if part.by is None else list(dict.fromkeys(tables[part.prompts.table].frame[part.by]))
    places = [(value, f"{part.by}: {_plainly(value)}", "") for value in values]
    return Listed(part.name, _behind(part.prompts, tables, part.by, places or [(None, "", "")], "head", room))


def _plainly(value: object) -> str:
    """A value that prompts are told apart by; a number in full, so that no two look alike."""
    return f"{value:.12g}" if isinstance(value, float | np.floating) else cell(value, 0)


def _behind(
    prompts: Prompts,
    tables: dict[str, Table],
    column: str | None,
    places: Sequence[tuple[object, str, str]],
    by: str,
    room: int,
) -> Behind:
    """Prompts for each value of a column, as many as fit into `room` bytes: the first of every place before the second
    of any, in the order of the table.
    """
    asked, tokens = tables[prompts.table], tables[prompts.tokens].frame
    lines = lines_of(tokens)
    rows = {str(name): part for name, part in tokens.groupby("prompt", sort=False)}
    at = [asked.frame if column is None else asked.frame[asked.frame[column] == value] for value, *_ in places]
    made = [
        [_html(_shown(row, rows[row["prompt"]], asked, column, lines)) for row in _with_tokens(here, rows)[:FEW]]
        for here in at
    ]
    return Behind(
        prompts.caption,
        by,
        lines,
        tuple(kind for kind in KINDS if any(role.startswith(kind) for role in tokens["role"])),
        tuple(
            Place(title, id_, tally(here["correct"]), tuple(kept), _left_out(len(here) - len(kept), asked.name))
            for (_, title, id_), here, kept in zip(places, at, fitting(made, room), strict=True)
        ),
    )


def fitting(made: Sequence[Sequence[Markup]], room: int) -> list[list[Markup]]:
    """Of lists of texts, as many as fit into `room` bytes: the first of every list before the second of any."""
    kept: list[list[Markup]] = [[] for _ in made]
    for turn in range(max(map(len, made), default=0)):
        for mine, whole in zip(kept, made, strict=True):
            if turn < len(whole):
                room -= len(_bytes(whole[turn]))
                if room < 0:
                    return kept
                mine.append(whole[turn])
    return kept


def tally(correct: pd.Series) -> str:
    """ "21 of 30 right", and how many were tied."""
    values = correct.to_numpy(dtype=np.float64)
    tied = int(((values > 0) & (values < 1)).sum())
    return f"{int((values == 1).sum())} of {len(values)} right" + (f", {tied} tied" if tied else "")


def _column(line: str, view: Linked, tables: dict[str, Table]) -> str:
    """What a line is one of: the column that has its name."""
    columns = [(plot.by, tables[plot.table].frame) for plot in view.panels]
    return next(by for by, frame in columns if by is not None and line in set(map(str, frame[by])))


def _with_tokens(here: pd.DataFrame, rows: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in here.to_dict("records") if row["prompt"] in rows]


def _shown(
    row: dict[str, Any], tokens: pd.DataFrame, asked: Table, column: str | None, lines: tuple[str, ...]
) -> Shown:
    example = _example(str(row["prompt"]), tokens)
    pieces = strips.pieces(example)
    codes = strips.codes(pieces, tokens[list(lines)].to_numpy(dtype=np.float32).T)
    facts = tuple((k, cell(v, asked.digits)) for k, v in row.items() if k not in (column, "prompt", "correct"))
    return Shown(
        name=example.item,
        outcome={1.0: "right", 0.0: "wrong"}.get(float(row["correct"]), "tie"),
        facts=facts,
        line=lines[0] if lines else "",
        groups=coloured(pieces, codes[0]) if lines else _plain(pieces),
        codes=base64.b64encode(codes.tobytes()).decode("ascii"),
        sums=_sums(example, pieces, codes[0]) if lines else (),
        left_out=sum(p.stop - p.start for p in pieces if p.left_out),
    )


def _example(name: str, tokens: pd.DataFrame) -> Example:
    """A prompt's tokens with the positions of each role."""
    places: dict[str, list[int]] = {}
    for position, role in enumerate(tokens["role"]):
        places.setdefault(role, []).append(position)
    foils = tuple(tuple(at) for role, at in places.items() if role.startswith("foil"))
    texts = tuple(map(str, tokens["token"]))
    return Example(name, "", texts, tuple(places.get("query", ())), tuple(places.get("target", ())), foils)


def _sums(example: Example, pieces: tuple[Piece, ...], code: npt.NDArray[np.uint8]) -> tuple[tuple[str, str, str], ...]:
    """Attention on the target and on all foils together."""
    share = strips.decoded(code)
    marked = (("target", example.target), ("foil", [p for foil in example.foils for p in foil]))
    return tuple(
        (role, f"on the {role}{'s' * (role == 'foil' and len(example.foils) > 1)}", about(float(share[at].sum())))
        for role, positions in marked
        if (at := strips.indices(pieces, positions))
    )


def _plain(pieces: tuple[Piece, ...]) -> Groups:
    """A strip without attention."""
    found = strips.groups(pieces)
    return [
        (", ".join(roles), roles[0].split()[0] if roles else "", [(piece, 0.0, "") for _, piece in members])
        for roles, members in found
    ]


def _html(shown: Shown) -> Markup:
    return Markup(environment().get_template("prompt.html.j2").render(prompt=shown))


def _left_out(n: int, table: str) -> str:
    return f"{count(n, 'more prompt')} asked here {'is' if n == 1 else 'are'} in {table_file(table)}." if n else ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
