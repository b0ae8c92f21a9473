"""Several phenomena read in one pass are what they are one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import probe
from probe.data.texts import Text
from probe.scores.measure import measure, measure_together
from probe.scores.rows import Reading
from probe.subject import Subject


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_phenomena_measured_together_are_what_they_are_alone(name: str, request: pytest.FixtureRequest) -> None:
    """Prompts that are shared are run once; some phenomena lack some of them, and their rows differ."""
    subject: Subject = request.getfixturevalue(name)
    texts = [*probe.data.coreference(2).items[:6], Text("odd", "odd", "One two three, one two three.")]
    sentences = subject.bind(probe.data.coreference(2))
    many = [
        replace(sentences, units=sentences.units[:9]),
        subject.bind(probe.data.previous_token(texts)),
        subject.bind(probe.data.duplicate_token(texts)),
        subject.bind(probe.data.fixed_offset(texts, -5)),
        subject.bind(probe.data.delimiters(texts[:3])),
    ]
    passes: list[int] = []
    hook = subject.anatomy.backbone.register_forward_hook(lambda *_: passes.append(1))
    together = measure_together(subject, many, quiet=True)
    hook.remove()
    assert len(passes) == 1
    for targets, found in zip(many, together, strict=True):
        alone = measure(subject, targets, quiet=True)
        for field in Reading.FIELDS:
            assert np.allclose(found[field], alone[field], atol=1e-5, equal_nan=True), (targets.phenomenon, field)
