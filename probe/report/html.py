"""What every page is made with: templates, style sheet, images inside the page, and a budget of bytes."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from probe.errors import ResultsError
from probe.report.numbers import size
from probe.report.strips import readable

BUDGET = 4_000_000
"""Bytes a page may have."""


def head_link(label: str, phenomenon: str) -> str:
    """The fragment that opens a head's examples. label: "layer.head"."""
    return f"#head={label}&phenomenon={quote(phenomenon, safe='')}"


def check_budget(total: int, parts: dict[str, int], budget: int = BUDGET) -> None:
    """Raise ResultsError naming the largest part if a page of `total` bytes is over `budget`."""
    if total <= budget:
        return
    sizes = {**parts, "tables and example text": total - sum(parts.values())}
    largest = max(sizes, key=lambda name: sizes[name])
    raise ResultsError(
        f"report.html would be {size(total)}, allowed are {size(budget)}. The largest part is the {largest} "
        f"({size(sizes[largest])}): give the report fewer or shorter of them."
    )


@cache
def environment() -> Environment:
    """Templates that escape everything and fail on a name they do not know."""
    made = Environment(
        loader=PackageLoader("probe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["readable"] = readable
    return made


def asset(name: str) -> str:
    """A style sheet or script that is inlined in the page."""
    return (resources.files("probe.report") / "templates" / name).read_text(encoding="utf-8").strip()


def script_hash(script: str) -> str:
    """The content security policy's name for exactly this script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def data_uri(image: bytes) -> str:
    """A PNG as a data: address, so that the page holds its own figures."""
    return "data:image/png;base64," + base64.b64encode(image).decode("ascii")
