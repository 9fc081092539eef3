"""What default configurations of transformers lack: without these values a model type does not build, or not run.

They are those of a published checkpoint of the type where these are known, else the plainest that fit the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_HEAD: Final = {"head_dim": 128}
_FORECAST: Final = {"prediction_length": 24, "num_time_features": 2}
_WORDS: Final = {"vocab_size": 32}
"""Of the letters that a recognizer of speech spells in."""
_STRIP_CONVOLUTIONS: Final = {
    f"{name}_{part}ratio": [[n if down else 1, n if across else 1], [1, 1], [down * (n // 2), across * (n // 2)]]
    for name, down, across in (
        ("vertical_long_to_small_conv", 1, 0), ("horizontal_small_to_long_conv", 0, 1), ("symmetric_conv_long", 1, 1),
    )
    for part, n in (("long", 7), ("mid", 5), ("short", 3))
}  # fmt: skip
_DETECTOR: Final = {
    "intraclass_block_config": {"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0], **_STRIP_CONVOLUTIONS},
    "scale_factor_list": [1, 2, 4, 8],
    "kernel_list": [3, 2, 2],
}
_PYRAMID: Final = {
    # Kernel, channels in and out, stride, squeeze: each stage halves both sides, not one as where a line is read.
    "block_configs": [
        [[3, 96, 96, 1, True]], [[3, 96, 96, 2, False]], [[3, 96, 192, 2, False]], [[3, 192, 384, 2, False]],
    ],
    "out_features": ["stage1", "stage2", "stage3", "stage4"], "out_indices": [1, 2, 3, 4],
}  # fmt: skip
_TWO_STAGES: Final = {
    "patch_sizes": [40, 48], "hidden_sizes": [1024, 2048], "depths": [2, 2], "num_hidden_layers": 2,
}  # fmt: skip
_INDEXER: Final = {
    "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}  # fmt: skip


def _rotary(sections: list[int], part: float = 1.0) -> dict[str, Any]:
    """Positions of three or four kinds, each of which turns some pairs of a head; ``part`` of it turns at all."""
    turned = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part, "mrope_section": sections}
    return {"rope_parameters": turned}


_LARGE_IMAGE: Final = {"vision_config": {"image_size": 896, "patch_size": 14}}
_TILE: Final = {"vision_config": {"image_size": 512, "patch_size": 16}}
_SMALL: Final = {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2}
_MINICPM: Final = {"image_token_id": 24}
"""Without it a model takes an image and leaves it."""
_FULL: Final = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}

LACKING: Final[Mapping[str, Mapping[str, Any]]] = {
    "autoformer": _FORECAST,
    "aria": {"vision_config": {"image_size": 980, "patch_size": 14}},
    "aya_vision": {"vision_config": {"num_attention_heads": 16, "image_size": 364, "patch_size": 14}},
    "bamba": {"attn_layer_indices": [1]},
    "blip-2": {"image_token_index": 50265},
    "blt": {"num_hidden_layers": 2},
    # Of the codes of images the last: how many there are is read off it.
    "chameleon": {"vocabulary_map": {"<image>": 8711, "IMGIMGIBJBZ": 8195}},
    "cohere_compass": {"text_config": _FULL},
    "cohere_compass_text": _FULL,
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "clip_qkv": 8}},
    "deepseek_ocr2": {
        "text_config": {
            "mlp_layer_types": ["dense", "sparse"],
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 896,
        },
        "vision_config": {"encoder_config": _SMALL},
    },
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1408},
    "diffusion_gemma": {"text_config": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 151851, "<|extra_200|>": 151846, "<|visual token 032767|>": 184621}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gemma3": _LARGE_IMAGE,
    "gemma4_audio": {"num_mel_bins": 128},
    "glm46v": {"text_config": _rotary([8, 12, 12], 0.5)},
    "glm4v": {"text_config": _rotary([8, 12, 12], 0.5)},
    "glm4v_text": _rotary([8, 12, 12], 0.5),
    "glm4v_moe_text": {"head_dim": 128, **_rotary([8, 12, 12], 0.5)},
    "glm_image_text": _rotary([8, 12, 12], 0.5),
    "glm4v_moe": {"text_config": {"head_dim": 128, **_rotary([8, 12, 12], 0.5)}},
    "glmga": {"text_config": _rotary([8, 12, 12], 0.5)},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
    "granite4_vision": {
        "vision_config": {"image_size": 384, "patch_size": 16},
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "4/8",
        "image_grid_pinpoints": [[384, 768], [768, 384], [768, 768]],
    },
    "granite_speech": {"projector_config": {"encoder_hidden_size": 1024}},
    "granite_speech_plus": {"projector_config": {"encoder_hidden_size": 1024}},
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "hunyuan_vl": {"text_config": {**_HEAD, **_rotary([16, 16, 16, 16])}},
    "hunyuan_vl_text": {**_HEAD, **_rotary([16, 16, 16, 16])},
    "idefics3": {"vision_config": {"image_size": 364, "patch_size": 14}},
    "informer": _FORECAST,
    "instructblip": {"image_token_index": 32000},
    "instructblipvideo": {"video_token_index": 32000},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "llama4": {"vision_config": {"hidden_size": 1408, "vision_output_dim": 4096}},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "minicpm_ocr": _MINICPM,
    "minicpmv4_6": _MINICPM,
    "minicpmv4_7": _MINICPM,
    "ministral": _HEAD,
    "modernvbert": _TILE,
    "moonshine_streaming": {"num_attention_heads": 8, "num_key_value_heads": 8},
    "muse_spark": {"audio_config": _TWO_STAGES},
    "musicgen": {"architectures": ["MusicgenForConditionalGeneration"]},
    "musicgen_melody": {"architectures": ["MusicgenMelodyForConditionalGeneration"]},
    "nemotron": {"num_key_value_heads": 8},
    "nemotron_h_omni": {"image_token_id": 24},
    "pp_doclayout_v2": {"class_thresholds": [0.5] * 25, "class_order": [0] * 25},
    "pp_ocrv5_server_det": _DETECTOR,
    "pp_ocrv6_medium_det": {**_DETECTOR, "backbone_config": _PYRAMID},
    "pp_ocrv6_small_det": {"layer_list_out_channels": [96, 96, 192, 384], "backbone_config": _PYRAMID},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "rf_detr": {"backbone_config": {"image_size": 560}},
    "sapiens2": {
        "head_config": {"upsample_out_channels": [768, 768], "conv_out_channels": [512, 512]},
    },
    "shieldgemma2": _LARGE_IMAGE,
    "smolvlm": _TILE,
    "step3p7": {"text_config": {"sliding_window": 512}},
    "t5gemma2": {"encoder": {"vision_config": {"image_size": 896, "patch_size": 14}}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}, **_LARGE_IMAGE},
    "time_series_transformer": _FORECAST,
    "ultravbert": _TILE,
    "uvdoc": {
        "backbone_config": {"out_features": [f"stage{i}" for i in range(1, 7)], "out_indices": [1, 2, 3, 4, 5, 6]}
    },
    "voxtral": {"audio_token_id": 24},
    "wav2vec2-bert": _WORDS,
    "wav2vec2-conformer": _WORDS,
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["hybrid", "hybrid", "linear_attention"], "num_hidden_layers": 3},
}
"""Model type -> values; of a part the further ones."""


def completed(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """A default configuration with what it lacks."""
    return _with(data, LACKING.get(name, {}))


def _with(data: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    parts = {k: _with(data.get(k) or {}, v) for k, v in further.items() if isinstance(v, Mapping)}
    return {**data, **further, **parts}
