"""What tiny configurations of single types need beyond `probe.compatibility.sizes`, and what reads no text.

A value that is a dict under the name of a sub-configuration builds that one in the same way.
"""

from __future__ import annotations

from typing import Any

# Mapped types that do not run on token ids, and why.
_DRAFTS = "reads no tokens: it drafts from the hidden states, keys and values of another model"
NOT_TEXT: dict[str, str] = {
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "voxtral_realtime": "adds a frame of audio to every token, and does not run without",
}


def _layers(*kinds: str) -> dict[str, Any]:
    """Four layers that take turns; "linear" and "full" and so on get the "_attention" that configurations want."""
    names = [k if k in ("conv", "hybrid", "hybrid_sliding", "minimax_m3_sparse") else f"{k}_attention" for k in kinds]
    return {"layer_types": (names * 4)[:4]}


_TURNS = _layers("sliding", "full")
_LINEAR = _layers("linear", "full")
_QWEN = {**_TURNS, "use_sliding_window": True, "sliding_window": 5}
_HYBRID = _layers("hybrid_sliding", "hybrid")
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ROPES = {"sliding_attention": _ROPE, "full_attention": {"rope_type": "default", "rope_theta": 1e6}}
_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "max_relative_positions": 16,
}
_REFORMER = {
    "axial_pos_shape": [8, 8],
    "axial_pos_embds_dim": [16, 16],
    "attn_layers": ["local", "lsh"],
    "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 4,
    "num_buckets": 2,
    "hash_seed": 7,
}
_XLM = {"n_langs": 1, "use_lang_emb": False}
_INKLING = {**_HYBRID, "unpadded_vocab_size": 99, "d_rel": 4, "rel_extent": 6, "log_scaling_n_floor": 4}
_GEMMA4 = {
    **_layers("sliding", "full"),
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
    "global_head_dim": 24,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
}
_T5 = {"d_kv": 4}  # scores are not scaled: wider heads would look at one key each
_BLT = {"num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 260}
_VISION = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
_GRANITE = {"attention_multiplier": 0.3, "residual_multiplier": 0.7}
_GRANITE_SWA = {**_GRANITE, **_TURNS, "shared_intermediate_size": 36}

TABLE: dict[str, dict[str, Any]] = {
    "afmoe": _TURNS,
    "albert": {"num_hidden_groups": 2, "num_hidden_layers": 4},
    "axk1": {"mlp_layer_types": ["dense", "sparse"] * 2},
    "bailing_hybrid": {**_LINEAR, "first_k_dense_replace": 1},
    "bamba": {"attn_layer_indices": [1, 3]},
    "beam": {**_TURNS, "mlp_layer_types": ["dense", "sparse"] * 2},
    "blt": {
        "vocab_size": 260,
        "encoder_hash_byte_group_vocab": 50,
        "encoder_hash_byte_group_size": [3, 4],
        "local_attention_window_len": 5,
        "patching_threshold": 4.5,
        "patcher_config": {**_BLT, "sliding_window": 5},
        "encoder_config": {**_BLT, "hidden_size_global": 64},
        "decoder_config": {**_BLT, "hidden_size_global": 64},
        "global_config": {**_BLT, "hidden_size": 64},
    },
    "codegen": {"rotary_dim": 4},
    "cohere": {"use_qk_norm": True, "logit_scale": 1.0},
    "cohere2": {**_TURNS, "logit_scale": 1.0},
    "cohere2_moe": {**_TURNS, "logit_scale": 1.0, "num_shared_experts": 1},
    "cohere_compass_text": {**_TURNS, "rope_parameters": _ROPES, "logit_scale": 1.0},
    "cpmant": {
        "position_bias_num_buckets": 8,
        "position_bias_max_distance": 16,
        "prompt_types": 4,
        "prompt_length": 3,
        "segment_types": 4,
    },
    "cwm": _TURNS,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 36, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deberta": _DEBERTA,
    "deberta-v2": {**_DEBERTA, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "deepseek_v2": {"first_k_dense_replace": 1},
    "deepseek_v3": {"first_k_dense_replace": 1},
    "deepseek_v32": {"mlp_layer_types": ["dense", "sparse"] * 2},
    "deepseek_v4": {
        **_layers("sliding", "compressed_sparse", "heavily_compressed", "compressed_sparse"),
        "num_key_value_heads": 1,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "mlp_layer_types": ["hash_moe", "moe"] * 2,
        "q_lora_rank": 16,
        "o_groups": 2,
        "o_lora_rank": 8,
        "index_topk": 2,
        "hc_mult": 2,
        "rope_parameters": {
            "main": {**_ROPE, "partial_rotary_factor": 0.5},
            "compress": {**_ROPE, "partial_rotary_factor": 0.5},
        },
    },
    "doge": {"keep_window_size": 4},
    "dory": {
        **_TURNS,
        "n_input_layers": 1,
        "n_recurrent_layers": 2,
        "n_output_layers": 1,
        "n_recurrent_loops": 2,
        "initializer_range": 1.0,
    },
    "dots1": {**_TURNS, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1},
    "dots3_note_text": {
        **_layers("indexed", "sliding"),
        "head_dim": 16,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 8,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 12,
        "swa_v_head_dim": 8,
        "n_group": 1,
    },
    "encoder-decoder": {
        "encoder": {"model_type": "bert"},
        "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
    },
    "ernie4_5_moe": {"moe_layer_end_index": 3, "moe_num_shared_experts": 1},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3, "pad_token_id": 1, "eos_token_id": 2},
    "esmc": {"num_key_value_heads": 4, "head_dim": 8, "mask_token_id": 3},
    "exaone4": {**_TURNS, "sliding_window_pattern": 2},
    "exaone_moe": {**_TURNS, "sliding_window_pattern": 2, "n_group": 1},
    "falcon": {"new_decoder_architecture": True, "multi_query": False},
    "flaubert": _XLM,
    "flint": {**_TURNS, "mlp_only_layers": [0]},
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "d_head": 8},
    "gemma3_text": _TURNS,
    "gemma3n_text": {
        **_layers("sliding", "full"),
        "vocab_size_per_layer_input": 99,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "gemma4_text": {**_GEMMA4, "enable_moe_block": True, "top_k_experts": 2},
    "gemma4_unified_text": _GEMMA4,
    "git": {"vision_config": _VISION},
    "glm4_moe_lite": {"n_group": 1},
    "glm_moe_dsa": {
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "indexer_types": ["full", "shared"] * 2,
        "n_group": 1,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 4},
    "granite": _GRANITE,
    "granite_swa": {**_GRANITE, **_TURNS},
    "granitemoe": _GRANITE,
    "granitemoe_swa": _GRANITE_SWA,
    "granitemoehybrid": {**_GRANITE, **_LINEAR, "position_embedding_type": "rope"},
    "granitemoeshared": _GRANITE,
    "helium": {"head_dim": 8},
    "hrm_text": {"num_hidden_layers": 1, "H_cycles": 2, "L_cycles": 2},
    "hy_v4": {"indexer_types": ["full", "shared"] * 2, "n_group": 1, "hc_mult": 2},
    "hyperclovax": {"use_post_norm": True},
    "inkling2_loop_text": {
        **_INKLING,
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
        "loop_num_passes": 2,
        "loop_gate_rank": 8,
    },
    "inkling2_text": {**_INKLING, "n_layers_per_attn_res_block": 2, "swa_num_attention_heads": 2},
    "inkling_text": {
        **_INKLING,
        "logits_mup_width_multiplier": 1.0,
        "swa_num_key_value_heads": 4,
        "mlp_layer_types": ["dense", "sparse"] * 2,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "kimi_linear": _LINEAR,
    "kolibri1": _TURNS,
    "laguna": {**_TURNS, "num_attention_heads_per_layer": [4, 6, 4, 6]},
    "lara_mini": _layers("linear", "sliding", "linear", "full"),
    "layoutlm": {"max_2d_position_embeddings": 64},
    "led": {"attention_window": [4, 4], "max_encoder_position_embeddings": 64},
    "lfm2": _layers("conv", "full"),
    "lfm2_moe": {**_layers("conv", "full"), "num_dense_layers": 1},
    "lfm3": _layers("conv", "full", "conv", "sliding"),
    "llama4_text": {
        **_layers("chunked", "full"),
        "no_rope_layers": [1, 0, 1, 0],
        "moe_layers": [1, 3],
        "floor_scale": 4,
    },
    "longcat_flash": {"zero_expert_num": 2},
    "longformer": {"attention_window": 4},
    "longt5": {**_T5, "local_radius": 2, "global_block_size": 2},
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 16},
    "mamba2": {"n_groups": 2},
    "mellum": {**_TURNS, "rope_parameters": _ROPES},
    "mimo_v2_flash": {**_TURNS, "rope_parameters": {k: {**v, "partial_rotary_factor": 0.5} for k, v in _ROPES.items()}},
    "minicpm3": {"dim_model_base": 32},
    "minimax": {**_layers("full", "linear"), "block_size": 4},
    "minimax_m3_vl_text": {
        **_layers("full", "minimax_m3_sparse"),
        "rotary_dim": 8,
        "index_n_heads": 2,
        "index_block_size": 2,
        "index_topk_blocks": 2,
    },
    "ministral": _TURNS,
    "mllama": {"cross_attention_layers": [1]},
    # Without real norms, activations of random weights would explode.
    "mobilebert": {
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "num_hidden_layers": 2,
        "normalization_type": "layer_norm",
    },
    "modernbert": {**_TURNS, "local_attention": 4},
    "modernbert-decoder": {**_TURNS, "local_attention": 8},
    "mpt": {"attn_config": {"clip_qkv": 2.0}},
    "mt5": _T5,
    "nemotron_h": {"mamba_n_groups": 2},
    "neomme": {
        **_TURNS,
        "embedding_rank": 16,
        "embedding_dim": 16,
        "patch_size": 4,
        "per_layer_config": {1: {"sliding_window": None}, 2: {"sliding_window": 3}, 3: {"sliding_window": None}},
    },
    "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 12, "conv_kernel_size": 3},
    "olmo": {"clip_qkv": 2.0},
    "olmo3": _TURNS,
    "olmo_hybrid": {**_LINEAR, "linear_num_key_heads": 4},
    "olmoe": {"clip_qkv": 2.0},
    "pegasus_x": {"num_global_tokens": 2, "block_size": 4},
    "perceiver": {
        "d_latents": 32,
        "num_latents": 8,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
        "qk_channels": 16,
        "v_channels": 32,
    },
    "phi": {"qk_layernorm": True},
    "phi4_multimodal": {
        "vision_config": {**_VISION, "crop_size": 8, "image_token_id": 97, "num_channels": 3},
        "audio_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_blocks": 1,
            "num_attention_heads": 2,
            "audio_token_id": 98,
            "ext_pw_out_channel": 16,
            "depthwise_separable_out_channel": 16,
            "nemo_conv_channels": 16,
        },
    },
    "prophetnet": {"num_buckets": 8, "relative_max_distance": 16},
    "qwen2": {**_QWEN, "max_window_layers": 2},
    "qwen2_moe": {**_QWEN, "max_window_layers": 2},
    "qwen3": {**_QWEN, "max_window_layers": 2},
    "qwen3_5_moe_text": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_moe": {"use_sliding_window": True, "sliding_window": 5},
    "qwen3_next": _LINEAR,
    "qwen4_exp_text": {
        **_layers("linear", "indexed"),
        "eos_token_id": 2,
        "hc_count": 2,
        "hc_lowrank": 8,
        "ple_layer_ids": [1],
        "ple_embed_dim": 32,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "logits_soft_cap": 4.0},
    "reformer": _REFORMER,
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roc_bert": {
        "pronunciation_embed_dim": 16,
        "pronunciation_vocab_size": 99,
        "shape_embed_dim": 16,
        "shape_vocab_size": 99,
    },
    "roformer": {"rotary_value": True},
    "smollm3": {**_QWEN, "no_rope_layers": [1, 0, 1, 0]},
    "stablelm": {"qk_layernorm": True, "use_qkv_bias": True},
    "switch_transformers": {**_T5, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2},
    "t5": _T5,
    "t5gemma": {"encoder": {}, "decoder": {}, "vocab_size": 99},
    "t5gemma2": {
        "encoder": {"text_config": _TURNS, "vision_config": _VISION},
        "decoder": _TURNS,
        "vocab_size": 99,
    },
    "umt5": _T5,
    "tapas": {"type_vocab_sizes": [3, 9, 9, 2, 9, 9, 9]},
    "ultrabert": {**_TURNS, "prediction_head_size": 32},
    "xlm": _XLM,
    "xlnet": {"d_head": 8},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 3,
        "num_hidden_layers": 6,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 3,
        "num_hidden_layers": 6,
        "num_mem_blocks": 2,
        "num_key_value_heads": 4,  # the adapters know no fewer
        "use_mem_rope": True,
        "use_shared_attention_adapter": True,
        "adapter_rank": 8,
        "use_mamba_kernels": False,
    },
    "zaya": {**_HYBRID, "num_experts_per_tok": 1, "router_hidden_size": 16},
}
# BigBird attends sparsely only where a text is longer than 5 + 2 * random blocks; a decoder never does.
TASK_TABLE: dict[tuple[str, str], dict[str, Any]] = {
    ("big_bird", "causal"): {"attention_type": "original_full"},
    ("big_bird", "masked"): {"block_size": 1, "num_random_blocks": 1},
    ("bigbird_pegasus", "causal"): {"attention_type": "original_full"},
    ("bigbird_pegasus", "seq2seq"): {"block_size": 1, "num_random_blocks": 1},
    ("reformer", "causal"): {"is_decoder": True},
    ("xlm", "causal"): {"causal": True},
}
