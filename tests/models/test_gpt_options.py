"""What a tiny GPT may be made of: each choice does what its name says, and probe reads all of them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.errors import ProbeError, UnknownName
from probe.models.config import CHOICES, Config
from probe.models.gpt import GPT, apply_rotary, rotary_angles, sinusoids
from probe.models.tokenizer import word_tokenizer

WORDS = tuple("abcdefghijklmnop")
TOKENIZER = word_tokenizer(WORDS)
SIZES = {"vocab_size": len(TOKENIZER), "n_layers": 2, "n_heads": 4, "d_model": 32, "max_positions": 24}


def made(seed: int = 0, **options: object) -> GPT:
    """Weights large enough that attention is far from uniform, and norms that stretch and shift."""
    torch.manual_seed(seed)
    model = GPT(Config(**{**SIZES, "init_scale": 0.3, **options})).eval().requires_grad_(False)  # type: ignore[arg-type]
    for part in model.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            part.weight.uniform_(0.5, 1.5)
            if isinstance(part, nn.LayerNorm) and part.bias is not None:
                part.bias.normal_(std=0.2)
    return model


def some_ids(n: int = 16) -> Tensor:
    return torch.randint(3, len(TOKENIZER), (2, n), generator=torch.Generator().manual_seed(1))


VARIANTS = [
    {"position": position, "visible": visible, **({"window": 5} if visible == "sliding" else {})}
    for position, visible in itertools.product(CHOICES["position"], CHOICES["visible"])
] + [
    {"n_kv_heads": 2},
    {"n_kv_heads": 1, "position": "rope"},
    {"d_head": 6},
    {"norm": "rms", "ffn": "swiglu", "position": "rope", "n_kv_heads": 2, "tied": False, "bias": False},
    {"norm": "none"},
    {"norm_place": "post"},
    {"norm_place": "post", "norm": "rms", "ffn": "swiglu"},
    {"ffn": "none"},
    {"ffn": "none", "norm": "none", "tied": False},
    {"residual": False},
    {"init_scale": None},
    {"d_mlp": 20},
]
every_variant = pytest.mark.parametrize("options", VARIANTS, ids=str)


@every_variant
def test_fused_and_explicit_attention_agree(options: dict[str, object]) -> None:
    fused, eager = made(**options), made(**options, attention="eager")
    ids = some_ids()
    padded = torch.ones_like(ids)
    padded[1, :5] = 0
    for mask in (None, padded):
        a, b = fused(ids, mask).logits, eager(ids, mask).logits
        real = padded.bool() if mask is not None else torch.ones_like(padded).bool()
        assert (a - b)[real].abs().max() <= 2e-5 * max(1.0, float(b[real].abs().max()))


@every_variant
def test_probe_reads_it_exactly(options: dict[str, object]) -> None:
    """The check at load compares what is read with what is computed; the pattern is then compared by hand."""
    model = made(**options)
    subject = probe.load(model, TOKENIZER)
    run = subject.run("a b c a b d e f", ["rot_q", "rot_k", "pattern", "v", "z", "logits"])
    assert torch.equal(run["logits"], model(torch.tensor([run.ids[0]])).logits)
    q, k, v = (run[name, 1][0].double() for name in ("rot_q", "rot_k", "v"))  # (pos, head, d_head)
    n, n_heads, width = q.shape
    for head in (0, n_heads - 1):
        group = head // (n_heads // k.shape[1])
        for t in range(n):
            seen = [
                j
                for j in range(n)
                if options.get("visible") == "bidirectional" or (j <= t and t - j < (options.get("window") or n))  # type: ignore[operator]
            ]
            slope = 2 ** (-8 * (head + 1) / n_heads) if options.get("position") == "alibi" else 0.0
            scores = [float(q[t, head] @ k[j, group]) / math.sqrt(width) - slope * abs(t - j) for j in seen]
            peak = max(scores)
            total = sum(math.exp(s - peak) for s in scores)
            row = [0.0] * n
            for j, s in zip(seen, scores, strict=True):
                row[j] = math.exp(s - peak) / total
            assert run["pattern", 1][0, head, t].tolist() == pytest.approx(row, abs=2e-6)
            expected = sum(row[j] * v[j, group] for j in range(n))
            assert torch.allclose(run["z", 1][0, t, head].double(), expected, atol=1e-5)


@pytest.mark.parametrize("options", [v for v in VARIANTS if v.get("visible") != "bidirectional"], ids=str)
def test_writing_with_a_cache_equals_reading_the_whole_text(options: dict[str, object]) -> None:
    model, ids = made(**options), some_ids(9)
    written = model.generate(ids, max_new_tokens=8)
    for _ in range(8):
        following = model(ids).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, following], 1)
    assert torch.equal(written, ids)


@pytest.mark.parametrize("position", CHOICES["position"])
def test_padding_before_a_prompt_changes_nothing(position: str) -> None:
    model, ids = made(position=position), some_ids(8)[:1]
    alone = model(ids).logits
    padded = torch.cat([ids.new_zeros(1, 5), ids], 1)
    real = (torch.arange(13) >= 5).long().unsqueeze(0)
    places = (real.cumsum(1) - 1).clamp(min=0)
    assert (model(padded, real, places).logits[:, 5:] - alone).abs().max() <= 1e-4


def test_without_positions_an_encoder_does_not_know_the_order() -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    ids = some_ids(12)
    encoder, decoder = made(position="none", visible="bidirectional"), made(position="none")
    assert (encoder(ids[:, order]).logits - encoder(ids).logits[:, order]).abs().max() <= 1e-5
    assert (decoder(ids[:, order]).logits - decoder(ids).logits[:, order]).abs().max() > 0.1, "the mask leaks it"


def test_the_window_counts_the_query_itself() -> None:
    model = made(visible="sliding", window=3, n_layers=1)
    ids = some_ids(10)[:1]
    for changed in range(10):
        other = ids.clone()
        other[0, changed] = 3 + (ids[0, changed] - 2) % 16
        moved = (model(ids).logits != model(other).logits).any(-1)[0]
        assert [t for t in range(10) if moved[t]] == [t for t in range(10) if changed <= t < changed + 3]


def test_sinusoids_are_those_of_the_paper() -> None:
    table = sinusoids(torch.arange(20).unsqueeze(0), 8)[0]
    for position in range(20):
        for i in range(4):
            angle = position / 10_000 ** (2 * i / 8)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 16).double()
    products = []
    for shift in (0, 7, 100):
        cos, sin = rotary_angles(torch.tensor([[shift, shift + 4]]).double(), 16)
        turned_q, turned_k = apply_rotary(q, k, cos, sin)
        products.append(float(turned_q[..., 1, :].flatten() @ turned_k[..., 0, :].flatten()))
    assert products == pytest.approx([products[0]] * 3, abs=1e-6)
    assert products[0] != pytest.approx(float(q.flatten() @ k.flatten()), abs=1e-3)


def test_alibi_slopes_are_those_of_bloom() -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    model = made(position="alibi", n_heads=8)
    ours = model.base_model.mask(torch.ones(1, 6, dtype=torch.long), None, torch.float32)
    assert ours is not None
    theirs = build_alibi_tensor(torch.ones(1, 6), 8, torch.float32).view(8, 6)  # by key, up to a constant of the row
    row = ours[0, :, 5]
    assert torch.allclose(row - row[:, :1], theirs - theirs[:, :1], atol=1e-6)


def test_shared_heads_and_gates_have_the_sizes_they_claim() -> None:
    plain, grouped, one = (made(n_kv_heads=n) for n in (None, 2, 1))
    widths = [m.base_model.blocks[0].attention.qkv.out_features for m in (plain, grouped, one)]
    assert widths == [32 * 3, 32 + 2 * 16, 32 + 2 * 8]
    sizes = {ffn: sum(p.numel() for p in made(ffn=ffn, bias=False, d_model=96).parameters()) for ffn in CHOICES["ffn"]}
    assert sizes["gelu"] == sizes["swiglu"] > sizes["none"]


def test_pytorchs_own_initialisation_is_left_alone() -> None:
    torch.manual_seed(0)
    embedding = GPT(Config(**SIZES, init_scale=None)).base_model.embed.weight
    assert embedding.std().item() == pytest.approx(1, abs=0.1)
    assert made(init_scale=0.02).base_model.embed.weight.std().item() == pytest.approx(0.02, abs=0.002)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"position": "rotary"}, UnknownName, "no position of a tiny GPT named 'rotary'"),
        ({"norm": "layers"}, UnknownName, "Did you mean 'layer'"),
        ({"visible": "sliding"}, ProbeError, "window=None with visible='sliding'"),
        ({"window": 4}, ProbeError, "window=4 with visible=.causal.: a sliding model, and no other, has one"),
        ({"n_kv_heads": 3}, ProbeError, "cannot share n_kv_heads=3 evenly; allowed are 1, 2, 4, the nearest is 4"),
        ({"d_head": 5, "position": "rope"}, ProbeError, "d_head=5 must be even"),
        ({"ffn": "none", "d_mlp": 8}, ProbeError, "d_mlp=8 with ffn='none'"),
        ({"n_layers": 0}, ProbeError, "n_layers=0 must be at least 1"),
        ({"d_model": 30}, ProbeError, "nearest d_model below is 28"),
    ],
)
def test_choices_that_contradict_each_other_are_errors(
    options: dict[str, object], kind: type[ProbeError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        made(**options)


def test_a_bidirectional_model_writes_no_text() -> None:
    with pytest.raises(ProbeError, match="bidirectional model has no use for a cache"):
        made(visible="bidirectional").generate(some_ids(), max_new_tokens=2)


def test_an_offloaded_embedding_that_is_tied_is_refused_and_another_is_read_the_same() -> None:
    from accelerate import cpu_offload

    ids = torch.tensor([[1, 2, 3]])
    apart = made(tied=False)
    expected = apart(ids).logits
    cpu_offload(apart, execution_device=torch.device("cpu"))
    assert torch.equal(apart(ids).logits, expected)
    tied = made()
    cpu_offload(tied, execution_device=torch.device("cpu"))
    with pytest.raises(ProbeError, match="offloaded, and tied to the unembedding"):
        tied(ids)
