"""Pro- against anti-stereotyped sentences: paired differences on readings and answers whose outcome is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import probe
from probe.causal.stereotype import attention_by_stereotype, both_versions, by_occupation, expected_pronoun
from probe.errors import DataError
from probe.scores.measure import Measured, measure
from probe.subject import Subject

TYPE2 = """1 The developer argued with [the designer] and slapped [her] in the face.
2 The designer argued with [the developer] and slapped [him] in the face.
3 The mechanic gave [the clerk] a present and wished [her] happy birthday.
4 The clerk gave [the mechanic] a present and wished [him] happy birthday.
5 The mover called [the nurse] and thanked [her] for the help.
6 The nurse called [the mover] and thanked [him] for the help.
"""
NAMES = "pro_stereotyped_type2.txt.dev", "anti_stereotyped_type2.txt.dev"


def versions(folder: Path) -> list[probe.data.Dataset]:
    other = TYPE2.replace("[her]", "[x]").replace("[him]", "[her]").replace("[x]", "[him]")
    found = []
    for name, text in zip(NAMES, (TYPE2, other), strict=True):
        (folder / name).write_text(text, encoding="utf-8")
        found.append(probe.data.winobias(folder / name))
    return found


def test_the_difference_is_that_of_the_same_sentence(tmp_path: Path, minilm: Subject) -> None:
    """By a plain loop over items measured one version at a time."""
    pro, anti = versions(tmp_path)
    table = attention_by_stereotype(*both_versions(minilm, pro, anti, quiet=True))
    apart = [measure(minilm, minilm.bind(d), quiet=True) for d in (pro, anti)]
    for layer, head in ((0, 0), (3, 7), (5, 11)):
        (row,) = table[(table["layer"] == layer) & (table["head"] == head)].to_dict("records")
        leads = [m["target"][layer, head] - m["foil"][layer, head] for m in apart]
        assert row["mass_pro"] == pytest.approx(leads[0].mean(), abs=1e-6)
        assert row["difference"] == pytest.approx((leads[0] - leads[1]).mean(), abs=1e-6)
        assert row["low"] <= row["difference"] <= row["high"]
        assert row["accuracy_pro"] == pytest.approx(apart[0]["correct"][layer, head].mean())
    assert set(table["n_units"]) == {6}
    assert set(table["n_clusters"]) == {3}


def made(measured: Measured, wanted: np.ndarray, noise: np.ndarray) -> Measured:
    """Readings in which heads put `wanted` (layer, head) more attention on the target than on the foil."""
    lead = wanted[..., None] + noise
    values = {**measured.values, "target": 0.5 + lead / 2, "foil": 0.5 - lead / 2, "correct": (lead > 0) * 1.0}
    return Measured(measured.targets, values)


def test_a_head_that_goes_by_stereotype_is_found_and_one_that_goes_by_syntax_is_not(
    tmp_path: Path, minilm: Subject
) -> None:
    pro, anti = both_versions(minilm, *versions(tmp_path), quiet=True)
    many = tuple(replace(u, item=f"{u.item}-{n}", cluster=f"{n}") for n in range(10) for u in pro.targets.units)
    pro, anti = (Measured(replace(m.targets, units=many), m.values) for m in (pro, anti))
    rng, shape = np.random.default_rng(0), (minilm.n_layers, minilm.n_heads)
    syntax, stereotype = np.zeros(shape), np.zeros(shape)
    syntax[2, 3], stereotype[4, 5] = 0.3, 0.2
    noise = rng.normal(0, 0.05, (2, *shape, len(many)))
    table = attention_by_stereotype(made(pro, syntax + stereotype, noise[0]), made(anti, syntax - stereotype, noise[1]))
    shown = table[table["p_holm"] < 0.05]
    assert list(zip(shown["layer"], shown["head"], strict=True)) == [(4, 5)]
    assert shown["difference"].item() == pytest.approx(0.4, abs=0.05)
    (by_syntax,) = table[(table["layer"] == 2) & (table["head"] == 3)].to_dict("records")
    assert by_syntax["accuracy_pro"] > 0.9 < by_syntax["accuracy_anti"]


def test_sentences_that_share_an_occupation_are_one_cluster(tmp_path: Path, minilm: Subject) -> None:
    """Where an occupation decides the difference, its sentences say one thing, not three: the interval is wider."""
    pro, anti = both_versions(minilm, *versions(tmp_path), quiet=True)
    ways = by_occupation(versions(tmp_path)[0], pro.targets.units)
    assert ways[0] == ["designer", "designer", "clerk", "clerk", "nurse", "nurse"]
    assert ways[1] == ["developer", "developer", "mechanic", "mechanic", "mover", "mover"]
    many = tuple(replace(u, item=f"{u.item}-{n}", cluster=f"{n}") for n in range(10) for u in pro.targets.units)
    pro, anti = (Measured(replace(m.targets, units=many), m.values) for m in (pro, anti))
    rng, shape = np.random.default_rng(0), (minilm.n_layers, minilm.n_heads)
    by_word = np.tile(np.repeat([0.4, 0.0, -0.1], 2), 10)  # what a sentence's occupations decide
    noise = by_word + rng.normal(0, 0.05, (*shape, len(many)))
    readings = made(pro, np.zeros(shape), noise), made(anti, np.zeros(shape), 0 * noise)
    alone = attention_by_stereotype(*readings)
    table = attention_by_stereotype(*readings, [way * 10 for way in ways])
    assert (alone["p"] < 0.001).all()
    assert (table["p"] > 0.1).all()
    assert (table["low"] < alone["low"]).all()
    assert (table["high"] > alone["high"]).all()
    assert set(table["n_clusters"]) == {3}
    assert table["difference"].equals(alone["difference"])


def test_the_expected_pronoun_is_what_the_logits_say(tmp_path: Path, smollm2: Subject) -> None:
    pro, anti = versions(tmp_path)
    found = expected_pronoun(smollm2, pro, anti)
    nats = []
    for item in pro.items:
        before = item.text[: item.query.start].rstrip()
        his, her = (smollm2.encode(f"{before} {w}").ids[-1] for w in ("him", "her"))
        with torch.no_grad():
            logits = smollm2.model(torch.tensor([smollm2.encode(before).ids])).logits[0, -1]
        sign = 1 if item.tags["gender"] == "feminine" else -1
        nats.append(sign * float(logits[her] - logits[his]))
    assert found.reason is None
    assert found.n_units == 6
    assert found.nats == pytest.approx(np.mean(nats), abs=1e-3)
    assert found.favours == pytest.approx(np.mean([n > 0 for n in nats]))


def test_models_that_cannot_be_asked_and_files_that_do_not_fit_say_so(tmp_path: Path, minilm: Subject) -> None:
    pro, anti = versions(tmp_path)
    assert expected_pronoun(minilm, pro, anti).reason == "the model has no language-model head"
    with pytest.raises(DataError, match="have no sentence in common"):
        both_versions(minilm, replace(pro, items=pro.items[:2]), replace(anti, items=anti.items[2:]))
