"""Tiny GPTs whose heads were written by hand: what a head does in them is known, so every scorer can be checked.

    subject = probe.load("planted:induction")
    planted.HEADS["induction"]                    # {"previous_token": [(0, 0)], "induction": [(1, 0)]}: (layer, head)
    planted.build("induction", n_heads=8)         # the model alone, with more heads that do nothing

Each model reads the words of the synthetic language. Its written heads put all but 1e-6 of their attention on what they
are there to find, and on position 0 where there is nothing to be found; they copy from there what the answer needs, and
nothing else decides the logits. The other heads are zero: they attend to all keys alike, and write nothing. Without
norms and MLPs (`norm="none"`, `ffn="none"`), the residual stream holds what the embeddings and heads wrote, each in a
part of its own (`circuit`).
"""

from probe.models.planted.kinds import CIRCUITS, HEADS, build

__all__ = ["CIRCUITS", "HEADS", "build"]
