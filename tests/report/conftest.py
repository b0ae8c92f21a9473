"""A synthetic results folder: every number is known, nothing is symmetric, no model was run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from probe.report import write_report
from probe.runner.findings import Findings, Listing, Plot, Section, Table
from probe.runner.manifest import Inputs
from probe.runner.results import Example, Result
from tests.report.browsing import browser as browser
from tests.report.browsing import visit as visit

SENTENCES = (
    ("The| lawyer| thanked| the| nurse| because| she| had| found| the| missing| document", 6, (4,), ((1,),)),
    (
        "After| the| long| meeting|,| Margaret| told| Joh|annes| that| he| would| speak| first",
        10,
        (7, 8),
        ((5,),),
    ),
    (
        "The| pilot| met| the| chef| before| the| guard| arrived|,| and| then| he| left",
        12,
        (7,),
        ((4,), (1,)),
    ),
    ("When| Ana| called| Peter| about| the| broken| window|,| she| sounded| tired", 9, (1,), ((3,),)),
)
HOSTILE = (
    "<|im_start|>", "</script>", ' "><img src=x onerror=alert(1)>', " {{x}}", " &lt;",
    " nul\x00l", " 👩‍👩‍👧", " مرحبا",
    " بك", " \u202eevil", "\n", "\tx", "\u2028", "\ud800", " $a_1$", " " + "W" * 300, " she",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    kv_heads: int


def sentences(n: int) -> list[Example]:
    shown = []
    for i in range(n):
        text, query, target, foils = SENTENCES[i % len(SENTENCES)]
        tokens = (*text.split("|"), *[" again"] * (i // len(SENTENCES)), ".")
        tags = {"order": "first" if i % 2 else "last"}
        shown.append(Example(f"item-{i:02}", f"template-{i % 5}", tokens, (query,), target, foils, tags))
    return shown


def hostile() -> Example:
    last = len(HOSTILE) - 1
    return Example("</script><b>item", "{{cluster}}", HOSTILE, (last,), (1,), ((2,), (7, 8)), {"<i>": "&amp;"})


def scores(shape: Shape, phenomenon: str, rng: np.random.Generator, *, tested: bool) -> pd.DataFrame:
    """A table in which head (layer 2, head 1) is best; values fall off in an order no axis repeats."""
    n = shape.layers * shape.heads
    value = np.round(0.28 + 0.3 * rng.random(n), 6) if tested else rng.random(n) ** 4
    best = 2 * shape.heads + 1 if tested else shape.heads + 2
    value[best] = 0.913
    order = np.argsort(-value)
    picked = np.zeros(n, dtype=bool)
    passed = np.zeros(n, dtype=bool)
    p = np.full(n, np.nan)
    p_holm = np.full(n, np.nan)
    if tested:
        picked[order[:5]] = True
        value[order[1:4]] += [0.24, 0.17, 0.02]
        passed[order[:3]] = True
        p = np.clip(np.exp(-12 * (value - 0.3)) * (0.5 + rng.random(n)), 1e-5, 1.0)
        p_holm[order[:5]] = np.minimum(1, p[order[:5]] * 5)
    width = 0.02 + 0.03 * rng.random(n)
    return pd.DataFrame(
        {
            "subject": "smollm2",
            "phenomenon": phenomenon,
            "dataset": "built-in",
            "layer": np.repeat(np.arange(shape.layers), shape.heads),
            "head": np.tile(np.arange(shape.heads), shape.layers),
            "statistic": "accuracy" if tested else "mass",
            "value": value,
            "low": value - width,
            "high": np.minimum(1, value + 0.8 * width),
            "chance": 0.5 if tested else 0.06,
            "mass": 0.5 * value**2,
            "mass_chance": 0.07,
            "first_mass": rng.random(n) ** 0.5,
            "entropy": 2.4 * rng.random(n),
            "entropy_max": 2.6,
            "word_accuracy": value * 0.9 if tested else np.nan,
            "best_rival": "nearest" if tested else None,
            "best_rival_value": 0.572 if tested else np.nan,
            "random_max": 0.603 if tested else np.nan,
            "selection_value": np.clip(value + 0.03, 0, 1),
            "picked": picked,
            "p": p,
            "p_holm": p_holm,
            "q": np.minimum(1, p * 2),
            "passed": passed,
            "n_units": 412 if tested else 824,
            "n_clusters": 20 if tested else 40,
        }
    )


def attention(examples: list[Example], shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Causal rows that sum to one; the best head puts its attention on the target of most prompts."""
    longest = max((len(e.tokens) for e in examples), default=0)
    rows = np.full((len(examples), shape.layers, shape.heads, longest), np.nan, dtype=np.float32)
    for i, example in enumerate(examples):
        n = example.query[0] + 1
        row = rng.dirichlet(np.full(n, 0.3), size=(shape.layers, shape.heads))
        aim = example.target if i % 5 or not example.foils else example.foils[0]
        row[2, 1] = 0.06 * row[2, 1]
        row[2, 1, list(aim)] += 0.94 * np.linspace(2, 1, len(aim)) / np.linspace(2, 1, len(aim)).sum()
        rows[i, :, :, : len(example.tokens)] = 0
        rows[i, :, :, :n] = row
    return rows


