"""Layouts and formulas of quantised linear layers against hand counts, and the modules that a scheme leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from costproof.analytic.quantised import MatrixShape, parts_of
from costproof.storage.formats import LinearShape, cache_tensors
from costproof.storage.scheme import LinearModule, Scheme, UnknownFormat, read_scheme
from costproof.storage.tensors import StoredTensor, totals


def scheme(description: dict[str, Any], model_type: str = "llama") -> Scheme:
    return read_scheme({"quantization_config": description}, {}, model_type)


def layout(of: Scheme, rows: int, columns: int, *, bias: bool = False, dtype: str = "BF16") -> tuple[StoredTensor, ...]:
    found = of.rules[-1].format
    return found.tensors(LinearShape(rows, columns, bias, dtype))


HAND: dict[str, tuple[dict[str, Any], str, int, int, int]] = {
    # 7,168 x 576 in blocks of 128 x 128: 56 rows of blocks, 576 / 128 = 4.5 -> 5, in float32.
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "deepseek_v3", 7168, 576,
                   7168 * 576 + 4 * 56 * 5),
    "fp8 blocks, Qwen3": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "qwen3", 130, 129,
                          130 * 129 + 2 * 2 * 2),
    # Scales that are powers of two: [56, 144] in float32 in the file of DeepSeek-V3.1 for down_proj [7168, 18432], and
    # [12, 56] of one byte in that of DeepSeek-V4-Pro for wq_a [1536, 7168].
    "fp8 blocks, DeepSeek-V3.1": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
                                   "scale_fmt": "ue8m0"}, "deepseek_v3", 7168, 18432, 7168 * 18432 + 4 * 56 * 144),
    "fp8 blocks, DeepSeek-V3.2": ({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
                                  "deepseek_v32", 130, 129, 130 * 129 + 4 * 2 * 2),
    "fp8 blocks, DeepSeek-V4": ({"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
                                "deepseek_v4", 1536, 7168, 1536 * 7168 + 12 * 56),
    # 4 bits: eight in a word; groups of 128; zero points of four bits; scales of two bytes; an index of four for each
    # column; a bias of zeros in float16.
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "llama", 96, 256,
             4 * 32 * 96 + 4 * 2 * 12 + 2 * 2 * 96 + 4 * 256 + 2 * 96),
    # 3 bits: 256 columns are 24 words; 96 rows of zero points 9 words.
    "gptq of 3 bits, whole columns": ({"quant_method": "gptq", "bits": 3, "group_size": -1,
                                       "meta": {"quantizer": ["gptqmodel:2.0"]}}, "llama", 96, 256,
                                      4 * 24 * 96 + 4 * 9 + 2 * 96 + 4 * 256),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}, "llama", 96, 256,
            4 * 256 * 12 + 4 * 4 * 12 + 2 * 4 * 96),
    # Rows of 32 words; four groups take a word of zero points, of which the kernel reads two; 16 scales.
    "awq gemv": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}, "llama", 96, 256,
                 4 * 96 * 32 + 4 * 96 * 2 + 2 * 96 * 16),
    # 1,152 / 128 = 9 groups are two words, 16 scales; at groups of 32 they are 36, five words, of which eight are read.
    "awq gemv of wide groups": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMV"}, "llama", 8,
                                1152, 4 * 8 * 144 + 4 * 8 * 2 + 2 * 8 * 16),
    "awq gemv of small groups": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}, "llama", 8,
                                 1152, 4 * 8 * 144 + 4 * 8 * 8 + 2 * 8 * 64),
    # Four rows in words of two bytes; 16 scales and 16 zero points of two bytes for a row.
    "awq gemv_fast": ({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv_fast"}, "llama", 96, 256,
                      2 * 24 * 256 + 2 * 2 * 96 * 16),
    # 16 columns of a row in two words; no zero points.
    "awq marlin": ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False, "version": "marlin"},
                   "llama", 192, 256, 4 * 16 * 384 + 2 * 2 * 192),
    # AutoRound's own format has no index and no bias of zeros; its files for AutoGPTQ have an index.
    "auto-round": ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "autoround_version": "0.12.3",
                    "packing_format": "auto_round:auto_gptq", "data_type": "int", "sym": True, "iters": 0,
                    "low_gpu_mem_usage": True}, "llama", 96, 256, 4 * 32 * 96 + 4 * 2 * 12 + 2 * 2 * 96),
    "auto-round of 3 bits, whole columns": (
        {"quant_method": "auto-round", "bits": 3, "group_size": -1, "autoround_version": "0.6.0",
         "packing_format": "auto_round", "scale_dtype": "torch.bfloat16"}, "llama", 96, 256,
        4 * 24 * 96 + 4 * 9 + 2 * 96),
    "auto-round for AWQ": ({"quant_method": "auto-round", "bits": 4, "group_size": 64, "autoround_version": "0.9.1",
                            "packing_format": "auto_round:auto_awq"}, "llama", 96, 256,
                           4 * 256 * 12 + 4 * 4 * 12 + 2 * 4 * 96),
    "gptq by AutoRound": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "autoround_version": "0.4.2",
                           "data_type": "int", "scale_dtype": "torch.float16", "act_bits": 32, "act_dynamic": True,
                           "enable_quanted_input": True, "to_quant_block_names": None, "desc_act": False}, "llama",
                          96, 256, 4 * 32 * 96 + 4 * 2 * 12 + 2 * 2 * 96 + 4 * 256),
    # MLX: eight in a word of four bytes, a scale and an offset of two bytes for 64 columns.
    "mlx": ({"bits": 4, "group_size": 64, "mode": "affine"}, "llama", 96, 256, 4 * 96 * 32 + 2 * 2 * 96 * 4),
    # NVFP4: half a byte each, a scale of one byte for 16 columns, two float32 numbers.
    "tiles of torchao": ({"quant_method": "torchao", "quant_type": {"default": {
        "_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {"group_size": 32, "int4_packing_format": {
            "_type": "Int4PackingFormat", "_data": "TILE_PACKED_TO_4D"}}}}}, "llama", 90, 1056,
                         96 * 2048 // 2 + 2 * 2 * 64 * 96),
    "mxfp4": ({"quant_method": "mxfp4"}, "gpt_oss", 96, 256, 96 * 128 + 96 * 8),
    "nvfp4 without a group": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "llama", 96, 256,
                              96 * 128 + 96 * 16 + 4 + 4),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "llama", 96, 256,
              96 * 128 + 96 * 16 + 4 + 4),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "llama", 96, 256, 96 * 256 + 4 + 4),
    # Columns in the order of their activations: an index of four bytes for each.
    "packed, ordered": ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128,
                                           "symmetric": True, "actorder": "group"}}}}, "llama", 96, 256,
                        4 * 96 * 32 + 2 * 96 * 2 + 8 * 2 + 4 * 256),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_bytes_are_those_counted_by_hand(name: str) -> None:
    description, model_type, rows, columns, expected = HAND[name]
    of = scheme(description, model_type)
    assert totals(layout(of, rows, columns)).bytes == expected
    parts = parts_of(of.rules[-1].format, MatrixShape(rows, columns, has_bias=False, dtype="bfloat16"))
    assert sum(size for _, size in parts.values()) == expected


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
WEIGHT = ("weight", "F8_E4M3", (160, 224), "weight")
BIAS = ("bias", "BF16", (160,), "bias")
ACTORDER = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {
    "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
                                       "symmetric": True, "actorder": "group"}}}}  # fmt: skip
BESIDE_THE_LIBRARIES: dict[str, tuple[dict[str, Any], str, list[tuple[str, str, tuple[int, ...], str]]]] = {
    # Headers of gpt-oss-20b: of an expert, blocks U8 [rows, columns / 32, 16] and scales U8 [rows, columns / 32].
    "mxfp4": ({"quant_method": "mxfp4"}, "gpt_oss",
              [("blocks", "U8", (160, 7, 16), "weight"), ("scales", "U8", (160, 7), "scale"), BIAS]),
    # Headers of DeepSeek-V3, V3.1 and V4-Pro, and of Qwen3-8B-FP8; two blocks of rows and two of columns.
    "V3": (FP8, "deepseek_v3", [WEIGHT, ("weight_scale_inv", "F32", (2, 2), "scale"), BIAS]),
    "V3.1": ({**FP8, "scale_fmt": "ue8m0"}, "deepseek_v3",
             [WEIGHT, ("weight_scale_inv", "F32", (2, 2), "scale"), BIAS]),
    "V4": ({**FP8, "scale_fmt": "ue8m0"}, "deepseek_v4",
           [WEIGHT, ("scale", "F8_E8M0", (2, 2), "scale"), BIAS]),
    "qwen3": (FP8, "qwen3", [WEIGHT, ("weight_scale_inv", "BF16", (2, 2), "scale"), BIAS]),
    "qwen2": (FP8, "qwen2", [WEIGHT, ("weight_scale_inv", "F32", (2, 2), "scale"), BIAS]),
    "fp8, static": ({"quant_method": "fp8", "activation_scheme": "static"}, "llama",
                    [WEIGHT, ("weight_scale_inv", "BF16", (), "scale"), ("activation_scale", "BF16", (), "scale"),
                     BIAS]),
    # compressed-tensors below 0.16: with actorder group, a group index for each column; 224 x 4 bits are 28 words.
    "packed, ordered": (ACTORDER, "llama",
                        [("weight_packed", "I32", (160, 28), "weight"), ("weight_shape", "I64", (2,), "table"),
                         ("weight_scale", "BF16", (160, 7), "scale"), ("weight_g_idx", "I32", (224,), "index"), BIAS]),
    # GPTQModel stores the bias of the model, in float16; 3 bits: 21 words of columns, 15 of rows.
    "gptqmodel": ({"quant_method": "gptq", "bits": 3, "group_size": 32, "meta": {"quantizer": ["gptqmodel:2.0"]}},
                  "llama", [("qweight", "I32", (21, 160), "weight"), ("qzeros", "I32", (7, 15), "zero point"),
                            ("scales", "F16", (7, 160), "scale"), ("g_idx", "I32", (224,), "index"),
                            ("bias", "F16", (160,), "bias")]),
}  # fmt: skip
"""Layouts of W [160, 224] with a bias that no library in ``quantised_libraries.json`` writes, tensor by tensor."""


@pytest.mark.parametrize("name", BESIDE_THE_LIBRARIES)
def test_tensors_that_no_library_in_the_table_writes(name: str) -> None:
    description, model_type, expected = BESIDE_THE_LIBRARIES[name]
    found = layout(scheme(description, model_type), 160, 224, bias=True)
    assert [(t.name, t.dtype, t.shape, t.purpose) for t in found] == expected


def test_scales_of_a_cache() -> None:
    """ModelOpt: a float32 number in each projection; compressed-tensors: a vector of one in the attention."""
    found = {kind: [(t.name, t.dtype, t.shape, t.purpose) for t in cache_tensors(kind, "BF16")]
             for kind in ("modelopt", "compressed-tensors", "")}  # fmt: skip
    assert found == {
        "modelopt": [("k_proj.k_scale", "F32", (), "scale"), ("v_proj.v_scale", "F32", (), "scale")],
        "compressed-tensors": [("k_scale", "BF16", (1,), "scale"), ("v_scale", "BF16", (1,), "scale")],
        "": [],
    }


@pytest.mark.parametrize(
    ("description", "model_type", "expected"),
    [
        (FP8, "deepseek_v3", "scales of blocks are F32, which no key says"),
        (FP8, "qwen3", "scales of blocks are BF16, which no key says"),
        ({"quant_method": "fp8"}, "llama", "scales are BF16, which no key says"),
        ({**FP8, "scale_fmt": "ue8m0"}, "deepseek_v3",
         "scales of blocks are F32, where scale_fmt may also mean powers of two in F8_E8M0"),
        ({**FP8, "scale_fmt": "ue8m0"}, "deepseek_v4",
         "scales of blocks are F8_E8M0, where scale_fmt may also mean powers of two in F32"),
        (ACTORDER, "llama", "shapes of packed matrices are I64, which no key says"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "llama",
         "a bias of zeros is stored for layers without one, as AutoGPTQ does"),
    ],
)  # fmt: skip
def test_assumptions_on_dtypes(description: dict[str, Any], model_type: str, expected: str) -> None:
    assert scheme(description, model_type).rules[-1].format.assumed() == (expected,)


def test_sizes_may_be_symbols() -> None:
    import sympy

    rows, columns = sympy.symbols("o i", positive=True, integer=True)
    found = layout(scheme({"quant_method": "fp8", "weight_block_size": [128, 128]}), rows, columns)
    size = sum(t.bytes for t in found)
    assert size == rows * columns + 4 * sympy.ceiling(rows / 128) * sympy.ceiling(columns / 128)


PATHS = ("model.layers.3.mlp.gate_proj", "model.layers.3.mlp.gate", "model.layers.11.self_attn.q_proj", "lm_head")


@pytest.mark.parametrize(
    ("description", "kept"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"lm_head"}),
        # A list replaces the default, which is the head; a name ends at a part of the path, or is a suffix.
        ({"quant_method": "fp8", "weight_block_size": [128, 128],
          "modules_to_not_convert": ["model.layers.3.mlp.gate"]},
         {"model.layers.3.mlp.gate"}),
        ({"quant_method": "fp8", "weight_block_size": [128, 128],
          "modules_to_not_convert": ["model.layers.1", "lm_head"]}, {"lm_head"}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["q_proj"]},
         {"model.layers.11.self_attn.q_proj"}),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["gate"]},
         {"lm_head", "model.layers.3.mlp.gate_proj", "model.layers.3.mlp.gate"}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True, "dynamic": {"-:.*q_proj": {}}},
         {"model.layers.11.self_attn.q_proj"}),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*self_attn*"]},
         {"lm_head", "model.layers.11.self_attn.q_proj"}),
        # The exact name has 16 bits; a pattern is found anywhere; the head is in no block.
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "autoround_version": "0.12.3",
          "packing_format": "auto_round:auto_gptq", "extra_config": {
              "model.layers.3.mlp.gate": {"bits": 16, "data_type": "float"}, "self_attn": {"bits": 16}}},
         {"lm_head", "model.layers.3.mlp.gate", "model.layers.11.self_attn.q_proj"}),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "autoround_version": "0.12.3",
          "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.visual,model.layers.3.",
          "extra_config": {"lm_head": {"bits": 8}}}, {"model.layers.11.self_attn.q_proj"}),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "autoround_version": "0.12.3",
          "packing_format": "auto_round:auto_gptq",
          "to_quant_block_names": [["model.layers.10", "model.layers.11", "model.layers.12"]]},
         {"lm_head", "model.layers.3.mlp.gate_proj", "model.layers.3.mlp.gate"}),
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["re:.*mlp.gate$"],
          "config_groups": {"g": {"targets": ["Linear"], "weights": {
              "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}}}},
         {"model.layers.3.mlp.gate"}),
    ],
)  # fmt: skip
def test_what_is_left_as_it_is(description: dict[str, Any], kept: set[str]) -> None:
    of = scheme(description)
    modules = [LinearModule(path, is_head=path == "lm_head", in_layers=path != "lm_head") for path in PATHS]
    assert {m.path for m in modules if of.format_of(m) is None} == kept


@pytest.mark.parametrize(
    ("description", "rows", "columns"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 96, 100),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 96, 192),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}, 96, 96),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "marlin", "zero_point": False}, 96, 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 96, 40),
    ],
)
def test_a_shape_that_the_library_refuses_is_no_number(description: dict[str, Any], rows: int, columns: int) -> None:
    with pytest.raises(UnknownFormat, match="takes multiples of"):
        scheme(description).format_of(LinearModule("model.layers.0.a", columns=columns, rows=rows))


def test_the_projection_of_torchs_attention_stays() -> None:
    """replace_with_fp8_linear and replace_with_bnb_linear take ``type(module) is nn.Linear``."""
    kinds = ("NonDynamicallyQuantizableLinear", "Linear")
    projection = LinearModule("head.attention.out_proj", kinds[0], 128, classes=kinds, rows=128)
    for left in ({"quant_method": "fp8", "weight_block_size": [128, 128]},
                 {"quant_method": "bitsandbytes", "load_in_8bit": True}):  # fmt: skip
        assert scheme(left).format_of(projection) is None
        assert scheme(left).format_of(replace(projection, kind="Linear")) is not None
    int8 = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}
    assert scheme({"quant_method": "torchao", "quant_type": {"default": int8}}).format_of(projection) is not None


def test_layers_of_modelopt_have_formats_of_their_own() -> None:
    """``quantized_layers`` of ModelOpt's file, which the configuration may lack, names layers or modules around."""
    layers = {"model.layers.3.mlp": {"quant_algo": "NVFP4", "group_size": 16},
              "model.layers.3.mlp.gate": {"quant_algo": "FP8"}, "model.layers.1": {"quant_algo": "FP8"}}  # fmt: skip
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "MIXED_PRECISION",
                                                              "quantized_layers": layers}}  # fmt: skip
    stated = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    for of in (read_scheme({"quantization_config": stated}, {"hf_quant_config.json": own}, "llama"),
               read_scheme({}, {"hf_quant_config.json": own}, "llama"),
               scheme({**stated, "quantized_layers": layers})):  # fmt: skip
        found = {path: of.format_of(LinearModule(path, rows=96, columns=256)) for path in PATHS}
        sizes = {
            path: one and totals(one.tensors(LinearShape(96, 256, False, "BF16"))).bytes for path, one in found.items()
        }
        nvfp4, fp8 = 96 * 128 + 96 * 16 + 4 + 4, 96 * 256 + 4 + 4
        assert sizes == dict(zip(PATHS, (nvfp4, fp8, None, None), strict=True))


