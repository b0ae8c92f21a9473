"""Causal mediation through attention (Vig et al. 2020): what a head's attention does to which way a sentence goes on.

y = p(wrong continuation) / p(right one), each the geometric mean over its tokens. The total effect of swapping the
pronoun is y on the other prompt over y on this one, minus 1; the indirect effect of a head is the same with this prompt
and only the head's attention, from the prompt's own tokens, taken from the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe import stats
from probe.capture.edit import Edit, Where
from probe.capture.prefix import Prefix
from probe.causal.readout import Asked, Scores, ask, asked
from probe.causal.sweep import Array
from probe.errors import DataError, ProbeError
from probe.subject import Subject
from probe.targets import Positions, Unit
from probe.tty import progress

QUANTILE = 0.25  # of the units that the pronoun moves as expected, the least moved ones that are left out


@dataclass(frozen=True)
class Mediation:
    """total: (unit,), indirect: (layer, head, unit), neither in any unit: relative changes of y. units: those kept. of:
    how many there were, and expected: how many of these the pronoun moves as the stereotype has it.
    """

    units: tuple[Unit, ...]
    total: Array
    indirect: Array
    of: int
    expected: int

    def table(self, *, seed: int = 0) -> pd.DataFrame:
        """One row a head: layer, head, effect (mean), low, high (95 % interval over clusters), n_units."""
        grouped = stats.by_cluster(self.indirect, [u.cluster for u in self.units])
        low, high = stats.interval(grouped, seed=seed, shares=False)
        layer, head = np.indices(self.indirect.shape[:2])
        numbers = {"effect": grouped.overall, "low": low, "high": high}
        return pd.DataFrame(
            {
                "layer": layer.ravel(),
                "head": head.ravel(),
                **{name: np.asarray(value).ravel() for name, value in numbers.items()},
                "n_units": len(self.units),
            }
        )


def mediation(
    subject: Subject, units: Sequence[Unit], *, quantile: float = QUANTILE, most: int | None = None, quiet: bool = False
) -> Mediation:
    """Effects on the units whose total effect is above zero, and above the quantile of those that are (as the authors
    filter); all units for quantile=0 that are above zero.

    units: with a question and an aligned minimal pair; the first wrong candidate is compared. most: how many to measure
    heads on, those first in order; None: all that were kept.
    Raises ProbeError where nothing is left.
    """
    able = [u for u in units if u.answer is not None and u.swapped is not None]
    if not able:
        raise ProbeError(f"none of {len(units)} units has both a question and an aligned minimal pair.")
    subject.anatomy.check_even()
    total = total_effects(subject, able)
    expected = total > 0
    if not expected.any():
        raise ProbeError(f"in none of {len(able)} units does the pronoun move the answer as expected.")
    limit = float(np.quantile(total[expected], quantile)) if quantile else 0.0
    kept = [i for i in range(len(able)) if total[i] > limit][:most]
    if not kept:
        raise ProbeError(f"of {len(able)} units none is above the {quantile:.0%} quantile of those moved as expected.")
    chosen = [able[i] for i in kept]
    indirect, works = [], None
    for unit in progress(chosen, f"mediation in {subject.name}", quiet=quiet):
        found, works = _indirect(subject, unit, works)
        indirect.append(found)
    return Mediation(tuple(chosen), total[kept], np.stack(indirect, -1), len(able), int(expected.sum()))


def total_effects(subject: Subject, units: Sequence[Unit]) -> Array:
    """(unit,): y on the minimal pair's prompt over y on the unit's own, minus 1."""
    own, other = ([_log_odds(subject, u, swapped) for u in units] for swapped in (False, True))
    return np.asarray(np.expm1(np.array(other) - np.array(own)))


def _log_odds(subject: Subject, unit: Unit, swapped: bool) -> float:
    """log y on a unit's prompt or on its pair's."""
    prompts = asked(subject, [unit], most=1)
    ids = [p.swapped or () if swapped else p.ids for p in prompts]
    return _odds(ask(subject, prompts, ids).scores, unit)


def _odds(scores: Sequence[Scores], unit: Unit) -> float:
    """log y, from the candidates' log-probabilities in one or more prompts."""
    assert unit.answer is not None
    found = {c: float(s) for one in scores for c, s in one.items()}
    return found[1] / len(unit.answer.wrong[0]) - found[0] / len(unit.answer.right)


