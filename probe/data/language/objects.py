"""The things of the synthetic language: values of facts, names of blocks, and what repeated strings are made of."""

from __future__ import annotations

from probe.data.language.parts import listed

OBJECTS = listed(
    "ruby coal silk salt gold tin iron clay wool corn rice milk tea wine oil ink glass paper rope sand chalk cork lace "
    "wax amber ivory pearl jade copper zinc marble flour sugar honey butter cheese bread pepper ginger plum apple "
    "lemon melon olive onion bean nut cotton"
)
