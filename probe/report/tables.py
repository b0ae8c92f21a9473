"""The rows of the page's tables, as the template shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probe.report import metrics, strips
from probe.report.folder import Phenomenon, Results
from probe.report.html import head_link
from probe.report.numbers import NONE, count, fixed, interval, p_value
from probe.report.strips import Piece
from probe.runner.manifest import Manifest
from probe.runner.results import Example


@dataclass(frozen=True)
class HeadRow:
    """One head in a table. verdict: "pass", "fail", "not tested" or "described"."""

    label: str
    link: str
    verdict: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Headline:
    """One row of the verdict table at the top of the page."""

    name: str
    tested: bool
    passed: bool
    heads: str
    best: str
    link: str
    value: str
    value_label: str
    interval: str
    rival: str
    sample: str


BEST_COLUMNS = (
    "value", "95 % interval", "selection half", "best rival", "value − rival", "random max", "p", "Holm p",
    "q", "on target", "first token",
)  # fmt: skip
ALL_COLUMNS = (
    "value", "95 % interval", "on target", "first token", "entropy, nats", "word accuracy", "p", "Holm p",
    "q",
)  # fmt: skip


def link(phenomenon: Phenomenon, index: int) -> str:
    """The fragment that opens a head's examples."""
    return head_link(phenomenon.label(index), phenomenon.name)


def verdict(phenomenon: Phenomenon, index: int) -> str:
    """A head's outcome in words; only the attention leg is known here."""
    if not phenomenon.tested:
        return "described"
    if phenomenon.passed[index]:
        return "pass"
    return "fail" if phenomenon.picked[index] else "not tested"


def headlines(results: Results) -> list[Headline]:
    """One row per phenomenon, those with a test first."""
    return [_headline(p) for p in sorted(results.phenomena, key=lambda p: not p.tested)]


def _headline(phenomenon: Phenomenon) -> Headline:
    best, numbers = phenomenon.best, phenomenon.numbers
    n_passed, n_picked, n = int(phenomenon.passed.sum()), int(phenomenon.picked.sum()), len(numbers["value"])
    rival = phenomenon.best_rival
    return Headline(
        name=phenomenon.name,
        tested=phenomenon.tested,
        passed=n_passed > 0,
        heads=f"{n_passed} of {n_picked} tested ({n} in all)" if phenomenon.tested else NONE,
        best=phenomenon.label(best),
        link=link(phenomenon, best),
        value=fixed(float(numbers["value"][best])),
        value_label=metrics.label(phenomenon, "value"),
        interval=interval(float(numbers["low"][best]), float(numbers["high"][best])),
        rival=f"{rival.name} {fixed(rival.value)}" if rival is not None else NONE,
        sample=f"{count(phenomenon.n_units, 'prompt')}, {count(phenomenon.n_clusters, 'cluster')}",
    )


def best_rows(phenomenon: Phenomenon, n: int = 10) -> list[HeadRow]:
    """The best heads with everything their verdict rests on (`BEST_COLUMNS`)."""
    rows = []
    for index in phenomenon.ranked()[:n]:
        at = {name: float(values[index]) for name, values in phenomenon.numbers.items()}
        beaten_by = at["value"] - at["best_rival_value"]
        rival = phenomenon.best_rivals[index]
        cells = (
            fixed(at["value"]),
            interval(at["low"], at["high"]),
            fixed(at["selection_value"]),
            f"{rival} {fixed(at['best_rival_value'])}" if rival else NONE,
            "+" * (beaten_by > 0) + fixed(beaten_by),
            fixed(at["random_max"]),
            *(p_value(at[name]) for name in ("p", "p_holm", "q")),
            fixed(at["mass"]),
            fixed(at["first_mass"]),
        )
        rows.append(HeadRow(phenomenon.label(index), link(phenomenon, index), verdict(phenomenon, index), cells))
    return rows


def all_rows(phenomenon: Phenomenon) -> list[HeadRow]:
    """Every head, best first (`ALL_COLUMNS`)."""
    rows = []
    for index in phenomenon.ranked():
        at = {name: float(values[index]) for name, values in phenomenon.numbers.items()}
        cells = (
            fixed(at["value"]),
            interval(at["low"], at["high"]),
            *(fixed(at[name]) for name in ("mass", "first_mass", "entropy", "word_accuracy")),
            *(p_value(at[name]) for name in ("p", "p_holm", "q")),
        )
        rows.append(HeadRow(phenomenon.label(index), link(phenomenon, index), verdict(phenomenon, index), cells))
    return rows


