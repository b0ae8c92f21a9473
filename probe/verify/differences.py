"""What differs between two results of the same shape: numbers within a tolerance, texts word by word.

A metric is a column of a table, or a part of a JSON file (the answer, the gates). Tables that hold times (their names
begin with `timing_`) are not compared: times are never the same twice.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from probe.runner.findings import FINDINGS, TIMES, table_file

Flags = npt.NDArray[np.bool_]
Outcome = Literal["exact", "within tolerance", "changed", "not compared"]
EXACT: Outcome = "exact"
CLOSE: Outcome = "within tolerance"
CHANGED: Outcome = "changed"
SKIPPED: Outcome = "not compared"
KEYS = ("phenomenon", "rival", "layer", "head")
"""Columns that name a row; tables that have them are compared row by row of the same name."""
UNREADABLE = (
    ValueError, TypeError, LookupError, AttributeError, OSError, EOFError, RecursionError, pa.ArrowException,
    zipfile.BadZipFile,
)  # fmt: skip
"""What a file raises that is not, or no longer, what its name says."""
P_VALUE = re.compile(r"(.*[ _])?(p|q)(_.*)?")
CORRECTED = re.compile(r"(.*[ _])?(p_holm|q)")
"""Names of p-values, and of those that are corrected for many tests."""
FLIPS = 9999
"""Random sign flips behind a p-value (`probe.stats.sign_flip`)."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Tolerance:
    """Numbers agree if |a - b| <= absolute + relative · |a|. The default covers another number of threads (3e-5 in
    logits) and leaves out changes that a reader of three digits could see.

    A p-value counts flips, of which those that hardly differ from what was measured fall to either side of it by
    rounding alone: it may also be off by two standard errors of its flips, a corrected one by as many times that as
    there were tests. That of an effect which is itself no larger than `absolute` may be anything.
    """

    absolute: float = 1e-4
    relative: float = 1e-3

    def __str__(self) -> str:
        return f"{self.absolute:g} + {self.relative:g}·|value|"

    def agree(self, name: str, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Whether each value agrees. name: of what they are values of."""
        tests = int(np.isfinite(a).sum()) if CORRECTED.fullmatch(name) else 1
        atol = self.absolute + (flip_error(a, tests) if P_VALUE.fullmatch(name) else 0.0)
        return np.asarray(np.isclose(b, a, rtol=self.relative, atol=atol, equal_nan=True))


def flip_error(p: npt.NDArray[np.float64], tests: int) -> npt.NDArray[np.float64]:
    """Two standard errors of p-values that were multiplied by the number of tests (at most: Bonferroni's)."""
    single = np.clip(np.nan_to_num(p) / max(tests, 1), 0.0, 1.0)
    return 2 * tests * np.sqrt(single * (1 - single) / FLIPS)


@dataclass(frozen=True)
class Metric:
    """One metric in two results. n: values compared; different: how many are not exactly equal. largest: the largest
    difference of numbers, NaN for texts. where, was, now: the value that differs most.
    """

    file: str
    name: str
    outcome: Outcome
    n: int = 0
    different: int = 0
    largest: float = math.nan
    where: str = ""
    was: str = ""
    now: str = ""


def compare_files(a: Mapping[str, bytes], b: Mapping[str, bytes], tolerance: Tolerance) -> list[Metric]:
    """Every metric of two results, file by file, in the order of the first. A file that only one has is changed."""
    found = []
    for name in dict.fromkeys([*a, *b]):
        if is_timed(name):
            found.append(Metric(name, "times", SKIPPED, now="never the same twice"))
        elif name not in a or name not in b:
            found.append(Metric(name, "the file", CHANGED, was=_there(name in a), now=_there(name in b)))
        else:
            found += _compare_file(name, a[name], b[name], tolerance)
    return found


def is_timed(file: str) -> bool:
    """Whether a file holds times."""
    return file.startswith(f"table-{TIMES}")


def same_words(a: str, b: str, tolerance: Tolerance) -> Outcome:
    """Texts agree within tolerance if they differ only in numbers with decimals, by a unit of the last one printed."""
    if a == b:
        return EXACT
    if NUMBER.split(a) != NUMBER.split(b):
        return CHANGED
    pairs = zip(NUMBER.findall(a), NUMBER.findall(b), strict=True)
    return CLOSE if all(x == y or _nearly(x, y, tolerance) for x, y in pairs) else CHANGED


def _nearly(a: str, b: str, tolerance: Tolerance) -> bool:
    decimals = [len(re.split("[eE]", text)[0].partition(".")[2]) for text in (a, b)]
    x, y = (float(text.replace(",", "")) for text in (a, b))
    if 0 in decimals or decimals[0] != decimals[1] or not math.isfinite(x + y):
        return False
    exponent = int(re.split("[eE]", a)[1]) if "e" in a.lower() else 0
    return abs(x - y) <= 1.01 * 10.0 ** (exponent - decimals[0]) + tolerance.absolute + tolerance.relative * abs(x)


def _there(there: bool) -> str:
    return "there" if there else "not there"


def _compare_file(name: str, a: bytes, b: bytes, tolerance: Tolerance) -> list[Metric]:
    try:
        if name.endswith(".parquet"):
            return _tables(name, pd.read_parquet(io.BytesIO(a)), pd.read_parquet(io.BytesIO(b)), tolerance)
        if name.endswith(".npz"):
            return _arrays(name, _unpacked(a), _unpacked(b), tolerance)
        return _documents(name, _untimed(name, json.loads(a)), _untimed(name, json.loads(b)), tolerance)
    except UNREADABLE as error:
        return [Metric(name, "the file", EXACT if a == b else CHANGED, now=f"cannot be read: {error}")]


def _tables(name: str, a: pd.DataFrame, b: pd.DataFrame, tolerance: Tolerance) -> list[Metric]:
    """A metric for each column; one named "rows" where not all rows are in both."""
    found = []
    keys = [key for key in KEYS if key in a and key in b]
    if {"layer", "head"} <= set(keys) and (grids := [_grid(table) for table in (a, b)])[0] != grids[1]:
        return [Metric(name, "heads", CHANGED, was=grids[0], now=grids[1])]  # heads of the same place are not the same
    if keys and not a.duplicated(keys).any() and not b.duplicated(keys).any():
        both = a[keys].merge(b[keys], on=keys)
        rows_a, rows_b = (both.merge(table, on=keys, how="left") for table in (a, b))
    else:
        n = min(len(a), len(b)) if len(a) == len(b) else 0
        rows_a, rows_b = a.head(n), b.head(n)
    if not len(rows_a) == len(a) == len(b):
        found.append(Metric(name, "rows", CHANGED, was=str(len(a)), now=f"{len(b)}, {len(rows_a)} of them in both"))
    labels = [_label(row, keys, i) for i, row in enumerate(rows_a[keys].to_dict("records"))]
    for column in dict.fromkeys([*a, *b]):
        if column in a and column in b:
            anyway = _of_nothing(str(column), rows_a, rows_b, tolerance)
            found.append(_values(name, str(column), rows_a[column], rows_b[column], labels, tolerance, anyway))
        else:
            found.append(Metric(name, str(column), CHANGED, was=_there(column in a), now=_there(column in b)))
    return found


def _grid(table: pd.DataFrame) -> str:
    return f"{table['layer'].nunique()} layers of {table['head'].nunique()}"


def _label(row: Mapping[Any, Any], keys: list[str], number: int) -> str:
    if not keys:
        return f"row {number}"
    head = f"head {row['layer']}.{row['head']}" if {"layer", "head"} <= set(keys) else ""
    return " ".join(filter(None, [*(str(row[k]) for k in keys if k not in ("layer", "head")), head]))


def _of_nothing(column: str, a: pd.DataFrame, b: pd.DataFrame, tolerance: Tolerance) -> Flags:
    """Which rows of a column are p-values of effects that are nothing in both tables. None are, of another column."""
    effect = column.removeprefix("p_")  # p_edge is that of edge
    if effect == column or effect not in a:
        leg = "causal_p" if "causal_p" in a else "p"  # of patching, its p and its corrected one
        effect = "patch" if column in (leg, f"{leg}_holm") else ""
    if effect not in a or effect not in b:
        return np.zeros(len(a), dtype=bool)
    return np.asarray((a[effect].abs() <= tolerance.absolute) & (b[effect].abs() <= tolerance.absolute))


def _values(
    file: str,
    name: str,
    a: pd.Series,
    b: pd.Series,
    labels: list[str],
    tolerance: Tolerance,
    anyway: Flags,
) -> Metric:
    """Two columns of the same rows. anyway: (row,), which agree whatever they are."""
    numbers = all(is_numeric_dtype(values) and not is_bool_dtype(values) for values in (a, b))
    if numbers:
        x, y = (values.to_numpy(dtype=np.float64, na_value=np.nan) for values in (a, b))
        return _numbers(file, name, x, y, labels, tolerance, anyway)
    texts = [(_text(x), _text(y)) for x, y in zip(a, b, strict=True)]
    return _outcomes(file, name, dict(zip(labels, texts, strict=True)), tolerance)


def _text(value: object) -> str:
    missing = value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))
    return "none" if missing else str(value)


