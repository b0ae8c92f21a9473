"""Attention in NumPy: the loops of `in_python` become matrix products, and all heads are computed at once.

    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    output, weights = attention(x, x, x, mask="causal")
    weights.shape  # (3, 3): queries down, keys across

Axes before the last two are a batch: `multi_head` puts its heads there.
"""

import math

import numpy as np
import numpy.typing as npt

# Shapes in comments: n queries, m keys, d numbers in a query and in a key, c in a value, H heads, D = d_model / H.
Array = npt.NDArray[np.float64]
Mask = npt.ArrayLike | str | None


def softmax(scores: Array) -> Array:
    """Shares along the last axis, which sum to 1; a score of -inf has a share of exactly 0."""
    grown = np.exp(scores - scores.max(axis=-1, keepdims=True))  # the largest is taken off, so that exp cannot overflow
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def attention(q: Array, k: Array, v: Array, *, scale: float | None = None, mask: Mask = None) -> tuple[Array, Array]:
    """softmax(q·kᵀ · scale) · v. Returns the output, (..., n, c), and the weights, (..., n, m), whose rows sum to 1.

    q: (..., n, d). k: (..., m, d). v: (..., m, c). scale: what scores are multiplied by, default 1/√d.
    mask: None, "causal", or booleans (n, m), True where a query may see a key.
    Raises ValueError for sizes that do not fit, and for a query that may see no key.
    """
    if q.size == 0 or k.size == 0 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"q is {q.shape}, k is {k.shape}, v is {v.shape}: q and k must be equally wide, k and v equally long, "
            "and none of them empty."
        )
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(-1, -2) * scale  # (..., n, d) @ (..., d, m) -> (..., n, m)
    scores = np.where(visible(mask, q.shape[-2], k.shape[-2]), scores, -np.inf)
    weights = softmax(scores)
    return weights @ v, weights  # (..., n, m) @ (..., m, c) -> (..., n, c)


def multi_head(
    x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, n_heads: int, *, causal: bool = False
) -> tuple[Array, Array]:
    """Several heads side by side. Returns the output, (n, d_model), and each head's weights, (n_heads, n, n).

    x: (n, d_model). w_q, w_k, w_v, w_o: (d_model, d_model). Head h works on columns h·D to (h+1)·D of q, k and v.
    Raises ValueError if the width cannot be cut into n_heads equal slices.
    """
    q, k, v = (heads(x @ w, n_heads) for w in (w_q, w_k, w_v))  # (H, n, D)
    output, weights = attention(q, k, v, mask="causal" if causal else None)
    joined = output.swapaxes(0, 1).reshape(len(x), -1)  # (H, n, D) -> (n, H, D) -> (n, d_model)
    return joined @ w_o, weights


def heads(rows: Array, n_heads: int) -> Array:
    """Cut the width into heads: (n, d_model) -> (H, n, D). Raises ValueError if it cannot be cut into equal slices."""
    n, width = rows.shape
    if n_heads < 1 or width % n_heads:
        allowed = [h for h in range(1, width + 1) if width % h == 0]
        raise ValueError(f"a width of {width} cannot be cut into {n_heads} equal heads: allowed are {allowed}.")
    # Not reshape(n_heads, n, D) at once: that would deal out tokens, not columns.
    return rows.reshape(n, n_heads, width // n_heads).swapaxes(0, 1)


def visible(mask: Mask, n: int, m: int) -> npt.NDArray[np.bool_]:
    """A mask as booleans, (n, m): True where a query may see a key.

    "causal": the queries are the last n of the m tokens, and each sees those up to itself.
    Raises ValueError for another name, another size, values that are not booleans, or a row without a key to see.
    """
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f"no mask named {mask!r}: a mask is None, 'causal' or {n} × {m} booleans.")
    everything = np.ones((n, m), dtype=bool)
    if mask is None:
        return everything
    rows = np.tril(everything, m - n) if isinstance(mask, str) else np.asarray(mask)
    if rows.shape != (n, m) or not np.isin(rows, (0, 1)).all():
        raise ValueError(f"the mask must be {n} × {m} booleans, True where a query may see a key.")
    if (blind := np.flatnonzero(~rows.any(axis=-1))).size:
        raise ValueError(f"query {blind[0]} may see no key: its shares would be 0/0. Let it see one, or leave it out.")
    return rows.astype(bool)
