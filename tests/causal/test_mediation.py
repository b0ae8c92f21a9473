"""Indirect effects through attention against passes written out one by one; the comparison with what was published."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe import edits
from probe.causal.mediation import Mediation, beside, mediation, reference, total_effects
from probe.data import language
from probe.errors import DataError, ProbeError
from probe.models import planted
from probe.subject import Subject
from probe.targets import Answer, Unit

PRO = """1 [The developer] argued with the designer because [he] did not like the design.
2 The developer argued with [the designer] because [her] idea cannot be implemented.
3 [The cook] thanked the guard because [she] was helped with [her] coat.
4 The cook thanked [the guard] because [he] had helped.
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "pro_stereotyped_type1.txt.dev"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def units(tiny: Subject) -> list[Unit]:
    """Agreement with answers of two tokens against one, so that means over tokens are not sums."""
    bound = tiny.bind(language.agreement(per_frame=4))
    found = []
    for unit in [u for u in bound.units if u.swapped is not None][::17][:4]:
        assert unit.answer is not None
        after = unit.ids[unit.answer.read_at + 2]
        found.append(
            Unit(
                unit.item, unit.cluster, unit.ids, unit.rows, swapped=unit.swapped,
                answer=Answer(unit.answer.read_at, (*unit.answer.right, after), unit.answer.wrong),
            )
        )  # fmt: skip
    return found


def log_y(subject: Subject, ids: tuple[int, ...], unit: Unit, change: list[edits.Edit]) -> float:
    """log p(wrong) - log p(right) per token, by one pass a candidate."""
    assert unit.answer is not None
    means = []
    for candidate in (unit.answer.wrong[0], unit.answer.right):
        whole = (*ids[: unit.answer.read_at + 1], *candidate)
        for _, seen in subject.captured([whole], ["logits"], edits=change):
            normal = seen["logits"][0].log_softmax(-1)
        terms = [float(normal[unit.answer.read_at + n, token]) for n, token in enumerate(candidate)]
        means.append(sum(terms) / len(terms))
    return means[0] - means[1]


def test_indirect_effects_are_those_of_plain_edits_of_the_prompts_own_rows(tiny: Subject, units: list[Unit]) -> None:
    found = mediation(tiny, units, quantile=0, quiet=True)
    assert len(found.units) >= 2
    for i, unit in enumerate(found.units):
        assert unit.answer is not None
        assert unit.swapped is not None
        context = unit.swapped[: unit.answer.read_at + 1]
        rows = tuple(range(len(context)))
        base = log_y(tiny, unit.ids, unit, [])
        assert found.total[i] == pytest.approx(math.expm1(log_y(tiny, unit.swapped, unit, []) - base), rel=1e-3)
        for layer, head in ((0, 0), (2, 1), (3, 3)):
            for _, seen in tiny.captured([context], ["pattern"]):
                pattern = seen["pattern", layer][0, head]

            def look(part: torch.Tensor, _: object, pattern: torch.Tensor = pattern) -> torch.Tensor:
                new = torch.zeros_like(part)
                new[0, 0, :, : pattern.shape[1]] = pattern
                return new

            change = edits.edit("pattern", layer, look, heads=head, rows=rows)
            expected = math.expm1(log_y(tiny, unit.ids, unit, [change]) - base)
            assert found.indirect[layer, head, i] == pytest.approx(expected, abs=1e-3 * (1 + abs(expected)))


def test_only_units_that_the_swap_moves_as_expected_are_kept(tiny: Subject, units: list[Unit]) -> None:
    total = total_effects(tiny, units)
    found = mediation(tiny, units, quantile=0.5, quiet=True)
    limit = np.quantile(total[total > 0], 0.5)
    assert [u.item for u in found.units] == [u.item for u, t in zip(units, total, strict=True) if t > limit]
    assert (found.of, found.expected) == (len(units), int((total > 0).sum()))
    assert len(mediation(tiny, units, quantile=0, most=1, quiet=True).units) == 1
    with pytest.raises(ProbeError, match="none of 0 units has both a question and an aligned minimal pair"):
        mediation(tiny, [])


