"""Small sizes for whatever a configuration calls them.

A tiny configuration takes from `SIZES` every name it has; `probe.compatibility.table` says what else a type needs. The
numbers are chosen so that nothing a model claims is idle: heads wider than hidden / heads, fewer key-value heads than
heads, windows, chunks and top-k's shorter than `LENGTH` tokens, several experts, soft caps that bite.
"""

from __future__ import annotations

from typing import Any

LENGTH = 12  # tokens of a prompt, and of what an encoder reads
DECODER_LENGTH = 7  # tokens of what the decoder of a sequence-to-sequence model reads


def _all(names: str, size: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


_WIDTH = _all(
    "hidden_size d_model n_embd dim emb_dim embedding_size embedding_dim word_embed_proj_dim lru_width "
    "attention_hidden_size",
    32,
)
_INNER = _all(
    "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner ffn_hidden_size n_inner dff dim_ff "
    "hidden_dim feed_forward_size moe_intermediate_size shared_expert_intermediate_size "
    "shared_experts_intermediate_size shared_intermediate_size dense_intermediate_size intermediate_size_mlp "
    "expert_ffn_hidden_size moe_shared_expert_intermediate_size",
    36,
)
_DEPTH = _all("num_hidden_layers n_layer n_layers num_layers", 4) | _all(
    "encoder_layers decoder_layers num_encoder_layers num_decoder_layers", 2
)
_HEADS = _all(
    "num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads decoder_attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads",
    4,
) | _all("num_key_value_heads swa_num_key_value_heads num_kv_heads", 2)
_HEAD_WIDTH = _all("head_dim d_kv d_head dim_head attention_head_size kv_channels swa_head_dim", 16)
_LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
_INDEXER = {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 2}
_EXPERTS = _all("num_experts num_local_experts n_routed_experts moe_num_experts", 4) | _all(
    "num_experts_per_tok num_experts_per_token moe_topk moe_k", 2
)
_WINDOW = _all("sliding_window sliding_window_size attention_window_size window_size", 5)
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
}
_STATE = {
    "mamba_d_state": 8,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_chunk_size": 4,
    "mamba_dt_rank": 4,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "state_size": 8,
    "chunk_size": 4,
    "time_step_rank": 4,
}
_POSITIONS = _all(
    "max_position_embeddings n_positions n_ctx max_seq_len model_max_length max_source_positions max_target_positions "
    "max_encoder_position_embeddings max_decoder_position_embeddings context_length",
    64,
)

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "src_vocab_size": 99,
    "tgt_vocab_size": 99,
    "decoder_vocab_size": 99,
    **_WIDTH,
    **_INNER,
    **_DEPTH,
    **_HEADS,
    **_HEAD_WIDTH,
    **_LATENT,
    **_INDEXER,
    **_EXPERTS,
    **_WINDOW,
    **_LINEAR,
    **_STATE,
    **_POSITIONS,
    "attention_chunk_size": 5,
    "final_logit_softcapping": 4.0,
    "attn_logit_softcapping": 2.0,
    "query_pre_attn_scalar": 16,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}

# Used only where the type itself uses the thing by default.
IF_SET: dict[str, Any] = {"q_lora_rank": 16, "n_group": 2, "topk_group": 1, "num_expert_group": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
