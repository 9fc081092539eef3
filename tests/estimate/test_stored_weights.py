"""The roofline of quantised checkpoints: bytes as stored, and products in the dtype that they run in, by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from costproof.estimate.arithmetic import Arithmetic
from costproof.estimate.hardware import machine
from costproof.estimate.roofline import ROOFLINE, Roofline, UnpackingTime, roofline_in
from costproof.ledger.errors import Problems
from costproof.ledger.schema import to_data
from costproof.reports.outputs import variants
from costproof.run.operands import read_operand
from costproof.run.roofline import roofline

HIDDEN, INNER, KV, VOCABULARY, LAYERS = 256, 640, 128, 1000, 2
LINEAR = 2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * INNER * HIDDEN
"""Weights of the linear layers of a layer."""
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
PEAK = {"float8": 1979 * 10**12, "bfloat16": 989 * 10**12}
PEAK_B200 = {"float4": 9000 * 10**12, "bfloat16": 2250 * 10**12}
VECTOR = 67 * 10**12
"""Float32 of the vector units of an H100 SXM, by its data sheet."""


def bounds(folder: Path, described: Mapping[str, Any] | None, on: str = "h100-sxm") -> Roofline:
    data = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "head_dim": 64,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCABULARY, "dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    data |= {} if described is None else {"quantization_config": described}
    (folder / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return roofline(f"hf:{folder / 'config.json'}@chat,text_tokens=40,new_tokens=1", on=on)


def decode(found: Roofline) -> Any:
    return next(s for s in found.stages if s.id == "decode")


EXPERTS = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 256, "head_dim": 64,
    "intermediate_size": 640, "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(("family", "described"), [("llama", FP8), ("llama", AWQ), ("qwen3_moe", FP8)])
def test_exported_graphs_give_the_bounds_of_the_formulas(
    tmp_path: Path, family: str, described: dict[str, Any]
) -> None:
    bounds(tmp_path, described)
    config = tmp_path / "config.json"
    if family != "llama":
        config.write_text(json.dumps({**EXPERTS, "quantization_config": described}), encoding="utf-8")
    target = f"hf:{config}@chat,text_tokens=40,new_tokens=2"
    formulas = roofline(target, on="h100-sxm")
    graphs = roofline(read_operand(target, by_graph=True).baseline, on="h100-sxm", source="static")
    assert (graphs.source, graphs.stored, graphs.exit_code) == ("static", True, 0)
    assert (graphs.run, graphs.stages) == (formulas.run, formulas.stages)
    assert (graphs.math, graphs.unpacking) == (formulas.math, formulas.unpacking)


SCALES = 4 * (4 * 2 + 2 * 2 + 3 * 5 * 2)
"""Scales of fp8 in float32, for blocks of 128 x 128: q, o 2 x 2, k, v 1 x 2, the MLP three of 5 x 2."""
GROUPS = LINEAR // 128
"""Groups of AWQ: a scale of 16 bits and a zero point of four for each."""


@pytest.mark.parametrize(
    ("described", "stored"),
    [(FP8, LINEAR + SCALES), (AWQ, LINEAR // 2 + GROUPS * 2 + GROUPS // 2)],
)
def test_bytes_are_those_of_the_checkpoint(tmp_path: Path, described: dict[str, Any], stored: int) -> None:
    usual, found = bounds(tmp_path, None), bounds(tmp_path, described)
    less = LAYERS * (2 * LINEAR - stored)
    for which in ("modules", "floor", "unfused"):
        before, now = (getattr(decode(x), which).bytes for x in (usual, found))
        assert before - now == less, which
    assert (usual.exit_code, found.exit_code, found.stored) == (0, 0, True)


def test_fp8_multiplies_in_eight_bits_and_four_bits_are_unpacked(tmp_path: Path) -> None:
    found = decode(bounds(tmp_path, FP8)).modules
    linear, rest = 2 * LAYERS * LINEAR, 2 * HIDDEN * VOCABULARY
    attention = found.flops - linear - rest
    least = found.least["float8"], found.least["bfloat16"]
    assert least == (linear, rest + attention)
    seconds = Fraction(linear, PEAK["float8"]) + Fraction(rest + attention, PEAK["bfloat16"])
    assert Fraction(found.compute_s) == seconds
    of_awq = bounds(tmp_path, AWQ)
    packed = decode(of_awq).modules
    assert Fraction(packed.compute_s) == Fraction(packed.flops, PEAK["bfloat16"])
    # A product for each weight, once in the prompt and once in the step, beside all times.
    unpacked = UnpackingTime("", LAYERS * LINEAR, str(Fraction(LAYERS * LINEAR, VECTOR)))
    assert of_awq.unpacking == tuple(replace(unpacked, stage=stage) for stage in ("prefill", "decode"))
    texts = {form: output.text(of_awq) for form, output in variants("roofline").items() if form != "svg"}
    assert f"stage unpacking,decode{9 * ','},{unpacked.flops},{unpacked.seconds}," in texts["csv"]
    assert [form for form, text in texts.items() if "npacking" not in text] == []
    stored = to_data(ROOFLINE, of_awq)
    stored["unpacking"][0]["seconds"] = "1"
    with pytest.raises(Problems, match="contradicts itself"):
        roofline_in(stored, "roofline.json")


@pytest.mark.parametrize(("version", "each"), [("GEMM", 1), ("GEMV", 1), ("GEMV_FAST", 2), ("gemv_fast", 2)])
def test_gemv_fast_adds_an_offset_to_each_weight(tmp_path: Path, version: str, each: int) -> None:
    """It stores scaled zero points, which a kernel adds to the product of weight and scale; names have any case."""
    found = bounds(tmp_path, {**AWQ, "version": version})
    assert {own.flops for own in found.unpacking} == {each * LAYERS * LINEAR}


def test_a_device_without_fp8_unpacks(tmp_path: Path) -> None:
    assert machine("a100-sxm-80gb").bounding_peak("float8") is None
    found = bounds(tmp_path, FP8, "a100-sxm-80gb")
    assert found.dtype == "bfloat16"
    assert any("weights are unpacked and multiplied in bfloat16" in note for note in found.notes)
    assert {own.flops for own in found.unpacking} == {None}, "the work of the format is not what such a device runs"


def test_nvfp4_multiplies_in_four_bits_where_the_device_does(tmp_path: Path) -> None:
    linear, rest = 2 * LAYERS * LINEAR, 2 * HIDDEN * VOCABULARY
    found = bounds(tmp_path, NVFP4, "b200-sxm")
    step = decode(found).modules
    attention = step.flops - linear - rest
    assert step.least == {"float4": linear, "bfloat16": rest + attention}
    seconds = Fraction(linear, PEAK_B200["float4"]) + Fraction(rest + attention, PEAK_B200["bfloat16"])
    assert (Fraction(step.compute_s), found.notes) == (seconds, ())
    # An H100 has no units for it: four bits are unpacked, and 16 multiplied.
    on_h100 = bounds(tmp_path, NVFP4)
    assert decode(on_h100).modules.least is None, "all in one dtype"
    assert Fraction(decode(on_h100).modules.compute_s) == Fraction(linear + rest + attention, PEAK["bfloat16"])
    assert any("no peak of float4: weights are unpacked and multiplied in bfloat16" in note for note in on_h100.notes)


@pytest.mark.parametrize(("on", "said"), [("b200-sxm", True), ("h100-sxm", False)])
def test_mxfp4_says_what_bounds_other_kernels(on: str, said: bool) -> None:
    found = roofline("gpt-oss-20b@chat,text_tokens=4,new_tokens=1", on=on)
    assert any("--math float8" in note for note in found.notes) is said
    assert found.dtype == "bfloat16"


def test_unpacking_leaves_other_products_their_usual_dtype() -> None:
    """Float32 convolutions run in TF32 also where the format of weights is unpacked."""
    of = Arithmetic("bfloat16", unpacked=frozenset({"float8"}))
    kinds = {"conv2d": {"flops": 6, "float32_flops": 6}, "mm": {"flops": 4, "float8_flops": 4}}
    assert of.of_kinds(kinds).least == {"tf32": 6, "bfloat16": 4}


def test_a_step_of_gpt_oss_by_hand() -> None:
    """One token reads at least 4 of 32 experts in each of 24 layers, in blocks of 32 weights in 17 bytes."""
    found = roofline("gpt-oss-20b@chat,text_tokens=100,new_tokens=1", on="h100-sxm")
    width, vocabulary, layers = 2880, 201088, 24
    expert = 3 * width * width // 32 * 17 + 2 * (2 * width + width)
    attention = 2 * (width * (4096 + 2 * 512) + 4096 + 2 * 512 + 4096 * width + width + 64)
    router, norms = 2 * (32 * width + 32), 2 * 2 * width
    read = layers * (4 * expert + attention + router + norms) + 2 * width + 2 * width * vocabulary + 2 * width
    cache = layers * 2 * 8 * 64 * 2 * (100 + 1)
    floor = decode(found).floor.bytes
    logits_masks_and_frequencies = 2 * vocabulary + 2 * 2 * 101 + 4 * 32
    assert floor - read - cache == logits_masks_and_frequencies
