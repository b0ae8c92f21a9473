"""Coreference on sentences of our own, balanced so that no rule of thumb is right more often than half the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import probe
from probe.data import Dataset, Text

if TYPE_CHECKING:
    from probe.runner.results import Result
    from probe.subject import Subject

QUICK, FULL = 8, 24  # sentences from each template


@probe.study(models=("minilm", "smollm2", "tiny"))
def coreference(subject: Subject, *, profile: str = "quick", seed: int = 0) -> Result:
    """Which heads look from a pronoun to its antecedent?

    The data are the built-in English sentences; for the tiny GPT, the coreference part of its synthetic language.
    """
    from probe.runner.attention import attention_result

    n = FULL if profile == "full" else QUICK
    if subject.language == "synthetic":
        sentences = probe.data.language.coreference(per_frame=n)
        asked = []
    else:
        sentences = probe.data.coreference(n)
        asked = [probe.data.asked_names(4 if profile == "full" else 2)]
    cat = [i.item for i in sentences.items if i.text.startswith("The cat didn't jump onto the table")]
    one_each = _one_of_each_cluster(sentences)
    return attention_result(
        subject,
        sentences,
        [probe.data.previous_token(one_each), probe.data.first_token(one_each)],
        seed=seed,
        asked=asked if subject.has_logits and subject.is_causal else [],
        full=profile == "full",
        show=cat[:2],
    )


def _one_of_each_cluster(sentences: Dataset) -> list[Text]:
    return list({i.cluster: i for i in reversed(sentences.items)}.values())[::-1]
