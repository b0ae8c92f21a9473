"""Questions whose answer stands in the prompt, as tokens: where the value is, and what repeating it would look like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probe.data.buried import buried
from probe.data.texts import Dataset, Labelled, Span
from probe.errors import DataError, UnknownName
from probe.subject import Subject
from probe.targets import Positions
from probe.tokens.encoding import Encoded

_START = re.compile(r"[.!?]\s+|\n")
_END = re.compile(r"[.!?](?=\s|$)|(?=\n)|$")


@dataclass(frozen=True)
class Lookup:
    """One question. prompt: the text up to where the answer follows; ids: its tokens. value: the positions of the value
    asked for. needle: from there to the end of its sentence or line: what a model that copies would write.
    documents: the tokens of every sentence or line that holds a candidate, in order; gold: which of them is asked for.
    item, list, n, phrasing, index: as the data set names them.
    """

    item: str
    list: str
    n: int
    phrasing: str
    index: int
    prompt: str
    ids: Positions
    value: Positions
    needle: Positions
    documents: tuple[Positions, ...]
    gold: int

    @property
    def value_ids(self) -> Positions:
        """The value's tokens."""
        return tuple(self.ids[p] for p in self.value)

    @property
    def needle_ids(self) -> Positions:
        """The needle's tokens: the text that is forced on a model which is not to write its own."""
        return tuple(self.ids[p] for p in self.needle)


def lookups(subject: Subject, dataset: Dataset) -> list[Lookup]:
    """The questions of a data set of facts or pairs (`buried`, `key_values`, `needle`).

    One that is asked once a list about a name that is not there has one for each value of the list, as if it were the
    one asked for. Raises DataError where an item has no question or index, or a value has no tokens of its own.
    """
    found = []
    for item in dataset.items:
        if not isinstance(item, Labelled) or item.question is None or "index" not in item.tags:
            raise DataError(f"{item.item} of {dataset.name} asks for nothing at an index.")
        prompt = item.text[: item.question.read_at].rstrip()
        encoded, tags = subject.encode(prompt), item.tags
        index = int(tags["index"])
        every = sorted((item.target, *item.foils))
        documents = tuple(_inside(encoded, _around(prompt, span)) for span in every)
        for at, span in [(index, item.target)] if index >= 0 else list(enumerate(every)):
            name = item.item if index >= 0 else f"{item.item}-{at:02}"
            value, needle = _inside(encoded, span), _inside(encoded, Span(span.start, _around(prompt, span).end))
            if not value:
                raise DataError(f"{item.item} of {dataset.name}: {span.text(prompt)!r} has no tokens of its own.")
            found.append(
                Lookup(
                    name,
                    item.cluster,
                    int(tags["n"]),
                    tags.get("phrasing", ""),
                    at,
                    prompt,
                    encoded.ids,
                    value,
                    needle,
                    documents,
                    every.index(span),
                )
            )
    return found


def _around(text: str, span: Span) -> Span:
    """The sentence or line that holds the span."""
    starts = [found.end() for found in _START.finditer(text, 0, span.start)]
    end = _END.search(text, span.end)
    return Span(starts[-1] if starts else 0, end.end() if end else len(text))


def _inside(encoded: Encoded, span: Span) -> Positions:
    """The tokens that lie in the span whole."""
    return tuple(
        at for at, s in enumerate(encoded.spans) if s is not None and span.start <= s.start and s.end <= span.end
    )


FORMATS = {
    "chat": "the model's chat format, where it has one",
    "plain": "running text, without the chat format",
    "system": "the chat format, with a system prompt before the user's turn",
}
SYSTEM = "You are a helpful assistant. Answer the question from the text."


def chat(subject: Subject, *, answer: str = " ", form: str = "chat") -> tuple[str, str]:
    """What stands before a user's turn, and between it and the model's answer, for a model that was trained on turns
    marked as in ChatML; without such marks nothing, and `answer`. form: one of `FORMATS`; "system" puts `SYSTEM` first.
    Raises UnknownName for another, DataError for "system" where the model has no marks.
    """
    if form not in FORMATS:
        raise UnknownName.of("format", form, FORMATS)
    marked = "<|im_start|>" in subject.tokenizer.get_vocab()
    if form == "system" and not marked:
        raise DataError(f"{subject.name} has no chat format, so no place for a system prompt; formats: chat, plain.")
    if form == "plain" or not marked:
        return "", answer
    system = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if form == "system" else ""
    return f"{system}<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


def one_token(subject: Subject, before: str = " ") -> Callable[[str], bool]:
    """Whether a word is one token of this model behind `before`, such as a space or a quotation mark."""

    def fits(word: str) -> bool:
        alone = subject.tokenizer(before, add_special_tokens=False).input_ids if before.strip() else []
        return len(subject.tokenizer(f"{before}{word}", add_special_tokens=False).input_ids) == len(alone) + 1

    return fits


def facts(
    subject: Subject,
    n: int,
    *,
    lists: int = 12,
    indices: Sequence[int] | None = None,
    phrasing: str = "market",
    form: str = "chat",
    filler: tuple[str, str] = ("", ""),
    absent: bool = False,
    seed: int = 0,
) -> Dataset:
    """`probe.data.buried` for this model, with names and things that are one token each. form: one of `FORMATS`; other
    ones than "chat" are added to the data set's name.
    """
    made = buried(
        n,
        lists=lists,
        indices=indices,
        phrasing=phrasing,
        fits=one_token(subject),
        chat=chat(subject, form=form),
        filler=filler,
        absent=absent,
        seed=seed,
    )
    return made if form == "chat" else replace(made, name=f"{made.name}-{form}")
