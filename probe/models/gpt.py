"""A tiny GPT in one file: the in-repo model whose every mechanism can be read in one sitting.

    model = GPT(Config(vocab_size=300))
    out = model(ids)                 # ids: (batch, pos) -> out.logits: (batch, pos, vocab)

By default pre-norm blocks, learned positions, GELU, tied embeddings (Radford et al. 2019); `Config` lists what else it
can be made of. Attention goes through the same look-up and call signature as transformers' models, so `probe` captures
both in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.errors import ProbeError, PromptError
from probe.models import gradients
from probe.models.config import Config as Config
from probe.models.lean import lean
from probe.models.sampling import choose

# shapes in comments: B batch, T positions, K key positions, H query heads, G key-value heads, D d_head, C d_model


class Output(NamedTuple):
    """logits: (batch, pos, vocab), None for the backbone alone. last_hidden_state: (batch, pos, d_model)."""

    logits: Tensor | None
    last_hidden_state: Tensor


AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def shared(tensor: Tensor, n_heads: int) -> Tensor:
    """Each key-value head once for every query head that reads it: (B, G, K, D) -> (B, H, K, D)."""
    return tensor if tensor.shape[1] == n_heads else tensor.repeat_interleave(n_heads // tensor.shape[1], dim=1)


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
    key, value = shared(key, query.shape[1]), shared(value, query.shape[1])
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
    key, value = shared(key, query.shape[1]), shared(value, query.shape[1])
    # Without a mask: the whole prompt, or the newest token, which sees every cached key.
    causal = mask is None and query.shape[2] > 1 and bool(module.is_causal)
    if mask is None and gradients.wanted(query) and key.shape[2] <= gradients.KEPT:
        return gradients.attention(query, key, value, scaling, causal).transpose(1, 2), None
    z = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, is_causal=causal)
    return z.transpose(1, 2), None


class AttentionLookup:
    """Name -> attention function, with the method by which transformers' models ask for theirs."""

    def get_interface(self, name: str, default: AttentionFunction) -> AttentionFunction:
        return default if name == "eager" else fused_attention


ATTENTION = AttentionLookup()
UNHEARD = AttentionLookup.get_interface  # who captures puts another in its place