def _numbers(
    file: str,
    name: str,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    labels: list[str],
    tolerance: Tolerance,
    anyway: Flags | Literal[False] = False,
) -> Metric:
    with np.errstate(invalid="ignore"):
        unequal = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        gap = np.where(unequal, np.abs(a - b), 0.0)
    if not unequal.any():
        return Metric(file, name, EXACT, n=a.size)
    worst = int(np.nan_to_num(gap, nan=np.inf).argmax())
    outcome = CLOSE if (tolerance.agree(name, a, b) | anyway).all() else CHANGED
    where = labels[worst] if worst < len(labels) else f"value {worst}"
    was, now = (f"{values.flat[worst]:.6g}" for values in (a, b))
    return Metric(file, name, outcome, a.size, int(unequal.sum()), float(gap.flat[worst]), where, was, now)


def _outcomes(file: str, name: str, pairs: Mapping[str, tuple[str, str]], tolerance: Tolerance) -> Metric:
    """Texts by what they are of; the first that changed is the one that is shown."""
    found = {label: same_words(a, b, tolerance) for label, (a, b) in pairs.items()}
    for outcome in (CHANGED, CLOSE):
        if where := [label for label, o in found.items() if o == outcome]:
            different = sum(o != EXACT for o in found.values())
            was, now = pairs[where[0]]
            return Metric(file, name, outcome, len(pairs), different, where=where[0], was=was, now=now)
    return Metric(file, name, EXACT, n=len(pairs))


