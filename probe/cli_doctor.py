"""The command `probe doctor`: what is installed, fetched and found, and how to get what is missing."""

from __future__ import annotations

import typer

from probe import tty
from probe.exits import DONE, FAILED


def doctor() -> None:
    """Say what is here, what is missing, and how to get it. Exits with 1 if something is missing that probe needs."""
    from probe.health import checks

    found = checks()
    marks = {True: "ok", False: "missing", None: "not here"}
    tty.table(
        ("", "what", "state", "how to get it"),
        [(marks[c.good if c.needed or c.good else None], c.what, c.state, "" if c.good else c.remedy) for c in found],
    )
    broken = [check.what for check in found if check.needed and not check.good]
    if broken:
        typer.echo(f"probe does not work without {', '.join(broken)}.")
    else:
        optional = sum(not check.good for check in found)
        typer.echo(f"probe works{f'; {optional} things that are optional are not here' if optional else ''}.")
    raise typer.Exit(FAILED if broken else DONE)
