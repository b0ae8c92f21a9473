"""Which files passed the check at load, so that loading them again need not try them again.

A model in memory is known by its weights' hash, which takes as long as the check itself (1 s each for 135 million
parameters). Files are known by what the file system says of them at no cost: names, sizes and times of change.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from probe.models.fetch import cache_dir

FOLDER = "checked"
PATTERNS = ("*.json", "*.safetensors")
READERS = ("anatomy/**/*.py", "capture/**/*.py", "models/**/*.py", "sites.py")
"""Parts of the package whose change makes a model to be checked again."""


@dataclass(frozen=True)
class Mark:
    """A file in the cache; that it is there says that a model passed. path: None for a model that has no files here."""

    path: Path | None

    @property
    def is_here(self) -> bool:
        return self.path is not None and self.path.is_file()

    def leave(self) -> None:
        """Remember. A cache that cannot be written is no reason to stop: the model is checked again."""
        if self.path is not None:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.path.touch()


def mark(folder: Path | None, **how: str) -> Mark:
    """The mark of the model in `folder`, loaded as `how` says (precision, attention).

    Another one as soon as a file of the model or of the code that reads it changes, or a library is another version.
    """
    if folder is None:
        return Mark(None)
    package = Path(__file__).parents[1]
    known = {
        "model": [_facts(p) for pattern in PATTERNS for p in sorted(folder.glob(pattern))],
        "readers": [_facts(p) for pattern in READERS for p in sorted(package.glob(pattern))],
        "versions": [version(name) for name in ("torch", "transformers")],
        **how,
    }
    return Mark(cache_dir() / FOLDER / hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest())


def _facts(path: Path) -> tuple[object, ...]:
    try:
        found = path.resolve().stat()
    except OSError:  # a link that leads nowhere; loading says what is wrong with it, if it is needed
        return (str(path),)
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns
