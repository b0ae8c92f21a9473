"""Phenomena of position and form, which need texts but no labels. They are described, never given a verdict."""

from __future__ import annotations

from collections.abc import Iterable

from probe.data.texts import Dataset, Text


def previous_token(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at the token before it (special tokens are neither query nor target)."""
    return by_rule("previous token", "previous", texts)


def next_token(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at the token after it: in models that see it, as encoders do."""
    return by_rule("next token", "next", texts)


def first_token(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at position 0, whatever stands there: the attention sink (Xiao et al. 2023)."""
    return by_rule("first token", "first", texts)


def own_token(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at itself."""
    return by_rule("own token", "self", texts)


def fixed_offset(texts: Iterable[Text], distance: int) -> Dataset:
    """Each token is expected to look at the token `distance` on, behind it where that is negative."""
    return by_rule(f"offset {distance:+d}", f"offset {distance:+d}", texts)


def delimiters(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at special tokens and punctuation (Clark et al. 2019)."""
    return by_rule("delimiter", "delimiter", texts)


def duplicate_token(texts: Iterable[Text]) -> Dataset:
    """Each token that was there before is expected to look at its earlier copies (Wang et al. 2023)."""
    return by_rule("duplicate token", "duplicate", texts)


def after_duplicate(texts: Iterable[Text]) -> Dataset:
    """Each token that was there before is expected to look at what followed its earlier copies: prefix matching
    (Olsson et al. 2022).
    """
    return by_rule("after duplicate", "after duplicate", texts)


def by_rule(phenomenon: str, rule: str, texts: Iterable[Text]) -> Dataset:
    """Texts with a rule of `probe.tokens.rules`, which binding them to a model looks up."""
    items = tuple(Text(t.item, t.cluster, t.text) for t in texts)
    return Dataset(
        f"{phenomenon} in {len(items)} texts", phenomenon, "mass", (), items, "texts given", "as given", rule
    )
