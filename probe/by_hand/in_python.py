"""Attention in plain Python: lists of rows, nothing imported but `math`. Read this page first.

    x = [[1, 0], [0, 1], [1, 1]]  # three tokens, each a row of two numbers
    output, weights = attention(x, x, x, mask="causal")
    weights[0]  # [1.0, 0.0, 0.0]: the first token can see only itself

Each token asks for something (its query), tells what it has (its key) and hands something over (its value). A query
is compared with every key, the comparisons become shares that sum to 1, and the output is the values mixed in those
shares.
"""

import math

# Shapes in comments: n queries and m keys (n = m where tokens look at each other), d numbers in a query and in a key,
# c numbers in a value.
Row = list[float]
Rows = list[Row]
Mask = list[list[bool]] | str | None


def dot(a: Row, b: Row) -> float:
    """How well two rows of one length match: their numbers multiplied pair by pair, and summed."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(scores: Row) -> Row:
    """Shares that sum to 1; a score that is 1 higher has a share that is e (2.718) times as large.

    A score of -inf has a share of exactly 0. Raises ValueError where every score is -inf.
    """
    largest = max(scores)
    if largest == -math.inf:
        raise ValueError("every score is -inf: no key is left to have a share.")
    # Only differences of scores matter, so the largest is taken off: exp(1000) is too large for a float, exp(0) is not.
    grown = [math.exp(score - largest) for score in scores]
    total = sum(grown)
    return [g / total for g in grown]


def entropy(weights: Row) -> float:
    """How spread the shares are, in nats: 0 if one key has all, log(m) if m keys have the same."""
    return sum(-w * math.log(w) for w in weights if w > 0)  # a share of 0 adds nothing, and has no logarithm


def attention(q: Rows, k: Rows, v: Rows, *, scale: float | None = None, mask: Mask = None) -> tuple[Rows, Rows]:
    """One head: softmax(q·kᵀ · scale) · v. Returns the output, n × c, and the weights, n × m, whose rows sum to 1.

    q: n × d. k: m × d. v: m × c. scale: what scores are multiplied by, default 1/√d.
    mask: None, "causal", or n × m booleans, True where a query may see a key.
    Raises ValueError for sizes that do not fit, and for a query that may see no key.
    """
    _check_sizes(q, k, v)
    if scale is None:
        # A sum of d products varies √d times as much as one; undivided, the softmax of long rows picks a single key.
        scale = 1 / math.sqrt(len(q[0]))
    weights = []
    for query, may_see in zip(q, visible(mask, len(q), len(k)), strict=True):
        scores = [dot(query, key) * scale for key in k]  # (m)
        # Hidden means -inf, not 0: a score of 0 is as good as any other and would get a share.
        scores = [score if seen else -math.inf for score, seen in zip(scores, may_see, strict=True)]
        weights.append(softmax(scores))  # (m), sums to 1
    return matmul(weights, v), weights


def multi_head(
    x: Rows, w_q: Rows, w_k: Rows, w_v: Rows, w_o: Rows, n_heads: int, *, causal: bool = False
) -> tuple[Rows, list[Rows]]:
    """Several heads side by side. Returns the output, n × d_model, and each head's weights, n_heads × n × n.

    x: n × d_model, one row for each token. w_q, w_k, w_v, w_o: d_model × d_model. Head h works on columns
    h·d_head to (h+1)·d_head of q, k and v, where d_head = d_model / n_heads.
    Raises ValueError if the width cannot be cut into n_heads equal slices.
    """
    q, k, v = matmul(x, w_q), matmul(x, w_k), matmul(x, w_v)  # n × d_model
    width = len(q[0])
    if n_heads < 1 or width % n_heads:
        allowed = [h for h in range(1, width + 1) if width % h == 0]
        raise ValueError(f"a width of {width} cannot be cut into {n_heads} equal heads: allowed are {allowed}.")
    d_head = width // n_heads
    outputs, weights = [], []
    for h in range(n_heads):
        mine = slice(h * d_head, (h + 1) * d_head)
        parts = ([row[mine] for row in rows] for rows in (q, k, v))  # each n × d_head
        output, weight = attention(*parts, mask="causal" if causal else None)
        outputs.append(output)
        weights.append(weight)
    # Token by token, the heads' outputs are laid end to end: n × d_model again. Up to here no head knows of another;
    # w_o mixes them.
    joined = [[number for output in outputs for number in output[token]] for token in range(len(x))]
    return matmul(joined, w_o), weights


def matmul(a: Rows, b: Rows) -> Rows:
    """Matrix product, (n × d) · (d × c) -> n × c: every row of `a` with every column of `b`."""
    columns = [list(column) for column in zip(*b, strict=True)]
    return [[dot(row, column) for column in columns] for row in a]


def visible(mask: Mask, n: int, m: int) -> list[list[bool]]:
    """A mask as booleans, n × m: True where a query may see a key.

    "causal": the queries are the last n of the m tokens, and each sees those up to itself.
    Raises ValueError for another name, another size, values that are not booleans, or a row without a key to see.
    """
    if mask is None:
        rows = [[True] * m for _ in range(n)]
    elif mask == "causal":
        rows = [[key <= query + m - n for key in range(m)] for query in range(n)]
    elif isinstance(mask, str):
        raise ValueError(f"no mask named {mask!r}: a mask is None, 'causal' or {n} × {m} booleans.")
    else:
        rows = mask
    if len(rows) != n or any(len(row) != m or any(seen not in (0, 1) for seen in row) for row in rows):
        raise ValueError(f"the mask must be {n} × {m} booleans, True where a query may see a key.")
    for query, row in enumerate(rows):
        if not any(row):
            raise ValueError(f"query {query} may see no key: its shares would be 0/0. Let it see one, or leave it out.")
    return rows


def _check_sizes(q: Rows, k: Rows, v: Rows) -> None:
    if not q or not k or len(k) != len(v) or {len(row) for row in q} != {len(row) for row in k}:
        q_size, k_size, v_size = (f"{len(rows)} × {len(rows[0]) if rows else 0}" for rows in (q, k, v))
        raise ValueError(
            f"q is {q_size}, k is {k_size}, v is {v_size}: q and k must be equally wide, k and v equally long, "
            "and none of them empty."
        )
