"""Exit codes of the command `probe`."""

DONE = 0
FAILED = 1  # a cell failed; the others were finished
USAGE = 2
DIFFERS = 3  # verify or compare found a difference
INTERRUPTED = 130