def test_rules_of_single_modules_change_bits_and_groups() -> None:
    of = scheme({"quant_method": "gptq", "bits": 4, "group_size": 128,
                 "dynamic": {"+:.*q_proj": {"bits": 8, "group_size": 32}}})  # fmt: skip
    found = of.format_of(LinearModule("model.layers.0.self_attn.q_proj"))
    assert found is not None
    # Eight bits: four in a word; 256 / 32 groups; and the bias of zeros.
    expected = 4 * 64 * 96 + 4 * 8 * 24 + 2 * 8 * 96 + 4 * 256 + 2 * 96
    assert totals(found.tensors(LinearShape(96, 256, False, "BF16"))).bytes == expected


@pytest.mark.parametrize(
    "description",
    [
        {"quant_method": "hqq", "bits": 4},
        {"quant_method": "torchao", "quant_type": "int4_weight_only"},
        {"quant_method": "mxfp4"},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "auto-round", "bits": 4, "group_size": 128},
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round"},
        *(
            {
                "quant_method": "auto-round",
                "bits": 4,
                "group_size": 128,
                "packing_format": "auto_round:auto_gptq",
                "autoround_version": "0.12.3",
                **more,
            }
            for more in (
                {"autoround_version": "0.5.1"},
                {"packing_format": "auto_round:llm_compressor"},
                {"act_bits": 8},
                {"data_type": "mx_fp"},
                {"super_bits": 4},
                {"static_kv_dtype": "fp8"},
                {"rotation_config": {"a": 1}},
                {"bits": 5},
                {"extra_config": {"a": {"data_type": "fp"}}},
                {"extra_config": {"(": {"bits": 8}}},
                {"block_name_to_quantize": 4},
                {"packing_format": "auto_round:auto_awq", "bits": 8},
            )
        ),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "autoround_version": "0.4", "act_bits": 8},
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "provider": "auto-round", "to_quant_block_names": "a"},
        {"quant_method": "awq", "bits": 4, "group_size": 96, "version": "gemv"},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "marlin"},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": False},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "ipex"},
        {"quant_method": "awq", "bits": 2**31, "group_size": 32},
        {"quant_method": "awq", "w_bit": 33, "q_group_size": 32},
        {"quant_method": "gptq", "bits": "4"},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "awq", "bits": 4, "group_size": -1},
        {"quant_method": "awq", "bits": 8, "group_size": 128},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "int"},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"},
        {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": 4},
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "is_marlin_format": True},
        {"quant_method": "gptq", "bits": 16, "group_size": 32},
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"+:a": {"bits": 99}}},
        {"bits": 7, "group_size": 32},
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"+:(": {"bits": 8}}},
        {"quant_method": "modelopt", "quant_algo": "W4A8"},
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128, "pre_quant_scale": True},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4_AWQ"}},
        },
        {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"g": {"weights": {}}}},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"bits": 4, "group_size": 32, "mode": "mxfp4"},
        {"bits": 4},
        "fp8",
    ],
)
def test_a_layout_that_is_not_known_is_no_number(description: Any) -> None:
    with pytest.raises(UnknownFormat):
        scheme(description)


