"""The cost study as a folder: cost.csv with cost.png, tiny-gpt.csv, scoring.csv, where.csv, machines.json, and a
README.md made from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from probe.cost import machines
from probe.cost.contenders import CONTENDERS, PLAIN
from probe.cost.figure import cost_figure
from probe.cost.harness import COLUMNS, SCORING_COLUMNS, TINY_COLUMNS, WHERE_COLUMNS
from probe.cost.scoring import TASKS as SCORINGS
from probe.cost.tiny_gpt import TASKS
from probe.errors import ResultsError

QUESTION = "What does reading a model cost, beside a plain forward pass?"
TINY_TITLE = "The tiny GPT beside an equally configured GPT-2"
SCORING_TITLE = "What scoring every head costs"
WHERE_TITLE = "Where the time goes"
READING_CSV, TINY_CSV, SCORING_CSV, WHERE_CSV = "cost.csv", "tiny-gpt.csv", "scoring.csv", "where.csv"
COLUMNS_OF = {READING_CSV: COLUMNS, WHERE_CSV: WHERE_COLUMNS, TINY_CSV: TINY_COLUMNS, SCORING_CSV: SCORING_COLUMNS}
MAIN = "probe-sites"  # the contender the answer begins with

METHOD = """\
Each measurement runs in a process of its own, with a fixed number of threads and without gradients. One prompt of
random token ids is the same for every contender.

