"""The errors of `probe`. Each message says what was given, what is allowed, and the nearest valid choice.

ProbeError
├── UsageError         a command or study that was asked for in a way that cannot be carried out
├── UnknownName        a model, study, site, phenomenon ... that does not exist
├── OutOfRange         a layer, head, row or position the model does not have
├── PromptError        a text that cannot be read: empty, whitespace, too long, unknown words
├── SpanError          words that are not in the text, are there twice, or split a token
├── UnsupportedModel   a model without attention heads, or one whose attention cannot be followed
├── CaptureError       an activation that was expected and never seen, or is not finite
├── DataError          a data file that is malformed (path, line and field are named)
├── FetchError         weights that could not be downloaded or do not match their hash
├── DataAbsent         a result's data file, which is not part of probe and was not found
└── ResultsError       a results folder that is missing, foreign or unwritable
    └── Changed        results or a manifest that are not as the run wrote them
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProbeError(Exception):
    """Base of every error that `probe` raises on purpose."""


class UsageError(ProbeError):
    """A command or study that was asked for in a way that cannot be carried out."""


class UnknownName(ProbeError):
    """A name that does not exist. `UnknownName.of(kind, given, allowed)` words it with the nearest name."""

    @classmethod
    def of(cls, kind: str, given: object, allowed: Iterable[str], hint: str = "") -> UnknownName:
        names = sorted(allowed)
        nearest = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
        guess = f" Did you mean {nearest[0]!r}?" if nearest else ""
        tail = f" {hint}" if hint else ""
        return cls(f"no {kind} named {str(given)!r}.{guess} Known: {', '.join(names) or 'none'}.{tail}")


class OutOfRange(ProbeError):
    """An index the model does not have."""

    @classmethod
    def of(cls, kind: str, given: int, size: int) -> OutOfRange:
        if size == 0:
            return cls(f"{kind} {given} was asked for, but there are none.")
        nearest = min(max(given, 0), size - 1)
        return cls(f"{kind} {given} does not exist: allowed are 0 to {size - 1}; the nearest is {nearest}.")

    @classmethod
    def check_count(cls, kind: str, given: int) -> None:
        """Raises OutOfRange for a number of things that is not one or more."""
        if given < 1:
            raise cls(f"{kind}={given} was given: allowed is 1 or more; the nearest is 1.")


class PromptError(ProbeError):
    """A prompt that cannot be read."""


class SpanError(ProbeError):
    """Words that cannot be placed in the text, or on whole tokens."""


class UnsupportedModel(ProbeError):
    """A model whose attention `probe` cannot read, with the reason."""


class CaptureError(ProbeError):
    """A captured activation that is missing or not finite."""


class DataError(ProbeError):
    """A malformed data file."""


class FetchError(ProbeError):
    """Weights that could not be had."""


class DataAbsent(ProbeError):
    """A result's data file, which is not part of probe and was not found."""


class ResultsError(ProbeError):
    """A results folder that cannot be read or written."""


class Changed(ResultsError):
    """Results or a manifest that are not as the run wrote them."""
