"""The page's data, as one JSON text that is safe inside a script element of an HTML page."""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.colors import to_hex

from probe.report import metrics, strips
from probe.report.causal import Leg
from probe.report.folder import Floats, Phenomenon, Results
from probe.report.strips import Piece


def scores(results: Results) -> dict[str, Any]:
    """Every head's numbers in full precision, with the colour scales of the maps."""
    stops = matplotlib.colormaps[metrics.COLOURS](np.linspace(0, 1, 17))
    return {
        "nLayers": results.n_layers,
        "nHeads": results.n_heads,
        "kvHeads": [results.kv_head(head) for head in range(results.n_heads)],
        "colours": [to_hex(stop) for stop in stops],
        "main": results.phenomena.index(results.main),
        "phenomena": [_phenomenon(p, results.legs.get(p.name)) for p in results.phenomena],
    }


def attention(results: Results, shown: tuple[tuple[Piece, ...], ...]) -> dict[str, Any]:
    """Attention of every head on every piece, one byte each: per example (head, piece), deflated, in base64.

    patch: per example the nats over heads that its answer loses; null where the run kept none. hits: per example one
    character a head, "1" where the target gets more attention than any foil (from the exact values).
    """
    blocks, examples, offset = [], [], 0
    for number, (prompt, strip, rows) in enumerate(zip(results.examples, shown, results.rows, strict=True)):
        block = strips.codes(strip, rows).reshape(-1, len(strip))
        hits = strips.on_target(prompt, rows).ravel()
        examples.append(
            {
                "pieces": len(strip),
                "offset": offset,
                "target": strips.indices(strip, prompt.target),
                "foils": [strips.indices(strip, foil) for foil in prompt.foils],
                "hits": "".join("1" if hit else "0" for hit in hits),
                "patch": None
                if results.patch is None
                else _column(np.round(results.patch[number].ravel().astype(np.float64), 4)),
            }
        )
        blocks.append(block.tobytes())
        offset += block.size
    packed = zlib.compress(b"".join(blocks), 9)
    return {"examples": examples, "codes": base64.b64encode(packed).decode("ascii")}


def island(value: dict[str, Any]) -> str:
    """JSON in ASCII without `<`, `>` and `&`, so that nothing in it can end the script element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _phenomenon(phenomenon: Phenomenon, leg: Leg | None) -> dict[str, Any]:
    return {
        "name": phenomenon.name,
        "tested": phenomenon.tested,
        "statistic": phenomenon.statistic,
        "causal": None if leg is None else _causal(leg),
        "numbers": {name: _column(values) for name, values in phenomenon.numbers.items()},
        "rival": list(phenomenon.best_rivals),
        "picked": _flags(phenomenon.picked),
        "passed": _flags(phenomenon.passed),
        "scales": {m: _scale(phenomenon, m) for m in metrics.METRICS},
    }


def _causal(leg: Leg) -> dict[str, Any] | str:
    """A causal leg's numbers over heads; "" where nothing could be measured."""
    if leg.reason is not None:
        return ""
    return {
        "numbers": {name: _column(values) for name, values in leg.numbers.items()},
        "verdicts": list(leg.verdicts),
        "whys": list(leg.whys),
        "tested": _flags(leg.tested),
        "passed": _flags(leg.passes),
        "paired": leg.paired if math.isfinite(leg.paired) else None,
        "mostLoss": leg.most_loss,
    }


def _scale(phenomenon: Phenomenon, metric: str) -> dict[str, Any]:
    scale = metrics.scale(phenomenon, metric)
    return {
        "label": scale.label,
        "low": scale.low,
        "high": scale.high,
        "marks": [list(m) for m in scale.marks],
    }


def _column(values: Floats) -> float | list[float | None] | None:
    """Numbers over heads; one number where all are the same."""
    plain = [float(v) if math.isfinite(v) else None for v in values]
    return plain[0] if all(v == plain[0] for v in plain) else plain


def _flags(values: npt.NDArray[np.bool_]) -> str:
    return "".join("1" if v else "0" for v in values)
