"""The example figure: prompts as text, shaded by one head's attention, query, target and foils marked."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from probe.report.figures import ACCENT, FAINT, INK, WIDTH, canvas, png, styled
from probe.report.folder import Results
from probe.report.numbers import fixed
from probe.report.strips import Piece, codes, decoded, pieces
from probe.runner.results import Example

SIZE = 14.0
LINE, LINE_WITH_MARKS = 0.4, 0.56
"""Inches between lines; names of marks stand above their words."""
MARGIN = 0.3
FRAME_GAP = 0.05
"""Inches between a framed word and its neighbours."""
SHORT = 60
"""Tokens above which a prompt is not shown in the figure."""
SHADES = LinearSegmentedColormap.from_list("attention", ["#ffffff", "#4f94ec"])
EDGES = {"query": ("-", 2.0), "target": ("-", 1.6), "foil": ((0, (3, 2)), 1.4)}


@dataclass
class _Line:
    """Pieces on one line, each with its left edge and width in inches."""

    items: list[tuple[int, Piece, str, float, float]] = field(default_factory=list)

    @property
    def height(self) -> float:
        return LINE_WITH_MARKS if any(piece.roles for _, piece, *_ in self.items) else LINE


def example(results: Results, n: int = 2) -> bytes | None:
    """The first `n` prompts of at most `SHORT` tokens, seen by the best head; None if there are none."""
    short = [(i, e) for i, e in enumerate(results.examples) if len(e.tokens) <= SHORT][:n]
    if not short:
        return None
    best = results.main.best
    layer, head = divmod(best, results.n_heads)
    with styled():
        measure = _Measure()
        blocks = []
        for number, prompt in short:
            strip = pieces(prompt)
            shares = decoded(codes(strip, results.rows[number, layer, head]))
            blocks.append((prompt, strip, shares, _wrap(strip, measure)))
        total = 0.95 + sum(sum(line.height for line in lines) + 0.62 for *_, lines in blocks) + 0.3
        figure = canvas(total)
        _heading(figure, results, total, [number + 1 for number, _ in short])
        y = total - 0.95
        for prompt, strip, shares, lines in blocks:
            for line in lines:
                y -= line.height
                for item in line.items:
                    _draw(figure, item, float(shares[item[0]]), y, total)
                _mark(figure, line, y, total)
            y -= 0.34
            _text(figure, MARGIN, y, total, _summary(prompt, strip, shares), size=10.5, color=FAINT)
            y -= 0.28
        _legend(figure, total)
        return png(figure)


class _Measure:
    """Text widths in inches, spaces included."""

    def __init__(self) -> None:
        figure = Figure(figsize=(1, 1))
        self._renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        self._dpi = figure.dpi
        self._font = FontProperties(size=SIZE)

    def __call__(self, text: str) -> float:
        # the extent of a text ends at its last ink, so spaces only count between two bars
        return (self._ink(f"|{text}|") - self._ink("||")) / self._dpi

    def _ink(self, text: str) -> float:
        width, _, _ = self._renderer.get_text_width_height_descent(text, self._font, ismath=False)
        return float(width)


def drawable(text: str) -> str:
    """The text with characters the bundled font does not have as "▯", and what has no width removed."""
    glyphs = get_font(findfont(matplotlib.rcParams["font.family"][0])).get_charmap()
    invisible = ("Mn", "Me", "Cf")
    kept = [c for c in text.replace("\n", "") if unicodedata.category(c) not in invisible]
    return "".join(c if ord(c) in glyphs else "▯" for c in kept)


def _wrap(strip: tuple[Piece, ...], measure: _Measure) -> list[_Line]:
    """Break the strip into lines, at spaces where a word fits on a line."""
    room = WIDTH - 2 * MARGIN
    words: list[list[tuple[int, Piece, str, float]]] = []
    for index, piece in enumerate(strip):
        if piece.lead or not words or "\n" in piece.text:
            words.append([])
        text = _fitted(drawable(piece.text), measure, room)
        words[-1].append((index, piece, text, measure(text)))
    space = measure(" ")
    lines = [_Line()]
    x = 0.0
    for word in words:
        lead = space * len(word[0][1].lead)
        if x and x + lead + sum(w for *_, w in word) > room:
            lines.append(_Line())
            x = 0.0
        x += lead if x else 0.0
        for index, piece, text, width in word:
            if lines[-1].items and lines[-1].items[-1][1].roles != piece.roles:
                x += FRAME_GAP
            if x and x + width > room:
                lines.append(_Line())
                x = 0.0
            lines[-1].items.append((index, piece, text, x, width))
            x += width
    return lines


def _fitted(text: str, measure: _Measure, room: float) -> str:
    """The text, cut where it is wider than a line; the page shows it whole."""
    text = text[:300]
    while measure(text) > room:
        text = text[: len(text) * 9 // 10 - 1] + "…"
    return text


def _draw(figure: Figure, item: tuple[int, Piece, str, float, float], share: float, y: float, total: float) -> None:
    _, _, text, x, width = item
    box = Rectangle(
        ((MARGIN + x) / WIDTH, (y - 0.07) / total),
        width / WIDTH,
        0.27 / total,
        transform=figure.transFigure,
        fc=SHADES(np.sqrt(share)),
        ec="none",
        zorder=1,
    )
    figure.add_artist(box)
    _text(figure, MARGIN + x, y, total, text, size=SIZE, color=INK)


def _mark(figure: Figure, line: _Line, y: float, total: float) -> None:
    """One frame around each run of tokens with the same roles, its name above it."""
    runs: list[tuple[tuple[str, ...], float, float]] = []
    previous = -2
    for index, piece, _, x, width in line.items:
        if piece.roles and runs and runs[-1][0] == piece.roles and previous == index - 1:
            runs[-1] = (piece.roles, runs[-1][1], x + width)
        elif piece.roles:
            runs.append((piece.roles, x, x + width))
        previous = index
    for roles, start, stop in runs:
        kind = roles[0].split()[0]
        style, thickness = EDGES[kind]
        for grow in (0.015, 0.045) if kind == "target" else (0.025,):
            frame = Rectangle(
                ((MARGIN + start - grow) / WIDTH, (y - 0.07 - grow) / total),
                (stop - start + 2 * grow) / WIDTH,
                (0.27 + 2 * grow) / total,
                transform=figure.transFigure,
                fc="none",
                ec=ACCENT if kind == "query" else INK,
                ls=style,
                lw=thickness if kind != "target" else 1.1,
                zorder=3,
            )
            figure.add_artist(frame)
        middle = MARGIN + (start + stop) / 2
        _text(figure, middle, y + 0.285, total, ", ".join(roles), size=9, color=INK, ha="center")


def _text(figure: Figure, x: float, y: float, total: float, text: str, **style: object) -> None:
    figure.text(x / WIDTH, y / total, text, va="baseline", zorder=2, **style)  # type: ignore[arg-type]


def _summary(prompt: Example, strip: tuple[Piece, ...], shares: np.ndarray) -> str:
    named: dict[str, float] = {}
    for piece, share in zip(strip, shares, strict=True):
        for role in piece.roles:
            if role != "query":
                named[role] = named.get(role, 0.0) + float(share)
    parts = [f"{role} ≈ {fixed(value, 2)}" for role, value in named.items()]
    targets, foils = ([v for role, v in named.items() if role.startswith(kind)] for kind in ("target", "foil"))
    verdict = ""
    if targets and foils:
        verdict = "✓ looks at the target · " if sum(targets) > max(foils) else "✕ looks elsewhere · "
    return f"{verdict}attention: " + " · ".join([*parts, f"first token ≈ {fixed(float(shares[0]), 2)}"])


def _heading(figure: Figure, results: Results, total: float, shown: list[int]) -> None:
    phenomenon = results.main
    title = f"Where head {phenomenon.label(phenomenon.best)} of {results.model_name} looks from the query"
    _text(figure, MARGIN, total - 0.32, total, title, size=13, weight="bold")
    which = f"prompt{'s' * (len(shown) > 1)} {' and '.join(map(str, shown))}"
    verdict = "passes the attention leg" if phenomenon.passed[phenomenon.best] else "does not pass the attention leg"
    note = f"{phenomenon.name} · {verdict}" if phenomenon.tested else f"{phenomenon.name} · described"
    caption = f"{note} · {which} of {len(results.examples)} in this report"
    _text(figure, MARGIN, total - 0.58, total, caption, size=10.5, color=FAINT)


def _legend(figure: Figure, total: float) -> None:
    _text(figure, MARGIN, 0.2, total, "share of attention", size=10, color=FAINT)
    x = MARGIN + 1.45
    for share in (0.0, 0.05, 0.2, 0.5, 1.0):
        swatch = Rectangle(
            (x / WIDTH, 0.17 / total),
            0.3 / WIDTH,
            0.17 / total,
            transform=figure.transFigure,
            fc=SHADES(np.sqrt(share)),
            ec="#c4c9cf",
            lw=0.6,
        )
        figure.add_artist(swatch)
        _text(figure, x + 0.36, 0.2, total, f"{share:g}", size=10, color=FAINT)
        x += 0.86
