"""From a plan to a table: every contender at every length, each measurement in a fresh process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch

from probe.cost import memory
from probe.cost.contenders import CONTENDERS, PLAIN
from probe.cost.pairs import Pairs
from probe.cost.scoring import TASKS as SCORINGS
from probe.cost.tiny_gpt import TASKS
from probe.cost.where import WATCHED
from probe.errors import ProbeError

COLUMNS = (
    "model", "n_tokens", "contender", "repeats", "ratio_median", "ratio_min", "ratio_max", "plain_seconds",
    "peak_mb", "plain_peak_mb", "note",
)  # fmt: skip
TINY_COLUMNS = (
    "task", "repeats", "tokens", "speedup_median", "speedup_min", "speedup_max", "gpt2_seconds", "tiny_seconds",
)  # fmt: skip
SCORING_COLUMNS = (
    "task", "model", "repeats", "ratio_median", "ratio_min", "ratio_max", "plain_seconds", "seconds",
)  # fmt: skip
WHERE_COLUMNS = ("model", "n_tokens", "contender", "kind", "seconds")
PACKAGES = ("torch", "transformers", "transformer-lens", "nnsight")
THREADS = 2
# No network, and no usage statistics of the libraries that are measured.
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_MODE": "disabled"}


class Case(NamedTuple):
    """A model at one length. repeats: pairs that are timed. contenders: names, in the order of the table."""

    model: str
    n_tokens: int
    repeats: int
    contenders: tuple[str, ...] = tuple(CONTENDERS)


LONG = (PLAIN, "probe-rows", "output-attentions")
TINY = Case("tiny", 64, 15)  # the longest prompt it reads
PLANS = {
    "quick": (TINY, Case("smollm2", 256, 7)),
    "full": (
        TINY,
        Case("smollm2", 256, 7),
        Case("smollm2", 1024, 5),
        Case("smollm2", 4096, 2),
        Case("smollm2", 8192, 1, LONG),
    ),
}
TINY_REPEATS = {"quick": 7, "full": 5}  # pairs of a task of the tiny GPT in a process
TINY_PROCESSES = {"quick": 1, "full": 10}  # where a process lays its memory moves its ratios by a tenth
WHERE = {"quick": 256, "full": 1024}  # tokens of the pass that is profiled
SCORING_MODEL, SCORING_REPEATS = "smollm2", {"quick": 1, "full": 2}

Ask = Callable[[Sequence[str]], dict[str, Any]]
"""Words for the worker in, its answer out."""


def ask_worker(words: Sequence[str], module: str = "probe.cost.worker") -> dict[str, Any]:
    """The answer of a worker in a process of its own; {"failed": how it ended} if it gave none."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **QUIET},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {"failed": f"the process was killed by signal {-done.returncode}" if done.returncode < 0 else last}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure(
    plan: Sequence[Case],
    *,
    threads: int = THREADS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    ask: Ask = ask_worker,
) -> pd.DataFrame:
    """One row per model, length and contender (`COLUMNS`); ratios, seconds and MB are NaN where `note` says why.

    seed: of the token ids. say: told what is measured next, in a line.
    Raises ProbeError if a plain forward pass fails, for then there is nothing to compare with.
    """
    rows = []
    for case in plan:
        plain_peak = float("nan")
        for name in (PLAIN, *(c for c in case.contenders if c != PLAIN)):
            say(f"{case.model}, {case.n_tokens} tokens: {name}")
            words = [case.model, str(case.n_tokens), name, "--threads", str(threads), "--seed", str(seed)]
            peak = ask([*words, "--measure", "memory"])
            why_not = _why_not(peak)
            timed = peak if why_not else ask([*words, "--measure", "time", "--repeats", str(case.repeats)])
            why_not = _why_not(timed)
            if name == PLAIN:
                if why_not:
                    raise ProbeError(f"a plain pass of {case.model} at {case.n_tokens} tokens failed: {why_not}")
                plain_peak = peak["peak_mb"]
            rows.append(_row(case, name, peak, None if why_not else Pairs(**timed), plain_peak, why_not))
    return pd.DataFrame(rows, columns=list(COLUMNS))


ask_tiny: Ask = partial(ask_worker, module="probe.cost.tiny_gpt")


