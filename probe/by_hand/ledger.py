"""The arithmetic of size: parameters, cache and comparisons of a decoder, from its configuration alone.

    for line in parameters(GPT3):
        print(line.part, line.formula, line.parameters)
    cache_bytes(LLAMA_7B, tokens=4096)  # 2147483648

In formulas: L layers, d width of the residual stream, H heads, G key-value heads, D width of a head, m width of the
MLP, V vocabulary, P learned positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.errors import ProbeError, UnknownName, UnsupportedModel

if TYPE_CHECKING:
    from probe.models.config import Config

MATRICES = ("q", "k", "v", "o")  # of attention; what an adapter can be put on


@dataclass(frozen=True)
class Sizes:
    """What decides how large a decoder is. Raises ProbeError where heads cannot be cut or shared evenly."""

    n_layers: int
    n_heads: int
    d_model: int
    d_mlp: int  # 0: blocks without an MLP
    vocab_size: int
    n_positions: int = 0  # learned position vectors; 0 where positions are computed
    n_kv_heads: int | None = None  # None: as many as heads (MHA); fewer are shared (GQA), one by all (MQA)
    d_head: int | None = None  # None: d_model / n_heads
    gated: bool = False  # a gated MLP has three matrices instead of two
    tied: bool = True  # the output head is the token embedding, and counted once
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norm_vectors: int = 1  # of one norm: LayerNorm 2 (scale and bias), RMSNorm 1, no norm 0
    final_norm: bool = True  # one more after the last block, as pre-norm models have
    query_key_norm: bool = False  # a scale of width D for queries and one for keys in each layer

    def __post_init__(self) -> None:
        if self.d_head is None and self.d_model % self.n_heads:
            raise ProbeError(f"d_model={self.d_model} cannot be cut into n_heads={self.n_heads} equal heads.")
        if self.n_heads % self.kv_heads:
            allowed = [g for g in range(1, self.n_heads + 1) if self.n_heads % g == 0]
            raise ProbeError(f"{self.n_heads} heads cannot share n_kv_heads={self.kv_heads}: allowed are {allowed}.")

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, G."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        """Numbers in one head's query, D."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head


GPT3 = Sizes(
    n_layers=96,
    n_heads=96,
    d_model=12288,
    d_mlp=4 * 12288,
    vocab_size=50257,
    n_positions=2048,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    norm_vectors=2,
)
# Llama 1 and 2 alike
LLAMA_7B = Sizes(n_layers=32, n_heads=32, d_model=4096, d_mlp=11008, vocab_size=32000, gated=True, tied=False)
SMOLLM2_135M = Sizes(
    n_layers=30, n_heads=9, d_model=576, d_mlp=1536, vocab_size=49152, n_kv_heads=3, d_head=64, gated=True
)


class Line(NamedTuple):
    """One line of the ledger. formula: in the letters of this module's docstring."""

    part: str
    formula: str
    parameters: int


def parameters(sizes: Sizes) -> tuple[Line, ...]:
    """Every parameter of a decoder, part by part; the last line is their total."""
    L, d, m, V = sizes.n_layers, sizes.d_model, sizes.d_mlp, sizes.vocab_size
    H, G, D = sizes.n_heads, sizes.kv_heads, sizes.head_width
    matrices = (3 if sizes.gated else 2) if m else 0
    biases = L * (sizes.qkv_bias * (H + 2 * G) * D + sizes.o_bias * d)
    if m:
        biases += L * sizes.mlp_bias * ((matrices - 1) * m + d)
    norms = L * (2 if m else 1) + sizes.final_norm
    lines = [
        Line("token embedding", "V·d", V * d),
        Line("positions", "P·d", sizes.n_positions * d),
        Line("queries", "L·d·H·D", L * d * H * D),
        Line("keys", "L·d·G·D", L * d * G * D),
        Line("values", "L·d·G·D", L * d * G * D),
        Line("output of attention", "L·H·D·d", L * H * D * d),
        Line("MLP", f"{matrices}·L·d·m", matrices * L * d * m),
        Line("biases", "", biases),
        Line("norms", f"{norms}·{sizes.norm_vectors}·d", norms * sizes.norm_vectors * d),
    ]
    if sizes.query_key_norm:
        lines.append(Line("norms of queries and keys", "2·L·D", 2 * L * D))
    lines.append(Line("output head", "the token embedding" if sizes.tied else "V·d", 0 if sizes.tied else V * d))
    return *lines, Line("total", "", sum(line.parameters for line in lines))


def total(sizes: Sizes) -> int:
    """How many parameters a decoder has."""
    return parameters(sizes)[-1].parameters


def lora(sizes: Sizes, rank: int, on: tuple[str, ...] = ("q", "v")) -> int:
    """Parameters of low-rank adapters on matrices of attention (LoRA, Hu et al. 2021): rank · (width in + width out)
    for each. on: some of "q", "k", "v", "o". Raises UnknownName for another, ProbeError for a rank below 1.
    """
    if rank < 1:
        raise ProbeError(f"an adapter's rank must be at least 1, not {rank}.")
    queries, keys = sizes.n_heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    inner = {"q": queries, "k": keys, "v": keys, "o": queries}  # the side that is not d
    for name in on:
        if name not in inner:
            raise UnknownName.of("matrix of attention", name, MATRICES)
    return sizes.n_layers * sum(rank * (sizes.d_model + inner[name]) for name in on)


