"""Reading and changing a model while it runs.

Read in this order: the seams, then what stands at them, then what is built on top.

    interface.py   the look-up by which a model asks for its attention function
    follow.py      models that never ask: attention as a chain of torch's own functions
    patterns.py    attention rows from the model's own eager function
    look.py        one short pass, watched: what a model is made of ...
    halves.py      ... and what adds up to its residual stream ...
    anatomy.py     ... put together as stacks, layers, attentions
    edit.py        what an edit is
    capture.py     `Capture`: what is wanted, what is kept
    heads.py       the sites of attention heads;  residual.py  those of the stream;  paths.py  from head to head
    store.py, guards.py      what was kept; what is refused, and why
    streams.py     statistics of patterns that are never held whole
    edits.py       the edits users make
    batch.py, run.py, generate.py, parity.py   padding and back; text being written; the check at load
"""

from probe.capture.anatomy import Anatomy, dissect
from probe.capture.capture import Capture

__all__ = ["Anatomy", "Capture", "dissect"]
