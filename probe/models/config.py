"""What a tiny GPT may be made of: one field for each choice, contradictions refused."""

from __future__ import annotations

from dataclasses import dataclass

from probe.errors import ProbeError, UnknownName

CHOICES = {
    "position": ("none", "sinusoidal", "learned", "rope", "alibi"),
    "norm": ("layer", "rms", "none"),
    "norm_place": ("pre", "post"),
    "visible": ("causal", "bidirectional", "sliding"),
    "ffn": ("gelu", "swiglu", "none"),
    "attention": ("fused", "eager"),
}


@dataclass(frozen=True)
class Config:
    """Sizes and parts of a tiny GPT. Raises ProbeError where they contradict each other, UnknownName for a choice."""

    vocab_size: int
    n_layers: int = 4
    n_heads: int = 4  # query heads
    d_model: int = 128  # width of the residual stream
    max_positions: int = 128  # longest prompt, in tokens
    n_kv_heads: int | None = None  # key-value heads: as many as query heads (MHA), fewer (GQA), one (MQA)
    d_head: int | None = None  # width of a head; default d_model / n_heads
    d_mlp: int | None = None  # width of the MLP; default 4 d_model, for swiglu 8/3 d_model (as many parameters)
    position: str = "learned"  # none | sinusoidal | learned (added to the embedding) | rope (turns q, k) | alibi (bias)
    norm: str = "layer"  # layer: mean away, divided by the deviation | rms: divided by the root mean square | none
    norm_place: str = "pre"  # pre: before attention and MLP, and once at the end | post: after each addition
    residual: bool = True  # False: each half of a block replaces the stream instead of adding to it
    visible: str = "causal"  # causal: no later key | bidirectional: all keys | sliding: the last `window` keys
    window: int | None = None  # keys that a query of a sliding model sees, its own included
    ffn: str = (
        "gelu"  # gelu: two matrices, GPT-2's tanh form | swiglu: three, one of them a gate | none: attention only
    )
    bias: bool = True  # whether the matrices and norms have biases
    tied: bool = True  # whether the unembedding is the token embedding
    init_scale: float | None = 0.02  # standard deviation of every matrix at first (GPT-2's); None: PyTorch's own
    attention: str = "fused"  # fused: torch's kernel | eager: explicit arithmetic; same numbers

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UnknownName.of(f"{name} of a tiny GPT", getattr(self, name), allowed)
        for name in ("vocab_size", "n_layers", "n_heads", "d_model", "max_positions", *self._given()):
            if getattr(self, name) < 1:
                raise ProbeError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.d_head is None and self.d_model % self.n_heads:
            widths = [w for w in range(self.d_model, 0, -1) if w % self.n_heads == 0]
            raise ProbeError(
                f"d_model={self.d_model} cannot be cut into n_heads={self.n_heads} equal heads; the nearest d_model "
                f"below is {widths[0] if widths else self.n_heads}. Or give d_head."
            )
        if self.n_heads % self.kv_heads:
            fit = [n for n in range(self.n_heads, 0, -1) if self.n_heads % n == 0]
            nearest = min(fit, key=lambda n: abs(n - self.kv_heads))
            raise ProbeError(
                f"{self.n_heads} query heads cannot share n_kv_heads={self.kv_heads} evenly; allowed are "
                f"{', '.join(map(str, sorted(fit)))}, the nearest is {nearest}."
            )
        if self.position == "rope" and self.head_width % 2:
            raise ProbeError(f"rope turns pairs of numbers: d_head={self.head_width} must be even.")
        if (self.visible == "sliding") != (self.window is not None):
            raise ProbeError(
                f"window={self.window} with visible={self.visible!r}: a sliding model, and no other, has one."
            )
        if self.ffn == "none" and self.d_mlp is not None:
            raise ProbeError(f"d_mlp={self.d_mlp} with ffn='none': a model without an MLP has no width for it.")

    def _given(self) -> list[str]:
        return [n for n in ("n_kv_heads", "d_head", "d_mlp", "window") if getattr(self, n) is not None]

    @property
    def kv_heads(self) -> int:
        """Key-value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        """Numbers in one head's query."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    @property
    def mlp_width(self) -> int:
        """Numbers in the middle of the MLP; 0 without one."""
        if self.ffn == "none":
            return 0
        if self.d_mlp is not None:
            return self.d_mlp
        return 4 * self.d_model if self.ffn == "gelu" else -(-8 * self.d_model // 3 // 8) * 8
