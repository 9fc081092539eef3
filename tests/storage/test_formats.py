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
           [WEIGHT, ("weight_scale_inv", "F8_E8M0", (2, 2), "scale"), BIAS]),
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


def test_experts_in_a_dtype_of_their_own_are_not_known() -> None:
    with pytest.raises(UnknownFormat):
        read_scheme({"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}, {}, "deepseek_v4")


def test_names_of_e4m3_and_of_a_layout_that_is_not_marlin_are_read() -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    for fmt in (None, "e4m3", "e4m3fn", "float8_e4m3fn"):
        assert scheme({**blocks, "fmt": fmt}).rules[0].format == scheme(blocks).rules[0].format
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    assert scheme({**gptq, "is_marlin_format": False}).assumed == scheme(gptq).assumed