class Cache:
    """The keys and values of the positions read so far, one pair of (B, G, K, D) for each layer, in order.

    Decoding then runs only the newest token: its query meets the keys kept here (the KV cache). They lie in buffers
    with room for more, so that a step writes one position and copies none.
    """

    def __init__(self, room: int = 128) -> None:
        self.room = room  # positions that a first buffer holds; a full one is followed by one twice as long
        self.layers: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self._buffers: dict[nn.Module, tuple[Tensor, Tensor]] = {}  # of keys and of values, (B, G, room, D)

    def __len__(self) -> int:
        return next((key.shape[2] for key, _ in self.layers.values()), 0)

    def extend(self, layer: nn.Module, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's new keys and values; returns all of them. ProbeError for another number of prompts."""
        past = self.layers.get(layer)
        if past is not None and past[0].shape[0] != key.shape[0]:
            raise ProbeError(f"the cache holds {past[0].shape[0]} prompts, and {key.shape[0]} are to go on from it.")
        if key.requires_grad:  # what was read before may be needed for gradients: nothing is written over
            both = (key, value) if past is None else (torch.cat([past[0], key], 2), torch.cat([past[1], value], 2))
            self._buffers.pop(layer, None)
        else:
            start = 0 if past is None else past[0].shape[2]
            buffers, end = self._buffers.get(layer), start + key.shape[2]
            if buffers is None or end > buffers[0].shape[2]:
                size = *key.shape[:2], max(self.room, 2 * end), key.shape[3]
                buffers = self._buffers[layer] = key.new_empty(size), value.new_empty(size)
                if past is not None:
                    buffers[0][:, :, :start], buffers[1][:, :, :start] = past
            keys, values = buffers
            # Nothing that was read is written over, and views of it need not look so: hence the data alone.
            keys.data.narrow(2, start, end - start).copy_(key)
            values.data.narrow(2, start, end - start).copy_(value)
            both = keys.narrow(2, 0, end), values.narrow(2, 0, end)
        self.layers[layer] = both
        return both


# positions ------------------------------------------------------------------------------------------------------------


def frequencies(width: int, device: torch.device) -> Tensor:
    """1, ..., 1/10000: how fast each of width/2 pairs turns from one position to the next, in radians."""
    return 10_000 ** (-torch.arange(0, width, 2, device=device) / width)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines at even places and cosines at odd ones (Vaswani et al. 2017): (B, T) -> (B, T, C)."""
    angles = positions.unsqueeze(-1) * frequencies(width, positions.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]


def rotary_angles(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every pair's angle at every position, (B, 1, T, D): a pair is a number and the one D/2 on."""
    angles = positions.unsqueeze(-1) * frequencies(width, positions.device)
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)
    return angles.cos(), angles.sin()


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn each pair by its position's angle: q·k then depends on the distance alone (RoPE, Su et al. 2021)."""

    def turned(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin

    return turned(query), turned(key)


def alibi(n_heads: int, distance: Tensor) -> Tensor:
    """Added to scores: minus distance times head h's slope, 2^(-8h/H) (Press et al. 2021). (T, K) -> (H, T, K)."""
    slopes = 2 ** (-8 * torch.arange(1, n_heads + 1, device=distance.device) / n_heads)
    return -slopes[:, None, None] * distance.abs()


# the block ------------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention: each of `n_heads` heads has its own slice of the queries; key-value heads may be shared."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.d_head = config.head_width
        self.is_causal = config.visible != "bidirectional"
        self.heads = [config.n_heads, config.kv_heads, config.kv_heads]
        self.qkv = nn.Linear(config.d_model, sum(self.heads) * self.d_head, bias=config.bias)
        self.out = nn.Linear(config.n_heads * self.d_head, config.d_model, bias=config.bias)

    def forward(
        self, x: Tensor, mask: Tensor | None, angles: tuple[Tensor, Tensor] | None, cache: Cache | None
    ) -> Tensor:  # (B, T, C) -> (B, T, C)
        B, T, _ = x.shape  # q: (B, H, T, D), k and v: (B, G, T, D)
        qkv = self.qkv(x).view(B, T, -1, self.d_head)
        if qkv.requires_grad:  # the gradients of three parts are joined faster along this axis
            q, k, v = (part.transpose(1, 2) for part in qkv.split(self.heads, dim=2))
        else:  # the same in fewer calls
            q, k, v = qkv.transpose(1, 2).split(self.heads, dim=1)
        if angles is not None:
            q, k = apply_rotary(q, k, *angles)
        if cache is not None:
            k, v = cache.extend(self, k, v)
        attend = ATTENTION.get_interface(self.config.attention, eager_attention)
        z, _ = attend(self, q, k, v, mask, scaling=1 / math.sqrt(self.d_head), dropout=0.0)
        return cast(Tensor, self.out(z.reshape(B, T, -1)))


class MLP(nn.Module):
    """The feed-forward half of a block: expand, bend, contract. Each position for itself."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.expand = nn.Linear(config.d_model, config.mlp_width, bias=config.bias)
        self.gated = config.ffn == "swiglu"
        if self.gated:
            self.gate = nn.Linear(config.d_model, config.mlp_width, bias=config.bias)
        self.contract = nn.Linear(config.mlp_width, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:  # SwiGLU (Shazeer 2020): what passes is decided by a gate of its own.
            return cast(Tensor, self.contract(F.silu(self.gate(x)) * self.expand(x)))
        if gradients.wanted(x, self.expand, self.contract):
            return gradients.mlp(x, self.expand, self.contract)
        return cast(Tensor, self.contract(F.gelu(self.expand(x), approximate="tanh")))  # GPT-2's form


def make_norm(config: Config) -> nn.Module:
    """The norm a configuration asks for; the identity where it asks for none."""
    if config.norm == "layer":
        return nn.LayerNorm(config.d_model, bias=config.bias)
    return nn.RMSNorm(config.d_model, eps=1e-6) if config.norm == "rms" else nn.Identity()


class Block(nn.Module):
    """Two reads of the residual stream, two writes to it: attention moves between positions, the MLP stays."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.norm_attention = make_norm(config)
        self.attention = Attention(config)
        if config.ffn != "none":
            self.norm_mlp = make_norm(config)
            self.mlp = MLP(config)

    def forward(
        self, x: Tensor, mask: Tensor | None, angles: tuple[Tensor, Tensor] | None, cache: Cache | None
    ) -> Tensor:
        x = self.written(x, self.norm_attention, self.attention, mask, angles, cache)
        return x if self.config.ffn == "none" else self.written(x, self.norm_mlp, self.mlp)

    def written(self, x: Tensor, norm: nn.Module, half: Callable[..., Tensor], *given: Any) -> Tensor:
        """The stream after one half of the block has read it and written to it. given: what the half takes besides."""
        before = self.config.norm_place == "pre"
        out = half(norm(x) if before else x, *given)
        out = x + out if self.config.residual else out
        return out if before else cast(Tensor, norm(out))


# the model ------------------------------------------------------------------------------------------------------------


class Backbone(nn.Module):
    """Embeddings, blocks and the final norm: everything below the logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        if config.position == "learned":
            self.positions = nn.Embedding(config.max_positions, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        # Post-norm blocks end in a norm already.
        self.norm = make_norm(config) if config.norm_place == "pre" else nn.Identity()

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
        config, past, T = self.config, 0 if cache is None else len(cache), input_ids.shape[1]
        if config.max_positions < past + T:
            raise PromptError(f"the prompt has {past + T} tokens; this model reads at most {config.max_positions}.")
        if cache is not None and config.visible == "bidirectional":
            raise ProbeError("a bidirectional model has no use for a cache: every token changes all those before it.")
        if position_ids is None:
            position_ids = torch.arange(past, past + T, device=input_ids.device).unsqueeze(0)
        x = self.embed(input_ids)
        if config.position == "learned":
            x = x + self.positions(position_ids)
        elif config.position == "sinusoidal":
            # As strong as learned positions are at first; at full size (1) they would drown the embedding.
            x = x + sinusoids(position_ids, config.d_model).to(x.dtype) * math.sqrt(2) * (config.init_scale or 1)
        angles = None
        if config.position == "rope":
            cos, sin = rotary_angles(position_ids, config.head_width)
            angles = cos.to(x.dtype), sin.to(x.dtype)
        mask = self.mask(input_ids, attention_mask, x.dtype, past)
        for block in self.blocks:
            x = block(x, mask, angles, cache)
        return Output(None, self.norm(x))

    def mask(
        self, input_ids: Tensor, attention_mask: Tensor | None, dtype: torch.dtype, past: int = 0
    ) -> Tensor | None:
        """What is added to the scores, (B, 1 or H, T, K): 0 (with alibi, less for distance) where a query may look, the
        dtype's lowest number where not.

        None under the fused kernel, which has a causal path of its own, for unpadded prompts and for the newest token.
        The lowest number rather than -inf: a padding query may see nothing at all, and its row must stay finite,
        though never read.
        """
        config, (B, T) = self.config, input_ids.shape
        simple = config.position != "alibi" and (config.window is None or past + T <= config.window)
        simple = simple and config.attention == "fused" and (past == 0 or T == 1)
        if simple and (attention_mask is None or bool(attention_mask.all())):
            return None
        real = input_ids.new_ones(B, past + T) if attention_mask is None else attention_mask
        keys = torch.arange(past + T, device=input_ids.device)
        distance = keys[past:, None] - keys  # (T, K): how far back a key lies
        visible = torch.ones_like(distance, dtype=torch.bool) if config.visible == "bidirectional" else distance >= 0
        if config.window is not None:
            visible = visible & (distance < config.window)
        visible = visible & real.bool()[:, None, None, :]
        bias = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        if config.position == "alibi":
            bias = bias + alibi(config.n_heads, distance).to(dtype)
        return bias.masked_fill(~visible, torch.finfo(dtype).min)


class GPT(nn.Module):
    """The backbone and the map from its last hidden state to the logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.base_model = Backbone(config)
        if not config.tied:
            self.unembed = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if (scale := config.init_scale) is None:
            return
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=scale)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Output:
        hidden = self.base_model(input_ids, attention_mask, position_ids, cache).last_hidden_state
        if not self.config.tied:
            return Output(self.unembed(hidden), hidden)
        weight = self.base_model.embed.weight
        if weight.is_meta and not hidden.is_meta:  # such a product is made without a complaint, of whatever lies there
            raise ProbeError("the embedding is offloaded, and tied to the unembedding: keep it, or set tied=False.")
        return Output(hidden @ weight.T, hidden)

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
        with torch.inference_mode():  # leaner than no_grad: nothing is recorded for gradients at all
            written, cache = [input_ids], Cache()
            # Without padding, masks and positions follow from the length, and need not be worked out at each step.
            real = None if attention_mask is None or bool(attention_mask.all()) else attention_mask
            draws = torch.Generator(device=input_ids.device).manual_seed(seed)
            ended = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
            new, step = input_ids, lean(self, PARTS) if AttentionLookup.get_interface is UNHEARD else self
            for _ in range(max_new_tokens):
                positions = None if real is None else (real.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
                logits = step(new, real, positions, cache).logits[:, -1]
                new = choose(logits, temperature=temperature, top_k=top_k, top_p=top_p, draws=draws).unsqueeze(1)
                if stop is not None:
                    new = new.masked_fill(ended.unsqueeze(1), stop)
                    ended |= new.squeeze(1) == stop
                written.append(new)
                real = None if real is None else torch.cat([real, torch.ones_like(new)], 1)
                if stop is not None and bool(ended.all()):
                    break
        return torch.cat(written, 1)  # an ordinary tensor again


PARTS = (GPT, Backbone, Block, Attention, MLP)
