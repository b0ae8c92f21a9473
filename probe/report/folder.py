"""Reads a results folder and checks it: files against their hashes, tables against their columns."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from probe.errors import ResultsError
from probe.report import causal
from probe.runner.manifest import Manifest, ModelInfo
from probe.runner.results import CAUSAL, FILES, Example
from probe.sites import kv_head

NUMBERS = (
    "value", "low", "high", "chance", "mass", "mass_chance", "first_mass", "entropy", "entropy_max",
    "word_accuracy", "best_rival_value", "random_max", "selection_value", "p", "p_holm", "q",
)  # fmt: skip
OPTIONAL = (
    "shuffled_max",
    "value_before",
    "value_after",
    "distance",
    "argmax_offset",
    "argmax_share",
)  # numbers that runs kept only later
COLUMNS = (
    "phenomenon", "dataset", "layer", "head", "statistic", "best_rival", "picked", "passed", "n_units",
    "n_clusters", *NUMBERS,
)  # fmt: skip
RIVAL_COLUMNS = ("phenomenon", "rival", "value", "low", "high", "n_units", "n_clusters")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rival:
    """A rule the heads must beat, with its value on the same prompts."""

    name: str
    value: float
    low: float
    high: float
    n_units: int
    n_clusters: int


@dataclass(frozen=True)
class Phenomenon:
    """One phenomenon's scores. Arrays run over heads, layer by layer: index = layer * n_heads + head.

    tested: it has rivals and a test; otherwise it is only described and never gets a verdict.
    """

    name: str
    dataset: str
    statistic: str
    tested: bool
    n_heads: int
    numbers: dict[str, Floats]
    picked: npt.NDArray[np.bool_]
    passed: npt.NDArray[np.bool_]
    best_rivals: tuple[str | None, ...]
    rivals: tuple[Rival, ...]
    n_units: int
    n_clusters: int

    def label(self, index: int) -> str:
        """The head's name, "layer.head"."""
        return f"{index // self.n_heads}.{index % self.n_heads}"

    def ranked(self) -> list[int]:
        """Head indices, best first: those that passed, then the picked, then the rest, each by value on the selection
        half: the best of many on the half that tests would look better than it is.
        """
        value, selection = self.numbers["value"], self.numbers["selection_value"]
        by = np.nan_to_num(np.where(np.isfinite(selection), selection, value), nan=-np.inf)
        return [int(i) for i in np.lexsort((-by, ~self.picked, ~self.passed))]

    @property
    def best(self) -> int:
        return self.ranked()[0]

    @property
    def best_rival(self) -> Rival | None:
        """The rival (chance aside) with the highest value."""
        others = [r for r in self.rivals if r.name != "chance" and np.isfinite(r.value)]
        return max(others, key=lambda r: r.value, default=None)

    def middle(self, column: str) -> float:
        """The median over heads of a column that is the same for most of them; NaN if it is empty."""
        values = self.numbers[column]
        values = values[np.isfinite(values)]
        return float(np.median(values)) if len(values) else float("nan")


@dataclass(frozen=True)
class Results:
    """A complete, verified results folder.

    rows: float32 (example, layer, head, key). patch: nats each example's answer loses when a head is patched from its
    minimal pair, (example, layer, head), NaN where that was not measured; None where the run kept none. legs:
    phenomenon -> its causal leg, where one was measured or tried.
    """

    manifest: Manifest
    model: ModelInfo
    phenomena: tuple[Phenomenon, ...]
    examples: tuple[Example, ...]
    rows: npt.NDArray[np.float32]
    patch: npt.NDArray[np.float32] | None
    answer: str
    method: tuple[str, ...]
    notes: tuple[str, ...]
    excluded: dict[str, dict[str, int]]
    n_layers: int
    n_heads: int
    legs: dict[str, causal.Leg]

    @property
    def main(self) -> Phenomenon:
        """The phenomenon the question is about: the first that is tested, else the first."""
        return next((p for p in self.phenomena if p.tested), self.phenomena[0])

    @property
    def model_name(self) -> str:
        return self.model.name

    def kv_head(self, head: int) -> int | None:
        """The key-value head that query head `head` reads, or None where every head has its own."""
        n_kv = self.model.n_kv_heads
        return None if n_kv == self.n_heads else kv_head(head, self.n_heads, n_kv)


