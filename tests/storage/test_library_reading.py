"""A mistake in one reading of a configuration differs from the other, without any library installed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from costproof.ledger.errors import Bug
from costproof.models.registry import load_target
from costproof.models.target import WithFormulas
from costproof.run.stored import ReadingsDiffer, _further_recounts, stored
from costproof.storage import formats, scheme
from costproof.tracers import headers, stored_module
from costproof.weights.library_reading import LibraryReading, library_reading, products_stated
from costproof.weights.stored import Stored
from tests.storage.test_quantised_libraries import LIBRARIES, REFUSED, module
from tests.storage.test_quantised_libraries import scheme as by_rules
from tests.support.running import costproof

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 96, "tie_word_embeddings": False, "dtype": "bfloat16"}  # fmt: skip
LLAMA: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES}
MIXTURE: dict[str, Any] = {
    **LLAMA, "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64, "num_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": ["self_attn"]}
FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
AUTOROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "autoround_version": "0.12.3",
             "packing_format": "auto_round:auto_gptq", "extra_config": {
                 "up_proj": {"bits": 8}, "model.layers.0.mlp.up_proj": {"bits": 16}}}  # fmt: skip
MLX = {"bits": 4, "group_size": 32, "model.layers.0.mlp.up_proj": {"bits": 8},
       "model.layers.1.mlp.up_proj": False}  # fmt: skip
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
CHANNEL = {"num_bits": 8, "type": "int", "strategy": "channel"}
CACHE = {"num_bits": 8, "type": "float"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
            "ignore": ["lm_head", "model.layers.0*"]}  # fmt: skip
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
    "model.layers.0.mlp": {"quant_algo": "FP8"},
    "model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}}  # fmt: skip
_CT = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}


def ct(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a configuration of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {**_CT, "config_groups": {"a": group}, **more}


TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {
    "_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {}}}}  # fmt: skip
TWO = ct(GROUP, config_groups={"a": {"targets": ["Linear"], "weights": GROUP},
                               "b": {"targets": ["re:.*up_proj"], "weights": CHANNEL}})  # fmt: skip
STATIC = ct({"num_bits": 8, "type": "float", "strategy": "tensor"}, {"num_bits": 8, "type": "float", "dynamic": False},
            format="float-quantized")  # fmt: skip

PLANTED: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "c03 zeros of GPTQModel": ("zeros = not any(", "zeros = any(", LLAMA, GPTQ),
    "c04 head of GPTQ": ('get("lm_head") is True', 'get("lm_head") is not False', LLAMA, GPTQ),
    "c05 outside of layers": ("return module.in_layers and module.rows != 1", "return module.rows != 1", LLAMA, GPTQ),
    "c05 AWQ": ("return module.in_layers and module.rows != 1", "return module.rows != 1", LLAMA, AWQ),
    "c06 names of AWQ": ("any(n in path for path", "any(path.endswith(n) for path", LLAMA, AWQ),
    "c07 nested maxima": ("bnb_4bit_use_double_quant", "bnb_4bit_use_double_quantum", LLAMA,
                          NF4 | {"bnb_4bit_use_double_quant": True}),
    "c09 head of bitsandbytes": ("lambda module: module.is_head or module.in_float32", "lambda module: False", LLAMA,
                                 NF4),
    "c09 head of fp8": ("lambda module: module.is_head or module.in_float32", "lambda module: False", LLAMA, FP8),
    "c09 head of torchao": ("lambda module: module.is_head or module.in_float32", "lambda module: False", LLAMA,
                            TORCHAO),
    "c10 order of columns": ('order in ("group", ', 'order in (', LLAMA, ct(GROUP | {"actorder": "group"})),
    "c11 scales of a cache": ("cache=_compressed_cache(described)", 'cache=""', LLAMA,
                              ct(GROUP, kv_cache_scheme=CACHE)),
    "c12 scales of ModelOpt": ('kind = "modelopt" if cache else ""', 'kind = ""', LLAMA, MODELOPT),
    "c14 list of ModelOpt": ('"exclude_modules", "ignore"', '"exclude_modules"', LLAMA, MODELOPT),
    "c15 table of MLX": ('classes=("Linear", "Embedding"), named', 'classes=("Linear",), named', LLAMA, MLX),
    "c28 static inputs": ('inputs="static" if static', 'inputs="dynamic" if static', LLAMA, STATIC),
    "patterns of a list": (r"(?:(?<=\.)|(?=\.|$))", "", LLAMA,
                           FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]}),
    "experts in fp8": ('("Linear", "Expert") or', '("Linear",) or', MIXTURE, FP8),
    "dynamic rules": ("before = left", "before = ()", LLAMA,
                      GPTQ | {"dynamic": {"-:.*down_proj": {}, "+:.*layers.0": {"bits": 8}}}),
    "settings of MLX": ("value is False or isinstance", "isinstance", LLAMA, MLX),
    "names of AutoRound": ("if path in each:", "if path in usual.title:", LLAMA, AUTOROUND),
    "patterns of AutoRound": ("any(map(p.search, module.paths))", "any(map(p.match, module.paths))", LLAMA, AUTOROUND),
    "blocks of AutoRound": ("path.startswith(blocks)", "path.endswith(blocks)", LLAMA,
                            AUTOROUND | {"block_name_to_quantize": "model.layers.1"}),
    "index of AutoRound": ("indexed=False", "indexed=True", LLAMA, AUTOROUND),
    "biases of AutoRound": ('get("provider") == "auto-round"', 'get("provider") == "auto"', LLAMA,
                            GPTQ | {"provider": "auto-round"}),
    "version of AWQ": ('described.get("version") or', '"" or', LLAMA, AWQ | {"version": "gemv"}),
    "layers of ModelOpt": ("for end in (len(path), *_ends(path))", "for end in (len(path),)", LLAMA, MIXED),
    "targets": ("for rank in range(3)", "for rank in (2, 1, 0)", LLAMA, TWO),
}  # fmt: skip


def planted(of: ModuleType, attribute: str, old: str, new: str) -> Any:
    """Return a function of a copy of a module with a mistake."""
    text = Path(str(of.__file__)).read_text("utf-8")
    assert old in text
    made = ModuleType(of.__name__)
    with mock.patch.dict(sys.modules, {of.__name__: made}):  # where dataclasses look names up
        exec(compile(text.replace(old, new), str(of.__file__), "exec"), made.__dict__)
    made.__dict__["UnknownFormat"] = scheme.UnknownFormat
    return getattr(made, attribute)


def write(folder: Path, config: dict[str, Any], quantised: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}), "utf-8")
    return f"hf:{folder / 'config.json'}"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, config, quantised = PLANTED[name]
    target = write(tmp_path, config, quantised)
    stored(target)
    monkeypatch.setattr("costproof.weights.stored.read_scheme", planted(scheme, "read_scheme", old, new))
    with pytest.raises(ReadingsDiffer, match="two readings"):
        stored(target)


LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Gptq": (LLAMA, GPTQ), "Awq": (LLAMA, AWQ), "Fp8": (LLAMA, FP8), "FourBit": (LLAMA, NF4), "Mlx": (LLAMA, MLX),
    "LlmInt8": (LLAMA, {"quant_method": "bitsandbytes", "load_in_8bit": True}), "ModelOptFp8": (LLAMA, MODELOPT),
    "Nvfp4": (LLAMA, {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}),
    "CompressedTensors": (LLAMA, ct(GROUP, kv_cache_scheme=CACHE)), "TorchaoEightBit": (LLAMA, TORCHAO),
    "TorchaoInt4": (LLAMA, {"quant_method": "torchao", "quant_type": {"default": {
        "_type": "Int4WeightOnlyConfig", "_version": 2, "_data": {"group_size": 32}}}}),
    "Mxfp4": ({**MIXTURE, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 2,
               "head_dim": 16, "layer_types": ["full_attention"] * 2}, {"quant_method": "mxfp4"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_that_a_layout_lacks_or_has_twice_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both readings share the layout, and the closed form of the format does not."""
    target, layout = write(tmp_path, *LAYOUTS[name]), getattr(formats, name)
    usual = layout.tensors
    stored(target)
    for change in (lambda found: found[:-1], lambda found: (found[0], *found[2:]), lambda found: (*found, found[-1])):
        monkeypatch.setattr(layout, "tensors", lambda self, of, change=change: change(usual(self, of)))
        with pytest.raises(Bug, match="in its format"):
            stored(target)


