"""The sections of the cache study that are timed: a new token with and without the cache, and what stays n²."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from probe.by_hand.ledger import SMOLLM2_135M, comparisons
from probe.cost.decoding import Decoder, step_times
from probe.cost.growth import Spread, attention_runs, exponent, repeated
from probe.runner.findings import Plot, Section, Table

SPREAD = ("median", "shortest", "longest")


def decoding_section(decoder: Decoder, contexts: Sequence[int], repeats: int, seed: int) -> tuple[Section, list[float]]:
    """The times of a new token after so many random ones; and the shortest seconds of whole passes over each context
    and the token after it.
    """
    rows, lines, whole = [], [], []
    for n in contexts:
        prefill, cached, plain = step_times(decoder, n, repeats, seed)
        rows.append((n, *_ms(prefill), *_ms(cached), *_ms(plain), plain.median / cached.median))
        lines += [(n, name, *_ms(spread)) for name, spread in (("with the cache", cached), ("without", plain))]
        whole.append(plain.low)
    header = ["context", *(f"{what}, {kind}" for what in ("prefill", "cache", "no cache") for kind in SPREAD)]
    parts = (
        Table(
            "timing_decoding",
            pd.DataFrame(rows, columns=[*header, "times faster"]),
            f"Milliseconds, of {repeats} runs: to read a context of so many tokens (prefill), and for the next token "
            "with the cache and without it. The cached steps follow each other: the context grows by one at each.",
            digits=1,
        ),
        Table("timing_lines", pd.DataFrame(lines, columns=["context", "decoding", *SPREAD]), "As drawn.", shown=False),
        _lines(
            "decoding",
            "timing_lines",
            ("context", "tokens so far"),
            "decoding",
            f"Milliseconds a new token with and without the cache: median and range of {repeats} runs.",
        ),
    )
    text = ("Without the cache a new token costs a pass over the whole context, with it a pass of one token.",)
    return Section("How much faster it is", text, parts), whole


def growth_section(
    lengths: Sequence[int], repeats: int, seed: int, passes: tuple[Sequence[int], Sequence[float]]
) -> Section:
    """How attention by itself grows over `lengths`, in smollm2's shape, beside the subject's whole passes: their
    contexts and seconds.
    """
    shape = {"n_heads": SMOLLM2_135M.n_heads, "n_kv_heads": SMOLLM2_135M.kv_heads, "d_head": SMOLLM2_135M.head_width}
    rows = [
        (n, name, comparisons(n), *_ms(repeated(run, repeats)))
        for n in lengths
        for name, run in attention_runs(n, **shape, seed=seed).items()
    ]
    timed = pd.DataFrame(rows, columns=["tokens", "what", "comparisons of a head", *SPREAD])
    fits = [
        (name, min(lengths), max(lengths), *exponent(list(same["tokens"]), list(same["shortest"])))
        for name, same in timed.groupby("what", sort=False)
    ]
    contexts, seconds = passes
    if len(contexts) > 2:  # a line through two points has no interval
        fits.append(("a whole pass", contexts[0] + 1, contexts[-1] + 1, *exponent([n + 1 for n in contexts], seconds)))
    ladder = [(n, comparisons(n), comparisons(n, causal=True), comparisons(n) * 4 / 1e6) for n in (10**3, 10**4, 10**5)]
    parts = (
        Table(
            "comparisons",
            pd.DataFrame(ladder, columns=["tokens", "n·n", "n·(n+1)/2, causal", "MB of a pattern"]),
            "Dot products of one head over n tokens, and the size of its n·n pattern in 32-bit numbers (1 MB is 10^6 "
            "bytes).",
            digits=0,
        ),
        Table(
            "timing_growth",
            pd.DataFrame(fits, columns=["what", "from tokens", "to tokens", "exponent", "low", "high"]),
            "b in time = a·n^b, from a straight line through the logarithms of the shortest times, which other work on "
            "the machine disturbs least, and its 95% interval by Student's t. All but the whole pass are one layer's "
            f"attention by itself, in the shape of smollm2 ({shape['n_heads']} heads, {shape['n_kv_heads']} key-value "
            f"heads, {shape['d_head']} wide).",
            digits=2,
        ),
        Table("timing_attention", timed, "As drawn.", digits=2, shown=False),
        _lines(
            "attention",
            "timing_attention",
            ("tokens", "tokens"),
            "what",
            f"Milliseconds of one layer's attention by itself: median and range of {repeats} runs.",
        ),
    )
    text = (
        "Every query is compared with every key, so scores grow with n². The fused kernel never holds the n·n pattern: "
        "that saves memory, and no comparisons.",
        "A whole pass is not n² at such lengths: projections and MLP do the same for each token and grow with n, and "
        "what is done once a pass does not grow. Its exponent lies between 1 and 2, below 1 for a small model whose "
        "passes are mostly fixed cost, and rises with the lengths it is measured over.",
    )
    return Section("What stays n²", text, parts)


def _ms(spread: Spread) -> tuple[float, ...]:
    return tuple(1000 * seconds for seconds in spread)


def _lines(name: str, table: str, x: tuple[str, str], by: str, caption: str) -> Plot:
    """Times over tokens with their range. x: the column and what its axis says."""
    return Plot(
        name,
        table,
        "lines",
        x[0],
        "median",
        caption,
        by=by,
        low="shortest",
        high="longest",
        log="xy",
        x_label=x[1],
        y_label="milliseconds",
    )