def _indirect(subject: Subject, unit: Unit, works: bool | None) -> tuple[Array, bool]:
    """(layer, head) effects on one unit, and whether the layers below a head need not be run again (None: unknown)."""
    assert unit.answer is not None
    assert unit.swapped is not None
    prompts = asked(subject, [unit], most=1)
    context: Positions = unit.swapped[: unit.answer.read_at + 1]
    ((_, other),) = subject.captured([context], ["pattern"])
    prefix = Prefix(subject.anatomy, works=works is True)
    with prefix.recorded(len(prompts)):
        clean = ask(subject, prompts, [p.ids for p in prompts])
    if works is None:
        prefix.check(clean.batch.inputs)
    base = _odds(clean.scores, unit)
    found = np.zeros((subject.n_layers, subject.n_heads))
    for layer in range(subject.n_layers):
        given = other["pattern", layer][0]
        heads = [h for h in range(subject.n_heads) for _ in prompts]
        look, rows = _Look(given, torch.tensor(heads)), tuple(range(len(context)))
        edit = Edit("pattern", layer, look, rows=rows, what="mediate")
        many: list[Asked] = list(prompts) * subject.n_heads
        with prefix.resumed(layer, list(range(len(prompts))) * subject.n_heads):
            scores = ask(subject, many, [p.ids for p in many], edits=[edit]).scores
        for head in range(subject.n_heads):
            part = scores[head * len(prompts) : (head + 1) * len(prompts)]
            found[layer, head] = np.expm1(_odds(part, unit) - base)
    return found, prefix.works


@dataclass(frozen=True)
class _Look:
    """In row i of a batch, head `heads[i]` looks as it does in `given`, (head, query, key)."""

    given: Tensor
    heads: Tensor

    def __call__(self, part: Tensor, where: Where) -> Tensor:
        assert where.keys is not None
        new, mine, at = part.clone(), torch.arange(len(part)), self.heads[where.prompts]
        inside = (where.keys >= 0) & (where.keys < self.given.shape[-1])
        rows = torch.zeros_like(new[mine, at])
        rows[..., inside] = self.given[at][:, where.rows][:, :, where.keys[inside]].to(new)
        new[mine, at] = rows
        return new


def reference(path: str | Path, file: str = "attention_intervention_gpt2_filtered_dev.json") -> pd.DataFrame:
    """Mean indirect effects of the authors' release, as a table of tabs: layer, head, published, n.

    path: its columns are file, layer, head, mean_indirect_effect and n, a row for each of the strongest heads. file:
    which of the released files. Raises DataError for a missing or malformed table, or one without that file.
    """
    path = Path(path)
    try:
        table = pd.read_csv(path, sep="\t")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path} cannot be read as a table: {error}.") from error
    columns = {"file", "layer", "head", "mean_indirect_effect", "n"}
    if missing := columns - set(table.columns):
        raise DataError(
            f"{path}, line 1: there is no column {sorted(missing)[0]!r}; it has {', '.join(map(str, table))}."
        )
    chosen = table[table["file"] == file]
    if chosen.empty:
        raise DataError(f"{path} has nothing of {file!r}; it has {', '.join(sorted(set(table['file'])))}.")
    renamed = chosen.rename(columns={"mean_indirect_effect": "published"})
    return renamed[["layer", "head", "published", "n"]].reset_index(drop=True)


def beside(measured: pd.DataFrame, published: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The published heads with their measured effect and rank among all heads, and Pearson's r of the two columns.

    measured: `Mediation.table`. published: `reference`. Raises DataError where a published head is not there.
    """
    ranked = measured.assign(rank=measured["effect"].rank(ascending=False, method="min").astype(int))
    joined = published.merge(ranked, on=["layer", "head"], how="left", validate="one_to_one")
    if joined["effect"].isna().any():
        gone = joined[joined["effect"].isna()].iloc[0]
        raise DataError(f"the published head {gone['layer']:.0f}.{gone['head']:.0f} is not in this model.")
    r = float(np.corrcoef(joined["published"], joined["effect"])[0, 1])
    return joined.drop(columns="n_units"), r
