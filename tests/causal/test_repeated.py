"""Induction heads by score and by ablation: of a planted model, whose one head is known, and of a trained one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import probe
from probe import edits
from probe.causal.repeated import confirm, copying, own_strings
from probe.errors import ProbeError
from probe.models import planted
from probe.subject import Subject


def test_strings_are_the_models_own_words_and_come_again(smollm2: Subject, minilm: Subject) -> None:
    strings = own_strings(smollm2, 6, seed=1)
    for string in strings:
        assert len(string.ids) == 48
        assert len(string.copies) >= 2
        words = [string.ids[c : c + string.size] for c in string.copies]
        assert all(w == words[0] for w in words)
        assert len(set(words[0])) == string.size
        for token in string.ids:
            text = smollm2.tokenizer.decode([token])
            assert text.startswith(" "), text
            assert text.strip().islower(), text
            assert text.strip().isalpha(), text
    assert own_strings(smollm2, 6, seed=1) == strings
    assert own_strings(smollm2, 6, seed=2) != strings
    first = minilm.encode("a").ids[0]
    assert all(s.ids[0] == first for s in own_strings(minilm, 2))
    with pytest.raises(ProbeError, match="minilm does not predict next tokens"):
        copying(minilm, own_strings(minilm, 2), [])


def test_losses_are_those_of_plain_passes(smollm2: Subject) -> None:
    strings = own_strings(smollm2, 2)
    groups = [((3, 1), (9, 4)), ((29, 8),)]
    found = copying(smollm2, strings, groups)
    run = [smollm2.captured([s.ids], ["z"]) for s in strings]
    z = [seen for each in run for _, seen in each]
    means = {
        head: torch.cat([seen["z", head[0]][0, :, head[1]] for seen in z]).mean(0) for group in groups for head in group
    }
    for n, string in enumerate(strings):
        losses = []
        for group in ((), *groups):
            changes = [edits.replace("z", layer, means[layer, head], heads=head) for layer, head in group]
            for _, seen in smollm2.captured([string.ids], ["logits"], edits=changes):
                normal = seen["logits"][0].log_softmax(-1)
            later = [at for start in string.copies[1:] for at in range(start + 1, start + string.size)]
            losses.append(np.mean([-float(normal[at - 1, string.ids[at]]) for at in later]))
        assert found.without[0, n] == pytest.approx(losses[1] - losses[0], abs=1e-3)
        assert found.without[1, n] == pytest.approx(losses[2] - losses[0], abs=1e-3)


def test_of_a_planted_model_the_one_head_is_found_and_confirmed() -> None:
    """Among many idle heads: in a small model most random groups hold the head below it, which it cannot do without."""
    tokenizer = probe.load("planted:induction").tokenizer
    subject = probe.load(planted.build("induction", n_heads=16), tokenizer)
    found = confirm(subject, heads=1, strings=4, groups=10)
    assert list(found.heads) == planted.HEADS["induction"]["induction"]
    assert found.scores[1, 0] == pytest.approx(1, abs=1e-4)
    assert found.later < 0.01 < 5 < found.first
    assert found.lost > 5
    assert found.passed
    assert found.limit < found.lost


def test_heads_of_smollm2_found_by_score_are_confirmed_by_ablation(smollm2: Subject) -> None:
    found = confirm(smollm2, heads=8, strings=3, groups=8)
    assert found.first - found.later > 2, "the model does copy"
    assert min(found.scores[head] for head in found.heads) > 0.3 > 3 * found.chance
    assert found.lost > found.limit
    assert found.cost["heads"].tolist() == [1, 2, 4, 8]
    assert found.cost["low"].iloc[-1] > 0
