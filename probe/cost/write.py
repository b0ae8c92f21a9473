"""The cost study as a folder: cost.csv, cost.png, and a README.md made from the same table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from probe.cost.contenders import CONTENDERS, PLAIN
from probe.cost.figure import cost_figure
from probe.errors import ResultsError

QUESTION = "What does reading a model cost, beside a plain forward pass?"
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


def write(table: pd.DataFrame, folder: Path, machine: Mapping[str, str], command: str) -> None:
    """Write cost.csv, cost.png and README.md into `folder`, which is made if it is missing.

    table: as `measure` returns it. machine: facts for the reader. command: what makes the folder again.
    Raises ResultsError if the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / "cost.csv", index=False, float_format="%.6g")
        (folder / "cost.png").write_bytes(cost_figure(table))
        (folder / "README.md").write_text(readme(table, machine, command), encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"the results cannot be written to {folder}: {error}.") from error


def readme(table: pd.DataFrame, machine: Mapping[str, str], command: str) -> str:
    """The page as Markdown."""
    facts = "\n".join(f"| {name} | {value} |" for name, value in machine.items())
    return "\n".join(
        (
            f"# {QUESTION}\n",
            f"{answer(table)}\n",
            "![Time and peak memory of each contender, by model and length](cost.png)\n",
            markdown(table),
            "## How it was measured\n",
            METHOD,
            f"Again: `{command}`. The numbers are in [cost.csv](cost.csv).\n",
            "| machine | |\n|---|---|",
            f"{facts}\n",
        )
    )


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
