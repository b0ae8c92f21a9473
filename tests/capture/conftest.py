"""Models under both attention implementations, and prompts for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import probe
from probe.subject import Subject

ENGLISH = [
    "The cat didn't jump onto the table because it was too tired.",
    "Mary thanked John.",
    "When the long rain stopped at last, the two old dogs ran out of the house and she followed them slowly.",
]
SYNTHETIC = [
    "Anna thanked Ben after the long walk home because she Anna was late .",
    "the dog met the cats .",
    "the cat did not reach the shelf late in the evening of the first day because it was too high : shelf .",
]
SITES = [
    *("q", "k", "v", "rot_q", "rot_k", "scores", "pattern", "z", "result"),
    *("embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"),
]


@dataclass(frozen=True)
class Case:
    """A subject, the same weights under eager attention as the oracle, and prompts it can read."""

    subject: Subject
    oracle: Subject
    texts: list[str]

    def inputs(self, side: str, texts: list[str] | None = None, extra: int = 0) -> dict[str, Tensor]:
        """A padded batch, with the position ids that left padding needs; `extra` more padding than necessary."""
        ids = [self.subject.encode(t).ids for t in texts or self.texts]
        longest = max(map(len, ids)) + extra
        input_ids = torch.zeros(len(ids), longest, dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        for row, prompt in enumerate(ids):
            at = longest - len(prompt) if side == "left" else 0
            input_ids[row, at : at + len(prompt)] = torch.tensor(prompt)
            mask[row, at : at + len(prompt)] = 1
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        }


def blocks(subject: Subject) -> list[Any]:
    return [layer.block.module for layer in subject.anatomy.stack.layers.values()]


def attentions(subject: Subject) -> list[Any]:
    return [layer.attention.module for layer in subject.anatomy.stack.layers.values()]


def projects(subject: Subject) -> list[Any]:
    return [layer.attention.project.module for layer in subject.anatomy.stack.layers.values()]


def eager_attentions(case: Case, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Every layer's pattern as the model's own eager attention returns it, without any capture."""
    if case.subject.family != "tiny":
        with torch.no_grad():
            return list(case.oracle.model(**inputs, output_attentions=True).attentions)
    from probe.models import gpt

    seen: list[Tensor] = []
    own = gpt.eager_attention

    def spy(*args: Any, **kwargs: Any) -> Any:
        z, pattern = own(*args, **kwargs)
        seen.append(pattern)
        return z, pattern

    gpt.eager_attention = spy
    try:
        with torch.no_grad():
            case.oracle.model(**inputs)
    finally:
        gpt.eager_attention = own
    return seen


@pytest.fixture(scope="session", params=["tiny", "minilm", "smollm2"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=["fused", "eager"])
def case(name: str, request: pytest.FixtureRequest) -> Case:
    attention = "eager" if request.param == "eager" else None
    subject, oracle = probe.load(name, attention=attention), probe.load(name, attention="eager")
    return Case(subject, oracle, SYNTHETIC if name == "tiny" else ENGLISH)
