"""A mistake in one reading of a configuration differs from the other, without any library installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from costproof.run.stored import ReadingsDiffer, stored
from costproof.storage import scheme

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
MLX = {"bits": 4, "group_size": 32, "model.layers.0.mlp.up_proj": {"bits": 8},
       "model.layers.1.mlp.up_proj": False}  # fmt: skip
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
CHANNEL = {"num_bits": 8, "type": "int", "strategy": "channel"}
CACHE = {"num_bits": 8, "type": "float"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
            "ignore": ["lm_head", "model.layers.0*"]}  # fmt: skip
_CT = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"]}


def ct(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a configuration of compressed-tensors with one group, and one for a layer with its name."""
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
    "c28 static inputs": ('inputs="static" if static else "dynamic"', 'inputs="dynamic" if static else "dynamic"', LLAMA, STATIC),
}  # fmt: skip


def planted(old: str, new: str) -> Any:
    """Return ``read_scheme`` of a copy of its module with a mistake."""
    text = Path(scheme.__file__).read_text("utf-8")
    assert old in text
    made = ModuleType(scheme.__name__)
    import sys

    sys.modules["_planted"] = made
    made.__dict__["__name__"] = "_planted"
    exec(compile(text.replace(old, new), "scheme.py", "exec"), made.__dict__)
    made.__dict__["UnknownFormat"] = scheme.UnknownFormat
    return made.__dict__["read_scheme"]


def write(folder: Path, config: dict[str, Any], quantised: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}), "utf-8")
    return f"hf:{folder / 'config.json'}"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, config, quantised = PLANTED[name]
    target = write(tmp_path, config, quantised)
    stored(target)
    monkeypatch.setattr("costproof.weights.stored.read_scheme", planted(old, new))
    with pytest.raises(ReadingsDiffer, match="two readings"):
        stored(target)