V4 = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}


@pytest.mark.parametrize(
    ("data", "model_type"),
    [
        ({"expert_dtype": "fp4"}, "deepseek_v4"),
        # The class of DeepSeek-V4 moves the key into the settings, others do not.
        ({"quantization_config": V4, "expert_dtype": "fp4"}, "deepseek_v3"),
        ({"quantization_config": V4, "expert_dtype": "int4"}, "deepseek_v4"),
        ({"quantization_config": V4, "expert_dtype": "bfloat16"}, "deepseek_v4"),
        ({"quantization_config": V4, "expert_dtype": "bfloat16"}, "deepseek_v3"),
        ({"quantization_config": V4 | {"expert_dtype": "nvfp4"}}, "deepseek_v4"),
        ({"quantization_config": V4 | {"activation_scheme": "static"}, "expert_dtype": "fp4"}, "deepseek_v4"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "expert_dtype": "fp4"},
         "deepseek_v4"),
    ],
)  # fmt: skip
def test_experts_in_another_dtype_of_their_own_are_not_known(data: dict[str, Any], model_type: str) -> None:
    with pytest.raises(UnknownFormat):
        read_scheme(data, {}, model_type)


@pytest.mark.parametrize(
    ("rows", "columns", "packed", "scales"),
    [
        (2048, 4096, 2048 * 2048, 2048 * 128),  # w1 of DeepSeek-V4-Flash
        (1, 2, 1, 1),
        (3, 34, 3 * 17, 3 * 2),  # the second scale is that of two columns
        (5, 62, 5 * 31, 5 * 2),
        (130, 96, 130 * 48, 130 * 3),
        (7, 290, 7 * 145, 7 * 10),
    ],
)
def test_experts_of_four_bits_by_hand(rows: int, columns: int, packed: int, scales: int) -> None:
    """Two columns in a byte, and a byte for each row and 32 columns; four bytes unless it is a power of two."""
    data = {"quantization_config": V4, "expert_dtype": "fp4"}
    expert = LinearModule("layers.3.ffn.experts.0.w1", "Expert", columns, rows=rows)
    for powers, size in ((True, 1), (False, 4)):
        given = data if powers else data | {"quantization_config": {**V4, "scale_fmt": None}}
        of = read_scheme(given, {}, "deepseek_v4").format_of(expert)
        assert of is not None
        weight, scale = of.tensors(LinearShape(rows, columns, False, "BF16"))
        assert (weight.name, weight.dtype, weight.bytes) == ("weight", "I8", packed)
        assert (scale.name, scale.dtype, scale.bytes) == ("scale", "F8_E8M0" if powers else "F32", size * scales)
        parts = parts_of(of, MatrixShape(rows, columns, has_bias=False, dtype="bfloat16"))
        assert parts == {"weight": (packed, packed), "scale": (scales, size * scales)}


