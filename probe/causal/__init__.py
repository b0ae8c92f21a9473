"""The causal leg of the evidence: whether the model's answer depends on a head.

Attention shows where a head looks. Here heads are changed, and the answer is watched: in nats of the logit difference
between the right and the wrong answer, prompt by prompt.
"""

from probe.causal.behaviour import Behaviour, behaviour
from probe.causal.leg import Causal, causal
from probe.causal.screen import screen
from probe.causal.sweep import sweep
from probe.causal.verdict import Verdicts, effect, verdicts

__all__ = ["Behaviour", "Causal", "Verdicts", "behaviour", "causal", "effect", "screen", "sweep", "verdicts"]
