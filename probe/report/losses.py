"""The figure of a training: its loss, step by step, and on held-out data."""

from __future__ import annotations

import pandas as pd

from probe.report.figures import ACCENT, FAINT, INK, WIDTH, canvas, png, styled

HEIGHT = 4.2  # inches


def loss_figure(table: pd.DataFrame, name: str) -> bytes:
    """PNG of a training's losses.csv. table: columns step, training, held_out (nats per token; empty where not
    measured). name: of the model.
    """
    training, held_out = (table.dropna(subset=[column]) for column in ("training", "held_out"))
    window = max(1, len(training) // 100)
    smooth = training["training"].rolling(window, center=True, min_periods=1).mean()
    with styled():
        figure = canvas(HEIGHT)
        axes = figure.add_axes((0.75 / WIDTH, 0.65 / HEIGHT, (WIDTH - 1.0) / WIDTH, (HEIGHT - 1.5) / HEIGHT))
        axes.plot(training["step"], training["training"], color=FAINT, alpha=0.35, lw=0.6, label="each batch")
        axes.plot(training["step"], smooth, color=ACCENT, lw=1.8, label=f"mean of {window} batches")
        axes.plot(held_out["step"], held_out["held_out"], "o-", color=INK, ms=4, lw=1, label="held-out data")
        axes.set_xlim(0, table["step"].max() * 1.02)
        axes.set_ylim(0)
        axes.set_xlabel("step")
        axes.set_ylabel("loss, nats per token")
        axes.legend(frameon=False)
        last = held_out.iloc[-1]
        figure.text(0.1 / WIDTH, 1 - 0.12 / HEIGHT, f"Training of {name}", va="top", weight="bold", size=12)
        words = f"held-out loss after {int(last['step']):,} steps: {last['held_out']:.3f} nats per token"
        figure.text(0.1 / WIDTH, 1 - 0.37 / HEIGHT, words, va="top", size=10.5, color=FAINT)
        return png(figure)
