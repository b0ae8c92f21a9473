"""Reading and changing a model while it runs, at the places that `probe.anatomy` found.

Read in this order:

    edit.py        what an edit is
    capture.py     `Capture`: what is wanted, what is kept
    heads.py       the sites of attention heads;  residual.py  those of the stream;  paths.py  from head to head
    store.py, guards.py      what was kept; what is refused, and why
    streams.py     statistics of patterns that are never held whole
    edits.py       the edits users make
    batch.py, run.py, generate.py   padding and back; text being written
    parity.py, passed.py     the check at load, and which files passed it
"""

from probe.capture.capture import Capture

__all__ = ["Capture"]