def panel(phenomenon: Phenomenon, index: int) -> dict[str, str]:
    """A head's value, interval, chance and verdict in one phenomenon, as text. The script fills the same fields."""
    at = {name: float(phenomenon.numbers[name][index]) for name in ("value", "low", "high", "chance")}
    return {
        "value": fixed(at["value"]),
        "interval": interval(at["low"], at["high"]),
        "chance": fixed(at["chance"]),
        "verdict": verdict(phenomenon, index),
    }


Groups = list[tuple[str, str, list[tuple[Piece, float, str]]]]
"""A strip, neighbours of the same roles together: (role names, kind, [(piece, strength of its colour from 0 to 1,
"≈ 0.132")])."""


@dataclass(frozen=True)
class Strip:
    """One example as the template draws it, seen by one head.

    sums: (field the script fills, words, "≈ 0.94"). patch: what the answer loses when the head is patched, or "".
    """

    example: Example
    groups: Groups
    sums: list[tuple[str, str, str]]
    hit: bool
    patch: str
    n_tokens: int
    left_out: int


def strip(results: Results, number: int, pieces: tuple[Piece, ...], index: int) -> Strip:
    """Example `number` with the attention of head `index`, from the same bytes that the script reads."""
    example = results.examples[number]
    rows = results.rows[number].reshape(-1, results.rows.shape[-1])[index]
    code = strips.codes(pieces, rows)
    share = strips.decoded(code)
    grouped = coloured(pieces, code)
    names = ["foil"] if len(example.foils) == 1 else [f"foil {i + 1}" for i in range(len(example.foils))]
    sums = [("target", "target", about(float(share[strips.indices(pieces, example.target)].sum())))]
    for foil_number, (name, foil) in enumerate(zip(names, example.foils, strict=True)):
        total = float(share[strips.indices(pieces, foil)].sum())
        sums.append((f"foil-{foil_number}", name, about(total)))
    sums.append(("first", "first token", about(float(share[0]))))
    return Strip(
        example=example,
        groups=grouped,
        sums=sums,
        hit=bool(strips.on_target(example, rows[None, None])[0, 0]),
        patch=patched(results, number, index),
        n_tokens=len(example.tokens),
        left_out=sum(p.stop - p.start for p in pieces if p.left_out),
    )


def coloured(pieces: tuple[Piece, ...], code: npt.NDArray[np.uint8]) -> Groups:
    """A strip with the attention on each piece, from its byte. code: (piece,)."""
    share = strips.decoded(code)
    return [
        (
            ", ".join(roles),
            roles[0].split()[0] if roles else "",
            [(piece, round(float(code[i]) / 255, 3), about(float(share[i]), 3)) for i, piece in members],
        )
        for roles, members in strips.groups(pieces)
    ]


def manifest_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """The manifest flattened to (name, value), nested names joined by dots (some have their own place)."""
    rows: list[tuple[str, str]] = []

    def add(name: str, value: object) -> None:
        if name.startswith("data") and name.endswith(".items") and isinstance(value, dict):
            if value:
                rows.append((name, f"{count(len(value), 'item')}, named in manifest.json"))
        elif isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{name}.{key}", inner)
        elif isinstance(value, list) and value:
            for i, inner in enumerate(value):
                add(f"{name}[{i}]" if len(value) > 1 else name, inner)
        else:
            rows.append((name, NONE if value is None or value in ({}, []) else str(value)))

    for key, value in manifest.model_dump(mode="json", by_alias=True).items():
        if key not in ("question", "outputs", "command"):
            add(key, value)
    return rows


def about(value: float, digits: int = 2) -> str:
    """A number decoded from quantised attention."""
    return f"≈ {fixed(value, digits)}"


def patched(results: Results, number: int, index: int) -> str:
    """What example `number` loses when a head is patched; "" where that was not measured."""
    nats = float("nan") if results.patch is None else float(results.patch[number].ravel()[index])
    return "" if fixed(nats) == NONE else f" · patched {fixed(nats, 2)} nats"


def tally(strips: list[Strip]) -> str:
    """In how many prompts the target gets more than every foil, and in which it does not."""
    missed = [str(number + 1) for number, strip in enumerate(strips) if not strip.hit]
    found = f"{len(strips) - len(missed)} the target gets more than every foil"
    return f"{found}, not in {', '.join(missed)}" if missed else found