def _unpacked(data: bytes) -> dict[str, npt.NDArray[Any]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return {name: held[name].astype(np.float64) for name in held.files}


def _arrays(
    file: str, a: dict[str, npt.NDArray[Any]], b: dict[str, npt.NDArray[Any]], tolerance: Tolerance
) -> list[Metric]:
    found = []
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b or a[name].shape != b[name].shape:
            was, now = (str(held[name].shape) if name in held else "not there" for held in (a, b))
            found.append(Metric(file, name, CHANGED, was=was, now=now))
        else:
            found.append(_numbers(file, name, a[name], b[name], [], tolerance))
    return found


def _untimed(name: str, document: Any) -> Any:
    """A document without what speaks of times: sections of findings that show a table of times."""
    if name != FINDINGS:
        return document
    timed = [any(_is_timed(part) for part in s["parts"]) for s in document["sections"]]
    return {**document, "sections": [s for s, t in zip(document["sections"], timed, strict=True) if not t]}


def _is_timed(part: Mapping[str, Any]) -> bool:
    named = any(is_timed(table_file(str(part.get(key)))) for key in ("name", "table"))
    return named or any(map(_is_timed, part.get("panels", ())))


def _documents(file: str, a: Any, b: Any, tolerance: Tolerance) -> list[Metric]:
    """A metric for each part of a JSON document: each key, or the whole of a list."""
    if not (isinstance(a, dict) and isinstance(b, dict)):
        a, b = {"all": a}, {"all": b}
    return [_part(file, name, a.get(name), b.get(name), tolerance) for name in dict.fromkeys([*a, *b])]


def _part(file: str, name: str, a: Any, b: Any, tolerance: Tolerance) -> Metric:
    x, y = dict(_leaves(a)), dict(_leaves(b))
    places = list(dict.fromkeys([*x, *y]))
    gone = [p for p in places if p not in x or p not in y]
    if gone:
        was, now = (str(held.get(gone[0], "not there")) for held in (x, y))
        return Metric(file, name, CHANGED, len(places), len(gone), where=gone[0], was=was, now=now)
    numeric = [p for p in places if _is_number(x[p]) and _is_number(y[p])]
    texts = {p: (str(x[p]), str(y[p])) for p in places if p not in set(numeric)}
    before, after = (np.array([float(held[p]) for p in numeric]) for held in (x, y))
    found = [_outcomes(file, name, texts, tolerance), _numbers(file, name, before, after, numeric, tolerance)]
    return max(found, key=lambda metric: (EXACT, CLOSE, CHANGED).index(metric.outcome))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a JSON value that is neither a list nor an object, by its place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{i}]")
    else:
        yield place, value
