"""What a terminal shows: a bar on long work, nothing where nobody watches; tables."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
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


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in header:
        made.add_column(name, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    console = Console()
    # A pipe has no width: give it room, so that lines are not wrapped for a terminal that is not there.
    console.print(made) if console.is_terminal else Console(width=200).print(made)
