"""The price of looking: time and memory of probe and its peers against a plain forward pass; and the speed of the
tiny GPT against an equally configured GPT-2; and what scoring every head costs.

    python -m studies.cost --profile quick --out reports/cost
    python -m studies.cost --profile full --out reports/cost --only tiny-gpt   # leaves the other tables as they are

Not a cell of the runner, since times are never the same twice: it writes a folder of its own, with a README.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(words: Sequence[str] | None = None) -> None:
    """Measure and write the folder. quick: two short prompts, a few minutes; full: up to 8,192 tokens."""
    parser = argparse.ArgumentParser(prog="python -m studies.cost", description=__doc__)
    parser.add_argument("--profile", choices=("quick", "full"), default="quick")
    parser.add_argument("--out", type=Path, default=Path("reports/quick/cost"), help="folder for the results")
    parser.add_argument(
        "--only", choices=("reading", "tiny-gpt", "scoring", "where"), help="measure one table, keep the others"
    )
    parser.add_argument("--threads", type=int, default=2, help="of torch, the same for every contender")
    parser.add_argument("--seed", type=int, default=0, help="of the token ids")
    given = parser.parse_args(words)

    import pandas as pd

    from probe.cost.harness import (
        PLANS,
        SCORING_REPEATS,
        TINY_PROCESSES,
        TINY_REPEATS,
        WHERE,
        machine,
        measure,
        measure_scoring,
        measure_tiny,
        measure_where,
    )
    from probe.cost.write import write

    again = f"python -m studies.cost --profile {given.profile} --threads {given.threads} --seed {given.seed}"
    facts, how = machine(given.threads, given.seed), {"threads": given.threads, "seed": given.seed, "say": _say}
    if given.only in (None, "tiny-gpt"):
        processes = TINY_PROCESSES[given.profile]
        table = measure_tiny(TINY_REPEATS[given.profile], processes=processes, **how)
        write(given.out, facts, again, tiny=table)
    if given.only in (None, "scoring"):
        write(given.out, facts, again, scoring=measure_scoring(SCORING_REPEATS[given.profile], **how))
    if given.only in (None, "where"):
        write(given.out, facts, again, where=measure_where(WHERE[given.profile], **how))
    read: list[pd.DataFrame] = []
    for case in PLANS[given.profile] if given.only in (None, "reading") else ():
        read.append(measure([case], **how))
        # After each case, so that an interrupted run leaves a page of what it has measured.
        write(given.out, facts, again, reading=pd.concat(read, ignore_index=True))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
