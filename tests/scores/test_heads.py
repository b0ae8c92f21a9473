"""The attention leg: it finds what is there, finds nothing where nothing is, and agrees with plain loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import probe
from probe.data import Text
from probe.errors import DataError, UnsupportedModel
from probe.models import planted
from probe.scores.evidence import evidence, heads, shuffled
from probe.scores.measure import measure
from probe.subject import Subject
from probe.targets import Targets


@pytest.fixture(scope="module")
def synthetic(tiny: Subject) -> Targets:
    return tiny.bind(probe.data.language.coreference(per_frame=8))


def plain_accuracies(subject: Subject, targets: Targets) -> tuple[np.ndarray, np.ndarray]:
    """Candidate and word accuracy of every head by a plain loop over the model's own output_attentions."""
    oracle = probe.load(subject.name, attention="eager").model
    candidate = np.zeros((subject.n_layers, subject.n_heads))
    word = np.zeros_like(candidate)
    for unit in targets.units:
        row = unit.rows[0]
        with torch.no_grad():
            attentions = oracle(torch.tensor([unit.ids]), output_attentions=True).attentions
        others = [w for w in unit.words if row.query[0] not in w]
        for layer, attention in enumerate(attentions):
            weights = attention[0][:, list(row.query)].mean(1).numpy()  # (head, key)
            target = weights[:, list(row.target)].sum(1)
            best_foil = np.max([weights[:, list(f)].sum(1) for f in row.foils], axis=0)
            candidate[layer] += np.where(target == best_foil, 0.5, target > best_foil)
            chosen_word = np.argmax([weights[:, list(w)].sum(1) for w in others], axis=0)
            word[layer] += [bool(set(others[w]) & set(row.target)) for w in chosen_word]
    return candidate / len(targets.units), word / len(targets.units)


def test_on_gap_every_head_of_minilm_equals_a_plain_loop(minilm: Subject, shared_data: Path) -> None:
    targets = minilm.bind(probe.data.gap(shared_data / "gap" / "gap-validation.tsv"))
    assert len(targets.units) == 392
    measured = measure(minilm, targets)
    candidate, word = plain_accuracies(minilm, targets)
    assert np.abs(measured["correct"].mean(-1) - candidate).max() <= 1e-6
    assert np.abs(measured["word_correct"].mean(-1) - word).max() <= 1e-6


def test_on_gap_every_head_of_smollm2_equals_a_plain_loop_on_a_subset(smollm2: Subject, shared_data: Path) -> None:
    targets = smollm2.bind(probe.data.gap(shared_data / "gap" / "gap-validation.tsv"))
    targets = replace(targets, units=targets.units[:8])
    measured = measure(smollm2, targets)
    candidate, word = plain_accuracies(smollm2, targets)
    assert np.abs(measured["correct"].mean(-1) - candidate).max() <= 1e-6
    assert np.abs(measured["word_correct"].mean(-1) - word).max() <= 1e-6


def test_tiny_has_heads_that_resolve_its_own_pronouns(tiny: Subject, synthetic: Targets) -> None:
    table = heads(tiny, [synthetic])
    best = table.loc[table["value"].idxmax()]
    assert bool(best["passed"])
    assert best["value"] > 0.6
    assert best["p_holm"] < 0.05
    assert best["best_rival_value"] == 0.5
    assert best["value"] > best["random_max"] > 0.5
    assert best["value"] > best["shuffled_max"] + 0.1
    assert 0.45 < best["shuffled_max"] < 0.65
    assert (best["direction"], best["split"]) == ("before", "measurement half")
    why = "the deciding words follow the query, where a causal model cannot look"
    assert best["excluded"] == f"{why}: {len(synthetic.excluded)}"
    assert table["picked"].sum() <= 10
    assert table[~table["picked"]]["p"].isna().all()
    assert not table[~table["picked"]]["passed"].any()


def test_a_randomly_initialised_model_has_no_passing_head(tiny: Subject, synthetic: Targets) -> None:
    passed = [heads(tiny.random_copy(seed), [synthetic], seed=seed)["passed"].sum() for seed in range(100, 105)]
    assert sum(passed) <= 1


