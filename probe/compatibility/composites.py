"""Composites: language models with an image or audio tower beside them, which also run on token ids alone.

They are built with a tower as small as their configuration allows, which token ids never reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import nn

# Mapped types whose class is that of their text half, which is mapped as a type of its own.
TWINS: dict[str, str] = {
    "dots3_note": "dots3_note_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen4_exp": "qwen4_exp_text",
}

_SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
_VISION = {**_SMALL, "image_size": 8, "patch_size": 4}
_AUDIO = {"num_mel_bins": 8, "num_hidden_layers": 1, "encoder_layers": 1, "max_source_positions": 16}
_SPEECH = {
    "encoder_config": {"input_dim": 8, "num_layers": 1, "output_dim": 9, "context_size": 4, "max_pos_emb": 8},
    "projector_config": {"num_hidden_layers": 1, "encoder_hidden_size": 32},
    "audio_token_index": 98,
}
_TOKENS = {"image_token_id": 97, "audio_token_id": 98}
_CODES = {"channels": 1, "num_filters": 4, "downsampling_ratios": [2], "depths": [1, 1]}
_SOUNDS = {"num_mel_bins": 8, **_SMALL, "num_key_value_heads": 2}


def _hears(text: str, **audio: Any) -> dict[str, Any]:
    return {"text_config": {"model_type": text}, "audio_config": {**_AUDIO, **audio}, "audio_token_id": 98}


def _sees(text: str, **vision: Any) -> dict[str, Any]:
    named = {"image_token_id": 97, "image_token_index": 97}
    return {"text_config": {"model_type": text}, "vision_config": {**_VISION, **vision}, **named}


COMPOSITES: dict[str, dict[str, Any]] = {
    "audioflamingo3": _hears("qwen2"),
    "fuyu": {"text_config": {"model_type": "persimmon"}, "image_token_id": 97},
    "gemma3": _sees("gemma3_text"),
    "gemma3n": {
        "text_config": {"model_type": "gemma3n_text"},
        "audio_config": {"conf_num_hidden_layers": 1},
        **_TOKENS,
    },
    # These two may have no tower at all.
    "gemma4": {"text_config": {"model_type": "gemma4_text"}, "image_token_id": 97, "audio_token_id": 98},
    "gemma4_unified": {
        "text_config": {"model_type": "gemma4_unified_text"},
        **_TOKENS,
    },
    "glmasr": _hears("llama"),
    "got_ocr2": _sees("qwen2", mlp_dim=16, output_channels=8),
    "granite_speech": {"text_config": {"model_type": "granite"}, **_SPEECH},
    "granite_speech_plus": {"text_config": {"model_type": "granite"}, **_SPEECH},
    "modernvbert": _sees("modernbert"),
    "moss_transcribe_diarize": _hears("qwen3"),
    "musicflamingo": _hears("qwen2"),
    # With one codebook, a row of codes is a prompt.
    "musicgen": {"num_codebooks": 1, "is_decoder": True},
    "musicgen_melody": {"num_codebooks": 1, "is_decoder": True},
    "nemo_speechlm": {
        **_hears(
            "nemotron_h",
            asr_config=_SOUNDS,
            diarization_config={"audio_config": _SOUNDS, "head_config": {"audio_hidden_size": 16, "hidden_size": 16}},
        ),
        "word_timestamp_config": {**_SMALL, "num_key_value_heads": 2, "vocab_size": 99, "blank_token_id": 98},
    },
    "omniasr": _hears("llama", conv_dim=[8], conv_kernel=[3], conv_stride=[2], num_conv_pos_embeddings=4),
    "qwen2_audio": {**_hears("qwen2"), "audio_token_index": 98},
    "qwen3_asr": _hears("qwen3", downsample_hidden_size=8, output_dim=32),
    "ultravbert": _sees("ultrabert"),
    "vibevoice_asr": {
        "text_config": {"model_type": "qwen2"},
        "semantic_tokenizer_encoder_config": _CODES,
        "acoustic_tokenizer_encoder_config": _CODES,
        "audio_token_id": 98,
    },
    "voxtral": _hears("llama"),
}

NOTES: dict[str, str] = {
    **dict.fromkeys(COMPOSITES, "run on text alone"),
    "gemma3n": "run on text alone, without its image tower",
    "musicgen": "run on audio codes of one codebook",
    "musicgen_melody": "run on audio codes of one codebook",
}


@contextmanager
def without_tower(model_type: str) -> Iterator[None]:
    """While inside, Gemma-3n is made without its image tower, which is built by a package that probe does without."""
    if model_type != "gemma3n":
        yield
        return
    from transformers import AutoModel
    from transformers.models.gemma3n import modeling_gemma3n

    class Made:
        @staticmethod
        def from_config(config: Any) -> Any:
            return nn.Module() if config.model_type == "gemma3n_vision" else AutoModel.from_config(config)

    with mock.patch.object(modeling_gemma3n, "AutoModel", Made):
        yield