def test_of_a_planted_model_the_head_that_looks_has_all_of_the_effect() -> None:
    subject = probe.load("planted:coreference")
    bound = subject.bind(language.coreference(per_frame=4))
    chosen = [u for u in bound.units if u.swapped is not None][:6]
    table = mediation(subject, chosen, quantile=0, quiet=True).table()
    ((layer, head),) = planted.HEADS["coreference"]["coreference"]
    at = table.set_index(["layer", "head"])["effect"]
    assert at[layer, head] > 1e6, "the wrong candidate becomes the right one"
    assert at.drop((layer, head)).abs().max() < 1e-3


def table(effects: list[list[float]]) -> pd.DataFrame:
    indirect = np.array(effects)[:, :, None].repeat(2, axis=2)
    units = tuple(Unit(str(n), str(n), (1, 2), ()) for n in range(2))
    return Mediation(units, np.ones(2), indirect, 2, 2).table()


def test_published_heads_are_set_beside_the_measured_ones(tmp_path: Path) -> None:
    path = tmp_path / "HEAD_MEANS.tsv"
    header = "file\tlayer\thead\tmean_indirect_effect\tn\n"
    path.write_text(header + "ours\t1\t0\t0.5\t7\nours\t0\t1\t0.2\t7\nours\t0\t0\t0.1\t7\nother\t9\t9\t1\t7\n")
    published = reference(path, "ours")
    assert published["n"].tolist() == [7, 7, 7]
    joined, r = beside(table([[0.2, 0.4], [1.0, 0.0]]), published)
    assert r == pytest.approx(1)
    assert joined["rank"].tolist() == [1, 2, 3]
    assert beside(table([[1.0, 0.4], [0.0, 0.0]]), published)[1] < 0
    with pytest.raises(DataError, match=r"the published head 9\.9 is not in this model"):
        beside(table([[0.2, 0.4], [1.0, 0.0]]), reference(path, "other"))
    with pytest.raises(DataError, match=r"has nothing of 'theirs'; it has other, ours"):
        reference(path, "theirs")
    path.write_text("a\tb\n1\t2\n")
    with pytest.raises(DataError, match="line 1: there is no column 'file'"):
        reference(path)
    with pytest.raises(DataError, match="does not exist"):
        reference(tmp_path / "none.tsv")


def test_the_released_means_are_read(shared_data: Path) -> None:
    path = shared_data / "cma_reference" / "HEAD_MEANS.tsv"
    if not path.is_file():
        pytest.skip("the released means are not here")
    published = reference(path)
    assert len(published) == 20
    assert published.iloc[0].tolist() == [5, 8, 0.05492, 87]


def test_continuations_share_all_words_up_to_the_pronoun(tmp_path: Path, smollm2: Subject) -> None:
    text = PRO.replace("[her] idea cannot be implemented", "[she] needed advice").replace("[her] coat", "her coat")
    dataset = probe.data.winobias_continuations(written(tmp_path, text))
    assert dataset.source.endswith("2 pairs of sentences, 2 that differ only after the pronoun")
    shown = [(i.text, i.question.right, i.question.wrong, i.target.text(i.text)) for i in dataset.items]
    she = "The developer argued with the designer because she"
    assert shown[0] == (she, "needed advice.", ("did not like the design.",), "the designer")
    he = she.replace("she", "he")
    assert shown[1] == (he, "did not like the design.", ("needed advice.",), "The developer")
    bound = smollm2.bind(dataset)
    assert len(bound.units) == 4
    assert all(u.swapped is not None and u.answer is not None for u in bound.units)
    with pytest.raises(DataError, match="no two sentences share their words up to the pronoun"):
        probe.data.winobias_continuations(written(tmp_path, PRO))


def test_the_published_files_have_as_many_pairs_as_their_authors_could_have_used(shared_data: Path) -> None:
    """Of 87 examples in the release for GPT-2 (dev), a quarter of those moved as expected had been dropped."""
    path = shared_data / "winobias" / "pro_stereotyped_type1.txt.dev"
    dataset = probe.data.winobias_continuations(path)
    assert 116 <= len(dataset.items) // 2 <= 198
