"""BLiMP (Warstadt et al. 2020): minimal pairs of agreement, as published: one JSON object a line.

`Those patients who can sell some couch didn't investigate themselves / itself.`   reflexives and their antecedents
`A niece of most senators hasn't / haven't descended most slopes.`                 verbs and their subjects

BLiMP labels no words. Its sentences come from grammars, so the words can be found by rules; a sentence that no rule
fits without a guess is left out and counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probe.data.language.parts import listed
from probe.data.texts import RIVALS, Dataset, Labelled, Question, Span
from probe.errors import DataError, UnknownName

DETERMINERS = frozenset(listed("a an the this that these those some most many all every each no few several"))
AUXILIARIES = frozenset(
    word + negation
    for word in listed("is are was were has have had do does did can could will would should might")
    for negation in ("", "n't")
) | {"can't", "won't", "mightn't"}
RELATIVE = frozenset(("that", "who", "which", "whom"))
PREPOSITIONS = frozenset(listed("to about of from with like for at by around through over"))
FIELDS = ("sentence_good", "sentence_bad", "one_prefix_prefix", "one_prefix_word_good", "one_prefix_word_bad", "UID")

# Sets whose words can be found -> what is agreed with, and whether another noun stands in between.
SETS: Mapping[str, tuple[str, bool]] = {
    "anaphor_gender_agreement": ("antecedent", False),
    "anaphor_number_agreement": ("antecedent", False),
    "principle_A_c_command": ("antecedent", True),
    "regular_plural_subject_verb_agreement_1": ("subject", False),
    "distractor_agreement_relational_noun": ("subject", True),
}
PHENOMENA = {"antecedent": "anaphor agreement", "subject": "agreement"}


class _Unclear(Exception):
    """Why the words of a sentence cannot be told."""


def blimp(path: str | Path, *, query: Literal["word", "before"] = "word") -> Dataset:
    """The question: does the word that agrees look at the noun it agrees with, rather than at the noun in between?

    path: one of the files of `SETS`, as published; its UID says which. query: "word", the reflexive or verb itself (of
    the acceptable sentence), or "before", the word before it, where a causal model has to know which one comes.
    Target: the head of the antecedent or subject, all words of a name. It is found in the words before the query: they
    begin with the noun phrase, which is a name (capitalised), a bare plural, or a determiner and one or more nouns; it
    ends at the first auxiliary, `that` or `who`, `of` or `about`, or before the one verb that is left. Foil, in the
    sets that have a noun in between: the last noun before the main verb, after a determiner, or a name.
    The target of these sets always comes first, so no head can beat the rule "first" there: accuracy is to be read
    beside it. Sets without such a noun have no foil: their heads are described by attention on the target ("mass").
    What is asked: after the words that both sentences share, which of the two differing words? A causal model cannot
    be asked where both begin with the same token (disappear, disappears).
    The pair shares all words before the question, so there is no aligned prompt with the other answer.
    A cluster is all sentences with the same head. Tags: word (the right one), head, and foil where there is one.
    `Dataset.source` says how many sentences are left out, and why. Raises DataError, with path, line and field, for a
    file that is missing or malformed; UnknownName for a set whose words cannot be found.

    Licence: CC BY 4.0. Source: https://github.com/alexwarstadt/blimp.
    """
    if query not in ("word", "before"):
        raise UnknownName.of("query", query, ("word", "before"))
    path = Path(path)
    pairs = list(_pairs(path))
    name = pairs[0].uid
    if name not in SETS:
        raise UnknownName.of("BLiMP set whose words can be found", name, SETS)
    agrees_with, between = SETS[name]
    items, left_out = [], Counter[str]()
    for pair in pairs:
        try:
            items.append(_item(pair, agrees_with, between, query))
        except _Unclear as reason:
            left_out[str(reason)] += 1
    reasons = "".join(f"; {n} left out: {reason}" for reason, n in left_out.most_common())
    return Dataset(
        name=f"blimp-{name}".lower() + ("" if query == "word" else "-before"),
        phenomenon=PHENOMENA[agrees_with],
        statistic="accuracy" if between else "mass",
        rivals=RIVALS if between else (),
        items=tuple(items),
        source=f"BLiMP (Warstadt et al. 2020): {len(pairs)} pairs, {len(items)} with words that can be found{reasons}",
        licence="CC BY 4.0",
    )


@dataclass(frozen=True)
class _Pair:
    """One line. prefix: the words that both sentences begin with; right, wrong: the words that follow."""

    line: int
    uid: str
    good: str
    prefix: str
    right: str
    wrong: str


def _pairs(path: Path) -> Iterator[_Pair]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; BLiMP has files like {next(iter(SETS))}.jsonl.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}.") from error
    if not any(line.strip() for line in lines):
        raise DataError(f"{path}: the file is empty.")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _pair(line, number, f"{path}, line {number}")


def _pair(line: str, number: int, where: str) -> _Pair:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: this is no JSON ({error.msg} at character {error.pos}).") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: expected an object with the fields {', '.join(FIELDS)}.")
    for name in FIELDS:
        if not (isinstance(fields.get(name), str) and fields[name]):
            raise DataError(f"{where}, field {name!r}: expected a text that is not empty, got {fields.get(name)!r}.")
    good, bad, prefix, right, wrong, uid = (fields[name] for name in FIELDS)
    for name, sentence, word in (("sentence_good", good, right), ("sentence_bad", bad, wrong)):
        if not sentence.startswith(f"{prefix} {word}"):
            raise DataError(f"{where}, field {name!r}: {sentence!r} does not begin with {f'{prefix} {word}'!r}.")
    return _Pair(number, uid, good, prefix, right, wrong)


def _item(pair: _Pair, agrees_with: str, between: bool, query: str) -> Labelled:
    words = _words(pair.prefix)
    if agrees_with == "subject":
        head, foil = _subject(words, between)
    else:
        head, foil = _antecedent(words, between)
    start = len(pair.prefix) + 1
    asks = Span(start, start + len(pair.right)) if query == "word" else words[-1].span
    if asks in (head.span, foil and foil.span):
        raise _Unclear("the word before is itself a candidate")
    return Labelled(
        item=f"{pair.uid.lower()}-{pair.line:04}",
        cluster=head.text.lower(),
        text=pair.good,
        query=asks,
        target=head.span,
        foils=() if foil is None else (foil.span,),
        question=Question(len(pair.prefix), pair.right, (pair.wrong,)),
        tags={"word": pair.right, "head": head.text, **({} if foil is None else {"foil": foil.text})},
    )


@dataclass(frozen=True)
class _Word:
    """A word, or the words of a name."""

    text: str
    span: Span

    @property
    def low(self) -> str:
        return self.text.lower()


def _words(text: str) -> list[_Word]:
    """The words of a text, cut at spaces alone: BLiMP's words before the question have no punctuation."""
    found, at = [], 0
    for word in text.split(" "):
        found.append(_Word(word, Span(at, at + len(word))))
        at += len(word) + 1
    return found


