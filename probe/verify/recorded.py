"""A finished result as it lies in a folder, or as its page carries it, so that one file is enough to check a result.

A page carries its manifest, and its tables and texts as base64, in two `template` elements, which browsers keep and do
not show. Attention rows (examples.npz) stay in the folder: the page has them quantised.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from probe.errors import Changed, ResultsError
from probe.runner.findings import FINDINGS
from probe.runner.manifest import Manifest
from probe.runner.results import RESULT

MOST_CARRIED = 1_500_000
"""Bytes of base64 up to which a page carries its result's files."""


@dataclass(frozen=True)
class Recorded:
    """A result as it was recorded. place: the folder, manifest or page it was read from. files: name -> bytes, of
    those that were found. changed: why it is not what the run wrote; None if every hash fits.
    """

    place: Path
    manifest: Manifest
    files: dict[str, bytes]
    changed: str | None = None

    @property
    def absent(self) -> list[str]:
        """Outputs that the manifest lists and that are not here."""
        return [name for name in self.manifest.outputs if name not in self.files]


def read_recorded(place: Path) -> Recorded:
    """A results folder, the manifest.json in one, or a report page.

    Files that are not what the run wrote are kept and said in `changed`. Raises ResultsError if it is none of these or
    malformed, Changed if the manifest itself was edited.
    """
    place = Path(place)
    try:
        if place.suffix in (".html", ".htm"):
            return _from_page(place)
        if place.suffix == ".json":
            return _from_manifest(place)
        return _from_folder(place)
    except OSError as error:
        raise ResultsError(f"{place} cannot be read: {error.strerror}.") from error


def carried(manifest: Manifest, files: dict[str, bytes], room: int) -> str:
    """What a page carries, as HTML: the manifest, and the files if they fit into `room` bytes and `MOST_CARRIED`."""
    held = {name: base64.b64encode(data).decode() for name, data in files.items() if not name.endswith(".npz")}
    record = _template("manifest", manifest.model_dump(mode="json", by_alias=True))
    outputs = _template("outputs", held)
    fits = len(outputs) <= MOST_CARRIED and len(record) + len(outputs) <= room
    return record + outputs if fits else record


def _template(name: str, value: dict[str, Any]) -> str:
    """JSON in ASCII without `<`, `>` and `&`, so that nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return f'<template id="{name}">{text}</template>\n'


def _from_folder(folder: Path) -> Recorded:
    manifest = Manifest.read(folder)
    files = {
        name: (folder / name).read_bytes()
        for name in manifest.outputs
        if Path(name).name == name and (folder / name).is_file()
    }
    return _checked(Recorded(folder, manifest, files))


def _from_manifest(path: Path) -> Recorded:
    """The folder that a manifest lies in; the manifest alone, if nothing that it lists lies beside it."""
    if not path.is_file():
        raise ResultsError(f"there is no manifest {path}.")
    manifest = Manifest.parse(path.read_bytes(), path)
    beside = any((path.parent / name).is_file() for name in manifest.outputs)
    return _from_folder(path.parent) if beside and path.name == "manifest.json" else Recorded(path, manifest, {})


def _from_page(page: Path) -> Recorded:
    """What a page carries; for a page of an older version, the folder that it lies in."""
    if not page.is_file():
        raise ResultsError(f"there is no page {page}.")
    text = page.read_text(encoding="utf-8", errors="replace")
    record = _found(text, "manifest")
    if record is None:
        if (page.parent / "manifest.json").is_file():
            return _from_folder(page.parent)
        raise ResultsError(
            f"{page} carries no manifest: it is no report of probe, or one of an older version. Give its folder, or "
            "write the page again with `probe report FOLDER`."
        )
    manifest = Manifest.parse(record, page)
    try:
        packed = from_json(_found(text, "outputs") or "{}")
        files = {str(name): base64.b64decode(held, validate=True) for name, held in packed.items()}
    except (ValueError, TypeError, AttributeError, binascii.Error) as error:
        raise Changed(f"{page} was edited after it was written: the tables it carries cannot be read.") from error
    return _checked(Recorded(page, manifest, {name: data for name, data in files.items() if name in manifest.outputs}))


def _found(page: str, name: str) -> str | None:
    found = re.search(f'<template id="{name}">([^<]*)</template>', page)
    return found[1] if found else None


def _checked(found: Recorded) -> Recorded:
    """With what does not fit its hash, or is missing from a folder, said in `changed`."""
    wrong = [
        f"{name} is not the file the run wrote: its SHA-256 is {digest[:12]}…, the manifest says {expected[:12]}…"
        for name, expected in found.manifest.outputs.items()
        if name in found.files and (digest := hashlib.sha256(found.files[name]).hexdigest()) != expected
    ]
    if found.place.is_dir():
        wrong += [f"{name} is missing, but the manifest lists it" for name in found.absent]
    return Recorded(found.place, found.manifest, found.files, f"{found.place}: {'; '.join(wrong)}." if wrong else None)


def answer_of(recorded: Recorded) -> str:
    """The answer in a sentence; "" where it is not at hand."""
    for name in (FINDINGS, RESULT):
        try:
            return str(json.loads(recorded.files[name])["answer"])
        except (KeyError, ValueError, TypeError):
            continue
    return ""
