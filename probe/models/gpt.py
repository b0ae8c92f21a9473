"""A tiny GPT in one file: the in-repo model whose every mechanism can be read in one sitting.

    model = GPT(Config(vocab_size=300))
    out = model(ids)                 # ids: (batch, pos) -> out.logits: (batch, pos, vocab)

Pre-norm blocks, learned positions, GELU, tied embeddings (Radford et al. 2019). Attention goes through the same
look-up and call signature as transformers' models, so `probe` captures both in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.errors import ProbeError, PromptError, UnknownName
from probe.models.sampling import choose

# shapes in comments: B batch, T positions, K key positions, H heads, C d_model, D d_head = C / H, V vocabulary


@dataclass(frozen=True)
class Config:
    """Sizes of a tiny GPT. Raises ProbeError where they contradict each other."""

    vocab_size: int
    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128  # width of the residual stream; must be a multiple of n_heads
    max_positions: int = 128  # longest prompt, in tokens
    init_scale: float = 0.02  # standard deviation of every weight matrix at initialisation (GPT-2's)
    attention: str = "fused"  # "fused": torch's kernel; "eager": explicit arithmetic; same numbers

    def __post_init__(self) -> None:
        if self.d_model % self.n_heads:
            widths = [w for w in range(self.d_model, 0, -1) if w % self.n_heads == 0]
            raise ProbeError(
                f"d_model={self.d_model} cannot be cut into n_heads={self.n_heads} equal heads; "
                f"the nearest d_model below is {widths[0] if widths else self.n_heads}."
            )
        if self.attention not in ("fused", "eager"):
            raise UnknownName.of("attention implementation", self.attention, ("fused", "eager"))


class Output(NamedTuple):
    """logits: (batch, pos, vocab), None for the backbone alone. last_hidden_state: (batch, pos, d_model)."""

    logits: Tensor | None
    last_hidden_state: Tensor


AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ · scaling + mask) · v, step by step. Returns z (B, T, H, D) and the pattern (B, H, T, K)."""
    scores = query @ key.transpose(2, 3) * scaling  # (B, H, T, K)
    if mask is not None:
        scores = scores + mask
    pattern = scores.softmax(dim=-1)
    return (pattern @ value).transpose(1, 2), pattern


def fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """The same through torch's fused kernel, which never writes the pattern to memory."""
    # Without a mask: the whole prompt, read causally, or the newest token, which sees every cached key.
    causal = mask is None and query.shape[2] > 1
    z = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, is_causal=causal)
    return z.transpose(1, 2), None


class AttentionLookup:
    """Name -> attention function, with the method by which transformers' models ask for theirs."""

    def get_interface(self, name: str, default: AttentionFunction) -> AttentionFunction:
        return default if name == "eager" else fused_attention


ATTENTION = AttentionLookup()


class Cache:
    """The keys and values of the positions read so far, one pair of (B, H, K, D) for each layer, in order.

    Decoding then runs only the newest token: its query meets the keys kept here (the KV cache).
    """

    def __init__(self) -> None:
        self.layers: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return next((key.shape[2] for key, _ in self.layers.values()), 0)

    def extend(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values; returns all of them."""
        if layer in self.layers:
            past_key, past_value = self.layers[layer]
            key, value = torch.cat([past_key, key], dim=2), torch.cat([past_value, value], dim=2)
        self.layers[layer] = key, value
        return key, value


class Attention(nn.Module):
    """Causal self-attention with `n_heads` heads, each a slice of the width."""

    is_causal = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.d_head = config.d_model // config.n_heads
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:  # (B, T, C) -> (B, T, C)
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.config.n_heads, self.d_head).transpose(1, 2)  # (B, H, T, D)
            for part in self.qkv(x).split(C, dim=-1)
        )
        if cache is not None:
            k, v = cache.extend(self, k, v)
        attend = ATTENTION.get_interface(self.config.attention, eager_attention)
        z, _ = attend(self, q, k, v, mask, scaling=1 / math.sqrt(self.d_head), dropout=0.0)
        return cast(Tensor, self.out(z.reshape(B, T, C)))


class MLP(nn.Module):
    """The feed-forward half of a block: expand four times, GELU, contract."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.expand = nn.Linear(config.d_model, 4 * config.d_model)
        self.contract = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.contract(F.gelu(self.expand(x))))