def test_with_shuffled_labels_no_head_passes(tiny: Subject, synthetic: Targets) -> None:
    """Which candidate is called the target is a coin toss: nothing is there to be found."""
    rng = np.random.default_rng(0)
    passed = 0
    for seed in range(5):
        units = []
        for unit in synthetic.units:
            row = unit.rows[0]
            swapped = replace(row, target=row.foils[0], foils=(row.target,))
            units.append(replace(unit, rows=(swapped if rng.random() < 0.5 else row,)))
        passed += int(heads(tiny, [replace(synthetic, units=tuple(units))], seed=seed)["passed"].sum())
    assert passed <= 1


def test_shuffled_labels_are_the_same_prompts_with_a_candidate_drawn_at_random(synthetic: Targets) -> None:
    relabelled = shuffled(synthetic, 3)
    assert relabelled == shuffled(synthetic, 3)
    kept = 0
    for unit, other in zip(synthetic.units, relabelled.units, strict=True):
        assert replace(other, rows=unit.rows) == unit
        for row, drawn in zip(unit.rows, other.rows, strict=True):
            assert {drawn.target, *drawn.foils} == {row.target, *row.foils}
            assert drawn.query == row.query
        kept += other.rows == unit.rows
    assert 0.4 < kept / len(synthetic.units) < 0.6


def test_what_was_left_out_is_in_the_table_with_its_reason(minilm: Subject) -> None:
    items = probe.data.coreference(4).items
    lost = replace(items[0], text=items[0].text + " word" * 600, pair=None)
    bound = minilm.bind(replace(probe.data.coreference(4), items=(lost, *items[2:])))
    table = heads(minilm, [bound, minilm.bind(probe.data.previous_token(items[:3]))])
    assert table["n_excluded"].tolist()[::72] == [1, 0]
    assert table["excluded"][0] == f"{bound.excluded[0].reason}: 1"
    assert table["split"].tolist()[::72] == ["measurement half", "all"]
    assert table["shuffled_max"].isna().tolist()[::72] == [False, True]


def test_the_same_seed_gives_the_same_table_and_another_seed_another_half(tiny: Subject, synthetic: Targets) -> None:
    a, b, c = (evidence(tiny, synthetic, seed=s) for s in (0, 0, 1))
    pd.testing.assert_frame_equal(a.heads, b.heads)
    assert (a.measurement == b.measurement).all()
    assert (a.measurement != c.measurement).any()


def test_no_cluster_and_no_minimal_pair_is_on_both_sides(tiny: Subject, synthetic: Targets) -> None:
    found = evidence(tiny, synthetic)
    sides: dict[str, set[bool]] = {}
    for unit, side in zip(synthetic.units, found.measurement, strict=True):
        sides.setdefault(unit.cluster, set()).add(bool(side))
    assert all(len(s) == 1 for s in sides.values())
    halves = [next(iter(s)) for s in sides.values()]
    assert abs(halves.count(True) - halves.count(False)) <= 1


def test_order_batches_and_padding_do_not_change_a_score(tiny: Subject, synthetic: Targets) -> None:
    """A list of prompts equals the mean of its items, whatever they are batched with."""
    some = replace(synthetic, units=synthetic.units[:40])
    together = measure(tiny, some)
    reverse = measure(tiny, replace(some, units=some.units[::-1]))
    alone = [measure(tiny, replace(some, units=(u,))) for u in some.units[:10]]
    for name in together.values:
        assert np.allclose(together[name], reverse[name][..., ::-1], atol=1e-5, equal_nan=True)
        singly = np.concatenate([m[name] for m in alone], axis=-1)
        assert np.allclose(together[name][..., :10], singly, atol=1e-5, equal_nan=True)


def test_described_phenomena_get_no_verdict(minilm: Subject) -> None:
    texts = probe.data.coreference(2).items
    targets = [minilm.bind(make(texts)) for make in (probe.data.previous_token, probe.data.first_token)]
    table = heads(minilm, targets)
    assert set(table["phenomenon"]) == {"previous token", "first token"}
    assert len(table) == 2 * 72
    assert not table["passed"].any()
    assert table["p"].isna().all()
    assert ((table["low"] <= table["value"]) & (table["value"] <= table["high"])).all()
    first = table[table["phenomenon"] == "first token"]
    assert np.allclose(first["value"], first["first_mass"])


