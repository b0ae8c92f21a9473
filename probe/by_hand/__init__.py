"""Attention and its arithmetic, small enough to check by hand. Nothing here knows a model.

Read in this order; the first three hold the same two functions, `attention` and `multi_head`:

in_python.py   lists of rows and `math`: every multiplication can be seen. Also `dot`, `softmax`, `entropy`
in_numpy.py    the same with matrices, all heads at once
in_torch.py    the same as tensors: what a model runs, and what can be trained
examples.py    a worked example of one sentence, and what it takes to change where "it" looks
scaling.py     why scores are divided by √d, measured on random vectors
counting.py    numbers that count how often they are added and multiplied
layers.py      whether the three pages agree, what heads cost, what the order of tokens changes
ledger.py      parameters, cache and comparisons of a decoder, from its configuration
textbook.py    printed figures beside the right ones

    from probe.by_hand.in_python import attention

Each of the first three is complete by itself, so that it can be copied and changed; hence their errors are plain
ValueErrors. Nothing is exported here, so that the page in plain Python loads nothing but `math`.
"""
