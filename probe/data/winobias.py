"""WinoBias (Zhao et al. 2018): a pronoun and two occupations, one of them stereotypically the pronoun's gender's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from probe.data.texts import RIVALS, Dataset, Labelled, Question, Span
from probe.errors import DataError

_LINE = re.compile(r"(\d+) (.*\S)")
_MARKED = re.compile(r"\[([^\[\]]+)\]")
_FEMININE = ("she", "her", "hers", "herself")
_MASCULINE = ("he", "him", "his", "himself")
_COUNTERPARTS = {"she": "he", "he": "she", "her": "his", "his": "her"}


def winobias(path: str | Path) -> Dataset:
    """The question: does a pronoun attend to the occupation it stands for rather than to the other one?

    path: a file as published, such as pro_stereotyped_type1.txt.dev. Two lines after one another have the same two
    occupations, each right in one of them: they are a cluster. In type 1 the words after the pronoun decide, which a
    causal model has not read there; in type 2 (`type2` in the file's name) syntax does.
    Of several pronouns the first is the query; sentences in which the other occupation is not found once are left out,
    and `Dataset.source` counts them.
    Tags: stereotype ("pro" or "anti", by the file's name), gender of the pronoun, right ("first" or "second" mention),
    occupation (the one that is meant), other.
    Raises DataError, with path and line, for a file that is missing or malformed.

    Licence: MIT. Source: https://github.com/uclanlp/corefBias.
    """
    path = Path(path)
    lines = _paired_lines(path)
    made = [_item(path, mine, lines[number ^ 1], number // 2) for number, mine in enumerate(lines)]
    items = tuple(item for item in made if item is not None)
    return Dataset(
        name=_name(path),
        phenomenon="coreference",
        statistic="accuracy",
        rivals=RIVALS,
        items=items,
        source=f"WinoBias (Zhao et al. 2018): {len(lines)} sentences, {len(items)} with one mention of each occupation",
        licence="MIT",
    )


def winobias_continuations(path: str | Path) -> Dataset:
    """The question (Vig et al. 2020): after `... because she`, does the sentence go on about the nurse or the farmer?

    path: a pro-stereotyped file of type 1. Of two lines that share all words up to the pronoun, each gives a
    continuation; the right one is that of the occupation whose stereotype fits the pronoun. Items are those words up to
    the pronoun, in minimal pairs (`she`, `he`; `her`, `his`), and the words up to the next ones are the two candidates.
    Lines with several pronouns or with `him` are left out, as by the authors, and `Dataset.source` counts them.
    Tags: gender of the pronoun, right ("first" or "second" mention).
    Raises DataError as `winobias` does, and where no two lines share their words.

    Licence: MIT. Source: https://github.com/uclanlp/corefBias, read as by
    https://github.com/sebastianGehrmann/CausalMediationAnalysis.
    """
    path = Path(path)
    lines = _paired_lines(path)
    items = [item for n in range(0, len(lines), 2) for item in _continued(path, lines[n], lines[n + 1], n // 2)]
    if not items:
        raise DataError(f"{path}: no two sentences share their words up to the pronoun; files of type 1 have them.")
    return Dataset(
        name=_name(path) + "-continuations",
        phenomenon="gendered continuation",
        statistic="accuracy",
        rivals=RIVALS,
        items=tuple(items),
        source=f"WinoBias (Zhao et al. 2018): {len(lines) // 2} pairs of sentences, {len(items) // 2} that differ only "
        "after the pronoun",
        licence="MIT",
    )


class _Sentence:
    """One line: its text without brackets, the marked occupation and pronouns, and its number in the file."""

    def __init__(self, line: int, text: str, occupation: Span, pronouns: Sequence[Span]) -> None:
        self.line, self.text, self.occupation, self.pronouns = line, text, occupation, pronouns
        self.pronoun = pronouns[0]

    @property
    def occupied(self) -> str:
        """The occupation without its article."""
        return self.occupation.text(self.text).split(" ", 1)[-1].lower()


def _name(path: Path) -> str:
    return path.name.replace(".txt", "").replace(".", "-")


def _paired_lines(path: Path) -> list[_Sentence]:
    """The sentences, of which each two after one another share their occupations."""
    lines = list(_lines(path))
    if len(lines) % 2:
        raise DataError(f"{path}: its {len(lines)} sentences are not pairs that share their two occupations.")
    return lines


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
        yield _Sentence(number, text, others[0], pronouns)


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
            "occupation": mine.occupied,
            "other": other.occupied,
        },
    )


def _continued(path: Path, one: _Sentence, other: _Sentence, pair: int) -> Iterator[Labelled]:
    """The two items of two lines, the feminine one first; none where they do not share their words."""
    said = {}  # gender -> the line whose stereotype it is
    for line in (one, other):
        word = line.pronoun.text(line.text)
        if len(line.pronouns) > 1 or word not in _COUNTERPARTS:
            return
        said["feminine" if word in _FEMININE else "masculine"] = line
    before = [line.text[: line.pronoun.start] for line in (one, other)]
    first, second = (line.pronoun.text(line.text) for line in (one, other))
    if len(said) < 2 or before[0] != before[1] or _COUNTERPARTS[first] != second:
        return
    rest = {gender: line.text[line.pronoun.end :].strip() for gender, line in said.items()}
    if "" in rest.values() or rest["feminine"] == rest["masculine"]:
        return
    names = {gender: f"{path.name}-{pair + 1:03}-{gender}" for gender in ("feminine", "masculine")}
    for gender, name in names.items():
        mine = said[gender]
        (theirs,) = (line for line in said.values() if line is not mine)
        (partner,) = (n for g, n in names.items() if g != gender)
        start = mine.pronoun.start
        text = mine.text[: mine.pronoun.end]
        yield Labelled(
            item=name,
            cluster=f"pair-{pair + 1:03}",
            text=text,
            query=Span(start, len(text)),
            target=mine.occupation,
            foils=(theirs.occupation,),
            pair=partner,
            question=Question(len(text), rest[gender], tuple(r for g, r in rest.items() if g != gender)),
            tags={
                "gender": gender,
                "right": "first" if mine.occupation < theirs.occupation else "second",
            },
        )
