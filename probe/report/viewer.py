"""The attention viewer: one HTML page of every head's attention in a few texts. Opens offline, loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from markupsafe import Markup

from probe.report.gather import SHARES, Gathered, Prompt
from probe.report.html import BUDGET, asset, check_budget, data_uri, environment, script_hash
from probe.report.island import island
from probe.report.numbers import count, fixed, size
from probe.report.packing import COLOUR, DENSE, SIDE, TOP, sheet
from probe.report.strips import LONG, Piece, decoded, single

RESERVE = 150_000
"""Bytes kept free for the words of the page and whatever was estimated too low."""
LINE = 250
"""Bytes that a head's row of numbers takes."""
BLOCK = 200
"""Tokens of a long text that the script colours together."""
MOST_DIFFERENT = 12


@dataclass(frozen=True)
class About:
    """What the page says of its making. name: of the model. command: that makes it again, "" where none does. facts:
    (name, value) rows. exact: file with the exact weights and its SHA-256. first: heads (layer, head) to keep whatever
    they look at.
    """

    name: str = ""
    command: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    exact: tuple[str, str] | None = None
    first: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Strip:
    """A text as the template shows it: pieces with (strength of colour, weight) in the starting view, or, of a long
    text, blocks of plain text that the script colours when they are seen.
    """

    tokens: tuple[tuple[Piece, float, str], ...]
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class Kept:
    """Which heads' patterns are in the page, and which ones' vectors: numbers of heads, in the order taken."""

    patterns: tuple[int, ...]
    vectors: tuple[int, ...]


def render(prompts: Sequence[Prompt], seen: Gathered, about: About) -> bytes:
    """The page as bytes, the same for the same input. Raises ResultsError if it is over the budget."""
    style = asset("report.css") + "\n" + asset("viewer.css")
    script = asset("viewer.js")
    sheets = [data_uri(sheet(_by_layer(seen, t), len(seen.layers))) for t in range(len(prompts))]
    shown = [[single(i, token) for i, token in enumerate(prompt.tokens)] for prompt in prompts]
    room = BUDGET - RESERVE - len(style) - len(script) - sum(map(len, sheets)) - LINE * len(seen.patterns)
    kept = choose(seen, about.first, room - sum(30 * len(prompt.tokens) for prompt in prompts))
    best = kept.patterns[0]
    start = [seen.differences[best].query if seen.differences else _start(prompt) for prompt in prompts]
    data = island(_data(prompts, shown, seen, kept, start))
    text = (
        environment()
        .get_template("viewer.html.j2")
        .render(
            about=about,
            prompts=prompts,
            seen=seen,
            best=best,
            label=lambda head: label(seen, head),
            strips=[_strip(shown[t], seen.patterns[best][t].row(start[t])) for t in range(len(prompts))],
            sheets=sheets,
            shares=SHARES,
            rows=_rows(seen),
            differences=_differences(seen, prompts),
            ledger=_ledger(prompts, seen, kept, sheets),
            style=Markup(style),
            script=Markup(script),
            script_hash=script_hash(script),
            data=Markup(data),
        )
    )
    page = text.encode("utf-8", "replace")
    check_budget(len(page), {"thumbnails": sum(map(len, sheets)), "patterns": len(data)})
    return page


def label(seen: Gathered, head: int) -> str:
    """The head's name, "layer.head"."""
    layer, place = divmod(head, seen.n_heads)
    return f"{seen.layers[layer]}.{seen.heads[place]}"


