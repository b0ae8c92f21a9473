"""Studies in a file of a user's own, as text: quick, and with something for each thing that can change."""

from __future__ import annotations

LINES = '''
"""Attention of a model on the lines of a file."""

import numpy as np
import pandas as pd

import probe
from probe.data import Dataset, Text


@probe.study(models=("tiny",), needs_data=True)
def lines(subject, *, data, profile: str = "quick", seed: int = 0, scale: float = 1.0) -> probe.Findings:
    """How much of a line's attention stays on its first token?"""
    texts = [Text(f"line-{i}", f"line-{i}", text) for i, text in enumerate(data.read_text().splitlines())]
    run = subject.run([t.text for t in texts], sites=["pattern"], rows=[-1])
    rows = [
        (layer, head, float(run["pattern", layer][:, head, 0, 0].mean()) * scale)
        for layer in range(subject.n_layers)
        for head in range(subject.n_heads)
    ]
    heads = pd.DataFrame(rows, columns=["layer", "head", "first"])
    drawn = pd.DataFrame({"draw": np.arange(3), "number": np.random.default_rng(seed).random(3)})
    timed = pd.DataFrame({"what": ["all"], "seconds": [np.random.default_rng().random()]})
    share = heads["first"].mean()
    return probe.Findings(
        f"{share:.3f} of it in {len(texts)} lines.",
        (
            probe.Section(
                "Heads",
                (f"The largest share is {heads['first'].max():.4f}.",),
                (
                    probe.Table("heads", heads, "Share on the first token."),
                    probe.Plot("map", "heads", "heat", "layer", "head", "Shares.", value="first"),
                ),
            ),
            probe.Section("Draws", (), (probe.Table("draws", drawn, "Drawn by the seed."),)),
            probe.Section(
                "Times",
                (f"It took {timed['seconds'][0]:.9f} s.",),
                (probe.Table("timing_all", timed, "Never the same twice."),),
            ),
        ),
        data=(Dataset("lines", "first", "mass", (), tuple(texts), "a file of the tests", "none"),),
    )
'''

COUNTED = '''
"""Cells that leave a line in the file $CALLS each time they are computed."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd

import probe


def called(what: str) -> None:
    with open(os.environ["CALLS"], "a") as file:
        file.write(f"{what}\\n")


def found(what: str, seed: int) -> probe.Findings:
    frame = pd.DataFrame({"number": np.arange(4), "drawn": np.random.default_rng(seed).random(4)})
    parts = (probe.Table("drawn", frame, "Drawn."), probe.Plot("curve", "drawn", "lines", "number", "drawn", "Drawn."))
    return probe.Findings(f"{what} {frame['drawn'].sum():.3f}.", (probe.Section("Drawn", (), parts),))


@probe.study(models=())
def counted(*, profile: str = "quick", seed: int = 0, pause: float = 0.0) -> probe.Findings:
    """How often is it computed?"""
    called(f"counted {seed}")
    time.sleep(pause)
    return found("Once:", seed)


'''

PLANTED = '''
@probe.study(models=("planted:previous_token",))
def planted(subject, *, profile: str = "quick", seed: int = 0, pause: float = 0.0) -> probe.Findings:
    """How often is it computed on a model?"""
    called(f"planted {seed}")
    once = os.environ.get("KILLED_ONCE")
    if once and not Path(once).exists():
        Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(pause)
    run = subject.run("Anna thanked Ben", sites=["pattern"])
    return found(f"Attention {float(run['pattern', 0][0, 0, -1].max()):.3f}, and", seed)
'''

FAILING = '''
"""Cells that end badly."""

from typing import Literal

import pandas as pd

import probe

Kind = Literal["prompt", "surprise", "foreseen", "none"]


@probe.study(models=("tiny",))
def failing(subject, *, profile="quick", seed: int = 0, how: Kind = "prompt") -> probe.Findings:
    """How does it end?"""
    if how == "prompt" and seed == 1:
        def broken(value, where):
            raise RuntimeError("the edit is broken")
        subject.run("Anna thanked Ben", sites=["z"], edits=[probe.edits.edit("z", 0, broken)])
    if how == "surprise" and seed == 1:
        raise ZeroDivisionError("no one foresaw this")
    if how == "foreseen" and seed == 1:
        raise probe.ProbeError("everyone foresaw this.")
    frame = pd.DataFrame({"seed": [seed]})
    return probe.Findings("Well.", (probe.Section("End", (), (probe.Table("end", frame, "End."),)),))
'''
