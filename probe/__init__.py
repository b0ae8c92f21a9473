"""Which attention heads of a language model do a job, how sure we are, and whether its answer depends on them.

    import probe

    subject = probe.load("minilm")
    targets = subject.bind(probe.data.coreference())
    table = probe.scores.heads(subject, [targets])      # where heads look
    effects = probe.effect(subject, [targets])          # what the answer loses without them

Names are loaded when first used, so that `import probe` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe import causal as causal
    from probe import data as data
    from probe import scores as scores
    from probe.capture import edits as edits
    from probe.capture.capture import Capture as Capture
    from probe.causal.verdict import effect as effect
    from probe.causal.verdict import verdicts as verdicts
    from probe.errors import ProbeError as ProbeError
    from probe.report.notebook import view as view
    from probe.runner.findings import Asked as Asked
    from probe.runner.findings import Findings as Findings
    from probe.runner.findings import Linked as Linked
    from probe.runner.findings import Listing as Listing
    from probe.runner.findings import Plot as Plot
    from probe.runner.findings import Prompts as Prompts
    from probe.runner.findings import Section as Section
    from probe.runner.findings import Table as Table
    from probe.runner.registry import study as study
    from probe.runner.results import Result as Result
    from probe.subject import Subject as Subject
    from probe.subject import load as load
    from probe.targets import Targets as Targets

__version__ = "0.1.0"

_HOMES = {
    "load": "probe.subject",
    "Subject": "probe.subject",
    "Capture": "probe.capture.capture",
    "Targets": "probe.targets",
    "effect": "probe.causal.verdict",
    "verdicts": "probe.causal.verdict",
    "ProbeError": "probe.errors",
    "study": "probe.runner.registry",
    "Result": "probe.runner.results",
    "view": "probe.report.notebook",
    **dict.fromkeys(
        ("Findings", "Section", "Table", "Plot", "Listing", "Linked", "Asked", "Prompts"),
        "probe.runner.findings",
    ),
}
_MODULES = {"causal": "probe.causal", "data": "probe.data", "edits": "probe.capture.edits", "scores": "probe.scores"}

__all__ = [
    "Asked",
    "Capture",
    "Findings",
    "Linked",
    "Listing",
    "Plot",
    "ProbeError",
    "Prompts",
    "Result",
    "Section",
    "Subject",
    "Table",
    "Targets",
    "__version__",
    "causal",
    "data",
    "edits",
    "effect",
    "load",
    "scores",
    "study",
    "verdicts",
    "view",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'probe' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