def manifest(shape: Shape) -> dict[str, Any]:
    return {
        "schema": 1,
        "study": "coreference",
        "question": "Which heads look from a pronoun to its antecedent?",
        "profile": "quick",
        "seed": 0,
        "params": {"n_templates": "40"},
        "data_file": None,
        "code": "dc" * 32,
        "device": "cpu",
        "model": {
            "name": "SmolLM2-135M-Instruct",
            "family": "llama",
            "weights_sha256": "ab" * 32,
            "config_sha256": "bc" * 32,
            "tokenizer_sha256": "ba" * 32,
            "n_layers": shape.layers,
            "n_heads": shape.heads,
            "n_kv_heads": shape.kv_heads,
            "d_model": 576,
            "n_parameters": 134515008,
            "dtype": "float32",
            "attention": "sdpa",
        },
        "data": [
            {
                "name": "built-in",
                "source": "generated",
                "licence": "Apache-2.0",
                "sha256": "cd" * 32,
                "n_items": 824,
            }
        ],
        "versions": {"headprobe": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0"},
        "git": {"commit": "0123abc", "dirty": False},
        "threads": 2,
        "command": "probe run coreference --model smollm2",
        "key": "ef" * 32,
        "times": {"started": "2026-01-02T03:04:05+00:00", "seconds": 12.3},
    }  # fmt: skip


def make(
    folder: Path,
    layers: int = 30,
    heads: int = 9,
    kv_heads: int = 3,
    n_examples: int = 12,
    examples: list[Example] | None = None,
    change: Callable[[dict[str, Any]], object] | None = None,
) -> Path:
    """Write a results folder; `change` edits the manifest before it is written."""
    shape = Shape(layers, heads, kv_heads)
    rng = np.random.default_rng(7)
    shown = sentences(n_examples) if examples is None else examples
    table = pd.concat(
        [
            scores(shape, "coreference", rng, tested=True),
            scores(shape, "previous token", rng, tested=False),
            scores(shape, "first token", rng, tested=False),
        ],
        ignore_index=True,
    )
    rivals = pd.DataFrame(
        [
            ("coreference", "nearest", 0.572, 0.53, 0.61, 412, 20),
            ("coreference", "first", 0.441, 0.4, 0.48, 412, 20),
            ("coreference", "longer", 0.515, 0.49, 0.55, 412, 20),
            ("coreference", "chance", 0.5, np.nan, np.nan, 412, 20),
        ],
        columns=["phenomenon", "rival", "value", "low", "high", "n_units", "n_clusters"],
    )
    result = Result(
        answer="3 heads do; the best, 2.1, picks the antecedent in 91.3 % of prompts (95 %: 88 to 94 %).",
        heads=table,
        rivals=rivals,
        examples=tuple(shown),
        rows=attention(shown, shape, rng),
        method=(
            "Each prompt has one pronoun and two candidates.",
            "Clusters are templates; half of them pick.",
        ),
        notes=("Prompts are generated, so the wording is narrow.",),
        excluded={"coreference": {"pronoun before its antecedent": 7, "word split at its middle": 2}},
    )
    folder.mkdir(parents=True)
    outside_utf8 = any("\ud800" in token for example in shown for token in example.tokens)
    files = write_escaped(result, folder) if outside_utf8 else result.write(folder)
    record = manifest(shape)
    record["outputs"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    if change is not None:
        change(record)
    if "key" in record:
        record["key"] = key_of_fields(record)
    (folder / "manifest.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def key_of_fields(record: dict[str, Any]) -> str:
    """The key a runner would give this manifest: the hash of the canonical JSON of its inputs."""
    inputs = {name: record.get(name) for name in Inputs.model_fields}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_escaped(result: Result, folder: Path) -> list[str]:
    """As `Result.write`, for tokens that UTF-8 cannot hold: JSON escapes them."""
    tame = [
        Example(e.item, e.cluster, ("x",) * len(e.tokens), e.query, e.target, e.foils, e.tags) for e in result.examples
    ]
    files = Result(**{**result.__dict__, "examples": tuple(tame)}).write(folder)
    (folder / "examples.json").write_text(json.dumps([e.__dict__ for e in result.examples]), encoding="ascii")
    return files


@pytest.fixture(scope="session")
def make_folder() -> Callable[..., Path]:
    return make


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 30 x 9 heads with its report."""
    folder = make(tmp_path_factory.mktemp("reports") / "study" / "run")
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def hostile_example() -> Example:
    return hostile()


# findings


def every_part() -> Findings:
    """Findings with every kind of table, figure and listing; no number is there twice by chance."""
    steps = np.array([0, 100, 200, 400, 800, 1600])
    curves = pd.concat(
        [
            pd.DataFrame({"model": name, "step": steps, "loss": loss, "low": loss * 0.93, "high": loss * 1.09})
            for name, loss in (
                ("one layer", 4.1 * 0.9 ** np.arange(6)),
                ("two layers", 4.2 * 0.7 ** np.arange(6)),
                ("two layers, no MLP", 4.0 * 0.8 ** np.arange(6)),
            )
        ],
        ignore_index=True,
    )
    sizes = pd.DataFrame(
        {
            "model": ["tiny", "smollm2", "minilm"],
            "parameters": [812_288, 134_515_008, 22_713_216],
            "causal": [True, True, False],
            "bytes a token": [4096.5, 46_080.0, np.nan],
            "change": [-0.125, 1.2e-7, 3.5e9],
        }
    )
    shares = pd.DataFrame(
        {
            "task": ["agreement", "agreement", "brackets", "brackets"],
            "part": ["attention", "MLP", "attention", "MLP"],
            "share": [0.42, -0.13, 0.71, 0.24],
            "low": [0.40, -0.2, 0.66, 0.2],
            "high": [0.47, -0.1, 0.75, 0.31],
        }
    )
    words = ["The", "cat", "did", "not", "jump"]
    cells = [(q, k, 1 / (1 + i + 2 * j)) for i, q in enumerate(words) for j, k in enumerate(words) if j <= i]
    long = pd.DataFrame({"position": np.arange(60), "distance": np.arange(60) ** 2})
    return Findings(
        answer="Two layers do: their loss falls to 0.71 nats, one layer's to 2.42.",
        sections=(
            Section(
                "How it falls",
                ("The loss falls.", "It falls faster with two layers."),
                (
                    Table("curves", curves, "Loss by step; n = 512 prompts.", shown=False),
                    Plot(
                        "loss_by_step", "curves", "lines", "step", "loss", "Loss falls with training; n = 512 prompts.",
                        by="model", low="low", high="high", marks={"chance": 4.16}, y_label="loss, nats",
                    ),
                ),
            ),
            Section("How large", (), (Table("sizes", sizes, "Sizes of the models, in numbers."),)),
            Section(
                "What each part writes",
                ("Shares may be negative.",),
                (
                    Table("shares", shares, "Share of the answer.", digits=2),
                    Plot(
                        "share_bars", "shares", "bars", "task", "share", "Shares by task.",
                        by="part", low="low", high="high",
                    ),
                    Plot(
                        "share_points", "shares", "points", "part", "share", "The same, in panels.",
                        panel="task", low="low", high="high", marks={"none": 0.0},
                    ),
                ),
            ),
            Section(
                "Where it looks",
                (),
                (
                    Table("cells", pd.DataFrame(cells, columns=["query", "key", "weight"]), "", shown=False),
                    Plot("pattern", "cells", "heat", "key", "query", "A causal pattern.", value="weight"),
                    Table("long", long, "Distances squared."),
                    Listing("for i in range(3):\n    print(i < 2)\n", "The program."),
                ),
            ),
        ),
        method=("Prompts are drawn once.",),
        notes=("One seed says little.",),
    )  # fmt: skip


def make_findings_folder(
    folder: Path, findings: Findings, change: Callable[[dict[str, Any]], object] | None = None
) -> Path:
    """Write a folder of findings of a study that takes no model; `change` edits the manifest before it is written."""
    folder.mkdir(parents=True)
    record = manifest(Shape(4, 4, 4)) | {
        "study": "depth",
        "question": "How many layers does it take?",
        "model": None,
        "data": [],
        "params": {},
        "command": "probe run depth",
    }
    record["outputs"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in findings.write(folder)
    }
    if change is not None:
        change(record)
    record["key"] = key_of_fields(record)
    (folder / "manifest.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def findings() -> Findings:
    return every_part()


@pytest.fixture(scope="session")
def make_findings() -> Callable[..., Path]:
    return make_findings_folder


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of findings with its report."""
    folder = make_findings_folder(tmp_path_factory.mktemp("found") / "depth" / "run", every_part())
    write_report(folder)
    return folder
