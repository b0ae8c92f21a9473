"""Every head's exact effect equals that of a plain edit; layers are left out only where that changes nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import probe
from probe import edits
from probe.anatomy.stacks import dissect
from probe.capture.prefix import Prefix
from probe.causal.screen import screen
from probe.causal.sweep import KINDS, sweep
from probe.errors import ProbeError, UnknownName
from probe.subject import Subject
from probe.targets import Answer, Row, Unit


@pytest.fixture(scope="module")
def units(tiny: Subject) -> tuple[Unit, ...]:
    """Minimal pairs of different lengths."""
    bound = tiny.bind(probe.data.language.agreement(per_frame=4))
    kept = tuple(u for u in bound.units if u.swapped is not None)[::7][:8]
    assert len({len(u.ids) for u in kept}) > 2
    return kept


def asked_ids(unit: Unit, swapped: bool = False) -> tuple[int, ...]:
    assert unit.answer is not None
    assert unit.swapped is not None
    return (unit.swapped if swapped else unit.ids)[: unit.answer.read_at + 1]


def logit_difference(subject: Subject, ids: tuple[int, ...], unit: Unit, edit: list[edits.Edit]) -> float:
    """By one plain pass over one prompt."""
    assert unit.answer is not None
    for _, seen in subject.captured([ids], ["logits"], edits=edit):
        last = seen["logits"][0, -1]
    return float(last[unit.answer.right[0]] - last[unit.answer.wrong[0][0]])


def plain_z(subject: Subject, ids: tuple[int, ...], layer: int) -> torch.Tensor:
    for _, seen in subject.captured([ids], ["z"]):
        z = seen["z", layer]
    return z


LAST = (3, 3)
CASES = [(0, 0), (1, 2), LAST]


@pytest.mark.parametrize(("layer", "head"), CASES)
def test_patching_is_a_plain_edit_both_ways(tiny: Subject, units: tuple[Unit, ...], layer: int, head: int) -> None:
    found = sweep(tiny, units, ("patch", "restore"), heads=[(layer, head)], quiet=True)
    for i, unit in enumerate(units):
        own, other = asked_ids(unit), asked_ids(unit, swapped=True)
        z, theirs = plain_z(tiny, own, layer)[:, :, head : head + 1], plain_z(tiny, other, layer)[:, :, head : head + 1]
        clean, swapped = logit_difference(tiny, own, unit, []), logit_difference(tiny, other, unit, [])
        patched = logit_difference(tiny, own, unit, [edits.replace("z", layer, theirs, heads=head)])
        restored = logit_difference(tiny, other, unit, [edits.replace("z", layer, z, heads=head)])
        assert found.clean[i] == pytest.approx(clean, abs=1e-4)
        assert found.swapped[i] == pytest.approx(swapped, abs=1e-4)
        assert found.values["patch"][layer, head, i] == pytest.approx(clean - patched, abs=1e-4)
        assert found.values["restore"][layer, head, i] == pytest.approx(restored - swapped, abs=1e-4)
    measured = np.isfinite(found.values["patch"]).all(-1)
    assert measured[layer, head]
    assert measured.sum() == 1


@pytest.mark.parametrize(("layer", "head"), CASES)
def test_a_patched_pattern_is_that_of_the_other_prompt(
    tiny: Subject, units: tuple[Unit, ...], layer: int, head: int
) -> None:
    found = sweep(tiny, units, ("pattern",), heads=[(layer, head)], quiet=True).values["pattern"]
    for i, unit in enumerate(units):
        own = asked_ids(unit)
        for _, seen in tiny.captured([asked_ids(unit, swapped=True)], ["pattern"]):
            pattern = seen["pattern", layer][:, head : head + 1]
        patched = logit_difference(tiny, own, unit, [edits.replace("pattern", layer, pattern, heads=head)])
        assert found[layer, head, i] == pytest.approx(logit_difference(tiny, own, unit, []) - patched, abs=1e-4)


@pytest.mark.parametrize(("layer", "head"), CASES)
def test_ablations_and_cut_edges(tiny: Subject, units: tuple[Unit, ...], layer: int, head: int) -> None:
    found = sweep(tiny, units, ("mean", "edge"), heads=[(layer, head)], quiet=True).values
    every = torch.cat([plain_z(tiny, asked_ids(u), layer)[0, :, head] for u in units])
    for i, unit in enumerate(units):
        own, row = asked_ids(unit), unit.rows[0]
        clean = logit_difference(tiny, own, unit, [])
        ablated = logit_difference(tiny, own, unit, [edits.replace("z", layer, every.mean(0), heads=head)])
        cut = logit_difference(tiny, own, unit, [edits.knock_out(layer, row.query, row.target, heads=head)])
        assert found["mean"][layer, head, i] == pytest.approx(clean - ablated, abs=1e-4)
        assert found["edge"][layer, head, i] == pytest.approx(clean - cut, abs=1e-4)


def test_resampling_takes_another_prompt_and_the_same_one_for_a_seed(tiny: Subject, units: tuple[Unit, ...]) -> None:
    two = [sweep(tiny, units, ("resample",), seed=seed, quiet=True).values["resample"] for seed in (0, 0, 1)]
    assert np.array_equal(two[0], two[1])
    assert not np.array_equal(two[0], two[2])


def test_answers_of_several_tokens_are_scored_whole(tiny: Subject, units: tuple[Unit, ...]) -> None:
    (unit,) = units[:1]
    assert unit.answer is not None
    a, b, c = unit.ids[1:4]
    longer = Unit(
        unit.item, "c", unit.ids, unit.rows, answer=Answer(unit.answer.read_at, (a, b), ((c,),)), swapped=unit.swapped
    )
    start = unit.ids[: unit.answer.read_at + 1]
    with torch.no_grad():
        first = tiny.model(torch.tensor([start])).logits[0, -1].log_softmax(-1)
        second = tiny.model(torch.tensor([[*start, a]])).logits[0, -1].log_softmax(-1)
    expected = float(first[a] + second[b] - first[c])
    assert sweep(tiny, [longer], ("patch",), heads=[(0, 0)], quiet=True).clean[0] == pytest.approx(expected, abs=1e-4)


def test_attribution_is_the_slope_of_the_exact_effect(tiny: Subject, units: tuple[Unit, ...]) -> None:
    """A thousandth of the way to the other prompt's z costs a thousandth of what attribution says."""
    found = screen(tiny, units)
    for layer, head in CASES:
        unit = units[3]
        own = asked_ids(unit)
        step = (plain_z(tiny, asked_ids(unit, swapped=True), layer) - plain_z(tiny, own, layer))[:, :, head] * 1e-2
        # Both sides of the prompt, so that the curve's bend falls out.
        ends = [
            logit_difference(
                tiny,
                own,
                unit,
                [edits.edit("z", layer, lambda p, _, s=s, step=step: p + s * step.unsqueeze(2), heads=head)],
            )
            for s in (-1, 1)
        ]
        assert found[layer, head, 3] == pytest.approx(
            (ends[0] - ends[1]) / 2e-2, abs=0.02 * (1 + abs(found[layer, head, 3]))
        )


