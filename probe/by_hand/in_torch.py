"""Attention in torch: `in_numpy` line by line, in what models are made of. Gradients flow through it.

    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    output, weights = attention(x, x, x, mask="causal")

A model adds nothing to this but speed: `probe.models.gpt.eager_attention` is the same for a whole batch, and torch's
`scaled_dot_product_attention` the same without ever holding the weights.
"""

import math

import torch
from torch import Tensor

# Shapes in comments: n queries, m keys, d numbers in a query and in a key, c in a value, H heads, D = d_model / H.
Mask = Tensor | list[list[bool]] | str | None


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Mask = None
) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ · scale) · v. Returns the output, (..., n, c), and the weights, (..., n, m), whose rows sum to 1.

    q: (..., n, d). k: (..., m, d). v: (..., m, c). scale: what scores are multiplied by, default 1/√d.
    mask: None, "causal", or booleans (n, m), True where a query may see a key.
    Raises ValueError for sizes that do not fit, and for a query that may see no key.
    """
    if q.numel() == 0 or k.numel() == 0 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"q is {tuple(q.shape)}, k is {tuple(k.shape)}, v is {tuple(v.shape)}: q and k must be equally wide, "
            "k and v equally long, and none of them empty."
        )
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-1, -2) * scale  # (..., n, d) @ (..., d, m) -> (..., n, m)
    may_see = visible(mask, q.shape[-2], k.shape[-2]).to(scores.device)
    weights = scores.masked_fill(~may_see, -torch.inf).softmax(dim=-1)  # torch's takes the largest score off itself
    return weights @ v, weights  # (..., n, m) @ (..., m, c) -> (..., n, c)


def multi_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, n_heads: int, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Several heads side by side. Returns the output, (n, d_model), and each head's weights, (n_heads, n, n).

    x: (n, d_model). w_q, w_k, w_v, w_o: (d_model, d_model), laid out for x @ w: the transpose of what
    `torch.nn.Linear` keeps. Head h works on columns h·D to (h+1)·D of q, k and v.
    Raises ValueError if the width cannot be cut into n_heads equal slices.
    """
    q, k, v = (heads(x @ w, n_heads) for w in (w_q, w_k, w_v))  # (H, n, D)
    output, weights = attention(q, k, v, mask="causal" if causal else None)
    joined = output.transpose(0, 1).reshape(len(x), -1)  # (H, n, D) -> (n, H, D) -> (n, d_model)
    return joined @ w_o, weights


def heads(rows: Tensor, n_heads: int) -> Tensor:
    """Cut the width into heads: (n, d_model) -> (H, n, D). Raises ValueError if it cannot be cut into equal slices."""
    n, width = rows.shape
    if n_heads < 1 or width % n_heads:
        allowed = [h for h in range(1, width + 1) if width % h == 0]
        raise ValueError(f"a width of {width} cannot be cut into {n_heads} equal heads: allowed are {allowed}.")
    # Not view(n_heads, n, D) at once: that would deal out tokens, not columns.
    return rows.view(n, n_heads, width // n_heads).transpose(0, 1)


def visible(mask: Mask, n: int, m: int) -> Tensor:
    """A mask as booleans, (n, m): True where a query may see a key.

    "causal": the queries are the last n of the m tokens, and each sees those up to itself. (The `is_causal` of torch's
    own function takes them for the first n; the two agree where n = m.)
    Raises ValueError for another name, another size, values that are not booleans, or a row without a key to see.
    """
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f"no mask named {mask!r}: a mask is None, 'causal' or {n} × {m} booleans.")
    everything = torch.ones(n, m, dtype=torch.bool)
    if mask is None:
        return everything
    rows = everything.tril(m - n) if isinstance(mask, str) else torch.as_tensor(mask)
    if rows.shape != (n, m) or not bool(((rows == 0) | (rows == 1)).all()):
        raise ValueError(f"the mask must be {n} × {m} booleans, True where a query may see a key.")
    if len(blind := (~rows.bool().any(dim=-1)).nonzero()):
        query = int(blind[0])
        raise ValueError(f"query {query} may see no key: its shares would be 0/0. Let it see one, or leave it out.")
    return rows.bool()