def test_too_few_clusters_to_split_is_an_error(tiny: Subject, synthetic: Targets) -> None:
    clusters = sorted({u.cluster for u in synthetic.units})[:3]
    few = replace(synthetic, units=tuple(u for u in synthetic.units if u.cluster in clusters))
    with pytest.raises(DataError, match=r"synthetic-coreference has 3 clusters .* at least 4"):
        heads(tiny, [few])


def test_a_model_without_heads_in_every_layer_is_read_but_not_scored(tiny: Subject) -> None:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.JambaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        use_mamba_kernels=False,
        mamba_d_state=4,
    )
    subject = probe.load(tf.JambaForCausalLM(config).eval(), tiny.tokenizer)
    run = subject.run("Anna thanked Ben .", ["pattern"])
    assert [layer for _, layer in run.values] == [1]
    with pytest.raises(UnsupportedModel, match=r"no even grid of heads \(2 layers; heads by layer 1: 4\)"):
        measure(subject, subject.bind(probe.data.language.coreference(per_frame=8)))


def test_a_planted_head_that_looks_one_back_has_that_offset_and_distance() -> None:
    """Every row but the first looks at the token before; that at itself. A prompt's rows weigh one together."""
    subject = probe.load("planted:previous_token")
    texts = [Text(f"{n}", f"{n}", " ".join(["dog", "fox", "wolf"] * n)) for n in range(1, 6)]
    table = heads(subject, subject.bind(probe.data.previous_token(texts)), quiet=True).set_index(["layer", "head"])
    ((layer, head),) = planted.HEADS["previous_token"]["previous_token"]
    row = table.loc[(layer, head)]
    assert (row["argmax_offset"], row["argmax_share"]) == (-1, 1)
    assert row["distance"] == pytest.approx(1, abs=1e-3)


def test_the_usual_offset_weighs_prompts_alike(tiny: Subject) -> None:
    """By a plain loop over the patterns of prompts of different lengths."""
    texts = [Text(f"{n}", f"{n}", words) for n, words in enumerate(("Anna thanked Ben .", "the dog met the cats " * 4))]
    targets = tiny.bind(probe.data.previous_token(texts))
    table = heads(tiny, targets, quiet=True).set_index(["layer", "head"])
    counts: dict[tuple[int, int], dict[int, float]] = {}
    distances: dict[tuple[int, int], list[float]] = {}
    for unit in targets.units:
        for _, seen in tiny.captured([unit.ids], ["pattern"]):
            for layer, head in table.index:
                pattern, mine, apart = seen["pattern", layer][0, head], counts.setdefault((layer, head), {}), []
                for row in unit.rows:
                    (query,) = row.query
                    offset = int(pattern[query].argmax()) - query
                    mine[offset] = mine.get(offset, 0) + 1 / len(unit.rows)
                    apart.append(sum(float(w) * abs(k - query) for k, w in enumerate(pattern[query])))
                distances.setdefault((layer, head), []).append(sum(apart) / len(apart))
    for at, mine in counts.items():
        assert table.loc[at, "argmax_share"] == pytest.approx(max(mine.values()) / 2)
        assert mine[int(table.loc[at, "argmax_offset"])] == pytest.approx(max(mine.values()))
        assert table.loc[at, "distance"] == pytest.approx(sum(distances[at]) / 2, abs=1e-3)


def test_accuracy_is_told_by_the_side_that_the_target_lies_on(minilm: Subject) -> None:
    """An encoder sees both: of the same prompts, those whose target stands after the query apart from the others."""
    dataset = probe.data.coreference(2)
    targets = minilm.bind(dataset)
    turned = tuple(
        replace(u, rows=tuple(replace(r, query=r.target, target=r.query, foils=((0,),)) for r in u.rows))
        if n % 3 == 0
        else u
        for n, u in enumerate(targets.units)
    )
    described = replace(targets, units=turned, rivals=())
    table = heads(minilm, described, quiet=True)
    measured = measure(minilm, described, quiet=True)["correct"]
    for side, chosen in (("after", slice(0, None, 3)), ("before", [n for n in range(len(turned)) if n % 3])):
        assert np.allclose(table[f"value_{side}"], measured[..., chosen].mean(-1).ravel())
    n = len(range(0, len(turned), 3))
    assert set(table["n_after"]) == {n}
    assert set(table["n_before"]) == {len(turned) - n}
