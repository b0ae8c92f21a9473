"""Phenomena of position, which need texts but no labels. They are described, never given a verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from probe.data.texts import Dataset, Text


def previous_token(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at the token before it (special tokens are neither query nor target)."""
    return _dataset("previous token", "previous", texts)


def first_token(texts: Iterable[Text]) -> Dataset:
    """Each token is expected to look at position 0, whatever stands there: the attention sink (Xiao et al. 2023)."""
    return _dataset("first token", "first", texts)


def _dataset(phenomenon: str, rule: Literal["previous", "first"], texts: Iterable[Text]) -> Dataset:
    items = tuple(Text(t.item, t.cluster, t.text) for t in texts)
    return Dataset(
        f"{phenomenon} in {len(items)} texts", phenomenon, "mass", (), items, "texts given", "as given", rule
    )
