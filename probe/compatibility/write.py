"""The compatibility report: `table.csv`, one row a pair, and `README.md`, which says what was asked and what was found.

The same versions of Python packages give the same bytes, on any machine.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

from probe.compatibility.check import Finding, Status
from probe.compatibility.configs import Task
from probe.sites import SITES, split

STATUSES: tuple[Status, ...] = get_args(Status)
TASKS: dict[Task, str] = {
    "causal": "causal language models",
    "masked": "masked language models",
    "seq2seq": "sequence-to-sequence models",
}
COLUMNS = (
    "task",
    "model_type",
    "class",
    "status",
    "why",
    "layers",
    "layers_with_heads",
    "seam",
    "sites",
    "sites_missing",
    "sites_in_some_layers",
    "sites_read_only",
    "implementations",
    "max_error_below",
    "notes",
)
FAMILIES: dict[str, tuple[str, ...]] = {
    "Llama, Mistral, Mixtral": ("llama", "mistral", "mixtral"),
    "Gemma 2, 3, 4": ("gemma2", "gemma3_text", "gemma4_text"),
    "Qwen 2, 3, MoE, 3.5 (hybrid)": ("qwen2", "qwen3", "qwen3_moe", "qwen3_5_text"),
    "Phi, OLMo, Granite, SmolLM3": ("phi3", "olmo2", "granite", "smollm3"),
    "DeepSeek V3 (latent), V3.2 (sparse)": ("deepseek_v3", "deepseek_v32"),
    "gpt-oss (sinks)": ("gpt_oss",),
    "GPT-2, GPT-J, GPT-NeoX, OPT": ("gpt2", "gptj", "gpt_neox", "opt"),
    "Bloom, Falcon, MPT (ALiBi)": ("bloom", "falcon", "mpt"),
    "Jamba, Bamba, Zamba 2 (hybrids)": ("jamba", "bamba", "zamba2"),
    "BERT, RoBERTa, ModernBERT": ("bert", "roberta", "modernbert"),
    "DeBERTa, XLNet, ALBERT": ("deberta-v2", "xlnet", "albert"),
    "T5, BART, Marian, Pegasus": ("t5", "bart", "marian", "pegasus"),
    "Mamba, RWKV, xLSTM": ("mamba2", "rwkv", "xlstm"),
}


def write(findings: Sequence[Finding], folder: Path) -> None:
    """Write `table.csv` and `README.md` into `folder`, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.csv").write_text(table(findings), encoding="utf-8", newline="")
    (folder / "README.md").write_text(readme(findings), encoding="utf-8", newline="")


def table(findings: Sequence[Finding]) -> str:
    """One row a pair, as comma-separated values."""
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row(f) for f in _sorted(findings))
    return made.getvalue()


def row(found: Finding) -> dict[str, str]:
    """A finding as one row of the table."""
    asked = "asks" if found.asks else "followed"
    return {
        "task": found.pair.task,
        "model_type": found.pair.model_type,
        "class": found.class_name,
        "status": found.status,
        "why": found.why,
        "layers": str(found.n_layers or ""),
        "layers_with_heads": " ".join(map(str, found.head_layers)),
        "seam": asked if found.n_layers else "",
        "sites": " ".join(found.sites),
        "sites_missing": " ".join(found.missing),
        "sites_in_some_layers": " ".join(found.some),
        "sites_read_only": " ".join(found.read_only),
        "implementations": " ".join(found.implementations),
        "max_error_below": below(found.max_error),
        "notes": "; ".join(found.notes),
    }


def below(error: float | None) -> str:
    """The power of ten that an error does not reach, from 1e-06 up: what machines agree about."""
    return "" if error is None else f"{10.0 ** max(-6, math.floor(math.log10(error)) + 1 if error else -6):.0e}"


def counts(rows: Iterable[Mapping[str, str]]) -> dict[str, Counter[str]]:
    """How many rows of each task, and of "all", have which status."""
    made = {task: Counter[str]() for task in (*TASKS, "all")}
    for each in rows:
        made[each["task"]][each["status"]] += 1
        made["all"][each["status"]] += 1
    return made


