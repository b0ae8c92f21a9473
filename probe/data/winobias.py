"""WinoBias (Zhao et al. 2018): a pronoun and two occupations, one of them stereotypically the pronoun's gender's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from probe.data.texts import Dataset, Labelled, Span
from probe.errors import DataError

_LINE = re.compile(r"(\d+) (.*\S)")
_MARKED = re.compile(r"\[([^\[\]]+)\]")
_FEMININE = ("she", "her", "hers", "herself")
_MASCULINE = ("he", "him", "his", "himself")


def winobias(path: str | Path) -> Dataset:
    """The question: does a pronoun attend to the occupation it stands for rather than to the other one?

    path: a file as published, such as pro_stereotyped_type1.txt.dev. Two lines after one another have the same two
    occupations, each right in one of them: they are a cluster. In type 1 the words after the pronoun decide, which a
    causal model has not read there; in type 2 (`type2` in the file's name) syntax does.
    Of several pronouns the first is the query; sentences in which the other occupation is not found once are left out,
    and `Dataset.source` counts them.
    Tags: stereotype ("pro" or "anti", by the file's name), gender of the pronoun, right ("first" or "second" mention).
    Raises DataError, with path and line, for a file that is missing or malformed.

    Licence: MIT. Source: https://github.com/uclanlp/corefBias.
    """
    path = Path(path)
    lines = list(_lines(path))
    if len(lines) % 2:
        raise DataError(f"{path}: its {len(lines)} sentences are not pairs that share their two occupations.")
    made = [_item(path, mine, lines[number ^ 1], number // 2) for number, mine in enumerate(lines)]
    items = tuple(item for item in made if item is not None)
    return Dataset(
        name=path.name.replace(".txt", "").replace(".", "-"),
        phenomenon="coreference",
        statistic="accuracy",
        rivals=("nearest", "first", "longer"),
        items=items,
        source=f"WinoBias (Zhao et al. 2018): {len(lines)} sentences, {len(items)} with one mention of each occupation",
        licence="MIT",
    )


class _Sentence:
    """One line: its text without brackets, the marked occupation and pronoun, and its number in the file."""

    def __init__(self, line: int, text: str, occupation: Span, pronoun: Span) -> None:
        self.line, self.text, self.occupation, self.pronoun = line, text, occupation, pronoun

    @property
    def occupied(self) -> str:
        """The occupation without its article."""
        return self.occupation.text(self.text).split(" ", 1)[-1].lower()


def _lines(path: Path) -> Iterator[_Sentence]:
    try:
        raw = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; WinoBias has files like pro_stereotyped_type1.txt.dev.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}.") from error
    for number, line in enumerate(raw, start=1):
        found = _LINE.fullmatch(line.strip())
        if not line.strip():
            continue
        if found is None:
            raise DataError(f"{path}, line {number}: expected a number, a space and a sentence.")
        text, spans = "", []
        at = 0
        for mark in _MARKED.finditer(found[2]):
            text += found[2][at : mark.start()]
            spans.append(Span(len(text), len(text) + len(mark[1])))
            text += mark[1]
            at = mark.end()
        text += found[2][at:]
        pronouns = [s for s in spans if s.text(text).lower() in (*_FEMININE, *_MASCULINE)]
        others = [s for s in spans if s not in pronouns]
        if not pronouns or len(others) != 1:
            raise DataError(f"{path}, line {number}: expected one occupation and a pronoun in square brackets.")
        yield _Sentence(number, text, others[0], pronouns[0])


def _item(path: Path, mine: _Sentence, other: _Sentence, pair: int) -> Labelled | None:
    """None where the other occupation is not mentioned exactly once, by the words it has in the pair's other line."""
    places = [m.span() for m in re.finditer(rf"\b(?:the|an?) {re.escape(other.occupied)}\b", mine.text, re.IGNORECASE)]
    places = [p for p in places if not mine.occupation.start <= p[0] < mine.occupation.end]
    if len(places) != 1:
        return None
    foil = Span(*places[0])
    after = Span(mine.pronoun.end, len(mine.text))
    return Labelled(
        item=f"{path.name}-{mine.line:03}",
        cluster=f"pair-{pair + 1:03}",
        text=mine.text,
        query=mine.pronoun,
        target=mine.occupation,
        foils=(foil,),
        cue=after if "type1" in path.name and after.end > after.start else None,
        tags={
            "stereotype": "anti" if path.name.startswith("anti") else "pro",
            "gender": "feminine" if mine.pronoun.text(mine.text).lower() in _FEMININE else "masculine",
            "right": "first" if mine.occupation.start < foil.start else "second",
        },
    )