def choose(seen: Gathered, first: Sequence[tuple[int, int]], room: int) -> Kept:
    """Patterns of the heads asked for, of the one that differs most between two texts, and of those with the most
    attention elsewhere than the usual places, as many as fit into `room` bytes (a third of it is left for q, k and v
    where there are any); then the vectors of the same. One pattern is always kept.
    """
    between = [int(np.argmax([d.mean for d in seen.differences]))] if seen.differences else []
    asked = [seen.layers.index(layer) * seen.n_heads + seen.heads.index(head) for layer, head in first]
    order = list(dict.fromkeys([*asked, *between, *np.argsort(-seen.elsewhere, kind="stable").tolist()]))
    sizes = [sum(len(p.data) for p in seen.patterns[head]) for head in order]
    ends = list(accumulate(sizes))
    patterns = order[: max(1, sum(end <= (room * 2 // 3 if seen.q else room) for end in ends))]
    left = room - ends[len(patterns) - 1]
    if not seen.q:
        return Kept(tuple(patterns), ())
    vectors, taken = [], set()
    for head in patterns:
        kv = seen.kv_head(head)
        parts = [*seen.q[head], *(() if kv in taken else (*seen.k[kv], *seen.v[kv]))]
        left -= sum(len(str(part["data"])) + 40 for part in parts)
        if left < 0:
            break
        taken.add(kv)
        vectors.append(head)
    return Kept(tuple(patterns), tuple(vectors))


def _by_layer(seen: Gathered, prompt: int) -> list[Any]:
    """Thumbnails for a sheet with a column for each layer and a row for each head."""
    heads = [layer * seen.n_heads + head for head in range(seen.n_heads) for layer in range(len(seen.layers))]
    return [seen.thumbnails[head][prompt] for head in heads]


def _start(prompt: Prompt) -> int:
    """The query that is chosen first: the last that is no special token."""
    at = prompt.at or ()
    words = [row for row, place in enumerate(at) if place not in prompt.special]
    return words[-1] if words else len(prompt.rows) - 1


def _strip(shown: Sequence[Piece], codes: Any) -> Strip:
    if len(shown) > LONG:
        starts = range(0, len(shown), BLOCK)
        return Strip((), tuple("".join(p.lead + p.text for p in shown[i : i + BLOCK]) for i in starts))
    weights = decoded(codes)
    marked = zip(shown, codes, weights, strict=True)
    return Strip(tuple((p, round(int(c) / 255, 3), f"≈ {fixed(float(w))}") for p, c, w in marked), ())


def _data(
    prompts: Sequence[Prompt], shown: list[list[Piece]], seen: Gathered, kept: Kept, start: list[int]
) -> dict[str, Any]:
    kv = None if seen.n_kv_heads == seen.n_heads else [seen.kv_head(head) for head in range(seen.n_heads)]
    return {
        "layers": seen.layers,
        "heads": seen.heads,
        "kv": kv,
        "best": kept.patterns[0],
        "colour": COLOUR,
        "top": TOP,
        "block": BLOCK,
        "vectors": {str(head): seen.kv_head(head) for head in kept.vectors},
        "prompts": [
            {
                "tokens": [[p.lead, p.text, int(p.rtl)] for p in shown[t]],
                "rows": [single(0, token).text for token in prompt.queries] if prompt.at is None else None,
                "at": None if prompt.at is None else _short(prompt.at, len(prompt.tokens)),
                "start": start[t],
                "patterns": {
                    str(head): [seen.patterns[head][t].kind, seen.patterns[head][t].data] for head in kept.patterns
                },
                "q": {str(head): seen.q[head][t] for head in kept.vectors},
                **{
                    name: {str(kv): lists[kv][t] for kv in dict.fromkeys(map(seen.kv_head, kept.vectors))}
                    for name, lists in (("k", seen.k), ("v", seen.v))
                },
            }
            for t, prompt in enumerate(prompts)
        ],
    }


def _short(at: tuple[int, ...], keys: int) -> list[int] | str:
    """The positions of queries; "all" where every token is one."""
    return "all" if at == tuple(range(keys)) else list(at)


def _rows(seen: Gathered) -> list[tuple[str, tuple[str, ...]]]:
    """Every head's shares, mean over prompts, those that look elsewhere first."""
    order = np.argsort(-seen.elsewhere, kind="stable")
    return [(label(seen, int(h)), tuple(fixed(float(v)) for v in seen.shares[h].mean(axis=0))) for h in order]


def _differences(seen: Gathered, prompts: Sequence[Prompt]) -> list[tuple[str, str, str, str]]:
    """The heads that differ most between two texts: name, mean, largest, and the query where."""
    order = np.argsort([-d.mean for d in seen.differences], kind="stable")[:MOST_DIFFERENT]
    found = []
    for head in order.tolist():
        d = seen.differences[head]
        words = dict.fromkeys(single(0, prompt.rows[d.query]).text for prompt in prompts)
        found.append((label(seen, head), fixed(d.mean), fixed(d.most), f"{' | '.join(words)} ({d.query})"))
    return found


def _ledger(prompts: Sequence[Prompt], seen: Gathered, kept: Kept, sheets: list[str]) -> list[tuple[str, str]]:
    """What the page holds of the attention, and what it does not."""
    n, patterns = len(seen.patterns), [seen.patterns[head] for head in kept.patterns]
    cut = any(p.kind == "top" for p in patterns[0])
    taken = sum(len(p.data) for ps in patterns for p in ps)
    whole = f"Above {DENSE} tokens each row keeps its {TOP} largest weights and the sum of the rest." if cut else ""
    lines = [
        ("Exact", f"The shares of all {n} heads in the table, from the full patterns; printed to three decimals."),
        ("Pooled", f"The thumbnails of all {n} heads: at most {SIDE} × {SIDE} cells, each the largest weight in it, "
         f"one byte ({size(sum(map(len, sheets)))})."),
        ("Quantised", f"The patterns of {count(len(patterns), 'head')}: one byte a weight, round(255·√p), so each is "
         f"within 0.004 of its exact value ({size(taken)}). {whole}"),
    ]  # fmt: skip
    if kept.vectors:
        parts = [*(seen.q[h] for h in kept.vectors)]
        for kv in dict.fromkeys(map(seen.kv_head, kept.vectors)):
            parts += [seen.k[kv], seen.v[kv]]
        taken = sum(len(str(one["data"])) for part in parts for one in part)
        what = f"q, k and v of {count(len(kept.vectors), 'head')}: one signed byte a number ({size(taken)})."
        lines.append(("Quantised", what))
    left = [f"patterns of {n - len(patterns)} heads"] if len(patterns) < n else []
    left += [f"q, k and v of {n - len(kept.vectors)} heads"] if len(kept.vectors) < n else []
    if left:
        lines.append(("Left out", f"{' and '.join(left).capitalize()}, which would not fit or were not read."))
    return lines
