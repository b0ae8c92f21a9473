"""The commands `probe verify` and `probe compare`: is a result what it says, and what differs between two?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from probe import tty
from probe.errors import Changed, DataAbsent, ProbeError, ResultsError, UsageError
from probe.exits import DIFFERS, DONE, FAILED, INTERRUPTED

if TYPE_CHECKING:
    from probe.verify.comparison import Comparison, Field
    from probe.verify.differences import Metric, Tolerance

MOST_LISTED = 20
"""Differences of one kind that are printed one by one."""

Absolute = Annotated[float, typer.Option(min=0, help="Numbers agree within this ...")]
Relative = Annotated[float, typer.Option(min=0, help="... plus this share of the value.")]


def verify(
    results: Annotated[list[Path], typer.Argument(help="A results folder or folder of them, a manifest, a page.")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Where the model is now, if not as named.")] = None,
    data: Annotated[Path | None, typer.Option(help="Your copy of the data file that the run read.")] = None,
    study: Annotated[Path | None, typer.Option(help="The study file, if the run was of your own.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch; default as many as the run had.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A new folder for what is computed; default, dropped.")] = None,
    absolute: Absolute = 1e-4,
    relative: Relative = 1e-3,
) -> None:
    """Run results again and say, metric by metric, whether they are exact, within tolerance or changed, and why.

    Exits with 3 if one differs, 1 if one could not be run again (its data file is absent, say).
    """
    from probe.runner.manifest import finished
    from probe.verify.differences import Tolerance

    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep {keep} is there already: name a folder that is not, or is empty.")
    again = Again(model, data, study, threads, Tolerance(absolute, relative), keep)
    places = [cell for place in results for cell in (_cells(place, finished(place)) if place.is_dir() else [place])]
    ended = []
    for place in places:
        try:
            ended.append(_verify_one(place, again))
        except KeyboardInterrupt:
            typer.echo("interrupted; what was verified is said above.", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if len(places) > 1:
        counts = {DONE: "hold", DIFFERS: "differ", FAILED: "could not be run again"}
        typer.echo(", ".join(f"{ended.count(code)} {words}" for code, words in counts.items() if code in ended))
    raise typer.Exit(max(ended, key=(DONE, FAILED, DIFFERS).index))


def compare(
    a: Annotated[Path, typer.Argument(help="A results folder, a manifest or a page.")],
    b: Annotated[Path, typer.Argument(help="Another.")],
    html: Annotated[Path | None, typer.Option(help="Also write a page with both side by side to this file.")] = None,
    absolute: Absolute = 1e-4,
    relative: Relative = 1e-3,
) -> None:
    """Compare two results: the fields, metrics and heads that differ.

    Exits with 3 if another thing was measured (model, seed, data ...) or a metric differs by more than the tolerance.
    """
    from probe.verify import heads
    from probe.verify.comparison import compare as compare_results
    from probe.verify.differences import Tolerance
    from probe.verify.recorded import read_recorded

    one, two = read_recorded(a), read_recorded(b)
    for changed in filter(None, (one.changed, two.changed)):
        typer.echo(f"warning: {changed}", err=True)
    found = compare_results(one, two, Tolerance(absolute, relative))
    typer.echo(f"A: {a}\nB: {b}")
    _fields(found.fields, ("A", "B"))
    _metrics(found, ("A", "B"))
    other = heads.differing(one, two, found.tolerance)
    if other.note:
        typer.echo(other.note)
    if other.rows:
        typer.echo(f"{len(other.rows)} heads differ{_first(len(other.rows))}:")
        tty.table(("phenomenon", "head", "value A", "value B", "B - A", "verdict A", "verdict B"), [
            row.cells for row in other.rows[:MOST_LISTED]
        ])  # fmt: skip
    if html is not None:
        from probe.report.compare_page import write_comparison

        typer.echo(f"{write_comparison(one, two, found, other, html)} (open this in a browser)")
    typer.echo(f"{'they agree' if found.agrees else 'they differ'}: {found.summary}")
    raise typer.Exit(DONE if found.agrees else DIFFERS)


def _cells(place: Path, below: list[Path]) -> list[Path]:
    """The results in a folder: itself, or those below it."""
    if (place / "manifest.json").is_file() or not below:
        return [place]
    return below


class Again(NamedTuple):
    """How results are computed again: the options of `probe verify`."""

    model: str | None
    data: Path | None
    study_file: Path | None
    threads: int | None
    tolerance: Tolerance
    keep: Path | None


def _verify_one(place: Path, how: Again) -> int:
    """Verify one result and print what came of it; returns the exit code."""
    from probe.verify.recorded import read_recorded
    from probe.verify.rerun import verify as run_again

    try:
        recorded = read_recorded(place)
    except Changed as error:
        typer.echo(f"{place}: differs")
        typer.echo(f"    {error}")
        return DIFFERS
    except ResultsError as error:
        typer.echo(f"error: {error}", err=True)
        return FAILED
    try:
        done = run_again(recorded, **how._asdict(), say=lambda line: typer.echo(f"{line} again", err=True))
    except DataAbsent as error:
        typer.echo(f"{place}: {error}")
        return FAILED
    except Exception as error:
        said = str(error) if isinstance(error, ProbeError) else f"{type(error).__name__}: {error}"
        typer.echo(f"error: {place} could not be run again: {said}", err=True)
        return FAILED
    typer.echo(f"{place}: {'holds' if done.holds else 'differs'} ({done.comparison.summary}; {done.seconds:.0f} s)")
    if recorded.changed:
        typer.echo(f"    {recorded.changed}")
    if recorded.manifest.schema_version == 1:
        typer.echo("    its manifest is of schema 1, which kept no item names and no machine")
    _fields(done.comparison.fields, ("recorded", "now"))
    _metrics(done.comparison, ("recorded", "now"))
    return DONE if done.holds else DIFFERS


def _fields(fields: Sequence[Field], names: tuple[str, str]) -> None:
    if fields:
        typer.echo("fields of the manifest that differ:")
        rows = [(f.name, f.was, f.now, "how it was computed" if f.around else "what was measured") for f in fields]
        tty.table(("field", *names, "kind"), rows)


def _metrics(found: Comparison, names: tuple[str, str]) -> None:
    """Metrics: those that are the same by name, a line a file; the others one by one, changed first."""
    from probe.verify.differences import CHANGED, CLOSE, EXACT, SKIPPED

    rows = []
    for outcome in (CHANGED, CLOSE):
        metrics = found.of(outcome)
        rows += [_metric(m) for m in metrics[:MOST_LISTED]]
        if len(metrics) > MOST_LISTED:
            rows.append((outcome, "...", f"{len(metrics) - MOST_LISTED} more", "", "", "", ""))
    for outcome in (EXACT, SKIPPED):
        files: dict[str, list[str]] = {}
        for metric in found.of(outcome):
            files.setdefault(metric.file, []).append(metric.name)
        rows += [(outcome, file, ", ".join(columns), "", "", "", "") for file, columns in files.items()]
    tty.table(("outcome", "file", "metric", "different", "most at", *names), rows)


def _metric(metric: Metric) -> tuple[str, ...]:
    different = f"{metric.different} of {metric.n}" if metric.n else ""
    return (metric.outcome, metric.file, metric.name, different, metric.where, _short(metric.was), _short(metric.now))


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _first(number: int) -> str:
    return f", the first {MOST_LISTED}" if number > MOST_LISTED else ""
