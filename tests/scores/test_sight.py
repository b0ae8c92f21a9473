"""Where attention falls and what a change reaches: planted patterns, counted by hand, and real models."""

from __future__ import annotations

import pytest
import torch

from probe.capture.run import Run
from probe.models import reversal
from probe.scores.sight import aim, available, counting_passes, directions, neighbour_head, passes, reach
from probe.subject import Subject, load

NAN = float("nan")


def planted(site: str, patterns: list[torch.Tensor], decoder: list[int] | None = None) -> Run:
    """A run of one layer and one head whose patterns are given, (query, key) each, filled up with NaN."""
    rows, keys = (max(p.shape[d] for p in patterns) for d in (0, 1))
    full = torch.full((len(patterns), 1, rows, keys), NAN)
    for b, p in enumerate(patterns):
        full[b, 0, : p.shape[0], : p.shape[1]] = p
    sizes = decoder or [p.shape[1] for p in patterns]
    prompts = tuple([0] * p.shape[1] for p in patterns)
    return Run(prompts, None, {(site, 2): full}, tuple((0,) * n for n in sizes))


def test_shares_are_counted_from_the_query() -> None:
    one = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.7, 0.1, 0.2]])
    two = torch.tensor([[0.9, 0.1], [0.4, 0.6]])
    row = directions(planted("pattern", [one, two])).iloc[0]
    earlier = [(0 + 0.1 + 0.8) / 3, (0 + 0.4) / 2]
    itself = [(0.5 + 0.6 + 0.2) / 3, (0.9 + 0.6) / 2]
    later = [(0.5 + 0.3 + 0) / 3, (0.1 + 0) / 2]
    assert row[["earlier", "itself", "later"]].tolist() == pytest.approx([sum(x) / 2 for x in (earlier, itself, later)])
    assert row["latest"] == pytest.approx(0.3)
    assert row["uniform_later"] == pytest.approx((1 / 3 + 1 / 4) / 2)
    assert (row["layer"], row["head"]) == (2, 0)


def test_a_decoder_puts_exactly_nothing_on_later_tokens(tiny: Subject, smollm2: Subject, minilm: Subject) -> None:
    texts = {"synthetic": ["the cat did not reach the shelf", "Anna met Ben"], "english": ["The cat sat.", "Hi there"]}
    for subject in (tiny, smollm2):
        found = directions(subject.run(texts[subject.language]))
        assert found["later"].max() == found["latest"].max() == 0
        assert (found[["earlier", "itself"]].sum(axis=1) - 1).abs().max() < 1e-5
    assert directions(minilm.run(texts["english"]))["later"].min() > 0


@pytest.mark.parametrize(("shift", "share", "offset"), [(0, 1.0, 0), (1, 0.0, 1), (-1, 0.0, -1)])
def test_a_planted_head_that_looks_at_the_mirror_scores_one(shift: int, share: float, offset: int) -> None:
    lengths = [4, 6]
    patterns = []
    for n in lengths:
        p = torch.full((n + 1, n + 2), 0.1 / (n + 1))
        for step, at in enumerate(reversal.mirrored(n)):
            p[step, at + shift] = 0.9
        patterns.append(p)
    run = planted("cross.pattern", patterns, [n + 1 for n in lengths])
    row = aim(run, [reversal.mirrored(n) for n in lengths], seed=0).iloc[0]
    assert (row["share"], row["offset"], row["offset_share"]) == (share, offset, 1.0)
    assert row["mass"] == pytest.approx(0.9 if share else (4 * 0.1 / 5 + 6 * 0.1 / 7) / 10)
    assert row["chance"] == pytest.approx((4 / 6 + 6 / 8) / 10)
    assert (row["n_positions"], row["n_prompts"]) == (10, 2)
    assert row["low"] <= share <= row["high"]


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_neighbour_head_is_found_by_its_mean_weight(minilm: Subject, offset: int) -> None:
    run = minilm.run("The cat sat on the mat.")
    n = len(run.prompts[0])
    means = {
        (layer, head): [float(run["pattern", layer][0, head, q, q + offset]) for q in range(n) if 0 <= q + offset < n]
        for layer in range(minilm.n_layers)
        for head in range(minilm.n_heads)
    }
    best = max(means, key=lambda at: sum(means[at]))
    assert neighbour_head(run, offset) == (*best, pytest.approx(sum(means[best]) / (n - 1), rel=1e-5))


def test_a_change_reaches_what_comes_before_in_an_encoder_alone(tiny: Subject, minilm: Subject) -> None:
    run = tiny.run(["the cat was too tired", "the cat was too high"], "resid_post")
    assert reach(run, range(5)) == (5, 0, 0.0)
    assert reach(run, [5]).changed == 1
    found = reach(minilm.run(["It was tired.", "It was high."], "resid_post"), range(3))
    assert found.changed == 3
    assert found.largest > 0.01


def test_passes_are_counted_with_their_positions(tiny: Subject) -> None:
    with counting_passes(tiny) as seen:
        prompt = tiny.generate("the cat did", max_new_tokens=5).prompts[0]
    assert seen == [("", len(prompt)), *[("", 1)] * 4]
    assert passes(seen) == (0, 0, 5, len(prompt) + 4)
    before = len(seen)
    tiny.run("the cat")
    assert len(seen) == before, "nothing is counted afterwards"


def test_an_encoder_decoder_reads_its_source_once() -> None:
    subject = load(reversal.new_model(), reversal.tokenizer(), name="reverser")
    with counting_passes(subject) as seen:
        subject.generate("a b c .", max_new_tokens=3)
    assert passes(seen) == (1, 5, 3, 3)


def test_sites_are_there_or_not(tiny: Subject, minilm: Subject) -> None:
    theirs, encoder = (available(s).set_index("site") for s in (tiny, minilm))
    assert theirs[""].all()
    assert encoder.index[~encoder[""]].tolist() == ["logits"]
    assert not theirs[["encoder.", "cross."]].any(axis=None)
    both = available(load(reversal.new_model(), reversal.tokenizer(), check=False)).set_index("site")
    assert both.loc["pattern"].all()
    assert both.loc["logits"].tolist() == [True, False, False]
    assert both.loc["mlp_out", "cross."] == False  # noqa: E712
