"""Which prompts a model was reading when something went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def naming(prompts: Sequence[Sequence[int]], tokenizer: Any) -> Iterator[None]:
    """Whatever is raised meanwhile is noted with the prompts, given as token ids, that were read: the runner's log
    shows them.
    """
    try:
        yield
    except Exception as error:
        for ids in prompts:
            error.add_note(f"prompt: {tokenizer.decode(list(ids))!r}")
        raise