def measure_tiny(
    repeats: int,
    *,
    processes: int = 1,
    threads: int = THREADS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    ask: Ask = ask_tiny,
) -> pd.DataFrame:
    """One row per task of the tiny GPT beside GPT-2 (`TINY_COLUMNS`); a speedup of 2 is twice the tokens a second.

    repeats: pairs that a process times. processes: how many, one after the other; a row is of all pairs. seed: of
    weights and token ids. Raises ProbeError if a task fails.
    """
    rows = []
    for name, task in TASKS.items():
        say(f"tiny GPT beside GPT-2: {name}")
        plain, contender, speedups = list[float](), list[float](), list[float]()
        for _ in range(processes):
            answer = ask([name, "--repeats", str(repeats), "--threads", str(threads), "--seed", str(seed)])
            if why_not := _why_not(answer):
                raise ProbeError(f"{name} of the tiny GPT beside GPT-2 {why_not}")
            pairs = Pairs(**answer)
            plain, contender = plain + pairs.plain, contender + pairs.contender
            speedups += [1 / ratio for ratio in pairs.ratios]
        spread = (median(speedups), min(speedups), max(speedups), median(plain), median(contender))
        rows.append((name, processes * repeats, task.tokens, *spread))
    return pd.DataFrame(rows, columns=list(TINY_COLUMNS))


ask_scoring: Ask = partial(ask_worker, module="probe.cost.scoring")


def measure_scoring(
    repeats: int,
    *,
    model: str = SCORING_MODEL,
    threads: int = THREADS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    ask: Ask = ask_scoring,
) -> pd.DataFrame:
    """One row per task of scoring (`SCORING_COLUMNS`): its seconds over those of the plain passes that are the same
    work.

    seed: of the prompts. Raises ProbeError if a task fails.
    """
    rows = []
    for name in SCORINGS:
        say(f"{model}: {name}")
        answer = ask([name, model, "--repeats", str(repeats), "--threads", str(threads), "--seed", str(seed)])
        if why_not := _why_not(answer):
            raise ProbeError(f"{name} on {model} {why_not}")
        pairs = Pairs(**answer)
        spread = (median(pairs.ratios), min(pairs.ratios), max(pairs.ratios))
        rows.append((name, model, repeats, *spread, median(pairs.plain), median(pairs.contender)))
    return pd.DataFrame(rows, columns=list(SCORING_COLUMNS))


ask_where: Ask = partial(ask_worker, module="probe.cost.where")


def measure_where(
    n_tokens: int,
    *,
    model: str = SCORING_MODEL,
    threads: int = THREADS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    ask: Ask = ask_where,
) -> pd.DataFrame:
    """Seconds of one pass by kind of work (`WHERE_COLUMNS`), for the plain pass and probe's ways of reading.

    seed: of the token ids. Raises ProbeError if a pass fails.
    """
    rows = []
    for name in WATCHED:
        say(f"{model}, {n_tokens} tokens: where the time of {name} goes")
        answer = ask([model, str(n_tokens), name, "--threads", str(threads), "--seed", str(seed)])
        if why_not := _why_not(answer):
            raise ProbeError(f"{name} on {model} {why_not}")
        rows += [(model, n_tokens, name, kind, seconds) for kind, seconds in answer["seconds"].items()]
    return pd.DataFrame(rows, columns=list(WHERE_COLUMNS))


def machine(threads: int = THREADS, seed: int = 0) -> dict[str, str]:
    """What the numbers depend on, for the reader: name -> value."""
    facts = {
        "processors": f"{os.cpu_count()} ({platform.machine()})",
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "memory": f"{memory.total() / 1e9:.0f} GB",
        "threads": str(threads),
        "weights": "float32",
        "token ids": f"uniform over the vocabulary, seed {seed}",
        "Python": platform.python_version(),
    }
    return facts | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _why_not(answer: dict[str, Any]) -> str:
    if "failed" in answer:
        return f"failed: {answer['failed']}"
    return f"skipped: {answer['skipped']}" if "skipped" in answer else ""


def _row(
    case: Case, name: str, peak: dict[str, Any], pairs: Pairs | None, plain_peak: float, note: str
) -> dict[str, Any]:
    ratios = pairs.ratios if pairs else [float("nan")]
    return {
        "model": case.model,
        "n_tokens": case.n_tokens,
        "contender": name,
        "repeats": case.repeats if pairs else 0,
        "ratio_median": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "plain_seconds": median(pairs.plain) if pairs else float("nan"),
        "peak_mb": peak.get("peak_mb", float("nan")),
        "plain_peak_mb": plain_peak,
        "note": note,
    }
