"""Texts as one tokenizer sees them: ids, the characters behind each token, words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from probe.data.texts import Span, words
from probe.errors import PromptError, SpanError, UnsupportedModel
from probe.targets import Positions


@dataclass(frozen=True)
class Encoded:
    """One prompt. Positions count its tokens from 0, special tokens included.

    spans: the characters of each token, without surrounding spaces; None for special tokens.
    """

    text: str
    ids: Positions
    spans: tuple[Span | None, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def words(self) -> tuple[Positions, ...]:
        """The positions of each word's tokens; a token that holds two words belongs to the first."""
        bounds = words(self.text)
        found: dict[int, list[int]] = {}
        at = 0
        for position, span in enumerate(self.spans):
            if span is None:
                continue
            while at < len(bounds) and bounds[at].end <= span.start:
                at += 1
            if at < len(bounds) and bounds[at].start < max(span.end, span.start + 1):
                found.setdefault(at, []).append(position)
        return tuple(tuple(found[w]) for w in sorted(found))

    @property
    def pieces(self) -> tuple[str, ...]:
        """The text cut at the tokens, spaces included: joined (special tokens left out) they are the text again."""
        pieces, done = [], 0
        last = max((p for p, s in enumerate(self.spans) if s is not None), default=-1)
        for position, (span, name) in enumerate(zip(self.spans, self.names, strict=True)):
            if span is None:
                pieces.append(name)
                continue
            end = len(self.text) if position == last else max(span.end, done)
            pieces.append(self.text[done:end])
            done = end
        return tuple(pieces)

    @property
    def special(self) -> Positions:
        """The positions of special tokens, which are no part of the text."""
        return tuple(position for position, span in enumerate(self.spans) if span is None)

    @property
    def shown(self) -> tuple[str, ...]:
        """As `pieces`, with a space between special tokens and the words."""
        own = [position for position, span in enumerate(self.spans) if span is not None]
        return tuple(
            piece if position in own else f"{piece} " if position < own[0] else f" {piece}"
            for position, piece in enumerate(self.pieces)
        )

    def positions(self, span: Span) -> Positions:
        """The tokens that make up `span`. Raises SpanError where the span splits a token, naming the token."""
        inside = []
        for position, token in enumerate(self.spans):
            if token is None or token.end <= span.start or token.start >= span.end:
                continue
            if token.start < span.start or token.end > span.end:
                raise SpanError(
                    f"{span.text(self.text)!r} (characters {span.start} to {span.end}) splits inside the token "
                    f"{token.text(self.text)!r}; the nearest whole span is characters {min(token.start, span.start)} "
                    f"to {max(token.end, span.end)}."
                )
            inside.append(position)
        if not inside:
            raise SpanError(f"no token lies in characters {span.start} to {span.end} of {self.text!r}")
        return tuple(inside)


def listed(texts: object) -> list[str]:
    """One text or several as a list. Raises PromptError for anything else, and for none."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Iterable):
        raise PromptError(f"prompts are a text or a list of texts, not {texts!r}.")
    if not (several := list(texts)):
        raise PromptError("no prompts were given; give at least one text.")
    return several


def encode(tokenizer: Any, text: str, max_positions: int | None = None) -> Encoded:
    """Tokenize one prompt, special tokens as the model's own tokenizer adds them.

    max_positions: the model's context, in tokens; a longer prompt is an error, never cut.
    Raises PromptError (not a text, empty, too long), UnsupportedModel (a tokenizer without offsets).
    """
    if not isinstance(text, str):
        raise PromptError(f"a prompt is a text (str), not {type(text).__name__}: {text!r}")
    if not text.strip():
        raise PromptError(f"the prompt is empty: {text!r}. Give at least one word.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt holds {text[error.start]!r} at character {error.start}, which is half of a character and no "
            "text; it usually comes from bytes that are not UTF-8."
        ) from error
    require_offsets(tokenizer)
    made = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False)
    ids = tuple(made["input_ids"])
    if max_positions is not None and len(ids) > max_positions:
        raise PromptError(
            f"the prompt has {len(ids)} tokens; this model reads at most {max_positions}. It is not cut silently: "
            "shorten it."
        )
    names = tuple(tokenizer.convert_ids_to_tokens(list(ids)))
    spans = tuple(
        None if special else _stripped(text, *offsets)
        for offsets, special in zip(made["offset_mapping"], made["special_tokens_mask"], strict=True)
    )
    if not any(spans):
        raise PromptError(f"the tokenizer leaves nothing of the prompt {text!r}. Give at least one word it can read.")
    return Encoded(text, ids, spans, names)


def require_offsets(tokenizer: Any) -> None:
    """Raises UnsupportedModel for a tokenizer that does not say which characters each token stands for."""
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedModel(
            f"{type(tokenizer).__name__} gives no character offsets, so words cannot be placed on tokens; "
            "load a fast tokenizer (one with a tokenizer.json)."
        )


def unknown_words(tokenizer: Any, texts: Sequence[str]) -> set[str]:
    """The words of `texts` that the tokenizer has no token for, or only a special one."""
    special = set(tokenizer.all_special_ids)
    found = set()
    for text in texts:
        encoded = encode(tokenizer, text)
        found |= {s.text(text) for s, i in zip(encoded.spans, encoded.ids, strict=True) if s and i in special}
    return found


def _stripped(text: str, start: int, end: int) -> Span:
    """A token's characters without the spaces that byte-level tokenizers attach to them."""
    piece = text[start:end]
    kept = piece.strip()
    if not kept:
        return Span(start, end)
    lead = len(piece) - len(piece.lstrip())
    return Span(start + lead, start + lead + len(kept))
