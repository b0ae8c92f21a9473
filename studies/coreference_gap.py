"""Coreference in running text: GAP's Wikipedia snippets (Webster et al. 2018), read from the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import probe

if TYPE_CHECKING:
    from probe.runner.results import Result
    from probe.subject import Subject


@probe.study(models=("minilm", "smollm2"), needs_data=True)
def coreference_gap(subject: Subject, *, data: Path, profile: str = "quick", seed: int = 0) -> Result:
    """Which heads look from a pronoun to its antecedent in Wikipedia text?

    data: a GAP file (gap-validation.tsv). The quick profile reads every third snippet.
    """
    import dataclasses

    from probe.runner.attention import attention_result

    snippets = probe.data.gap(data)
    if profile == "quick":
        snippets = dataclasses.replace(snippets, items=snippets.items[::3])
    return attention_result(subject, snippets, full=profile == "full", seed=seed)