def summary(rows: Sequence[Mapping[str, str]]) -> str:
    """The counts, as a table in Markdown."""
    counted = counts(rows)
    lines = ["| | mapped | " + " | ".join(STATUSES) + " |", "|---|---|" + "---|" * len(STATUSES)]
    for task, title in (*TASKS.items(), ("all", "all")):
        cells = [title, str(counted[task].total()), *(str(counted[task][status]) for status in STATUSES)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def readme(findings: Sequence[Finding]) -> str:
    """The report in Markdown."""
    rows = [row(f) for f in _sorted(findings)]
    parts = [_HEAD.format(versions=versions(), summary=summary(rows), **_numbers(rows))]
    for task, title in TASKS.items():
        parts.append(f"### {title.capitalize()}\n\n{_listing([r for r in rows if r['task'] == task])}\n")
    return "\n".join(parts)


def excerpt(folder: Path) -> str:
    """Counts and well-known families in Markdown, read from a report that was written to `folder`."""
    rows = read(folder)
    by_type = {r["model_type"]: r for r in reversed(rows)}
    exact = sum(r["status"] == "exact" for r in rows)
    link = f"[the report](reports/{folder.name}/README.md)"
    lines = [
        f"Of the {len(rows)} pairs of model type and task that transformers {metadata.version('transformers')} maps to",
        f"language modelling, {exact} are read exactly; {link} lists all of them.",
        "",
        "| family | read | sites that some of them lack |",
        "|---|---|---|",
    ]
    for family, types in FAMILIES.items():
        held = [by_type[t] for t in types if t in by_type]
        gone = {name for r in held for name in (*r["sites_missing"].split(), *r["sites_in_some_layers"].split())}
        lines.append(f"| {family} | {_states(held)} | {', '.join(n for n in SITES if n in gone) or '-'} |")
    return "\n".join(lines) + "\n"


def _states(rows: Sequence[Mapping[str, str]]) -> str:
    """The status of several rows: one where they share it, else the types by status."""
    by_status: dict[str, list[str]] = {}
    for each in sorted(rows, key=lambda r: _rank(r["status"])):
        by_status.setdefault(each["status"], []).append(each["model_type"])
    if len(by_status) == 1:
        return next(iter(by_status))
    return "; ".join(f"{status}: {', '.join(types)}" for status, types in by_status.items())


def _rank(status: str) -> int:
    return [str(s) for s in STATUSES].index(status)


def read(folder: Path) -> list[dict[str, str]]:
    """The rows of a report's `table.csv`."""
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def versions() -> str:
    """The libraries whose code is what was checked."""
    return ", ".join(f"{name} {metadata.version(name).partition('+')[0]}" for name in ("torch", "transformers"))


def _numbers(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    counted = counts(rows)["all"]
    exact = [r for r in rows if r["status"] == "exact"]
    return {
        "mapped": len(rows),
        "exact": counted["exact"],
        "whole": sum(not r["sites_missing"] and not r["sites_in_some_layers"] for r in exact),
        "followed": sum(r["seam"] == "followed" for r in exact),
        "read_only": sum(bool(r["sites_read_only"]) for r in exact),
        "alone": sum("on text alone" in r["notes"] for r in exact),
        "worst": max((r["max_error_below"] for r in exact if r["max_error_below"]), key=float, default="-"),
    }


def _listing(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows grouped by what is to be said about them; types that share it stand in one row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in rows:
        said = [each["why"], *each["notes"].split("; ")]
        if each["sites_read_only"]:
            said.append(f"read only: {_short(each['sites_read_only'].split())}")
        remarks = "; ".join(s.rstrip(".") for s in said if s).replace(f"{each['class']} ", "")
        key = each["status"], _short(each["sites_missing"].split()), remarks
        groups.setdefault(key, []).append(f"`{each['model_type']}`")
    lines = ["| model types | status | sites missing | remarks |", "|---|---|---|---|"]
    ordered = sorted(groups.items(), key=lambda item: (_rank(item[0][0]), -len(item[1]), item[1]))
    for (status, sites, remarks), types in ordered:
        lines.append(f"| {', '.join(types)} | {status} | {sites or '-'} | {_cell(remarks) or '-'} |")
    return "\n".join(lines)


def _short(names: Sequence[str]) -> str:
    """Sites missing, where the same ones are missing of several stacks named once."""
    plain = [n for n in names if not split(n)[0]]
    rest = [n for n in names if n not in plain and split(n)[1] not in plain]
    return ", ".join([*plain, *rest])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sorted(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda f: (list(TASKS).index(f.pair.task), f.pair.model_type))


_HEAD = """# Which architectures `probe` reads exactly

**Question.** Of every architecture that transformers maps to language modelling, which does `probe` read and edit so
that what it shows is what the model computes?

Checked with {versions}. Nothing was downloaded.

```
python -m probe.compatibility           # writes this folder again; four minutes on one core
python -m probe.compatibility llama t5  # checks single types and prints what it finds
```

## Answer

{summary}

Of {mapped} pairs of model type and task, {exact} are exact.

- {whole} of these have every site in every layer that has heads; {read_only} have sites that cannot be edited.
- {followed} never ask for an attention function, and are read by following their products.
- {alone} are composites with an image or audio tower, and were run on text alone.
- No pattern of an exact pair is off by {worst} or more.

## How each pair was checked

A tiny random model of the type (2 to 6 layers; windows, sinks, caps, experts and top-k's that bite on 12 tokens) is
run under each attention implementation it has (eager, sdpa) on two prompts: unpadded, padded on the left and on the
right. A pair is **exact** if, in all of these,

- every output is the same, bit for bit, while every site is captured, and after the model was looked at;
- every pattern equals the weights that a second, untouched eager copy returns with `output_attentions=True`: to 1e-5
  under eager, to 2e-5 under sdpa, whose later layers read slightly different inputs (there, rows of padding are not
  compared). SqueezeBERT and the encoder of ProphetNet return scores, of which the softmax was taken;
- chosen rows of a pattern equal those of the whole to 5e-6;
- cells that the mask hides are exactly 0, and no real token looks at padding, unless the model itself does;
- `z` is, bit for bit, what the output projection is given; the heads' `result` and the projection's bias add up to
  `attn_out`; `resid_post` of a block is `resid_pre` of the next one, where the model passes it on;
- zeroing `z` of the last head of any layer, and halving its `pattern`, changes the output; an edit of every other site
  in the last layer changes the output too, or is refused beforehand;
- in the last layer, half of `pattern` does what half of `z` does; half of `q`, `k`, `rot_q` and `rot_k` do the same to
  the output, and so do half of `v`, `z` and `result`; half of `q`, `k` and `v` does what half of the output of the
  module that makes them does, where there is one;
- afterwards no hook, wrapper or mode is left, and a plain pass is what it was.

**Exact output, no pattern**: all of it but the patterns, which there is no way to read or nothing to compare with.
**Unsupported**: `probe` refuses the model, or a step failed; the remark says which.

Remarks of exact pairs are properties of the model or limits of `probe`. Sites that are missing are refused by name when
asked for, and so are edits of those that are read only. "Exact" holds of the attention that `probe` reads: remarks name
the encoders, layers and cross-attentions that it does not. Weights are random: what a trained model of the type
computes is not checked here.

## The table

`table.csv` has a row for every pair, with its sites, layers and the largest error.
"""