- **Time** is paired: plain, contender, plain, contender, ..., plain, after one pass of each that is not counted. A
  ratio is the contender's pass over the mean of the two plain passes around it, so that a slow drift of the machine
  cancels. The table gives the median and the range over the pairs. The plain pass always uses the model as it is
  loaded by default (torch's fused attention kernel), in the same process; contenders that need another attention
  implementation, or that rewire the model, have a second copy of it. What was read is held until the clock has
  stopped.
- **Memory** is the highest resident memory of a process in which only that contender runs, once: weights, imported
  libraries, the pass itself and what it keeps; 1 MB is 10^6 bytes. "Over plain" is that peak minus the peak of a
  process that runs only the plain pass, so it includes the libraries that a contender imports. On Linux the
  high-water mark is set back before the pass; elsewhere loading the model is included.
- The row of the plain pass against itself shows what is noise.
"""

TINY_METHOD = """\
Both have 4 layers, 4 heads, a width of 128, 256 tokens, 128 learned positions, LayerNorm, GELU by its tanh formula, no
dropout, and the same weights, so they compute the same, in float32. GPT-2 uses torch's fused attention kernel and
computes that formula in eight steps, as it comes; torch's single one is a row of its own. In training the tiny GPT
keeps what the gradients of attention and MLP need (`Recipe(gradients="by_hand")`), as `probe train` does; with torch's
kernel and gradients is a row of its own, too. The pairs are timed as in the study of reading: GPT-2, tiny, GPT-2, ...,
in one process; the full profile takes those of ten processes, for where a process lays its memory moves its ratios
by a tenth. Training is forward, cross-entropy of the next token, backward and one step of torch's fused AdamW;
decoding is transformers' `generate` beside the tiny GPT's own, one prompt, greedy. "Times faster" is GPT-2's time, the
mean of the two runs around, over the tiny GPT's.
"""

SCORING_METHOD = """\
Timed in pairs: plain passes, the scoring, plain passes, ..., in one process, on the same prompts in batches of the same
size. The exact effects are of the model's answer to minimal pairs; a plain pass makes logits at the rows that are
asked, as the scoring does, and is counted once for each head and prompt. The nine phenomena (previous, own and first
token, delimiters, duplicates, after duplicates, offsets of two, three and four) are read in every row of natural
text; neither they nor the plain passes make logits.
"""


WHERE_METHOD = """\
Seconds of one pass under torch's profiler, in the thread that calls; the profiler makes a pass of many small functions
slower, so the sums are not the times above. The fused kernel never holds a pattern; reading every row of one takes the
products of queries and keys once more, apart, their softmax, and the reductions.
"""


def write(
    folder: Path,
    machine: Mapping[str, str],
    command: str,
    *,
    reading: pd.DataFrame | None = None,
    tiny: pd.DataFrame | None = None,
    scoring: pd.DataFrame | None = None,
    where: pd.DataFrame | None = None,
) -> None:
    """Write the tables that are given and the page of all that the folder, made if it is missing, then holds.

    machine: facts for the reader, of what is given. command: what measured it. reading, tiny, scoring, where: as
    `measure`, `measure_tiny`, `measure_scoring` and `measure_where` return them. Raises ResultsError if the folder
    cannot be written or holds something else; before anything is written, if it can be seen before.
    """
    given = {READING_CSV: reading, WHERE_CSV: where, TINY_CSV: tiny, SCORING_CSV: scoring}
    new = {name: table for name, table in given.items() if table is not None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        said = machines.kept(folder)
        there = {name: new[name] if name in new else _kept(folder / name, COLUMNS_OF[name]) for name in given}
        # If this stops half-way, a new table has no machine rather than that of the one before it.
        machines.keep(folder, {name: facts for name, facts in said.items() if name not in new})
        for name, table in new.items():
            table.to_csv(folder / name, index=False, float_format="%.6g")
        if reading is not None:
            (folder / "cost.png").write_bytes(cost_figure(reading))
        said.update({name: {**machine, "command": command} for name in new})
        machines.keep(folder, said)
        shown = {name: said.get(name, {}) for name, table in there.items() if table is not None}
        page = readme(there[READING_CSV], there[TINY_CSV], there[SCORING_CSV], shown, where=there[WHERE_CSV])
        (folder / "README.md").write_text(page, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"the results cannot be written to {folder}: {error}.") from error


def _kept(path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
    """The table of an earlier run; None if there is none."""
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path, dtype={"note": str})
    except ValueError as error:  # no text, or no table
        raise ResultsError(f"{path} is no table of this study: {error}.") from error
    if list(table.columns) != list(columns):
        raise ResultsError(f"{path} is no table of this study: its columns are {', '.join(map(str, table.columns))}.")
    return table.fillna({"note": ""})


def readme(
    reading: pd.DataFrame | None,
    tiny: pd.DataFrame | None,
    scoring: pd.DataFrame | None,
    measured_with: machines.Machines,
    *,
    where: pd.DataFrame | None = None,
) -> str:
    """The page as Markdown, of the tables there are. measured_with: as in `machines`."""
    parts = []
    if reading is not None:
        parts += [
            f"# {QUESTION}\n",
            f"{answer(reading)}\n",
            "![Time and peak memory of each contender, by model and length](cost.png)\n",
            markdown(reading),
            "## How it was measured\n",
            METHOD,
            f"The numbers are in [{READING_CSV}]({READING_CSV}).\n",
        ]
    if where is not None:
        parts += [
            f"## {WHERE_TITLE}\n",
            where_markdown(where),
            WHERE_METHOD,
            f"The numbers are in [{WHERE_CSV}]({WHERE_CSV}).\n",
        ]
    if tiny is not None:
        parts += [
            f"{'#' if reading is None else '##'} {TINY_TITLE}\n",
            f"{tiny_answer(tiny)}\n",
            tiny_markdown(tiny),
            TINY_METHOD,
            f"The numbers are in [{TINY_CSV}]({TINY_CSV}).\n",
        ]
    if scoring is not None:
        parts += [
            f"## {SCORING_TITLE}\n",
            scoring_markdown(scoring),
            SCORING_METHOD,
            f"The numbers are in [{SCORING_CSV}]({SCORING_CSV}).\n",
        ]
    return "\n".join((*parts, machines.markdown(measured_with)))


def tiny_answer(table: pd.DataFrame) -> str:
    """One sentence from the numbers."""
    found = "; ".join(f"{TASKS[row['task']].label}, {speedup(row)}" for _, row in table.iterrows())
    return f"Tokens a second of the tiny GPT over those of GPT-2 (median and range of the pairs): {found}."


def tiny_markdown(table: pd.DataFrame) -> str:
    """The table for readers."""
    lines = ["| task | GPT-2, tokens/s | tiny GPT, tokens/s | times faster (range) | pairs |", "|---|---|---|---|---|"]
    for _, row in table.iterrows():
        speeds = " | ".join(f"{row['tokens'] / row[name]:,.0f}" for name in ("gpt2_seconds", "tiny_seconds"))
        lines.append(f"| {TASKS[row['task']].label} | {speeds} | {speedup(row)} | {row['repeats']} |")
    return "\n".join(lines) + "\n"


def scoring_markdown(table: pd.DataFrame) -> str:
    """The table for readers."""
    lines = [
        "| model | what | plain = 1 (range) | of | pairs | plain, s | scoring, s |",
        "|---|---|---|---|---|---|---|",
    ]
    for _, row in table.iterrows():
        task = SCORINGS[row["task"]]
        seconds = f"{row['plain_seconds']:.3g} | {row['seconds']:.3g}"
        lines.append(f"| {row['model']} | {task.label} | {ratio(row)} | {task.work} | {row['repeats']} | {seconds} |")
    return "\n".join(lines) + "\n"


def where_markdown(table: pd.DataFrame) -> str:
    """The table for readers: kinds of work, the largest of the last contender first, and their sum."""
    wide = table.pivot(index="kind", columns="contender", values="seconds")[list(dict.fromkeys(table["contender"]))]
    wide = wide.sort_values(wide.columns[-1], ascending=False, kind="stable")
    labels = " | ".join(CONTENDERS[name].label for name in wide.columns)
    lines = [
        f"| {table['model'].iloc[0]}, {table['n_tokens'].iloc[0]:,} tokens: seconds | {labels} |",
        "|---" * (len(wide.columns) + 1) + "|",
        *(f"| {kind} | {' | '.join(f'{s:.2f}' for s in row)} |" for kind, row in wide.iterrows()),
        f"| all | {' | '.join(f'{s:.2f}' for s in wide.sum())} |",
    ]
    return "\n".join(lines) + "\n"


def speedup(row: pd.Series) -> str:
    """ "1.28 (1.25–1.31)"."""
    return f"{row['speedup_median']:.2f} ({row['speedup_min']:.2f}–{row['speedup_max']:.2f})"


def answer(table: pd.DataFrame) -> str:
    """One paragraph from the numbers: the longest prompt at which `MAIN` was measured, and the others beside it."""
    found = table[(table["contender"] == MAIN) & (table["repeats"] > 0)]
    if found.empty:
        return f"{CONTENDERS[MAIN].label} was not measured."
    main = found.sort_values("n_tokens", kind="stable").iloc[-1]
    here = table[(table["model"] == main["model"]) & (table["n_tokens"] == main["n_tokens"])]
    beside = here[(here["repeats"] > 0) & ~here["contender"].isin([MAIN, PLAIN])]
    parts = [
        f"On {main['model']} at {main['n_tokens']:,} tokens, keeping q, k, v, z and the residual stream of every layer "
        f"with probe takes {ratio(main)} times as long as a plain forward pass (median and range of "
        f"{main['repeats']} pairs) and {over(main)} MB of memory at the peak."
    ]
    if not beside.empty:
        others = "; ".join(
            f"{CONTENDERS[r['contender']].label}, {ratio(r)} and {over(r)} MB" for _, r in beside.iterrows()
        )
        parts.append(f"The others there: {others}.")
    noise = here[(here["contender"] == PLAIN) & (here["repeats"] > 0)]
    if not noise.empty:
        parts.append(f"A plain pass against itself measures {ratio(noise.iloc[0])}: what lies within that is noise.")
    return " ".join(parts)


def markdown(table: pd.DataFrame) -> str:
    """The table for readers; contenders that were not measured say why."""
    lines = [
        "| model | tokens | contender | time, plain = 1 (range) | pairs | plain, s | peak, MB | over plain, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for _, row in table.iterrows():
        start = f"| {row['model']} | {row['n_tokens']:,} | {CONTENDERS[row['contender']].label} |"
        if row["repeats"]:
            memory = f"{row['peak_mb']:,.0f} | {over(row)} |"
            lines.append(f"{start} {ratio(row)} | {row['repeats']} | {row['plain_seconds']:.3g} | {memory}")
        else:
            lines.append(f"{start} {row['note']} | – | – | – | – |")
    return "\n".join(lines) + "\n"


def ratio(row: pd.Series) -> str:
    """ "1.02 (0.99–1.05)"."""
    return f"{row['ratio_median']:.2f} ({row['ratio_min']:.2f}–{row['ratio_max']:.2f})"


def over(row: pd.Series) -> str:
    """Peak memory beyond the plain pass's, in MB with its sign."""
    return f"{row['peak_mb'] - row['plain_peak_mb']:+,.0f}".replace("-", "−")
