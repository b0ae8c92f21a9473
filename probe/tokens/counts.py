"""How many tokens a text takes, and where a tokenizer cuts it."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import pandas as pd

from probe.tokens.encoding import Encoded, encode

SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}


def token_counts(tokenizer: Any, texts: Mapping[str, str]) -> pd.DataFrame:
    """One row for each text (name -> text): what it costs in tokens, and its pieces.

    Columns: kind (the name), text, characters (Unicode code points), bytes (UTF-8), tokens (special ones left out),
    unknown (tokens that stand for anything), per_character (tokens for each character), pieces (see `cut`), whole
    (whether the pieces joined are the text again, so that no character was cut in two or lost).
    """
    rows = []
    for kind, text in texts.items():
        prompt = encode(tokenizer, text)
        own = [at for at, span in enumerate(prompt.spans) if span is not None]
        rows.append(
            {
                "kind": kind,
                "text": visible(text),
                "characters": len(text),
                "bytes": len(text.encode()),
                "tokens": len(own),
                "unknown": sum(prompt.ids[at] == tokenizer.unk_token_id for at in own),
                "per_character": len(own) / len(text),
                "pieces": cut(prompt),
                "whole": "".join(prompt.pieces[at] for at in own) == text,
            }
        )
    return pd.DataFrame(rows)


def token_table(prompt: Encoded) -> pd.DataFrame:
    """One row for each token: position, id, name (in the vocabulary), text (what it stands for), characters (the first,
    and the one after the last, or "added" for special tokens).
    """
    return pd.DataFrame(
        {
            "position": range(len(prompt)),
            "id": prompt.ids,
            "name": prompt.names,
            "text": ["" if span is None else visible(span.text(prompt.text)) for span in prompt.spans],
            "characters": ["added" if span is None else f"{span.start} to {span.end}" for span in prompt.spans],
        }
    )


def cut(prompt: Encoded) -> str:
    """The characters that each token stands for, with a bar between them: `The|␣cat|␣didn|'t`.

    A character that takes several tokens is written once, with their number: `人×2`. Special tokens are left out;
    spaces, line ends and characters without a shape are written as signs.
    """
    shown: list[tuple[str, int]] = []
    for piece, span in zip(prompt.pieces, prompt.spans, strict=True):
        if span is None:
            continue
        if piece or not shown:
            shown.append((visible(piece), 1))
        else:  # the rest of a character whose first token has been written
            shown[-1] = shown[-1][0], shown[-1][1] + 1
    return "|".join(piece if n == 1 else f"{piece}×{n}" for piece, n in shown)


def visible(text: str) -> str:
    """The text with signs for what leaves no ink: `␣`, `↵`, `⇥`, and the code point of other such characters."""
    return "".join(SIGNS.get(c, f"U+{ord(c):04X}" if unicodedata.category(c)[0] in "CZ" else c) for c in text)
