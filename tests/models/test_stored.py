"""How a checkpoint stores its weights, read from configurations as the tools of quantisation write them."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from costproof.ledger.errors import BadInput, Bug
from costproof.weights.stored import Stored, stored, without

stored_module: Any = importlib.import_module("costproof.weights.stored")
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
        ({"quantization": "q4f16_1"}, "q4f16_1 ($.quantization)"),  # MLC
        ({"quantization_bit": 4}, "4 bits ($.quantization_bit)"),  # ChatGLM
        ({"load_in_4bit": True}, "a format without a name ($.load_in_4bit)"),
        ({"_pre_quantization_dtype": "float16"}, "float16 ($._pre_quantization_dtype)"),
        ({"quant_method": "exl2", "bits": 4}, "exl2 ($.quant_method)"),
        ({"w_bit": 4, "q_group_size": 128}, "4 bits ($.w_bit)"),
        ({"hqq_config": {"nbits": 4}}, "a format without a name ($.hqq_config)"),
        ({"weight_dtype": "int8"}, "int8 ($.weight_dtype)"),
        ({"dtype": {"text_config": "float8_e4m3fn"}}, "float8_e4m3fn (the dtype that the configuration names)"),
        ({"text_config": {"torch_dtype": "int4"}}, "int4 (the dtype that the configuration names)"),
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
        {"quantization": None, "quantization_bit": 0, "load_in_8bit": False, "_pre_quantization_dtype": None},
        {"weight_dtype": "bfloat16", "kv_cache_dtype": "auto", "quantization_bit": 16},
        {"quantization_dim": 64, "quantization_levels": 4, "num_quantizers": 8, "quant_mode": False},
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
        ({"dtype": "auto"}, None),
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
        (
            "pytorch_model.bin.index.json",
            {"weight_map": {"a.codes": "1"}},
            {"weights": "a format without a name (a.codes in pytorch_model.bin.index.json)"},
        ),
        (
            "quantization_config.json",
            {"quant_method": "auto-round", "bits": 4},
            {"weights": "auto-round, 4 bits (quantization_config.json)"},
        ),
        (
            "quant_model_description_w8a8.json",
            {"model_quant_type": "W8A8"},
            {"weights": "a format without a name (quant_model_description_w8a8.json)"},
        ),
    ],
)
def test_files_beside_the_configuration_are_read(
    tmp_path: Path, name: str, data: dict[str, Any], quantised: dict[str, str]
) -> None:
    (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    assert dict(stored({}, tmp_path / "config.json").quantised) == quantised


@pytest.mark.parametrize(
    "name",
    [
        "hf_quant_config.json", "quantize_config.json", "model.safetensors.index.json", "recipe.yaml",
        "model.safetensors", "model-00002-of-00002.safetensors",
    ],
)  # fmt: skip
def test_what_cannot_be_read_beside_the_configuration_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    (tmp_path / name).symlink_to("blob that was removed")
    with pytest.raises(BadInput, match="a link that leads nowhere"):
        stored({}, path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(BadInput, match="not a regular file"):
        stored({}, path)


OF_TOOLS: Final[dict[str, dict[str, Any]]] = {
    "hf_quant_config.json": MODELOPT, "quantize_config.json": {"bits": 4, "group_size": 128},
    "quantization_config.json": {"quant_method": "auto-round", "bits": 4},
    "quant_config.json": {"w_bit": 4, "q_group_size": 64}, "quanto_qmap.json": {"lm_head": {"weights": "qint8"}},
    "quantization_map.json": {"lm_head": {"weights": "qint4"}},
    "quant_model_description_w8a8.json": {"model_quant_type": "W8A8"},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TOOLS)
def test_a_file_that_is_not_looked_for_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_text(json.dumps(OF_TOOLS[name]), encoding="utf-8")
    assert stored({}, tmp_path / "config.json").quantised
    monkeypatch.setattr(stored_module, "QUANTISATION_FILES", [n for n in stored_module.QUANTISATION_FILES if n != name])
    monkeypatch.setattr(stored_module, "_DESCRIPTIONS", "none*")
    assert stored({}, tmp_path / "config.json").quantised == (("weights", f"a format without a name ({name})"),)


@pytest.mark.parametrize("described", [AWQ, FP8, BNB, COMPRESSED, {"quant_algo": "FP8"}, {"bits": 8, "group_size": 64}])
@pytest.mark.parametrize("where", ["", "text_config", "thinker_config.text_config"])
def test_a_description_that_is_not_looked_for_is_found(
    described: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"quantization_config": described}
    for name in where.split(".")[::-1]:
        config = {name: config} if name else config
    assert stored(config, None).quantised
    monkeypatch.setattr(stored_module, "_described", lambda data, path: iter(()))
    with pytest.raises(Bug, match="the description of quantised weights is read"):
        stored(config, None)


def test_what_describes_no_weights(tmp_path: Path) -> None:
    """A codec has quantisers, logs have quantiles, other models have configurations, and 16 bits are plain."""
    named = {"eval_quantiles.json": {"weights": 1}, "Qwen-quantized.json": {"model_type": "qwen2", "bits": 4},
             "quant_log.json": {"perplexity": 5.5}}  # fmt: skip
    for name, data in named.items():
        (tmp_path / name).write_text(json.dumps(data), encoding="utf-8")
    codec = {"num_quantizers": 8, "quant_noise": 0.1, "sub": [{"bits": 16, "group_size": 64}], "group_size": 4}
    assert stored({**codec, "quantization_config": None}, tmp_path / "config.json") == Stored()


DOWN: Final = "layers.0.mlp.down_proj"


@pytest.mark.parametrize(
    "tensor",
    [
        f"{DOWN}.qweight", f"{DOWN}.g_idx", f"{DOWN}.weight_packed", f"{DOWN}.weight_scale_inv",
        f"{DOWN}.weight.absmax", f"{DOWN}.weight.quant_state.bitsandbytes__nf4", f"{DOWN}.SCB",
        f"{DOWN}.codebooks", f"{DOWN}.W_q", f"{DOWN}.weight._data", f"{DOWN}.weight._scale", f"{DOWN}.q_weight",
        f"{DOWN}.trellis", f"{DOWN}.Qidxs", f"{DOWN}.centroids.weight", f"{DOWN}.scales", f"{DOWN}.weight_qdata",
        "layers.0.feed_forward.w1.qscale_weight", "model.layers.0.mlp.experts.gate_up_proj_blocks",
        f"{DOWN}.weight_quantizer._scale", f"{DOWN}.deq_scale",
    ],
)  # fmt: skip
def test_a_tensor_of_a_format_gives_it_away(tmp_path: Path, tensor: str) -> None:
    plain = ["model.embed_tokens.weight", f"{DOWN}.weight", "h.0.attn.bias", "h.0.scale", "layers.0.layer_scale"]
    index = tmp_path / "model.safetensors.index.json"
    for names, found in (
        (plain, {}),
        ([*plain, tensor], {"weights": f"a format without a name ({tensor} in {index.name})"}),
    ):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "1")}), encoding="utf-8")
        assert dict(stored({}, tmp_path / "config.json").quantised) == found


@pytest.mark.parametrize(
    ("tensors", "sign"),
    [
        ({f"{DOWN}.weight": "BF16", "h.0.attn.bias": "U8", "position_ids": "I64"}, None),
        ({f"{DOWN}.qweight": "I32"}, f"{DOWN}.qweight"),
        ({f"{DOWN}.weight": "F8_E4M3"}, f"{DOWN}.weight"),
        ({f"{DOWN}.weight": "U8"}, f"{DOWN}.weight"),
    ],
)
def test_the_header_of_weights_is_read(tmp_path: Path, tensors: dict[str, str], sign: str | None) -> None:
    header = json.dumps({name: {"dtype": dtype} for name, dtype in tensors.items()}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "other.safetensors").write_text("version https://git-lfs.github.com/spec/v1", encoding="utf-8")
    found = {} if sign is None else {"weights": f"a format without a name ({sign} in model.safetensors)"}
    assert dict(stored({}, tmp_path / "config.json").quantised) == found


def _shard(path: Path, tensors: dict[str, int]) -> int:
    """Write a file of safetensors with plain tensors of so many bytes, and return the size of the file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, nbytes in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [nbytes // 2], "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))
    return path.stat().st_size


TABLE: Final = "model.embed_tokens.weight"
INV: Final = "model.layers.0.self_attn.rotary_emb.inv_freq"


@pytest.mark.parametrize(
    ("total", "shards", "contradicted"),
    [
        (1000, ({TABLE: 600}, {"a.weight": 400}), False),
        (1000, ({TABLE: 596}, {"a.weight": 400}), True),  # no tolerance, nothing accounts for 4 bytes
        (1001, ({TABLE: 600}, {"a.weight": 400}), True),
        (1000, ({TABLE: 300}, {"a.weight": 200}), True),
        (500, ({TABLE: 600}, {"a.weight": 400}), True),
        (1000, ({TABLE: 300},), False),  # the other one is not there: nothing is known
        ("files", ({TABLE: 600}, {"a.weight": 400}), False),  # with the headers
        (1600, ({TABLE: 600}, {"a.weight": 400}), False),  # a copy of the table for the output
        (1600, ({TABLE: 600}, {"lm_head.weight": 400}), True),  # which has its own
        (1000, ({TABLE: 600, INV: 8}, {"a.weight": 400}), False),  # a buffer in the files
        (1000, ({TABLE: 600, "more": 8}, {"a.weight": 400}), False),  # a tensor that the index does not name
        (996, ({TABLE: 600, "more": 8}, {"a.weight": 400}), True),
    ],
)
def test_a_total_that_contradicts_the_shards(
    tmp_path: Path, total: int | str, shards: tuple[dict[str, int], ...], contradicted: bool
) -> None:
    names = ["a.safetensors", "b.safetensors"]
    size = sum(_shard(tmp_path / name, tensors) for name, tensors in zip(names, shards, strict=False))
    total = size if isinstance(total, str) else total
    held = {name: where for tensors, where in zip(shards, names, strict=False) for name in tensors if name != "more"}
    index = {"metadata": {"total_size": total}, "weight_map": {**held, **({} if len(shards) > 1 else {"x": names[1]})}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    nbytes = sum(sum(tensors.values()) for tensors in shards)
    place = f"total_size {total} in model.safetensors.index.json, {nbytes} bytes in its files"
    text = f"a format without a name ({place})"
    assert dict(stored({}, tmp_path / "config.json").quantised) == ({"weights": text} if contradicted else {})


RECIPE = """
default_stage:
  default_modifiers:
    SmoothQuantModifier: {smoothing_strength: 0.8}
    QuantizationModifier:
      ignore: [lm_head]
      targets: [Linear]
      scheme: FP8_DYNAMIC
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (RECIPE, {"weights": "FP8_DYNAMIC (recipe.yaml)"}),
        ("quant_stage:\n  GPTQModifier:\n    config_groups: {}\n", {"weights": "GPTQModifier (recipe.yaml)"}),
        (
            "QuantizationModifier:\n  kv_cache_scheme:\n    num_bits: 8\n",
            {"weights": "QuantizationModifier (recipe.yaml)", "cache": "a format without a name (recipe.yaml)"},
        ),
        ("SparseGPTModifier:\n  sparsity: 0.5\nkv_cache_scheme: null\n", {}),
        ("flour: 500 g\n", {}),
    ],
)
def test_a_recipe_of_llm_compressor(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    assert dict(stored({}, tmp_path / "config.json").quantised) == found


@pytest.mark.parametrize("tensor", ["self_attn.k_scale", "self_attn.attn.v_scale", "self_attn.kv_scale"])
def test_scales_of_keys_and_values_give_a_quantised_cache_away(tmp_path: Path, tensor: str) -> None:
    name = f"model.layers.0.{tensor}"
    index = {"weight_map": {"model.embed_tokens.weight": "1", "h.0.logit_scale": "1", name: "1"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    found = {"cache": f"a format without a name ({name} in model.safetensors.index.json)"}
    assert dict(stored({}, tmp_path / "config.json").quantised) == found


def test_a_folder_of_gguf(tmp_path: Path) -> None:
    (tmp_path / "model-BF16.gguf").write_bytes(b"")
    assert not stored({}, tmp_path / "config.json").quantised
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"")
    found = {"weights": "a format without a name (model-Q4_K_M.gguf)"}
    assert dict(stored({}, tmp_path / "config.json").quantised) == found


@pytest.mark.parametrize(
    ("config", "cache"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, "fp8_e4m3 ($.kv_cache_dtype)"),
        ({"text_config": {"kv_cache_scheme": {"num_bits": 8}}}, "8 bits ($.text_config.kv_cache_scheme)"),
        ({"kv_cache_quant_algo": "FP8"}, "FP8 ($.kv_cache_quant_algo)"),
    ],
)
def test_a_configuration_names_the_cache_alone(config: dict[str, Any], cache: str) -> None:
    assert dict(stored(config, None).quantised) == {"cache": cache}


def test_a_quantised_cache_is_told_apart_from_the_weights() -> None:
    found = stored({"quantization_config": {**FP8, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, None)
    assert dict(found.quantised)["cache"] == "8 bits ($.quantization_config)"


def test_the_model_is_read_without_what_describes_the_checkpoint() -> None:
    config = {"hidden_size": 8, "quantization_config": None, "text_config": {"layers": 2, "compression_config": AWQ}}
    assert without(config) == {"hidden_size": 8, "text_config": {"layers": 2}}