def read_results(folder: Path) -> Results:
    """Read and verify a whole results folder.

    Raises ResultsError naming the file, and the field in it, that is missing, changed or malformed.
    """
    manifest = Manifest.read(folder)
    unlisted = [name for name in FILES if name not in manifest.outputs]
    if unlisted:
        raise ResultsError(f"{folder / 'manifest.json'} does not list {', '.join(unlisted)} in its outputs.")
    if manifest.model is None:
        raise ResultsError(f"{folder / 'manifest.json'} names no model, but lists scores of heads.")
    files = manifest.read_outputs(folder)
    result = _json(files["result.json"], folder / "result.json")
    phenomena, n_layers, n_heads = read_phenomena(folder, files)
    examples = _examples(files["examples.json"], folder / "examples.json")
    rows, patch = _rows(files["examples.npz"], folder / "examples.npz", examples, (n_layers, n_heads))
    if "answer" not in result:
        raise ResultsError(f"{folder / 'result.json'} lacks the answer.")
    return Results(
        manifest=manifest,
        model=manifest.model,
        phenomena=phenomena,
        examples=examples,
        rows=rows,
        patch=patch,
        answer=str(result["answer"]),
        method=tuple(result.get("method") or ()),
        notes=tuple(result.get("notes") or ()),
        excluded=dict(result.get("excluded") or {}),
        n_layers=n_layers,
        n_heads=n_heads,
        legs=_legs(folder, files, result, n_layers * n_heads),
    )


def _legs(folder: Path, files: dict[str, bytes], result: dict[str, Any], n_heads: int) -> dict[str, causal.Leg]:
    if CAUSAL not in files:
        return {}
    table = parquet_table(files[CAUSAL], folder / CAUSAL, causal.COLUMNS)
    found = causal.legs(table, dict(result.get("gates") or {}), folder / CAUSAL)
    for name, leg in found.items():
        if len(leg.verdicts) != n_heads:
            raise ResultsError(f"{folder / CAUSAL}: {name!r} has {len(leg.verdicts)} heads, the scores have {n_heads}.")
    return found


