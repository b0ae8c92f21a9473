"""`python -m probe.compatibility [--out FOLDER] [TYPE ...]`: check every architecture, or the types named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from probe.compatibility.check import Finding, check
from probe.compatibility.configs import Pair, mapped
from probe.compatibility.write import row, write
from probe.errors import UnknownName

OUT = Path("reports") / "compatibility"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, or 2 for a type that transformers does not map."""
    parser = argparse.ArgumentParser("python -m probe.compatibility", description=__doc__)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types to check and print, without writing")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder to write to (default {OUT.as_posix()})")
    chosen = parser.parse_args(arguments)
    known = {pair.model_type for pair in mapped()}
    for name in chosen.types:
        if name not in known:
            print(UnknownName.of("model type", name, known, ""), file=sys.stderr)
            return 2
    findings = _check([p for p in mapped() if not chosen.types or p.model_type in chosen.types])
    if chosen.types:
        for found in findings:
            print(_told(found))
    else:
        write(findings, chosen.out)
        print(f"wrote {chosen.out.as_posix()}")
    return 0


def _check(pairs: Sequence[Pair]) -> list[Finding]:
    findings = []
    for number, pair in enumerate(pairs, 1):
        findings.append(check(pair))
        if len(pairs) > 1 or sys.stderr.isatty():
            print(f"{number}/{len(pairs)} {pair}: {findings[-1].status}", file=sys.stderr, flush=True)
    return findings


def _told(found: Finding) -> str:
    """A finding in a few lines."""
    said = row(found)
    names = ("class", "why", "layers", "layers_with_heads", "implementations", "max_error_below", "sites_missing")
    lines = [f"{found.pair}: {found.status}"]
    lines += [f"  {name.replace('_', ' ')}: {said[name]}" for name in names if said[name]]
    return "\n".join([*lines, *(f"  note: {note}" for note in found.notes)])


if __name__ == "__main__":
    sys.exit(main())
