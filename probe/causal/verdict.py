"""Both legs of the evidence in one table: what may be said of each head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from probe.causal.leg import MEASURED, Causal, causal
from probe.errors import DataError
from probe.scores.evidence import MOST_PICKED, Evidence, evidence
from probe.subject import Subject
from probe.targets import Targets

SUPPORTED, ATTENTION, CAUSAL, NOT = "supported", "attention only", "causal only", "not supported"
UNTESTABLE = "untestable here"
LEGS = {(True, True): SUPPORTED, (True, False): ATTENTION, (False, True): CAUSAL, (False, False): NOT}


@dataclass(frozen=True)
class Verdicts:
    """heads: one row a head, the columns of the attention leg (`probe.scores.heads`), those of the causal leg with
    `causal_` before them where both have one, and verdict. attention, causal: the legs themselves.
    """

    heads: pd.DataFrame
    attention: Evidence
    causal: Causal


def effect(
    subject: Subject,
    targets: Targets | Sequence[Targets],
    *,
    full: bool = False,
    seed: int = 0,
    quiet: bool = False,
) -> pd.DataFrame:
    """How much the answers to each phenomenon's questions depend on each head: a tidy table, one row a phenomenon and
    head. Columns: subject, phenomenon, dataset, reason (why nothing could be measured, else None), and those of
    `probe.causal.causal`, in nats. full, seed: as there.
    """
    every = [targets] if isinstance(targets, Targets) else list(targets)
    if not every:
        raise DataError("no targets were given; bind a dataset first: targets = subject.bind(dataset).")
    parts = []
    for one in every:
        found = causal(subject, one, full=full, seed=seed, quiet=quiet)
        named = {"subject": subject.name, "phenomenon": one.phenomenon, "dataset": one.dataset, "reason": found.reason}
        parts.append(pd.concat([pd.DataFrame(named, index=found.heads.index), found.heads], axis=1))
    return pd.concat(parts, ignore_index=True)


def verdicts(
    subject: Subject,
    targets: Targets,
    *,
    full: bool = False,
    groups: int = 0,
    most: int = MOST_PICKED,
    kinds: Sequence[str] = MEASURED,
    seed: int = 0,
    quiet: bool = False,
) -> Verdicts:
    """A verdict for every head, from what it attends to and from what happens to the answer without it.

    supported: both legs hold. attention only, causal only: one of them. not supported: neither; so are heads that were
    not picked by any. untestable here: with the reason, where the causal leg cannot be measured at all.
    The causal leg tests the heads it picks itself, and all that passed the attention leg. full, groups, most, kinds: as
    in `probe.causal.causal`. seed: the split into halves, the resampling.
    Raises DataError for targets without rivals, which are described and never judged.
    """
    if not targets.rivals:
        raise DataError(f"{targets.phenomenon} has no rivals and no answer: its heads are described, never judged.")
    looks = evidence(subject, targets, seed=seed, quiet=quiet)
    passed = looks.heads[looks.heads["passed"]]
    also = list(zip(passed["layer"], passed["head"], strict=True))
    depends = causal(
        subject,
        targets,
        looks.measurement,
        also=also,
        full=full,
        most=most,
        kinds=kinds,
        groups=groups,
        seed=seed,
        quiet=quiet,
    )
    table = looks.heads.merge(depends.heads, on=["layer", "head"], suffixes=("", "_causal"), validate="one_to_one")
    both = [c for c in table.columns.astype(str) if c.endswith("_causal")]
    table = table.rename(columns={c: f"causal_{c.removesuffix('_causal')}" for c in both})
    if depends.reason is None:
        legs = zip(table["passed"], table["causal_passed"], strict=True)
        table["verdict"] = [LEGS[bool(a), bool(b)] for a, b in legs]
    else:
        table["verdict"] = f"{UNTESTABLE}: {depends.reason}"
    return Verdicts(table, looks, depends)