def test_only_experts_are_of_four_bits() -> None:
    """Also if the settings themselves have the key; what a list has stays as it is."""
    inner = V4 | {"expert_dtype": "fp4", "modules_to_not_convert": ["layers.0.ffn.experts"]}
    of = read_scheme({"quantization_config": inner}, {}, "glm_moe_dsa")
    kinds = {
        path: of.format_of(LinearModule(path, kind, 64, rows=96))
        for path, kind in (
            ("layers.1.ffn.experts.0.w1", "Expert"),
            ("layers.0.ffn.experts.0.w1", "Expert"),
            ("layers.1.attn.wq_a", "Linear"),
        )
    }
    titles = ["" if one is None else one.title for one in kinds.values()]
    assert titles == ["fp4, scales for groups", "", "fp8, scales for blocks"]
    odd = LinearModule("layers.1.ffn.experts.0.w1", "Expert", 65, rows=96)
    with pytest.raises(UnknownFormat, match="65 columns"):
        of.format_of(odd)
    both = {"quantization_config": V4 | {"expert_dtype": "fp8"}, "expert_dtype": "fp4"}
    assert len(read_scheme(both, {}, "deepseek_v4").rules) == 1, "the settings' own key counts, as in the class"


def test_names_of_e4m3_and_of_a_layout_that_is_not_marlin_are_read() -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for fmt in (None, "e4m3", "e4m3fn", "float8_e4m3fn"):
        assert scheme({**blocks, "fmt": fmt}).rules[0].format == scheme(blocks).rules[0].format
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    assert scheme({**gptq, "is_marlin_format": False}).assumed == scheme(gptq).assumed
