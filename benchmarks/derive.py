"""``python -m benchmarks.derive``: which architectures of transformers a closed form can be read off, and why not.

Tiny configurations of seventeen architectures without formulas here, each exported with batch and
sequence as symbols and compared, module by module, with fresh counts at five random sizes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import costproof
from costproof.ledger.errors import CostproofError

_TEXT: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
}  # fmt: skip
_GQA: Final = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_IMAGE: Final[dict[str, Any]] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip

CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "decoder with GQA": {"model_type": "llama", **_GQA},
    "decoder with GQA and norms on heads": {"model_type": "qwen3", **_GQA},
    "MoE, top 2 of 4": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, **_GQA},
    "MoE, narrow experts": {
        "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, **_GQA,
    },
    "MoE, biased experts, sinks": {
        "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, **_GQA,
    },
    "MLA with shared experts": {
        "model_type": "deepseek_v3", **_TEXT, "num_key_value_heads": 4, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "n_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    },
    "encoder-decoder": {
        "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64,
    },
    "ViT": {"model_type": "vit", **_IMAGE},
    "CLIP": {
        "model_type": "clip", "projection_dim": 16, "text_config": {**_TEXT, "max_position_embeddings": 77},
        "vision_config": _IMAGE,
    },
    "Swin": {
        "model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
        "num_heads": [2, 4], "window_size": 4,
    },
    "ConvNet": {
        "model_type": "convnext", "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "image_size": 64,
    },
    "state space, in chunks": {
        "model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 64,
        "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 16,
    },
    "linear attention, in blocks": {
        "model_type": "minimax", "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 16, **_GQA,
    },
    "state space, token by token": {
        "model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "vocab_size": 64,
    },
    "linear attention, token by token": {
        "model_type": "rwkv", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64,
    },
    "speech encoder-decoder": {
        "model_type": "whisper", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 64, "vocab_size": 64,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    },
    "audio encoder": {
        "model_type": "audio-spectrogram-transformer", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_mel_bins": 32, "max_length": 64,
    },
}  # fmt: skip


def _stage(address: str) -> str:
    """The first stage: the prefill, or the whole forward."""
    return costproof.stages(address)[0]


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m benchmarks.derive", description=__doc__).parse_args()
    print("| Architecture | Model | Equal at | Seconds | Total, or why not |")
    print("| --- | --- | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, config in CONFIGS.items():
            file = Path(folder) / "config.json"
            file.write_text(json.dumps(config))
            began = time.perf_counter()
            try:
                found = costproof.derive(f"hf:{file}", stage=_stage(f"hf:{file}"))
                equal, said = f"{len(found.points) - len(found.wrong)} of {len(found.points)}", found.form.total
            except CostproofError as error:
                equal, said = "—", f"{error.what}: {error.got}"
            seconds = time.perf_counter() - began
            print(f"| {name} | {config['model_type']} | {equal} | {seconds:.1f} | {said} |", flush=True)


if __name__ == "__main__":
    main()