def test_smollm2_resumes_and_agrees_with_plain_edits(smollm2: Subject) -> None:
    """The last layer and its last head among the cases; candidates of this model's own tokens."""
    first = smollm2.encode("The nurse met the guard, and the nurse said hello to the").ids
    other = smollm2.encode("The cook met the guard, and the cook said hello to the").ids
    right, wrong = (smollm2.encode(f"a {w}").ids[-1] for w in ("guard", "nurse"))
    unit = Unit("a", "c", first, (Row((len(first) - 1,), (2,)),), answer=Answer(len(first) - 1, (right,), ((wrong,),)))
    unit = Unit(**{**vars(unit), "swapped": other})
    heads = [(0, 0), (14, 4), (29, 8)]
    found = sweep(smollm2, [unit], ("patch",), heads=heads, quiet=True)
    clean = logit_difference(smollm2, first, unit, [])
    for layer, head in heads:
        theirs = plain_z(smollm2, other, layer)[:, :, head : head + 1]
        patched = logit_difference(smollm2, first, unit, [edits.replace("z", layer, theirs, heads=head)])
        assert found.values["patch"][layer, head, 0] == pytest.approx(clean - patched, abs=1e-3)


def test_layers_below_are_not_run_and_come_back(smollm2: Subject) -> None:
    ids = torch.tensor([smollm2.encode("The river rose quietly.").ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    prefix = Prefix(smollm2.anatomy)
    with torch.no_grad(), prefix.recorded(1):
        plain = smollm2.model(**inputs).logits
    assert prefix.check(inputs)
    ran: list[int] = []
    layers = smollm2.model.get_submodule("model.layers")
    hooks = [m.mlp.register_forward_hook(lambda *_, n=n: ran.append(n)) for n, m in enumerate(layers)]
    with torch.no_grad(), prefix.resumed(20, [0, 0]):
        twice = smollm2.model(**{k: v if k == "use_cache" else torch.cat([v, v]) for k, v in inputs.items()}).logits
    assert ran == list(range(20, 30))
    assert torch.allclose(twice, plain.expand_as(twice), atol=1e-4)
    ran.clear()
    with torch.no_grad():
        assert torch.equal(smollm2.model(**inputs).logits, plain)
    assert ran == list(range(30))
    for hook in hooks:
        hook.remove()


def test_models_whose_layers_share_keys_are_run_whole() -> None:
    """Gemma 3n's upper layers read keys and values of lower ones: there is more to a layer than its stream."""
    torch.manual_seed(0)
    config = tf.Gemma3nTextConfig(
        vocab_size=64, vocab_size_per_layer_input=64, hidden_size=32, intermediate_size=64, num_hidden_layers=6,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_kv_shared_layers=3, laurel_rank=8,
        hidden_size_per_layer_input=8, activation_sparsity_pattern=[0.0] * 6,
        layer_types=["full_attention"] * 6,
    )  # fmt: skip
    anatomy = dissect(tf.Gemma3nForCausalLM(config).eval())
    inputs = {"input_ids": torch.arange(5, 15).unsqueeze(0)}
    prefix = Prefix(anatomy)
    with torch.no_grad(), prefix.recorded(1):
        plain = anatomy.backbone(**inputs).last_hidden_state
    assert prefix.check(inputs) is False
    with torch.no_grad(), prefix.resumed(5, [0]):
        assert torch.equal(anatomy.backbone(**inputs).last_hidden_state, plain)
    prefix.works = True  # as if it had not been checked
    with pytest.raises(Exception), torch.no_grad(), prefix.resumed(5, [0]):  # noqa: B017, PT011
        assert torch.equal(anatomy.backbone(**inputs).last_hidden_state, plain)


def test_layers_that_tell_each_other_more_than_the_stream_are_run_whole(tiny: Subject) -> None:
    """Here each layer adds how many have run: without the lower ones, nothing fails, but the numbers are others."""
    model = copy.deepcopy(tiny.model)
    ran: list[int] = []

    def counting(forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            ran.append(1)
            return forward(*args, **kwargs) + len(ran)

        return run

    anatomy = dissect(model)
    model.base_model.embed.register_forward_hook(lambda *_: ran.clear())
    own = [counting(block.forward) for block in model.base_model.blocks]
    for block, forward in zip(model.base_model.blocks, own, strict=True):
        block.forward = forward
    inputs = {"input_ids": torch.tensor([tiny.encode("Anna thanked Ben").ids])}
    prefix = Prefix(anatomy)
    with torch.no_grad(), prefix.recorded(1):
        anatomy.backbone(**inputs)
    assert prefix.check(inputs) is False
    assert [block.forward for block in model.base_model.blocks] == own, "and all is put back"


def test_unknown_kinds_and_units_that_ask_nothing_are_refused(tiny: Subject, units: tuple[Unit, ...]) -> None:
    with pytest.raises(UnknownName, match=r"named 'means'. Did you mean 'mean'"):
        sweep(tiny, units, ("means",))
    silent = [Unit(u.item, u.cluster, u.ids, u.rows) for u in units]
    with pytest.raises(ProbeError, match="none of the units has a question"):
        sweep(tiny, silent, ("mean",))
    assert set(KINDS) == {"patch", "restore", "pattern", "mean", "resample", "edge"}
