"""The places in a transformer that can be read and edited, under TransformerLens' names.

| site                      | shape                 | what                                                   |
|---------------------------|-----------------------|--------------------------------------------------------|
| `q`, `k`                  | batch pos head d_head | after the projection and any QK-norm, before rotary    |
| `rot_q`, `rot_k`          | batch pos head d_head | as they meet in the dot product; q, k without rotary   |
| `v`, `z`                  | batch pos head d_head | values; attention-weighted values of each query head   |
| `scores`                  | batch head query key  | after scale, mask and softcap, before softmax          |
| `pattern`                 | batch head query key  | attention weights after softmax                        |
| `result`                  | batch pos head d_model | each head's part of the output projection, bias left out |
| `attn_out`, `mlp_out`     | batch pos d_model     | what each half of the block writes, before a post-norm |
| `embed`                   | batch pos d_model     | token embedding alone; has no layer                    |
| `resid_pre`, `resid_mid`  | batch pos d_model     | residual stream before attention, before the MLP       |
| `resid_post`              | batch pos d_model     | residual stream after the block                        |
| `logits`                  | batch pos vocab       | the model's output; has no layer                       |

`k`, `rot_k` and `v` carry the key-value heads as the model has them; everywhere else "head" means query head.

In encoder-decoder models these names mean the decoder; `encoder.pattern` and its like the encoder; `cross.pattern`
and the other attention sites with that prefix the decoder's reading of the encoder (its keys are encoder positions).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from numbers import Integral
from typing import Any, NamedTuple

from probe.errors import OutOfRange, UnknownName

ATTENTION_SITES = ("q", "k", "v", "rot_q", "rot_k", "scores", "pattern", "z", "result")
STREAM_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
WHOLE_SITES = ("embed", "logits")  # these have no layer
SITES = (*ATTENTION_SITES, *STREAM_SITES, *WHOLE_SITES)
SQUARE_SITES = ("scores", "pattern")  # batch head query key; every other site has positions second
KEY_SITES = ("k", "rot_k", "v")  # their positions are keys: a choice of query rows leaves them whole
ENCODER, CROSS = "encoder.", "cross."
STREAMED = ("pattern", ENCODER + "pattern", CROSS + "pattern")  # of which statistics are streamed
PREFIXED = (
    *(ENCODER + name for name in SITES if name != "logits"),
    *(CROSS + name for name in (*ATTENTION_SITES, "attn_out")),
)


class Site(NamedTuple):
    """A place to read: its name and its layer (None for `embed` and `logits`)."""

    name: str
    layer: int | None = None

    def __str__(self) -> str:
        return self.name if self.layer is None else f"{self.name} of layer {self.layer}"

    @property
    def prefix(self) -> str:
        """ "", "encoder." or "cross."."""
        return split(self.name)[0]

    @property
    def base(self) -> str:
        """The name without its prefix."""
        return split(self.name)[1]


@cache
def split(name: str) -> tuple[str, str]:
    """`encoder.pattern` as ("encoder.", "pattern"); a name without a prefix has an empty one."""
    prefix, dot, base = name.rpartition(".")
    return prefix + dot, base


def check_sites(names: str | Iterable[str]) -> tuple[str, ...]:
    """The site names, each known; raises UnknownName."""
    if names is None or not isinstance(names, Iterable):
        raise UnknownName.of("site", names, SITES)
    chosen = (names,) if isinstance(names, str) else tuple(names)
    for name in chosen:
        if name not in SITES and name not in PREFIXED:
            known = PREFIXED if "." in str(name) else SITES
            raise UnknownName.of("site", name, known)
    return tuple(dict.fromkeys(chosen))


def check_indices(kind: str, given: int | Sequence[int] | None, size: int) -> tuple[int, ...]:
    """`given` as indices from 0 to size - 1, negative ones counted from the end; None is all of them.

    Raises OutOfRange, also for what are no whole numbers.
    """
    if given is None:
        return tuple(range(size))
    chosen = plain_indices(kind, given)
    for index in chosen:
        if not -size <= index < size:
            raise OutOfRange.of(kind, index, size)
    return tuple(i % size for i in chosen)


def plain_indices(kind: str, given: object) -> tuple[int, ...]:
    """One whole number or several, NumPy's and torch's too, as plain ones. Raises OutOfRange for anything else."""
    listed = given.tolist() if hasattr(given, "tolist") else given
    several = listed if isinstance(listed, Iterable) and not isinstance(listed, str) else [listed]
    found: list[Any] = [i.item() if hasattr(i, "item") else i for i in several]
    for index in found:
        if isinstance(index, bool) or not isinstance(index, Integral):
            raise OutOfRange(f"a {kind} is a whole number, not {index!r}.")
    return tuple(map(int, found))


def kv_head(head: int, n_heads: int, n_kv_heads: int) -> int:
    """The key-value head that query head `head` reads (grouped-query attention: consecutive heads share one)."""
    return head // (n_heads // n_kv_heads)


def head_names(heads: Iterable[tuple[Any, Any]]) -> list[str]:
    """Heads, given as (layer, head), as they are written.

    >>> head_names([(18, 6), (0, 11)])
    ['18.6', '0.11']
    """
    return [f"{layer}.{head}" for layer, head in heads]
