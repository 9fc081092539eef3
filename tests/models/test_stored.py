"""How a checkpoint stores its weights, read from configurations as the tools of quantisation write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput
from costproof.models.stored import Stored, stored, without

AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
FP8: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 128}}},
}  # fmt: skip
MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16},
}


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        ({"quantization_config": FP8}, "fp8, blocks of 128 x 128 ($.quantization_config)"),
        ({"quantization_config": AWQ}, "awq, 4 bits, groups of 128 ($.quantization_config)"),
        (
            {"quantization_config": {**AWQ, "quant_method": "gptq", "group_size": -1}},
            "gptq, 4 bits ($.quantization_config)",
        ),
        ({"quantization_config": BNB}, "bitsandbytes, nf4, 4 bits ($.quantization_config)"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4 ($.quantization_config)"),
        (
            {"quantization_config": COMPRESSED},
            "compressed-tensors, pack-quantized, 4 bits, groups of 128 ($.quantization_config)",
        ),
        (
            {"compression_config": COMPRESSED},
            "compressed-tensors, pack-quantized, 4 bits, groups of 128 ($.compression_config)",
        ),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8 ($.text_config.quantization_config)"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "4 bits, groups of 64 ($.quantization)"),
        (
            {"quantization_config": FP8, "expert_dtype": "fp4"},
            "fp8, blocks of 128 x 128 ($.quantization_config); fp4 ($.expert_dtype)",
        ),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn (the dtype that the configuration names)"),
        ({"quantization_config": {}}, "a format without a name ($.quantization_config)"),
        ({"quantization_config": "fp8"}, "fp8 ($.quantization_config)"),
        ({"quantization_config": [1]}, "a format without a name ($.quantization_config)"),
    ],
)
def test_a_configuration_names_the_format(config: dict[str, Any], weights: str) -> None:
    assert dict(stored(config, None).quantised) == {"weights": weights}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"quantization_config": None},
        {"text_config": {"quantization_config": None}},
        {"torch_dtype": "auto"},
        {"quantization": {"codebook_size": 1024}},
    ],
)
def test_nothing_is_quantised_where_nothing_says_so(config: dict[str, Any]) -> None:
    assert stored(config, None) == Stored()


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "float32"}, "float32"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "float32"}}, "float32"),
        ({"dtype": "bfloat16", "text_config": {"dtype": "float32"}}, "bfloat16"),
        ({"dtype": {"text_config": "float32"}}, None),
        ({"torch_dtype": 32}, None),
    ],
)
def test_the_dtype_is_that_of_the_file(config: dict[str, Any], dtype: str | None) -> None:
    assert stored(config, None) == Stored(dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "data", "quantised"),
    [
        (
            "hf_quant_config.json",
            MODELOPT,
            {"weights": "NVFP4, groups of 16 (hf_quant_config.json)", "cache": "FP8 (hf_quant_config.json)"},
        ),
        (
            "quantize_config.json",
            {"bits": 4, "group_size": 128},
            {"weights": "4 bits, groups of 128 (quantize_config.json)"},
        ),
        (
            "quant_config.json",
            {"w_bit": 4, "q_group_size": 64},
            {"weights": "4 bits, groups of 64 (quant_config.json)"},
        ),
        (
            "model.safetensors.index.json",
            {"weight_map": {"a.weight": "1", "model.layers.0.mlp.up_proj.qweight": "1"}},
            {"weights": "a format without a name (model.layers.0.mlp.up_proj.qweight in model.safetensors.index.json)"},
        ),
        ("model.safetensors.index.json", {"weight_map": {"a.weight": "1"}}, {}),
    ],
)
def test_files_beside_the_configuration_are_read(
    tmp_path: Path, name: str, data: dict[str, Any], quantised: dict[str, str]
) -> None:
    (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    assert dict(stored({}, tmp_path / "config.json").quantised) == quantised


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "model.safetensors.index.json"])
def test_what_cannot_be_read_beside_the_configuration_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    (tmp_path / name).symlink_to("blob that was removed")
    with pytest.raises(BadInput, match="a link that leads nowhere"):
        stored({}, path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(BadInput, match="no regular file"):
        stored({}, path)


def test_a_quantised_cache_is_told_apart_from_the_weights() -> None:
    found = stored({"quantization_config": {**FP8, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, None)
    assert dict(found.quantised)["cache"] == "8 bits ($.quantization_config)"


def test_the_model_is_read_without_what_describes_the_checkpoint() -> None:
    config = {"hidden_size": 8, "quantization_config": None, "text_config": {"layers": 2, "compression_config": AWQ}}
    assert without(config) == {"hidden_size": 8, "text_config": {"layers": 2}}
