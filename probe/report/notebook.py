"""`probe.view(run)`: what a run captured, as the attention viewer, in a notebook or as a page."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probe.errors import OutOfRange, ResultsError
from probe.report.gather import Array, Layer, Prompt, gather
from probe.report.viewer import About, render
from probe.sites import CROSS, ENCODER, Site

if TYPE_CHECKING:
    from probe.capture.run import Run

MOST_PROMPTS = 4
HEIGHT = 720
"""Pixels of the frame in a notebook."""


@dataclass(frozen=True, repr=False)
class View:
    """A page of attention. A notebook shows it by itself; `write` keeps it as a file."""

    page: bytes

    def __repr__(self) -> str:
        return f"View({len(self.page):,} bytes; in a notebook it shows itself, view.write(path) makes a page)"

    def _repr_html_(self) -> str:
        """The page in a frame of its own: it can reach neither the notebook nor the network."""
        source = html.escape(self.page.decode("utf-8"), quote=True)
        style = f"width: 100%; height: {HEIGHT}px; border: 1px solid #8888; border-radius: 4px"
        return f'<iframe sandbox="allow-scripts" title="Attention" style="{style}" srcdoc="{source}"></iframe>'

    def write(self, path: str | Path) -> Path:
        """Write the page; returns its path. Raises ResultsError if it cannot be written."""
        path = Path(path)
        try:
            path.write_bytes(self.page)
        except OSError as error:
            raise ResultsError(f"the page cannot be written to {path}: {error}.") from error
        return path


def view(
    run: Run,
    *,
    site: str = "pattern",
    prompts: Sequence[int] | None = None,
    name: str = "",
) -> View:
    """Every head's attention in the prompts of a run, to click through: offline, in a notebook or as a page.

    run: of `Subject.run`, with the pattern among its sites; with q, k and v (or rot_q, rot_k: as they meet) these are
    shown as well. site: "pattern", "encoder.pattern" or "cross.pattern". prompts: which of the run's, at most four,
    default the first ones. name: of the model, for the heading.
    Raises OutOfRange for a site that was not captured or a prompt that is not there.

    >>> import probe
    >>> run = probe.load("tiny").run("Helen has paper . Oscar has wine . what has Helen :", ["pattern", "q", "k", "v"])
    >>> probe.view(run)  # doctest: +ELLIPSIS
    View(... bytes; in a notebook it shows itself, view.write(path) makes a page)
    """
    layers = sorted(layer for found, layer in run.values if found == site and layer is not None)
    if not layers:
        there = ", ".join(sorted({found for found, _ in run.values})) or "nothing"
        raise OutOfRange(f"{site!r} was not captured, but {there}: subject.run(text, [{site!r}]).")
    chosen = list(range(len(run.prompts))[:MOST_PROMPTS] if prompts is None else prompts)
    for number in chosen:
        if not 0 <= number < len(run.prompts):
            raise OutOfRange.of("prompt", number, len(run.prompts))
    if not 1 <= len(chosen) <= MOST_PROMPTS:
        raise OutOfRange(f"{len(chosen)} prompts were asked for; a page shows 1 to {MOST_PROMPTS}.")
    shown = [_prompt(run, site, number) for number in chosen]
    n_heads = run[site, layers[0]].shape[1]
    heads = run.heads if run.heads is not None else tuple(range(n_heads))
    seen = gather(_layers(run, site, layers, chosen, shown), shown, heads)
    return View(render(shown, seen, About(name=name)))


def _prompt(run: Run, site: str, number: int) -> Prompt:
    encoded, prefix = run.prompts[number], Site(site).prefix
    own = encoded.shown
    if prefix == ENCODER:
        return Prompt(own, tuple(range(len(own))), encoded.special)
    read = tuple(run.ids[number]) if run.ids else encoded.ids
    if getattr(run, "new_ids", ()):
        read = read[:-1]  # the model did not read the last token that it wrote
    # what a generation wrote, and what a decoder read, is known by its ids alone
    names = tuple(f" ⟨{token}⟩" for token in read)
    rows = tuple(range(len(read))) if run.rows is None else run.rows[number]
    if prefix == CROSS:
        return Prompt(own, None, encoded.special, tuple(names[row] for row in rows))
    is_text = read[: len(encoded.ids)] == tuple(encoded.ids)
    tokens = own + names[len(own) :] if is_text else names
    return Prompt(tokens, tuple(rows), encoded.special if is_text else ())


def _layers(
    run: Run, site: str, layers: Sequence[int], chosen: Sequence[int], shown: Sequence[Prompt]
) -> Iterator[Layer]:
    """The run's layers, each prompt cut to its own rows and keys."""
    prefix = Site(site).prefix

    def cut(name: str, layer: int, keys: bool) -> tuple[Array, ...]:
        values = run[prefix + name, layer]
        sizes = [len(p.tokens if keys else p.rows) for p in shown]
        return tuple(_array(values[i, :n]) for i, n in zip(chosen, sizes, strict=True))

    names = _vectors(run, prefix)
    for layer in layers:
        patterns = tuple(
            _array(run[site, layer][i, :, : len(p.rows), : len(p.tokens)]) for i, p in zip(chosen, shown, strict=True)
        )
        parts = {part: cut(name, layer, part != "q") for part, name in names.items()}
        yield Layer(layer, patterns, **parts)


def _vectors(run: Run, prefix: str) -> dict[str, str]:
    """Which sites hold q, k and v: all three, or none is shown."""
    if run.heads is not None:  # key-value heads of a choice of heads are not told apart
        return {}
    known = {name for name, _ in run.values}
    for q, k in (("rot_q", "rot_k"), ("q", "k")):
        if {prefix + q, prefix + k, prefix + "v"} <= known:
            return {"q": q, "k": k, "v": "v"}
    return {}


def _array(tensor: object) -> Array:
    return np.asarray(tensor.float().cpu().numpy())  # type: ignore[attr-defined]
