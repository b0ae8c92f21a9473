"""Reading a model while it runs, without changing a bit of what it computes."""

from probe.capture.anatomy import Anatomy, dissect
from probe.capture.capture import Capture

__all__ = ["Anatomy", "Capture", "dissect"]
