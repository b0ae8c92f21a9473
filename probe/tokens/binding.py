"""From texts with character spans to token positions: `Dataset` -> `Targets`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.data.texts import Dataset, Labelled, Question, Text
from probe.errors import DataError, PromptError, SpanError
from probe.targets import Answer, Direction, Excluded, Positions, Row, Targets, Unit
from probe.tokens.encoding import Encoded
from probe.tokens.rules import rows

Encode = Callable[[str], Encoded]
MOST_REASONS = 3  # named where nothing can be measured


class _NotMeasurable(Exception):
    """Why one item cannot be measured on this subject."""


def bind(dataset: Dataset, encode: Encode, *, is_causal: bool) -> Targets:
    """Place a dataset's spans on a subject's tokens; what cannot be placed is left out and counted.

    Raises DataError if nothing is left.
    """
    encoded: dict[str, Encoded] = {}
    units, excluded = [], []
    for item in dataset.items:
        try:
            encoded[item.item] = encode(item.text)
        except PromptError as error:
            excluded.append(Excluded(item.item, f"unreadable prompt: {error}"))
    labelled = {i.item: i for i in dataset.items if isinstance(i, Labelled)}
    for item in dataset.items:
        if item.item not in encoded:
            continue
        try:
            if isinstance(item, Labelled):
                units.append(_labelled(item, encoded, labelled, encode, is_causal))
            else:
                units.append(_by_rule(item, encoded[item.item], dataset.rule, is_causal))
        except _NotMeasurable as reason:
            excluded.append(Excluded(item.item, str(reason)))
    if not units:
        raise DataError(f"nothing in {dataset.name} can be measured on this model: {_reasons(excluded)}")
    return Targets(dataset.phenomenon, dataset.name, dataset.statistic, dataset.rivals, tuple(units), tuple(excluded))


def _reasons(excluded: Sequence[Excluded]) -> str:
    """Why nothing could be measured: the first few reasons, for thousands of items may have one each."""
    reasons = sorted({e.reason for e in excluded})
    more = f"; and {len(reasons) - MOST_REASONS} other reasons" if len(reasons) > MOST_REASONS else ""
    return "; ".join(reasons[:MOST_REASONS]) + more or "it has no items"


def _labelled(
    item: Labelled, encoded: dict[str, Encoded], items: dict[str, Labelled], encode: Encode, is_causal: bool
) -> Unit:
    prompt = encoded[item.item]
    row = _row(item, prompt)
    direction = _direction(row)
    if is_causal:
        if direction != "before":
            raise _NotMeasurable("a candidate follows the query, where a causal model cannot look")
        if item.cue is not None and item.cue.start > item.query.start:
            raise _NotMeasurable("the deciding words follow the query, where a causal model cannot look")
    answer = _answer(prompt, item.question, encode) if item.question else None
    read = len(prompt) if answer is None else answer.read_at + 1
    swapped = None
    if item.pair in items and item.pair in encoded:
        swapped = _aligned(item, prompt, items[item.pair], encoded[item.pair], read)
    return Unit(
        item.item,
        item.cluster,
        prompt.ids,
        (row,),
        prompt.words,
        "self",
        direction,
        answer=answer,
        swapped=swapped,
    )


def _row(item: Labelled, prompt: Encoded) -> Row:
    try:
        query, target = prompt.positions(item.query), prompt.positions(item.target)
        foils = tuple(prompt.positions(f) for f in item.foils)
    except SpanError as error:
        if "splits inside" in str(error):
            raise _NotMeasurable("a labelled span splits a token of this tokenizer") from error
        raise _NotMeasurable("a labelled span has no token of its own") from error
    if len({*query, *target, *(p for f in foils for p in f)}) < len(query) + len(target) + sum(map(len, foils)):
        raise _NotMeasurable("the query and the candidates overlap")
    return Row(query, target, foils)


def _direction(row: Row) -> Direction:
    candidates = (row.target, *row.foils)
    if all(c[-1] < row.query[0] for c in candidates):
        return "before"
    return "after" if all(c[0] > row.query[-1] for c in candidates) else "both"


def _aligned(item: Labelled, prompt: Encoded, other: Labelled, pair: Encoded, read: int) -> Positions | None:
    """The pair's ids if, over the first `read` tokens, it differs in the deciding word alone, and in the answer: its
    target is a foil here, or is the deciding word itself and another answer is right; else None.
    """
    if len(pair) != len(prompt):
        return None
    try:
        ours, theirs = _row(item, prompt), _row(other, pair)
        cue, their_cue = prompt.positions(item.cue or item.query), pair.positions(other.cue or other.query)
    except (_NotMeasurable, SpanError):
        return None
    differing = {p for p in range(read) if prompt.ids[p] != pair.ids[p]}
    same_place = ours.query == theirs.query and cue == their_cue and differing <= set(cue)
    asks = item.question is not None and other.question is not None and item.question.right != other.question.right
    turned = theirs.target in ours.foils or (asks and theirs.target == ours.target and set(cue) <= set(ours.target))
    return pair.ids if same_place and turned else None


def _answer(prompt: Encoded, question: Question, encode: Encode) -> Answer | None:
    """Where and what the model is to answer; None where an answer's tokens do not follow the prompt's own."""
    head = prompt.text[: question.read_at].rstrip()
    # Where the right answer follows without a space, as behind a quotation mark, all candidates do.
    joined = len(head) == question.read_at and prompt.text.startswith(question.right, question.read_at)
    start = encode(head).ids
    start = start if start == prompt.ids[: len(start)] else ()
    ids = []
    for words in (question.right, *question.wrong):
        whole = encode(head + " " * (not joined) + words).ids
        if not start or whole[: len(start)] != start or len(whole) == len(start):
            return None
        ids.append(whole[len(start) :])
    if any(wrong[0] == ids[0][0] for wrong in ids[1:]):
        return None
    return Answer(len(start) - 1, ids[0], tuple(ids[1:]))


def _by_rule(item: Text, prompt: Encoded, rule: str | None, is_causal: bool) -> Unit:
    """Every token that has one looks at the position the rule names."""
    if rule is None:
        raise DataError(f"{item.item} has no labels and its dataset has no rule.")
    found = rows(rule, prompt, is_causal=is_causal)
    if not found:
        raise _NotMeasurable(f"no token has anywhere to look by the rule {rule!r}")
    return Unit(item.item, item.cluster, prompt.ids, found, prompt.words)
