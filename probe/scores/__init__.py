"""Head scores: one reader of attention rows, the statistics on it, and the test that makes them evidence."""

from probe.scores.evidence import heads

__all__ = ["heads"]
