"""What a study of heads returns, and how it lies on disk. The report is a pure function of such a folder.

<folder>/heads.parquet      one row per phenomenon and head (columns: `probe.scores.heads`)
<folder>/rivals.parquet     one row per phenomenon and rival: phenomenon, rival, value, low, high, n_units, n_clusters
<folder>/examples.json      prompts with tokens, query, target, foils (positions), see `Example`
<folder>/examples.npz       "rows": float32 (example, layer, head, key): attention from the query (mean over its
                            pieces); keys past a prompt's last token are NaN. Where a causal leg was measured, also
                            "patch": float32 (example, layer, head), see `Result.patch`
<folder>/causal.parquet     only where a causal leg was measured or tried: one row per phenomenon and head (columns:
                            phenomenon, verdict, and those of `probe.causal.causal`)
<folder>/result.json        answer, method, notes, excluded, gates
<folder>/manifest.json      written last: its presence means the folder is complete
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from probe.data.texts import Dataset

RESULT = "result.json"
FILES = ("heads.parquet", "rivals.parquet", "examples.npz", "examples.json", RESULT)
CAUSAL = "causal.parquet"
FIGURES = ("score_map.png", "best_heads.png", "described.png", "example.png")  # what a report adds, in figures/


@dataclass(frozen=True)
class Example:
    """One prompt to show: its tokens as text, and the positions that were measured.

    tokens: each token's own characters of the prompt (special tokens by their name); joined, they give the prompt
    back, spaces included.
    """

    item: str
    cluster: str
    tokens: tuple[str, ...]
    query: tuple[int, ...]
    target: tuple[int, ...]
    foils: tuple[tuple[int, ...], ...]
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The outcome of a study of heads: everything a report shows.

    answer: the question's answer in one sentence with its number and interval.
    method: paragraphs that say how it was measured. notes: caveats, in full sentences.
    excluded: phenomenon -> reason -> number of items left out. causal: the causal leg's table, None without one.
    gates: phenomenon -> what the model answers, and why its heads could not be asked (`probe.runner.legs.gate_of`).
    rows: float32 (example, layer, head, key), as in `examples.npz`. patch: nats that each example's answer loses when a
    head is patched from its minimal pair, float32 (example, layer, head), NaN where that was not measured; None where
    it was of no head. data: the data sets that were measured, for the manifest.
    """

    answer: str
    heads: pd.DataFrame
    rivals: pd.DataFrame
    examples: tuple[Example, ...]
    rows: npt.NDArray[np.float32]
    method: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    excluded: dict[str, dict[str, int]] = field(default_factory=dict)
    data: tuple[Dataset, ...] = ()
    causal: pd.DataFrame | None = None
    gates: dict[str, dict[str, object]] = field(default_factory=dict)
    patch: npt.NDArray[np.float32] | None = None

    def write(self, folder: Path) -> list[str]:
        """Write every file but the manifest into `folder`, which exists; returns the file names."""
        self.heads.to_parquet(folder / "heads.parquet", index=False)
        self.rivals.to_parquet(folder / "rivals.parquet", index=False)
        effects: dict[str, Any] = {} if self.patch is None else {"patch": self.patch}
        np.savez_compressed(folder / "examples.npz", rows=self.rows, **effects)
        examples = json.dumps([asdict(e) for e in self.examples], ensure_ascii=False, indent=1)
        (folder / "examples.json").write_text(examples, encoding="utf-8")
        result = {
            "answer": self.answer,
            "method": self.method,
            "notes": self.notes,
            "excluded": self.excluded,
            "gates": self.gates,
        }
        (folder / RESULT).write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
        if self.causal is None:
            return list(FILES)
        self.causal.to_parquet(folder / CAUSAL, index=False)
        return [*FILES, CAUSAL]