def read_phenomena(folder: Path, files: dict[str, bytes]) -> tuple[tuple[Phenomenon, ...], int, int]:
    """The score tables as phenomena, in the order of the file; the number of layers, of heads a layer."""
    heads = parquet_table(files["heads.parquet"], folder / "heads.parquet", COLUMNS)
    rivals = parquet_table(files["rivals.parquet"], folder / "rivals.parquet", RIVAL_COLUMNS)
    if heads.empty:
        raise ResultsError(f"{folder / 'heads.parquet'} has no rows: expected one per phenomenon and head.")
    if heads[["layer", "head", "n_units", "n_clusters"]].isna().to_numpy().any():
        raise ResultsError(f"{folder / 'heads.parquet'}: layer, head, n_units and n_clusters must be numbers.")
    n_layers, n_heads = int(heads["layer"].max()) + 1, int(heads["head"].max()) + 1
    grid = [(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    phenomena = []
    for name in dict.fromkeys(str(n) for n in heads["phenomenon"]):
        part = heads[heads["phenomenon"] == name].sort_values(["layer", "head"])
        if list(zip(part["layer"], part["head"], strict=True)) != grid:
            raise ResultsError(
                f"{folder / 'heads.parquet'}: {name!r} must have each of the {n_layers} x {n_heads} heads "
                f"once, it has {len(part)} rows."
            )
        phenomena.append(_phenomenon(name, part, rivals[rivals["phenomenon"] == name], n_heads))
    return tuple(phenomena), n_layers, n_heads


def _phenomenon(name: str, part: pd.DataFrame, rivals: pd.DataFrame, n_heads: int) -> Phenomenon:
    there = part.reindex(columns=[*NUMBERS, *OPTIONAL])
    numbers = {c: there[c].to_numpy(dtype=np.float64, na_value=np.nan) for c in there.columns}
    best_rivals = tuple(None if pd.isna(r) else str(r) for r in part["best_rival"])
    return Phenomenon(
        name=name,
        dataset=str(part["dataset"].iloc[0]),
        statistic=str(part["statistic"].iloc[0]),
        tested=bool(np.isfinite(numbers["p"]).any()) or any(r is not None for r in best_rivals),
        n_heads=n_heads,
        numbers=numbers,
        picked=part["picked"].to_numpy(dtype=np.bool_),
        passed=part["passed"].to_numpy(dtype=np.bool_),
        best_rivals=best_rivals,
        rivals=tuple(
            Rival(
                name=str(r["rival"]),
                value=float(r["value"]),
                low=float(r["low"]),
                high=float(r["high"]),
                n_units=int(r["n_units"]),
                n_clusters=int(r["n_clusters"]),
            )
            for r in rivals.to_dict("records")
        ),
        n_units=int(part["n_units"].max()),
        n_clusters=int(part["n_clusters"].max()),
    )


def _json(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ResultsError(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ResultsError(f"{path} must hold a JSON object, it holds {type(value).__name__}.")
    return value


def parquet_table(content: bytes, path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """The Parquet table in the bytes of a file. Raises ResultsError naming `path` and the columns it lacks."""
    try:
        table = pd.read_parquet(io.BytesIO(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ResultsError(f"{path} is not a Parquet table: {error}.") from error
    missing = [c for c in columns if c not in table.columns]
    if missing:
        raise ResultsError(f"{path} lacks the columns {', '.join(missing)}.")
    return table


def _examples(content: bytes, path: Path) -> tuple[Example, ...]:
    examples = []
    try:
        for number, raw in enumerate(json.loads(content)):
            example = Example(
                item=str(raw["item"]),
                cluster=str(raw["cluster"]),
                tokens=tuple(str(t) for t in raw["tokens"]),
                query=tuple(raw["query"]),
                target=tuple(raw["target"]),
                foils=tuple(tuple(f) for f in raw["foils"]),
                tags={str(k): str(v) for k, v in raw.get("tags", {}).items()},
            )
            for position in (*example.query, *example.target, *(p for f in example.foils for p in f)):
                if not 0 <= position < len(example.tokens):
                    raise ResultsError(
                        f"{path}: example {number} ({example.item}) marks position {position}, but has "
                        f"{len(example.tokens)} tokens."
                    )
            examples.append(example)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{path}: example {len(examples)} is malformed: {error!r}.") from error
    return tuple(examples)


def _rows(
    content: bytes, path: Path, examples: tuple[Example, ...], heads: tuple[int, int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    try:
        with np.load(io.BytesIO(content)) as archive:
            rows = np.asarray(archive["rows"], dtype=np.float32)
            patch = np.asarray(archive["patch"], dtype=np.float32) if "patch" in archive else None
    except (zipfile.BadZipFile, ValueError, KeyError, OSError) as error:
        raise ResultsError(f"{path} does not hold the array 'rows': {error}.") from error
    longest = max((len(e.tokens) for e in examples), default=0)
    if rows.ndim != 4 or rows.shape[:3] != (len(examples), *heads) or rows.shape[3] < longest:
        raise ResultsError(
            f"{path}: rows has shape {rows.shape}, expected ({len(examples)}, {heads[0]}, {heads[1]}, "
            f"at least {longest}): example, layer, head, key."
        )
    for number, example in enumerate(examples):
        if not np.isfinite(rows[number, :, :, : len(example.tokens)]).all():
            raise ResultsError(f"{path}: rows of example {number} ({example.item}) are not finite on its own tokens.")
    if patch is not None and patch.shape != rows.shape[:3]:
        raise ResultsError(f"{path}: patch has shape {patch.shape}, expected {rows.shape[:3]}: example, layer, head.")
    return rows, patch