def cache_bytes(sizes: Sizes, tokens: int = 1, *, bytes_per_number: int = 2) -> int:
    """Bytes of the keys and values kept for `tokens` tokens: 2·L·G·D numbers a token. Default: 16-bit numbers."""
    return 2 * sizes.n_layers * sizes.kv_heads * sizes.head_width * bytes_per_number * tokens


class Fed(NamedTuple):
    """How many tokens are run through the model, so that their keys and values are computed, to write an answer."""

    without_cache: int
    with_cache: int


def tokens_fed(prompt: int, generated: int) -> Fed:
    """Tokens whose keys and values are computed, each pass counted, to write `generated` tokens after a prompt.

    One pass writes one token, so there are g passes; the first sees the prompt of p tokens alone, the i-th p + i - 1.
    Without a cache every pass computes all it sees: g·p + g·(g-1)/2. With one the first pass computes the prompt and
    each other one token; the last token written is never fed: p + g - 1.
    Raises ProbeError unless both are at least 1.
    """
    if prompt < 1 or generated < 1:
        raise ProbeError(f"a prompt of {prompt} and {generated} generated tokens: both must be at least 1.")
    return Fed(generated * prompt + generated * (generated - 1) // 2, prompt + generated - 1)


def comparisons(tokens: int, *, causal: bool = False) -> int:
    """Dot products of one head over a text: n·n, or n·(n+1)/2 where no query is compared with a later key."""
    return tokens * (tokens + 1) // 2 if causal else tokens * tokens


class Work(NamedTuple):
    """multiply_adds: of all matrix products. exponentials: of all softmaxes; as many numbers of pattern are held."""

    multiply_adds: int
    exponentials: int


def attention_work(tokens: int, d_model: int, n_heads: int) -> Work:
    """What one layer of attention costs for n tokens with h heads of width d/h, without a mask.

    Projections 4·n·d², scores h·n²·(d/h), mixing h·n²·(d/h): the number of heads cancels out. The softmax does not
    share in this: h·n² exponentials. Raises ProbeError if the width cannot be cut evenly.
    """
    if d_model % n_heads:
        raise ProbeError(f"d_model={d_model} cannot be cut into n_heads={n_heads} equal heads.")
    products = 2 * n_heads * tokens * tokens * (d_model // n_heads)
    return Work(4 * tokens * d_model * d_model + products, n_heads * tokens * tokens)


# Families of transformers' configurations: what their fields do not say.
_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "norm_vectors": 2},
    "llama": {"gated": True},
    "mistral": {"gated": True},
    "qwen2": {"gated": True, "qkv_bias": True},
    "qwen3": {"gated": True, "query_key_norm": True},
}


def sizes_of(config: Any) -> Sizes:
    """The sizes of a tiny GPT's `Config`, or of a transformers configuration of GPT-2, Llama, Mistral, Qwen2 or Qwen3.

    Raises UnsupportedModel for any other.
    """
    family = getattr(config, "model_type", None)
    if family is None and hasattr(config, "norm_place"):
        return _of_tiny(config)
    if family not in _FAMILIES:
        raise UnsupportedModel(
            f"the ledger knows no configuration of type {family or type(config).__name__!r}: it knows the tiny GPT's "
            f"and transformers' {', '.join(_FAMILIES)}. Write its `Sizes` by hand."
        )
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
    has_bias = getattr(config, "attention_bias", False)  # Llama's and Qwen3's field
    sizes = {
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "d_model": config.hidden_size,
        "d_mlp": inner,
        "vocab_size": config.vocab_size,
        "n_positions": config.n_positions if family == "gpt2" else 0,
        "n_kv_heads": getattr(config, "num_key_value_heads", None),
        "d_head": getattr(config, "head_dim", None),
        "tied": config.tie_word_embeddings,
        "qkv_bias": has_bias,
        "o_bias": has_bias,
        "mlp_bias": getattr(config, "mlp_bias", False),  # Llama's
    }
    return Sizes(**sizes | _FAMILIES[family])


def _of_tiny(config: Config) -> Sizes:
    vectors = {"layer": 1 + config.bias, "rms": 1, "none": 0}
    return Sizes(
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_model=config.d_model,
        d_mlp=config.mlp_width,
        vocab_size=config.vocab_size,
        n_positions=config.max_positions if config.position == "learned" else 0,
        n_kv_heads=config.kv_heads,
        d_head=config.head_width,
        gated=config.ffn == "swiglu",
        tied=config.tied,
        qkv_bias=config.bias,
        o_bias=config.bias,
        mlp_bias=config.bias,
        norm_vectors=vectors[config.norm],
        final_norm=config.norm_place == "pre",
    )