def _antecedent(words: Sequence[_Word], between: bool) -> tuple[_Word, _Word | None]:
    """The head of the noun phrase that the sentence begins with; the object of its relative clause, if it has one."""
    relative = next((n for n, w in enumerate(words) if n > 0 and w.low in RELATIVE), None)
    if not between:
        if relative is not None:
            raise _Unclear("there is a relative clause where none is expected")
        return _head(words[: _end_of_subject(words)]), None
    if relative is None:
        raise _Unclear("there is no relative clause")
    return _head(words[:relative]), _head(_last_phrase(words[relative + 1 : _main_verb(words, relative)]))


def _subject(words: Sequence[_Word], between: bool) -> tuple[_Word, _Word | None]:
    """All words are the subject: its head, and the noun of its `of` or `about`, if it has one."""
    start = _after_determiner(words)
    link = next((n for n, w in enumerate(words) if n > start and w.low in ("of", "about")), None)
    if not between:
        return _head(words), None
    if link is None:
        raise _Unclear("there is no 'of' or 'about' after the noun")
    return _head(words[:link]), _head(words[link + 1 :])


def _after_determiner(words: Sequence[_Word]) -> int:
    """Where a noun phrase goes on after its determiner; 0 where it has none."""
    if [w.low for w in words[:3]] == ["a", "lot", "of"]:
        return 3
    return int(bool(words) and words[0].low in DETERMINERS)


def _head(phrase: Sequence[_Word]) -> _Word:
    """The last noun of a noun phrase, or a name whole."""
    start = _after_determiner(phrase)
    nouns = phrase[start:]
    if not nouns:
        raise _Unclear("a noun phrase has no noun")
    if any(w.low in DETERMINERS | AUXILIARIES | RELATIVE | PREPOSITIONS for w in nouns):
        raise _Unclear("a noun phrase is longer than one noun")
    capitals = [w.text[:1].isupper() for w in nouns]
    if all(capitals):  # a name; or, first in the sentence, a bare plural
        return _Word(" ".join(w.text for w in nouns), Span(nouns[0].span.start, nouns[-1].span.end))
    if start == 0 and len(nouns) > 1:
        raise _Unclear("a noun phrase has no determiner and is no name")
    return nouns[-1]


def _end_of_subject(words: Sequence[_Word]) -> int:
    """Where the verb begins, in a sentence without a relative clause."""
    start = _after_determiner(words)
    auxiliary = next((n for n, w in enumerate(words) if n > start and w.low in AUXILIARIES), None)
    if auxiliary is not None:
        return auxiliary
    end = start
    while end < len(words) and words[end].text[:1].isupper():
        end += 1  # a name, or a bare plural
    verb = _last_verb(words)
    if verb != (end if end > start else start + 1):
        raise _Unclear("where the subject ends cannot be told from the words")
    return verb


def _main_verb(words: Sequence[_Word], relative: int) -> int:
    """Where the main verb, or its auxiliary, begins after a relative clause."""
    auxiliary = max((n for n, w in enumerate(words) if w.low in AUXILIARIES), default=0)
    return auxiliary if auxiliary > relative + 1 else _last_verb(words)


def _last_verb(words: Sequence[_Word]) -> int:
    """The verb of words that end in a verb, or a verb and its preposition."""
    return len(words) - (2 if words[-1].low in PREPOSITIONS else 1)


def _last_phrase(clause: Sequence[_Word]) -> Sequence[_Word]:
    """The noun phrase that a relative clause ends in: from its last determiner, or a name."""
    for n in range(len(clause) - 1, 0, -1):
        if clause[n].low in DETERMINERS or [w.low for w in clause[n : n + 3]] == ["a", "lot", "of"]:
            return clause[n:]
    names = len(clause)
    while names > 0 and clause[names - 1].text[:1].isupper():
        names -= 1
    if names == len(clause) or names == 0:
        raise _Unclear("a relative clause does not end in a noun that can be told")
    return clause[names:]
