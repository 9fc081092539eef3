"""Names in quantisation settings that match no module are told; names of anything that the model has are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from costproof import api

MODEL: Final[dict[str, Any]] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
    "moe_intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": 512, "num_experts": 12, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
    "mlp_only_layers": [1], "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
WEIGHTS: Final = {"num_bits": 8, "type": "float", "strategy": "channel"}
CASES: Final[dict[str, tuple[dict[str, Any], list[str]]]] = {
    "fp8": (
        # A norm, a router, an expert, a dense layer and its end are there; a third layer and a tower are not.
        {"quant_method": "fp8", "weight_block_size": [64, 64], "modules_to_not_convert": [
            "lm_head", "model.layers.0.input_layernorm", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate_proj",
            "mlp.experts.11.up_proj", "mtp.fc", "model.layers.2.mlp", "visual"]},
        ["model.layers.2.mlp", "visual"],
    ),
    "an expert beyond the last": (
        {"quant_method": "fp8", "weight_block_size": [64, 64],
         "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.experts.12.up_proj"]},
        ["model.layers.0.mlp.experts.12.up_proj"],
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
         "llm_int8_skip_modules": ["lm_head", "vision_tower"]},
        ["vision_tower"],
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm",
         "modules_to_not_convert": ["o_proj", "merger"]},
        ["merger"],
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": True,
         "dynamic": {"-:.*down_proj": {}, r"+:.*\.experts\.1[01]\..*": {"bits": 8}, r"-:model\.layers\.9\..*": {}}},
        [r"-:model\.layers\.9\..*"],
    ),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 64, "sym": True, "autoround_version": "0.8.0",
         "packing_format": "auto_round:auto_gptq", "extra_config": {
             "model.layers.0.self_attn.q_proj": {"bits": 8}, "lm_haed": {"bits": 16}, ".*k_proj.*": {"bits": 8}}},
        ["lm_haed"],
    ),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "exclude_modules": ["lm_head", "*router*"],
         "quantized_layers": {"model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
                              "model.layers.0.self_attn.p_proj": {"quant_algo": "FP8"}}},
        ["*router*", "model.layers.0.self_attn.p_proj"],
    ),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head", "re:.*mlp.gate$"],
         "config_groups": {"g": {"targets": ["Linear", "re:.*wqkv.*"], "weights": WEIGHTS,
                                 "input_activations": {**WEIGHTS, "strategy": "token", "dynamic": True}}}},
        ["re:.*wqkv.*"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_names_of_no_module_are_told(case: str, tmp_path: Path) -> None:
    settings, unmatched = CASES[case]
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "quantization_config": settings}), encoding="utf-8")
    found = api.stored(f"hf:{tmp_path}")
    said = f"names of modules that the model does not have change nothing: {', '.join(map(repr, unmatched))}"
    assert [text for text in found.assumed if "change nothing" in text] == [said]
    assert found.exit_code in (0, 3)  # of an open size, as without the names
    notes = api.fits(f"hf:{tmp_path}", memory="1GB").notes
    assert f"assumed of the checkpoint: {said}" in notes


def test_many_names_are_counted(tmp_path: Path) -> None:
    names = [f"model.visual.blocks.{i}" for i in range(5)]
    settings = {"quant_method": "fp8", "weight_block_size": [64, 64], "modules_to_not_convert": ["lm_head", *names]}
    (tmp_path / "config.json").write_text(json.dumps({**MODEL, "quantization_config": settings}), encoding="utf-8")
    (said,) = (text for text in api.stored(f"hf:{tmp_path}").assumed if "change nothing" in text)
    assert said.endswith("'model.visual.blocks.0', 'model.visual.blocks.1', 'model.visual.blocks.2' and 2 more")
