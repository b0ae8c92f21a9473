"""Where things are in a model: its attention calls, blocks and residual stream, found by watching it run.

No architecture is known by name. Read in this order: the seams, then what one watched pass tells.

    interface.py   the look-up by which a model asks for its attention function
    follow.py      models that never ask: attention as a chain of torch's own functions
    patterns.py    attention rows from the model's own eager function
    look.py        one short pass, watched: what a model is made of ...
    halves.py      ... and what adds up to its residual stream ...
    stacks.py      ... put together as stacks, layers, attentions
"""

from probe.anatomy.stacks import Anatomy, dissect

__all__ = ["Anatomy", "dissect"]
