"""Texts with character spans: the data of a phenomenon before any tokenizer has seen it."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from probe.errors import DataError, SpanError


@dataclass(frozen=True, order=True)
class Span:
    """Characters `start` to `end` (exclusive) of a text."""

    start: int
    end: int

    @classmethod
    def of(cls, text: str, words: str, occurrence: int | None = None) -> Span:
        """The span of `words` in `text`, as whole words.

        occurrence: which one, from 0, where the words are there more than once.
        Raises SpanError if they are not there, or are there twice and `occurrence` does not say which.
        """
        starts = [i for i in _starts(text, words) if _whole_word(text, i, i + len(words))]
        if not starts:
            inside = next(iter(_starts(text, words)), None)
            where = f" as whole words (only inside another word, at character {inside})" if inside is not None else ""
            raise SpanError(f"{words!r} is not in the text{where}: {text!r}")
        if occurrence is None:
            if len(starts) > 1:
                places = ", ".join(map(str, starts))
                raise SpanError(
                    f"{words!r} is in the text {len(starts)} times (at characters {places}); "
                    f"say which one (occurrence 0 to {len(starts) - 1}): {text!r}"
                )
            occurrence = 0
        if not 0 <= occurrence < len(starts):
            raise SpanError(f"{words!r} is in the text {len(starts)} times; there is no occurrence {occurrence}")
        return cls(starts[occurrence], starts[occurrence] + len(words))

    def text(self, whole: str) -> str:
        return whole[self.start : self.end]


def words(text: str) -> list[Span]:
    """The words of a text: runs of letters, digits and their marks (with inner apostrophes); any other character that
    is not a space, and any character of a script written without spaces, is a word of its own.
    """
    found: list[Span] = []
    for at, char in enumerate(text):
        if char.isspace():
            continue
        last = found[-1] if found and found[-1].end == at else None
        before = text[at - 1] if last else ""
        after = text[at + 1] if at + 1 < len(text) else ""
        apostrophe = char in "'’" and _in_word(before) and after[:1].isalpha()
        joined = last is not None and (
            (_in_word(char) and (_in_word(before) or (before in "'’" and len(last.text(text)) > 1)))
            or unicodedata.category(char)[0] == "M"
            or apostrophe
        )
        if joined and last is not None:
            found[-1] = Span(last.start, at + 1)
        else:
            found.append(Span(at, at + 1))
    return found


# Scripts written without spaces: Thai, Lao, Burmese, Khmer, kana and ideographs.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def _in_word(char: str) -> bool:
    """Whether a word goes on through this character."""
    return bool(char) and unicodedata.category(char)[0] in "LNM" and not _UNSPACED.match(char)


@dataclass(frozen=True)
class Question:
    """A forced choice: after the first `read_at` characters of the text, `right` should follow, not `wrong`."""

    read_at: int
    right: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """One prompt. item: its unique name. cluster: template, document or page: what is resampled as a whole."""

    item: str
    cluster: str
    text: str


@dataclass(frozen=True)
class Labelled(Text):
    """A text with a query word, the words it should look at, and the other candidates.

    query: the pronoun. target: its antecedent. foils: the other candidates.
    cue: the words that decide which candidate is right, where they are not the query itself; a causal model
    is measured only where the cue comes before the query.
    pair: the item that differs in the cue alone and whose right answer is the other candidate.
    tags: what the item is balanced over (gender, distance, ...).
    """

    query: Span
    target: Span
    foils: tuple[Span, ...]
    cue: Span | None = None
    pair: str | None = None
    question: Question | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


RIVALS = ("nearest", "first", "longer", "offset", "same word")  # of accuracy: `probe.scores.rivals`


@dataclass(frozen=True)
class Dataset:
    """Texts of one phenomenon, with the statistic that measures it and the rivals a head must beat.

    rule: for phenomena that need no labels, where each token is expected to look (`probe.tokens.rules`); their items
    are plain `Text`. None: every item is `Labelled`. Raises DataError if two items have one name.
    """

    name: str
    phenomenon: str
    statistic: Literal["accuracy", "mass"]
    rivals: tuple[str, ...]
    items: tuple[Text, ...]
    source: str
    licence: str
    rule: str | None = None

    def __post_init__(self) -> None:
        twice = [name for name, n in Counter(i.item for i in self.items).items() if n > 1]
        if twice:
            raise DataError(f"{self.name}: the item name {twice[0]!r} is there more than once; names must be unique.")

    @property
    def hash(self) -> str:
        """SHA-256 of the items: the identity of the data in a manifest."""
        text = json.dumps([asdict(i) for i in self.items], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def texts(self) -> dict[str, str]:
        """Each item's name -> its text."""
        return {item.item: item.text for item in self.items}

    @property
    def item_hashes(self) -> dict[str, str]:
        """Each item's name -> the first eight digits of its SHA-256, to tell which items of two versions differ."""
        texts = {i.item: json.dumps(asdict(i), sort_keys=True, ensure_ascii=False) for i in self.items}
        return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in texts.items()}


def _starts(text: str, words: str) -> list[int]:
    if not words.strip():
        raise SpanError("the words to find are empty")
    found, at = [], text.find(words)
    while at >= 0:
        found.append(at)
        at = text.find(words, at + 1)
    return found


def _whole_word(text: str, start: int, end: int) -> bool:
    return not any(word.start < edge < word.end for word in words(text) for edge in (start, end))
