"""The command `probe view`: one page of every head's attention in a text, or in two."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from probe.errors import OutOfRange, ProbeError

if TYPE_CHECKING:
    from probe.report.gather import Layer
    from probe.subject import Subject
    from probe.tokens.encoding import Encoded

HELD = 1 << 30
"""Bytes of patterns that one pass of the model keeps; longer texts take several passes."""
VECTORS = ("rot_q", "rot_k", "v")
SHORT = 512
"""Tokens up to which q, k and v are read as well."""

Heads = Annotated[
    list[str] | None,
    typer.Option("--head", help="A head, as layer.head, whose pattern is to be in the page; repeat for more."),
]
Out = Annotated[Path | None, typer.Option(help="The page; default view-MODEL-HASH.html in this folder.")]
Exact = Annotated[bool, typer.Option("--exact", help="Also keep the exact patterns, in an .npz beside the page.")]


def view(
    model: Annotated[str, typer.Argument(help="Name, folder or hub id.")],
    text: Annotated[str, typer.Argument(help="The text.")],
    pair: Annotated[str | None, typer.Option(help="Another text, to be set beside it.")] = None,
    head: Heads = None,
    out: Out = None,
    exact: Exact = False,
) -> None:
    """Write one page, which opens offline, of what every head looks at in a text."""
    from probe.report.gather import Prompt, gather
    from probe.report.notebook import View
    from probe.report.viewer import About, render
    from probe.subject import load

    asked = [_head(name) for name in head or ()]
    subject = load(model)
    subject.anatomy.check_even()
    for layer, number in asked:
        for kind, index, size in (("layer", layer, subject.n_layers), ("head", number, subject.n_heads)):
            if index >= size:
                raise OutOfRange.of(kind, index, size)
    encoded = [subject.encode(words) for words in (text, *([] if pair is None else [pair]))]
    prompts = [Prompt(e.shown, tuple(range(len(e))), e.special) for e in encoded]
    path = out or Path(f"view-{Path(model).name}-{_hash(text, pair)}.html")
    kept: dict[str, Any] = {}
    layers = patterns(subject, encoded)
    seen = gather(_keeping(layers, kept) if exact else layers, prompts, range(subject.n_heads), subject.n_kv_heads)
    command = ["probe", "view", model, text, *([] if pair is None else ["--pair", pair])]
    command += [word for name in head or () for word in ("--head", name)]
    about = About(
        name=subject.name,
        command=shlex.join(command + ["--exact"] * exact),
        facts=(
            ("model", f"{subject.name} ({subject.family}), {subject.dtype}, attention: {subject.attention}"),
            ("weights sha256", subject.weights_hash),
            ("tokenizer sha256", subject.tokenizer_hash),
        ),
        exact=_write_exact(path, kept) if exact else None,
        first=tuple(asked),
    )
    typer.echo(f"{View(render(prompts, seen, about)).write(path)} (open this in a browser)")


def patterns(subject: Subject, prompts: Sequence[Encoded]) -> Iterator[Layer]:
    """Every layer's attention in each prompt, a few layers a pass; q, k and v too where texts are short and the model
    shows them.
    """
    from probe.errors import UnsupportedModel

    longest = max(map(len, prompts))
    each = 4 * len(prompts) * subject.n_heads * longest**2
    step = max(1, HELD // each)
    sites = ("pattern", *VECTORS) if longest <= SHORT else ("pattern",)
    for start in range(0, subject.n_layers, step):
        chosen = range(start, min(start + step, subject.n_layers))
        try:
            yield from _read(subject, prompts, sites, chosen)
        except UnsupportedModel:
            if sites == ("pattern",):
                raise
            sites = ("pattern",)
            yield from _read(subject, prompts, sites, chosen)


def _read(subject: Subject, prompts: Sequence[Encoded], sites: Sequence[str], layers: Sequence[int]) -> Iterator[Layer]:
    from probe.report.gather import Layer

    read = [p.ids for p in prompts]
    for batch, seen in subject.captured(read, sites, layers=list(layers), batch_size=len(prompts)):
        spans = [slice(at, at + n) for at, n in zip(batch.shift, batch.lengths, strict=True)]
        for layer in layers:
            square = tuple(_array(seen["pattern", layer][i, :, s, s]) for i, s in enumerate(spans))
            parts = {
                site[-1]: tuple(_array(seen[site, layer][i, s]) for i, s in enumerate(spans)) for site in sites[1:]
            }
            yield Layer(layer, square, **parts)


def _array(tensor: Any) -> Any:
    return tensor.float().cpu().numpy()


def _keeping(layers: Iterator[Layer], kept: dict[str, Any]) -> Iterator[Layer]:
    for layer in layers:
        for number, pattern in enumerate(layer.patterns):
            kept[f"text_{number}_layer_{layer.index}"] = pattern
        yield layer


def _write_exact(page: Path, kept: dict[str, Any]) -> tuple[str, str]:
    """The exact patterns, (head, query, key) float32 for each text and layer; the file's name and SHA-256."""
    import io

    import numpy as np

    from probe.errors import ResultsError

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **kept)
    path = page.with_suffix(".npz")
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise ResultsError(f"the patterns cannot be written to {path}: {error}.") from error
    return path.name, hashlib.sha256(buffer.getvalue()).hexdigest()


def _head(name: str) -> tuple[int, int]:
    layer, dot, head = name.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal()):
        raise ProbeError(f"--head {name!r} is not of the form layer.head, such as 9.4.")
    return int(layer), int(head)


def _hash(text: str, pair: str | None) -> str:
    return hashlib.sha256("\0".join([text, *([] if pair is None else [pair])]).encode("utf-8", "replace")).hexdigest()[
        :8
    ]