class Block(nn.Module):
    """Two reads of the residual stream, two writes to it: attention moves between positions, the MLP stays."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.d_model)
        self.attention = Attention(config)
        self.norm_mlp = nn.LayerNorm(config.d_model)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        x = x + self.attention(self.norm_attention(x), mask, cache)
        return cast(Tensor, x + self.mlp(self.norm_mlp(x)))


class Backbone(nn.Module):
    """Embeddings, blocks and the final norm: everything below the logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.d_model)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Output:
        """input_ids, position_ids: (batch, pos). attention_mask: 1 real, 0 padding, (batch, pos), or with a cache
        (batch, cached + pos). cache: the positions before these; extended in place.
        """
        past = 0 if cache is None else len(cache)
        T = input_ids.shape[1]
        if self.config.max_positions < past + T:
            raise PromptError(
                f"the prompt has {past + T} tokens; this model reads at most {self.config.max_positions}."
            )
        if position_ids is None:
            position_ids = torch.arange(past, past + T, device=input_ids.device).unsqueeze(0)
        x = self.embed(input_ids) + self.positions(position_ids)
        mask = self.mask(input_ids, attention_mask, x.dtype, past)
        for block in self.blocks:
            x = block(x, mask, cache)
        return Output(None, self.norm(x))

    def mask(
        self, input_ids: Tensor, attention_mask: Tensor | None, dtype: torch.dtype, past: int = 0
    ) -> Tensor | None:
        """Additive mask (B, 1, T, K): 0 where a query may look, the dtype's lowest number where not.

        None under the fused kernel, which has a causal path of its own, for unpadded prompts and for the newest token.
        The lowest number rather than -inf: a padding query may see nothing at all, and its row must stay finite,
        though never read.
        """
        B, T = input_ids.shape
        real = input_ids.new_ones(B, past + T) if attention_mask is None else attention_mask
        if self.config.attention == "fused" and bool(real.all()) and (past == 0 or T == 1):
            return None
        causal = torch.ones(T, past + T, dtype=torch.bool, device=input_ids.device).tril(past)
        visible = causal & real.bool()[:, None, None, :]
        return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(
            ~visible, torch.finfo(dtype).min
        )


class GPT(nn.Module):
    """The backbone and the map from its last hidden state to the logits, tied to the token embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.base_model = Backbone(config)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.init_scale)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Output:
        hidden = self.base_model(input_ids, attention_mask, position_ids, cache).last_hidden_state
        return Output(hidden @ self.base_model.embed.weight.T, hidden)

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: int | None = None,
    ) -> Tensor:
        """input_ids and what follows, (batch, pos + at most max_new_tokens): prefill, then one token at a time with a
        cache. Padding is on the left. temperature, top_k, top_p: as in `sampling.choose`. stop: an id that ends a
        prompt; once all have ended, decoding stops, and ended prompts go on with that id.
        """
        ids, cache = input_ids, Cache()
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        draws = torch.Generator(device=ids.device).manual_seed(seed)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
        new = ids
        for _ in range(max_new_tokens):
            positions = (real.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
            logits = self(new, real, positions, cache).logits[:, -1]
            new = choose(logits, temperature=temperature, top_k=top_k, top_p=top_p, draws=draws).unsqueeze(1)
            if stop is not None:
                new = new.masked_fill(ended.unsqueeze(1), stop)
                ended |= new.squeeze(1) == stop
            ids, real = torch.cat([ids, new], 1), torch.cat([real, torch.ones_like(new)], 1)
            if bool(ended.all()):
                break
        return ids