def test_scales_of_a_cache_are_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write(tmp_path, *LAYOUTS["CompressedTensors"])
    monkeypatch.setattr(stored_module, "cache_tensors", lambda kind, dtype: formats.cache_tensors(kind, dtype)[:1])
    with pytest.raises(Bug, match=r"self_attn: elements in its format"):
        stored(target)


def test_readings_of_a_model_without_formulas_are_compared_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target: Any = load_target(write(tmp_path, MIXTURE, FP8))
    assert not isinstance(target, WithFormulas)
    workload, usual = target.workload(), stored_module.stored_modules
    model = target.build(workload)
    *_, last = headers.layout_of(target, model, workload)[1]
    for rules in (True, False):  # the reading that lacks the last module

        def shorter(model: Any, by: Any, dtypes: Any, rules: bool = rules) -> Any:
            found = list(usual(model, by, dtypes))
            return found[:-1] if isinstance(by, scheme.Scheme) is rules else found

        monkeypatch.setattr(headers, "stored_modules", shorter)
        with pytest.raises(scheme.UnknownFormat) as error:
            headers.layout_of(target, model, workload)
        assert error.value.why == f"two readings of the configuration differ at {last.path}"


def test_report_names_the_place_of_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas use one reading, the layout the other."""
    old, new, config, quantised = PLANTED["c04 head of GPTQ"]
    target = write(tmp_path, config, quantised)
    options = ("--sources", "analytic,static", "--text-tokens", "4", "--new-tokens", "0")
    assert costproof("report", target, *options, cwd=tmp_path).code == 0
    monkeypatch.setattr("costproof.weights.stored.read_scheme", planted(scheme, "read_scheme", old, new))
    found = costproof("report", target, *options, cwd=tmp_path)
    assert found.code == 1
    assert any("stored_bytes" in line and "lm_head" in line for line in found.stdout.splitlines()), found.stdout


DEEPSEEK: dict[str, Any] = {
    **LLAMA, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "where"), [
    ("2 * width // len(", "width // len(", "eh_proj"),
    ("is_quantised=False", "is_quantised=True", "eh_proj"),
    ("default=len(layers) - 1)", "default=0)", "mlp"),
    ('"model.layers.{n}.hnorm", ', "", "hnorm"),
])  # fmt: skip
def test_a_mistake_in_the_module_for_further_tokens_is_found(
    old: str, new: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write(tmp_path, DEEPSEEK, FP8)
    stored(target, next_token=1)
    monkeypatch.setattr(stored_module, "next_token_tensors", planted(stored_module, "next_token_tensors", old, new))
    with pytest.raises(ReadingsDiffer, match=f"in published headers\n.*{where}"):
        stored(target, next_token=1)


@pytest.mark.parametrize(("old", "new", "where"), [
    ('{name}.weight", dtype, (width,)) for', '{name}.weight", "F32", (width,)) for', "enorm"),
    ('}.weight", dtype, size)', '}.weight", "F32", size)', "embed_tokens"),
    ("yield replace(tensor, name=layer + part", 'yield replace(tensor, dtype="I8", name=layer + part', "self_attn"),
])  # fmt: skip
def test_a_mistaken_dtype_in_the_module_for_further_tokens_is_found(
    old: str, new: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write(tmp_path, DEEPSEEK, FP8)
    monkeypatch.setattr(stored_module, "next_token_tensors", planted(stored_module, "next_token_tensors", old, new))
    with pytest.raises(Bug, match=f"MTP modules, {where}.*bits of an element"):
        stored(target, next_token=1)


QWEN: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
FURTHER: dict[str, tuple[dict[str, Any], str]] = {
    "qwen3_5_text": (QWEN, "mtp_num_hidden_layers"), "deepseek_v3": (DEEPSEEK, "num_nextn_predict_layers"),
    "qwen3_5": ({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": QWEN},
                "mtp_num_hidden_layers"),
}  # fmt: skip


@pytest.mark.parametrize("stated", [None, 0, 1])
@pytest.mark.parametrize("name", FURTHER)
def test_the_number_of_modules_for_further_tokens_is_counted_again(
    name: str, stated: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, key = FURTHER[name]
    config = json.loads(json.dumps(config))
    inner = config.get("text_config", config)
    inner.pop(key, None)
    inner |= {} if stated is None else {key: stated}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    target = f"hf:{tmp_path / 'config.json'}"
    stored(target)
    wrong = replace(stored_module.FURTHER[name], key="of no configuration", usual=7)
    monkeypatch.setitem(stored_module.FURTHER, name, wrong)
    with pytest.raises(Bug, match="modules of the model"):
        stored(target)


@pytest.mark.parametrize("name", stored_module.FURTHER)
def test_every_family_with_modules_for_further_tokens_has_a_second_count(name: str) -> None:
    of = stored_module.FURTHER[name]
    for stated, expected in ({}, of.usual), ({of.key: 0}, 0), ({of.key: 3}, 3):
        config = SimpleNamespace(to_dict=lambda stated=stated: stated)
        (found,) = _further_recounts(config, name, 7)
        assert (found.found, found.again) == (7, expected)


def test_the_first_pattern_of_gptq_decides(tmp_path: Path) -> None:
    """GPTQModel, dynamic_get: 2 x 64 x 128 weights of layer 0 in 8 bits, though a later pattern leaves them."""
    dynamic = {"+:.*up_proj": {"bits": 8}, "-:.*layers.0": {}}
    found = {part.name: part for part in stored(write(tmp_path, LLAMA, GPTQ | {"dynamic": dynamic})).parts}
    assert found["model.layers.*.mlp.up_proj.qweight"].bytes == 2 * 64 * 128
    assert found["model.layers.*.mlp.down_proj.weight"].bytes == 2 * 64 * 128


def test_both_readings_are_those_of_the_libraries(tmp_path: Path) -> None:
    """Formats by rules are held against what libraries wrote (test_quantised_libraries)."""
    model = load_target(write(tmp_path, LLAMA, GPTQ)).build_stored()  # type: ignore[attr-defined]
    seen = 0
    for name, made in LIBRARIES["formats"].items():
        key = "quantization" if made["library"] == "mlx" else "quantization_config"
        reading = library_reading(Stored(described=json.dumps({key: made["config"]})), model)
        for layer in made["layers"] if name not in REFUSED else ():
            found = []
            for of in (by_rules(made), reading):
                try:
                    found.append(of.format_of(module(layer)))
                except scheme.UnknownFormat:
                    found.append(None)
            assert found[0] == found[1], (name, layer)
            seen += found[0] is not None
    assert seen > 300


@pytest.mark.parametrize("settings", [
    {"quant_method": "fp8", "weight_block_size": 1}, {"quant_method": "gptq", "bits": 4},
    {"quant_method": "compressed-tensors", "config_groups": {"a": {"targets": ["Linear"]}}},
    {"quant_method": "torchao", "quant_type": {}}, {"quant_method": "modelopt", "quant_algo": 4},
])  # fmt: skip
def test_settings_that_a_library_does_not_read_are_unknown(settings: dict[str, Any]) -> None:
    reading = LibraryReading(settings["quant_method"], settings)
    with pytest.raises(scheme.UnknownFormat, match="its library does not read"):
        reading.format_of(scheme.LinearModule("model.layers.0.mlp.up_proj", columns=64, rows=64))


@pytest.mark.parametrize("settings", [
    {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"},
    {"quant_method": "gptq", "bits": 4, "group_size": 32, "is_marlin_format": True},
])  # fmt: skip
def test_other_layouts_are_unknown(settings: dict[str, Any]) -> None:
    place = scheme.LinearModule("model.layers.0.mlp.up_proj", columns=64, rows=64)
    with pytest.raises(scheme.UnknownFormat, match="its library"):
        LibraryReading(settings["quant_method"], settings).format_of(place)


FP8_INPUTS = {"weights": {"type": "float"}, "input_activations": {"num_bits": 8}, "targets": ["Linear"]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS}}, {"float8"}),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS | {"input_activations": {}}}}, {""}),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS | {"targets": []}}}, set()),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS | {"weights": {"type": "int"}}}},
         {"int8"}),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS | {"weights": {"num_bits": 4}}}},
         {"other"}),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS | {
            "weights": {"type": "float", "num_bits": 4}}}}, {"float8"}),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": FP8_INPUTS | {
            "weights": {"type": "float", "num_bits": 4}, "input_activations": {"num_bits": 4}}}}, {"float4"}),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig"}}},
         {"int8"}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": 1, "load_in_8bit": True}, {""}),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"int8"}),
        ({"quantization": {"quant_algo": "NVFP4"}}, {"float4"}),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, {"float8"}),
        ({"quant_method": "fp8", "expert_dtype": "fp8"}, {"float8"}),
        ({"bits": 4, "group_size": 64}, None),
    ],
)  # fmt: skip
def test_products_follow_from_what_is_said_of_inputs(settings: dict[str, Any], expected: set[str] | None) -> None:
    assert products_stated(json.dumps({"quantization_config": settings})) == expected
