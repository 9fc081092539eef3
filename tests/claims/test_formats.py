"""Claims about the vector work of formats of quantised weights; the truth is written out from the published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import costproof
from tests.oracles.claims import causes

# Qwen2.5-7B-Instruct-AWQ: one FLOP for each weight of the seven matrices of each of 28 layers, in each call.
WIDTH, MLP, KEYS = 3584, 18944, 512
UNPACKED = 28 * (2 * WIDTH**2 + 2 * WIDTH * KEYS + 3 * WIDTH * MLP)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": WIDTH, "intermediate_size": MLP,
    "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28, "vocab_size": 152064,
    "torch_dtype": "float16", "tie_word_embeddings": False, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
}  # fmt: skip
MATRICES = "(2*text_heads*text_head_dim*text_hidden + 2*text_hidden*text_kv_heads*text_head_dim + 3*text_hidden*{})"
DENSE = f"text_layers*{MATRICES.format('text_intermediate')}"
# As Mixtral: eight experts, of which a token passes two; four tokens or more may pass all.
EXPERTS = CONFIG | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
                    "num_experts_per_tok": 2}  # fmt: skip
OF_ATTENTION = 28 * (2 * WIDTH**2 + 2 * WIDTH * KEYS)
OF_EXPERT = 28 * 3 * WIDTH * MLP


@pytest.mark.parametrize(
    ("config", "claims"),
    [
        (
            CONFIG,
            [
                ("prefill", UNPACKED, "right", ""),
                ("decode", 3 * UNPACKED, "right", ""),
                ("decode", f"N*{DENSE}", "right", ""),
                ("prefill", 2 * 513 * UNPACKED, "explained", "unpacked for each token"),
                ("decode", f"B*N*{DENSE}", "explained", "unpacked for each token"),
                ("prefill", 0, "undetermined", "unpacked when loaded"),
            ],
        ),
        (
            EXPERTS,
            [
                ("prefill", OF_ATTENTION + 8 * OF_EXPERT, "right", ""),
                # A step of two sequences passes four of the eight.
                ("decode", 3 * (OF_ATTENTION + 4 * OF_EXPERT), "right", ""),
                ("decode", 3 * (OF_ATTENTION + 8 * OF_EXPERT), "explained", "all experts"),
                ("prefill", 1026 * (OF_ATTENTION + 2 * OF_EXPERT), "explained", "unpacked for each token"),
            ],
        ),
    ],
    ids=["dense", "experts"],
)
def test_unpacking(config: dict[str, object], claims: list[tuple[str, int | str, str, str]], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows = [{"id": f"{i}", "stage": stage, "unpacking_flops": of} for i, (stage, of, _, _) in enumerate(claims)]
    head = {"costproof_claims": 1, "title": "formats", "source": "here", "claims": rows,
            "workload": {"text_tokens": 513, "new_tokens": 3, "batch": 2}}  # fmt: skip
    (tmp_path / "claims.yaml").write_text(json.dumps(head))
    judged = costproof.check(tmp_path / "claims.yaml", f"hf:{tmp_path}").judgements
    found = [(one.status, causes(one)) for one in judged]
    assert found == [(status, [frozenset({cause})] if cause else []) for *_, status, cause in claims]
