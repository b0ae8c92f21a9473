"""Where a rule says each token looks: phenomena of position and form, which need no labels."""

from __future__ import annotations

import re
from collections.abc import Callable

from probe.errors import UnknownName
from probe.targets import Positions, Row
from probe.tokens.encoding import Encoded

Rule = Callable[[int, Encoded], Positions]
OFFSET = re.compile(r"offset ([+-][1-9]\d*)")


def rows(rule: str, prompt: Encoded, *, is_causal: bool) -> tuple[Row, ...]:
    """A row for each token that has somewhere to look by the rule; in a causal model, at or before itself.

    rule: a key of `RULES`, or "offset +3". Special tokens are never queries. Raises UnknownName.
    """
    look = _look(rule)
    found = []
    for query in _own(prompt):
        target = tuple(p for p in look(query, prompt) if not (is_causal and p > query))
        if target:
            found.append(Row((query,), target))
    return tuple(found)


def _look(rule: str) -> Rule:
    if offset := OFFSET.fullmatch(rule):
        return _at(int(offset[1]))
    if rule not in RULES:
        raise UnknownName.of("rule of where tokens look", rule, [*RULES, "offset -1", "offset +1"])
    return RULES[rule]


def _own(prompt: Encoded) -> list[int]:
    """The positions of tokens that are text."""
    return [p for p, span in enumerate(prompt.spans) if span is not None]


def _at(distance: int) -> Rule:
    """The text token so far on, if there is one."""

    def look(query: int, prompt: Encoded) -> Positions:
        at = query + distance
        return (at,) if 0 <= at < len(prompt) and prompt.spans[at] is not None else ()

    return look


def _first(query: int, prompt: Encoded) -> Positions:
    return (0,) if query > 0 else ()


def _delimiters(query: int, prompt: Encoded) -> Positions:
    """Special tokens, and tokens without a letter or digit, but the query itself."""

    def is_one(position: int) -> bool:
        span = prompt.spans[position]
        return span is None or not any(c.isalnum() for c in span.text(prompt.text))

    return tuple(p for p in range(len(prompt)) if p != query and is_one(p))


def _duplicates(query: int, prompt: Encoded) -> Positions:
    """Earlier tokens that are the same, by their id."""
    return tuple(p for p in range(query) if prompt.ids[p] == prompt.ids[query] and prompt.spans[p] is not None)


def _after_duplicates(query: int, prompt: Encoded) -> Positions:
    """What followed the same token before."""
    return tuple(p + 1 for p in _duplicates(query, prompt) if p + 1 < query)


RULES: dict[str, Rule] = {
    "previous": _at(-1),
    "next": _at(1),
    "self": _at(0),
    "first": _first,
    "delimiter": _delimiters,
    "duplicate": _duplicates,
    "after duplicate": _after_duplicates,
}
