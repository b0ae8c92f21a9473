"""Three pages compute one attention: alike among themselves, and as torch's own functions compute it."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from probe.by_hand import in_numpy, in_python, in_torch
from probe.models.gpt import eager_attention

Rows = list[list[float]]
NUMBER = st.floats(-20, 20)


class Page(NamedTuple):
    """One page, and how its rows are made from lists."""

    module: Any
    of: Callable[[Rows], Any]

    def attention(self, q: Rows, k: Rows, v: Rows, **options: Any) -> tuple[Rows, Rows]:
        output, weights = self.module.attention(self.of(q), self.of(k), self.of(v), **options)
        return np.asarray(output).tolist(), np.asarray(weights).tolist()

    def multi_head(self, layer: list[Rows], n_heads: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        output, weights = self.module.multi_head(*map(self.of, layer), n_heads, **options)
        return np.asarray(output), np.asarray(weights)


PAGES = {
    "in_python": Page(in_python, lambda rows: rows),
    "in_numpy": Page(in_numpy, lambda rows: np.array(rows, dtype=np.float64)),
    "in_torch": Page(in_torch, lambda rows: torch.tensor(rows, dtype=torch.float64)),
}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Page:
    return PAGES[request.param]


def rows(n: int, width: int, seed: int = 0) -> Rows:
    draw = random.Random(seed)
    return [[draw.gauss(0, 1) for _ in range(width)] for _ in range(n)]


def layer(tokens: int = 5, width: int = 8, seed: int = 0) -> list[Rows]:
    return [rows(tokens, width, seed), *(rows(width, width, seed + i) for i in range(1, 5))]


def close(found: Any, expected: Any, within: float = 1e-12) -> bool:
    return bool(np.abs(np.asarray(found) - np.asarray(expected)).max() <= within)


@st.composite
def heads(draw: st.DrawFn) -> tuple[Rows, Rows, Rows, list[list[bool]]]:
    """Queries, keys and values of any fitting sizes, and a mask under which every query sees a key."""
    n, m, d, c = (draw(st.integers(1, 5)) for _ in range(4))
    q, k, v = (
        [draw(st.lists(NUMBER, min_size=w, max_size=w)) for _ in range(length)]
        for length, w in ((n, d), (m, d), (m, c))
    )
    mask = [draw(st.lists(st.booleans(), min_size=m, max_size=m)) for _ in range(n)]
    for row in mask:
        row[draw(st.integers(0, m - 1))] = True
    return q, k, v, mask


# against torch's own


@settings(deadline=None, max_examples=60)
@given(heads())
def test_every_page_computes_what_torch_computes(head: tuple[Rows, Rows, Rows, list[list[bool]]]) -> None:
    q, k, v, mask = head
    tensors = [torch.tensor(part, dtype=torch.float64) for part in (q, k, v)]
    for seen in (None, mask):
        expected = F.scaled_dot_product_attention(*tensors, attn_mask=None if seen is None else torch.tensor(seen))
        for page in PAGES.values():
            output, weights = page.attention(q, k, v, mask=seen)
            assert close(output, expected, 1e-9)
            assert close(np.sum(weights, axis=-1), 1.0)
            if seen is not None:
                assert (np.array(weights)[~np.array(seen)] == 0).all()


@settings(deadline=None, max_examples=60)
@given(heads(), st.floats(0.01, 3))
def test_the_pages_agree_at_any_scale(head: tuple[Rows, Rows, Rows, list[list[bool]]], scale: float) -> None:
    q, k, v, mask = head
    (output, weights), *others = (p.attention(q, k, v, mask=mask, scale=scale) for p in PAGES.values())
    for other_output, other_weights in others:
        assert close(other_weights, weights, 1e-10)
        assert close(other_output, output, 1e-9)


def test_single_precision_stays_within_a_millionth() -> None:
    x = rows(20, 16)
    exact, _ = in_python.attention(x, x, x, mask="causal")
    single = torch.tensor(x, dtype=torch.float32)
    output, weights = in_torch.attention(single, single, single, mask="causal")
    assert output.dtype == weights.dtype == torch.float32
    assert close(output, exact, 1e-6)


def test_the_page_in_torch_is_the_attention_of_the_tiny_gpt() -> None:
    q, k, v = (torch.randn(1, 3, 6, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    hidden = torch.zeros(6, 6).masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), torch.finfo(torch.float32).min)
    z, pattern = eager_attention(nn.Module(), q, k, v, hidden, scaling=0.5)
    output, weights = in_torch.attention(q, k, v, mask="causal")
    assert torch.equal(weights, pattern)
    assert torch.equal(output, z.transpose(1, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_heads_and_their_weights_are_those_of_torchs_module(page: Page, n_heads: int, causal: bool) -> None:
    given_layer = layer()
    x, w_q, w_k, w_v, w_o = (torch.tensor(part, dtype=torch.float64) for part in given_layer)
    module = nn.MultiheadAttention(8, n_heads, bias=False, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([w_q.T, w_k.T, w_v.T]))
        module.out_proj.weight.copy_(w_o.T)
        hidden = ~torch.ones(5, 5, dtype=torch.bool).tril() if causal else None
        expected, patterns = module(x, x, x, attn_mask=hidden, average_attn_weights=False)
    output, weights = page.multi_head(given_layer, n_heads, causal=causal)
    assert weights.shape == (n_heads, 5, 5)
    assert close(weights, patterns)
    assert close(output, expected, 1e-11)


def test_gradients_reach_every_matrix_through_a_mask() -> None:
    given_layer = [torch.tensor(part, dtype=torch.float64, requires_grad=True) for part in layer()]
    in_torch.multi_head(*given_layer, 2, causal=True)[0].sum().backward()
    for part in given_layer:
        assert part.grad is not None
        assert part.grad.isfinite().all()
        assert part.grad.abs().max() > 0


# worked examples


def test_the_first_of_three_tokens_sees_itself_and_the_last_sees_all(page: Page) -> None:
    x = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    output, weights = page.attention(x, x, x, mask="causal")
    near, far = math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))
    assert weights[0] == [1, 0, 0]
    assert close(weights[1], [1 / (1 + near), near / (1 + near), 0])
    assert close(weights[2], [near / (2 * near + far), near / (2 * near + far), far / (2 * near + far)])
    assert output[0] == [1, 0]
    assert close(output[2], [weights[2][0] + weights[2][2]] * 2)


def test_the_default_scale_is_one_over_the_root_of_the_width(page: Page) -> None:
    q, k, v = [[1.0, 2.0, 3.0, 4.0]], [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]], [[1.0], [0.0]]
    assert close(page.attention(q, k, v)[1], [[1 / (1 + math.exp(1.5)), 1 / (1 + math.exp(-1.5))]])
    assert close(page.attention(q, k, v, scale=1.0)[1], [[1 / (1 + math.exp(3)), 1 / (1 + math.exp(-3))]])


# masks


def test_with_fewer_queries_than_keys_the_queries_are_the_last_tokens(page: Page) -> None:
    q, k, v = rows(6, 4, 1), rows(6, 4, 2), rows(6, 4, 3)
    whole, newest = (page.attention(q[start:], k, v, mask="causal") for start in (0, 4))
    assert close(newest[0], whole[0][4:])
    assert close(newest[1], whole[1][4:])


def test_what_a_mask_hides_has_no_influence(page: Page) -> None:
    q, k, v = rows(2, 4, 1), rows(3, 4, 2), rows(3, 4, 3)
    hidden = [[True, False, True], [True, False, True]]
    kept = page.attention(q, [k[0], k[2]], [v[0], v[2]])[0]
    loud = [k[0], [1e6] * 4, k[2]]
    assert close(page.attention(q, loud, v, mask=hidden)[0], kept)


@pytest.mark.parametrize("mask", [[[True, True], [False, False]], [[1, 1], [0, 0]]])
def test_a_query_that_may_see_no_key_is_an_error(page: Page, mask: Any) -> None:
    x = rows(2, 2)
    with pytest.raises(ValueError, match=r"query 1 may see no key: its shares would be 0/0"):
        page.attention(x, x, x, mask=mask)


def test_more_causal_queries_than_keys_leave_the_first_without_a_key(page: Page) -> None:
    with pytest.raises(ValueError, match="query 0 may see no key"):
        page.attention(rows(3, 2), rows(2, 2), rows(2, 2), mask="causal")


def test_an_unknown_mask_names_those_there_are(page: Page) -> None:
    x = rows(2, 2)
    with pytest.raises(ValueError, match=r"no mask named 'casual': a mask is None, 'causal' or 2 × 2 booleans"):
        page.attention(x, x, x, mask="casual")


@pytest.mark.parametrize("mask", [[[True, True]], [[True], [True]], [[0.0, -math.inf], [0.0, 0.0]]])
def test_masks_of_another_size_and_additive_masks_are_refused(page: Page, mask: Any) -> None:
    x = rows(2, 2)
    with pytest.raises(ValueError, match=r"the mask must be 2 × 2 booleans, True where a query may see a key"):
        page.attention(x, x, x, mask=mask)


# sizes


@pytest.mark.parametrize(
    "sizes", [((2, 3), (4, 2), (4, 1)), ((2, 3), (4, 3), (5, 1)), ((2, 3), (4, 3), (3, 1)), ((0, 0), (1, 2), (1, 2))]
)
def test_sizes_that_do_not_fit_are_an_error(page: Page, sizes: Any) -> None:
    q, k, v = (rows(n, width) for n, width in sizes)
    with pytest.raises(ValueError, match="q and k must be equally wide, k and v equally long, and none of them empty"):
        page.attention(q, k, v)


@pytest.mark.parametrize("n_heads", [0, 3, 16])
def test_a_width_that_cannot_be_cut_names_the_numbers_of_heads_that_can(page: Page, n_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"a width of 8 cannot be cut into {n_heads} equal heads.*\[1, 2, 4, 8\]"):
        page.multi_head(layer(), n_heads)


# what attention is


@settings(deadline=None, max_examples=60)
@given(heads(), st.randoms(use_true_random=False))
def test_keys_have_no_order(head: tuple[Rows, Rows, Rows, list[list[bool]]], chance: random.Random) -> None:
    q, k, v, _ = head
    order = list(range(len(k)))
    chance.shuffle(order)
    output, weights = in_python.attention(q, k, v)
    again, moved = in_python.attention(q, [k[i] for i in order], [v[i] for i in order])
    assert close(again, output, 1e-10)
    assert close(moved, [[row[i] for i in order] for row in weights])


@settings(deadline=None, max_examples=60)
@given(heads())
def test_an_output_lies_between_the_values_it_mixes(head: tuple[Rows, Rows, Rows, list[list[bool]]]) -> None:
    q, k, v, mask = head
    for output, seen in zip(in_python.attention(q, k, v, mask=mask)[0], mask, strict=True):
        for column, mixed in enumerate(output):
            values = [row[column] for row, sees in zip(v, seen, strict=True) if sees]
            assert min(values) - 1e-9 <= mixed <= max(values) + 1e-9


@pytest.mark.parametrize("softmax", [in_python.softmax, lambda scores: in_numpy.softmax(np.array(scores)).tolist()])
def test_softmax_neither_overflows_nor_depends_on_the_level(softmax: Callable[[list[float]], list[float]]) -> None:
    expected = [1 / (1 + math.e), math.e / (1 + math.e)]
    for level in (0.0, 1000.0, -1000.0):
        assert close(softmax([level, level + 1]), expected)
    assert softmax([-math.inf, 5.0]) == [0, 1]
    assert softmax([-1e300, 1e300]) == [0, 1]


def test_softmax_of_nothing_but_hidden_scores_is_an_error() -> None:
    with pytest.raises(ValueError, match="every score is -inf: no key is left to have a share"):
        in_python.softmax([-math.inf, -math.inf])


def test_entropy_runs_from_one_key_to_all_alike() -> None:
    assert in_python.entropy([0.0, 1.0, 0.0]) == 0
    assert in_python.entropy([0.25] * 4) == pytest.approx(math.log(4))
    assert in_python.entropy([0.5, 0.25, 0.25]) == pytest.approx(1.5 * math.log(2))


def test_dot_refuses_rows_of_different_length() -> None:
    assert in_python.dot([1, 2, 3], [4, 5, 6]) == 32
    with pytest.raises(ValueError, match="zip"):
        in_python.dot([1, 2], [1])


def test_the_page_in_plain_python_loads_nothing_but_math() -> None:
    code = "import sys, probe.by_hand.in_python; print(*sorted({'numpy', 'torch', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
