"""Progress on long work: a bar on a terminal, nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Collection[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """Iterate over `items` with a bar on stderr, if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=what, console=Console(stderr=True), transient=True)
