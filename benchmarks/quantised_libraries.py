"""Quantise linear layers with the libraries of the formats, and write the tensors that they store.

``tests/storage/quantised_libraries.json`` holds the result: format -> options, library with its version, and layer ->
tensor -> [dtype, shape], or the reason why the library refuses the layer; and model -> module -> stored and resident
bytes of a small Llama that the libraries of costproof[quantised] quantise. All of it runs on a processor, but for
torchao's int4, which needs a GPU. AutoAWQ has no wheel: ``--sources`` is a folder with its unpacked source.

    PYTHONPATH=FOLDER python -m benchmarks.quantised_libraries --sources FOLDER
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import nn

from costproof.ledger.errors import first_line
from costproof.models.registry import load_target
from costproof.tracers.storage import STANDING_IN, storage_of_run

OUT: Final = Path("tests/storage/quantised_libraries.json")
SHAPES: Final[dict[str, tuple[int, int, bool]]] = {
    "l0": (192, 256, True), "l1": (96, 384, False), "l2": (130, 260, False), "l3": (64, 100, True),
    "l4": (257, 512, False), "l5": (160, 224, True), "l6": (32, 640, False), "l7": (416, 96, True),
    "table": (50, 96, False),
}  # fmt: skip
"""Layer -> rows, columns, and whether it has a bias; ``table`` is an embedding."""
DTYPES: Final = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int8: "I8", torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
Tensors = dict[str, tuple[str, list[int]]]
Row = tuple[str, dict[str, Any], str, Callable[[str], Tensors]]
"""Format, its description in a configuration, dtype of the model, and the function that quantises a layer."""


def layer(name: str, dtype: torch.dtype) -> nn.Module:
    """Return a layer with small weights."""
    rows, columns, bias = SHAPES[name]
    made = nn.Embedding(rows, columns) if name == "table" else nn.Linear(columns, rows, bias)
    return made.requires_grad_(False).to(dtype)


def header(tensors: dict[str, torch.Tensor]) -> Tensors:
    """Return dtype and shape of each tensor, as in the header of a safetensors file."""
    return {name: (DTYPES[t.dtype], list(t.shape)) for name, t in tensors.items()}


def bitsandbytes_rows() -> Iterator[Row]:
    """Yield the rows of bitsandbytes: four bits with and without nested maxima, and eight bits."""
    import bitsandbytes as bnb

    def four(name: str, kind: str, nested: bool, dtype: torch.dtype, storage: torch.dtype) -> Tensors:
        rows, columns, bias = SHAPES[name]
        made = bnb.nn.Linear4bit(
            columns, rows, bias, torch.bfloat16, compress_statistics=nested, quant_type=kind, quant_storage=storage
        )
        made.load_state_dict(layer(name, dtype).state_dict(), assign=True)
        made.weight = bnb.nn.Params4bit(
            made.weight.data, requires_grad=False, compress_statistics=nested, quant_type=kind, quant_storage=storage,
            module=made,
        )  # fmt: skip
        return header(made.to("cpu").state_dict())

    def eight(name: str) -> Tensors:
        rows, columns, bias = SHAPES[name]
        made = bnb.nn.Linear8bitLt(columns, rows, bias, has_fp16_weights=False, threshold=6.0)
        made.load_state_dict(layer(name, torch.float16).state_dict(), assign=True)
        made.weight = bnb.nn.Int8Params(made.weight.data, requires_grad=False, has_fp16_weights=False)
        return header(made.to("cpu").state_dict())

    for kind, nested, dtype in (
        ("nf4", True, torch.bfloat16), ("nf4", False, torch.bfloat16), ("nf4", False, torch.float16),
        ("fp4", True, torch.bfloat16), ("fp4", False, torch.float32),
    ):  # fmt: skip
        config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind,
                  "bnb_4bit_use_double_quant": nested}  # fmt: skip
        label = f"bnb {kind}{' nested' if nested else ''} {DTYPES[dtype]}"
        yield (
            label, config, DTYPES[dtype],
            lambda name, k=kind, n=nested, d=dtype: four(name, k, n, d, torch.uint8),  # type: ignore[misc]
        )  # fmt: skip
    yield "bnb int8", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "F16", eight


def compressed_rows() -> Iterator[Row]:
    """Yield the rows of compressed-tensors, each a config group for every layer."""
    from compressed_tensors.compressors.base import compress_module
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    def quantised(name: str, config: dict[str, Any], dtype: torch.dtype) -> Tensors:
        made: Any = nn.Sequential()
        made.add_module(name, layer(name, dtype))
        apply_quantization_config(made, QuantizationConfig.model_validate(config))
        for tensor in (t for part in made.modules() for n, t in part.named_parameters(recurse=False) if "scale" in n):
            tensor.data.fill_(1)
        compress_module(made[0])
        config["format"] = made[0].quantization_scheme.format.value  # as ModelCompressor writes it
        return header(made[0].state_dict())

    def group(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": {
            "targets": ["Linear", "Embedding"], "weights": weights,
            **({} if inputs is None else {"input_activations": inputs}),
        }}}  # fmt: skip

    def integers(bits: int, strategy: str, size: int | None = None, **more: Any) -> dict[str, Any]:
        sized = {} if size is None else {"group_size": size}
        return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, **sized, **more}

    def floats(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
        return {"num_bits": bits, "type": "float", "symmetric": True, "strategy": strategy, **more}

    tokens = {"dynamic": True, "symmetric": True, "strategy": "token", "num_bits": 8}
    static = {"dynamic": False, "symmetric": True, "strategy": "tensor", "num_bits": 8}
    packed, fp8, int8 = "pack-quantized", "float-quantized", "int-quantized"
    block = {"block_structure": [128, 128]}
    found = {
        "ct w4a16 g128": group(packed, integers(4, "group", 128)),
        "ct w4a16 g32 asymmetric": group(packed, integers(4, "group", 32, symmetric=False)),
        "ct w4a16 g64 by weight": group(packed, integers(4, "group", 64, actorder="weight")),
        "ct w4a16 g32 by group": group(packed, integers(4, "group", 32, actorder="group")),
        "ct w4a16 channel asymmetric": group(packed, integers(4, "channel", symmetric=False)),
        "ct w3a16 g32": group(packed, integers(3, "group", 32)),
        "ct w8a16 channel": group(packed, integers(8, "channel")),
        "ct w4a16 tensor": group(packed, integers(4, "tensor")),
        "ct w4a8 g128": group(packed, integers(4, "group", 128), {**tokens, "type": "int"}),
        "ct w4a16 without a strategy": group(packed, {"num_bits": 4, "type": "int", "symmetric": True}),
        "ct fp8 channel": group(fp8, floats(8, "channel"), {**tokens, "type": "float"}),
        "ct fp8 static": group(fp8, floats(8, "tensor"), {**static, "type": "float"}),
        "ct fp8 tensor, dynamic": group(fp8, floats(8, "tensor"), {**tokens, "type": "float", "strategy": "tensor"}),
        "ct fp8 channel, static": group(fp8, floats(8, "channel"), {**static, "type": "float"}),
        "ct fp8 block": group(fp8, floats(8, "block", **block), {**tokens, "type": "float"}),
        "ct fp8 block, weights": group("naive-quantized", floats(8, "block", **block)),
        "ct fp8 channel, weights": group("naive-quantized", floats(8, "channel")),
        "ct fp8 g64": group(fp8, floats(8, "group", group_size=64), {**tokens, "type": "float"}),
        "ct int8": group(int8, integers(8, "channel"), {**tokens, "type": "int"}),
        "ct int8 asymmetric": group(
            int8, integers(8, "channel", symmetric=False), {**tokens, "type": "int", "symmetric": False}
        ),
        "ct int8 static": group(int8, integers(8, "tensor"), {**static, "type": "int"}),
        "ct int8 static asymmetric": group(int8, integers(8, "tensor"), {**static, "type": "int", "symmetric": False}),
        "ct int8 g32": group(int8, integers(8, "group", 32), {**tokens, "type": "int"}),
        "ct int8, weights": group("naive-quantized", integers(8, "channel")),
        "ct nvfp4": group(
            "nvfp4-pack-quantized", floats(4, "tensor_group", group_size=16),
            {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16,
             "dynamic": "local"},
        ),
        "ct nvfp4, weights": group("nvfp4-pack-quantized", floats(4, "tensor_group", group_size=16)),
        "ct mxfp4": group("mxfp4-pack-quantized", floats(4, "group", group_size=32)),
        "ct mxfp4, inputs": group(
            "mxfp4-pack-quantized", floats(4, "group", group_size=32),
            {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": True},
        ),
        "ct mxfp4, asymmetric": group("mxfp4-pack-quantized", floats(4, "group", group_size=32, symmetric=False)),
        "ct mxfp8": group("mxfp8-quantized", floats(8, "group", group_size=32, scale_dtype="torch.uint8")),
    }  # fmt: skip
    for label, config in found.items():
        yield label, config, "BF16", lambda name, c=config: quantised(name, c, torch.bfloat16)  # type: ignore[misc]
    for label in ("ct w4a16 g128", "ct fp8 static", "ct int8 asymmetric", "ct nvfp4"):
        yield (
            f"{label}, F16", found[label], "F16",
            lambda name, c=found[label]: quantised(name, c, torch.float16),  # type: ignore[misc]
        )  # fmt: skip
    yield (
        "ct fp8 channel, F32",
        found["ct fp8 channel"],
        "F32",
        lambda name: quantised(name, found["ct fp8 channel"], torch.float32),
    )


def torchao_rows() -> Iterator[Row]:
    """Yield the rows of torchao, flattened for safetensors as transformers does."""
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        PerGroup,
        PerRow,
        PerTensor,
        quantize_,
    )

    def quantised(name: str, of: Any) -> Tensors:
        made = nn.Sequential()
        made.add_module("layer", layer(name, torch.bfloat16))
        with mock.patch("torchao.float8.inference.is_MI300", return_value=True):  # what multiplies in fp8
            quantize_(made, of)
        if type(made[0].weight) is nn.Parameter:
            raise ValueError("torchao leaves it as it is")
        tensors, _ = flatten_tensor_state_dict(made.state_dict())
        return header({key.removeprefix("layer."): tensor for key, tensor in tensors.items()})

    found = {
        "ao int8 rows": Int8WeightOnlyConfig(granularity=PerRow()),
        "ao int8 g32": Int8WeightOnlyConfig(granularity=PerGroup(32)),
        "ao int8 dynamic": Int8DynamicActivationInt8WeightConfig(granularity=PerRow()),
        "ao int8 dynamic, matrix": Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()),
        "ao fp8": Float8WeightOnlyConfig(),
        "ao fp8 e5m2": Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2),
        "ao fp8 dynamic": Float8DynamicActivationFloat8WeightConfig(),
        "ao fp8 dynamic, rows": Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
    }
    for label, of in found.items():
        config = {"quant_method": "torchao", "quant_type": {"default": config_to_dict(of)}}
        config = json.loads(json.dumps(config, default=str))
        yield label, config, "BF16", lambda name, of=of: quantised(name, of)  # type: ignore[misc]


def _part(path: Path, package: str, **stubs: Any) -> Any:
    """Return a module of a package whose own ``__init__`` cannot be imported beside today's transformers."""
    parts = package.split(".")
    for i in range(1, len(parts)):
        name = ".".join(parts[:i])
        sys.modules.setdefault(name, types.ModuleType(name)).__path__ = []
    for name, stub in stubs.items():
        sys.modules[name.replace("__", ".")] = stub
    spec = importlib.util.spec_from_file_location(package, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[package] = made
    spec.loader.exec_module(made)
    return made


def auto_gptq_rows() -> Iterator[Row]:
    """Yield the rows of AutoGPTQ, whose layers always have a bias (``make_quant``), and fill whole words alone."""
    found = importlib.metadata.distribution("auto_gptq").locate_file("auto_gptq/nn_modules/qlinear/qlinear_cuda.py")
    own = _part(Path(str(found)), "auto_gptq.nn_modules.qlinear.qlinear_cuda")

    def quantised(name: str, bits: int, size: int) -> Tensors:
        rows, columns, _ = SHAPES[name]
        if name == "table":
            raise ValueError("AutoGPTQ quantises linear layers alone")
        plain: Any = layer(name, torch.float16)
        if plain.bias is None:
            plain.bias = nn.Parameter(torch.zeros(rows, dtype=torch.float16))
        made = own.QuantLinear(bits, size, columns, rows, True, weight_dtype=torch.float16)
        groups = -(-columns // size) if size > 0 else 1
        made.pack(plain, torch.ones(rows, groups), torch.zeros(rows, groups), made.g_idx)
        if made.qweight.numel() * 32 < rows * columns * bits or made.qzeros.numel() * 32 < rows * groups * bits:
            raise ValueError("AutoGPTQ packs whole words of 32 numbers, and drops the rest")
        return header(made.state_dict())

    for bits, size in ((4, 128), (4, 32), (3, 128), (8, 64), (2, 32), (4, -1)):
        config = {"quant_method": "gptq", "bits": bits, "group_size": size}
        yield f"gptq w{bits} g{size}", config, "F16", lambda name, b=bits, s=size: quantised(name, b, s)  # type: ignore[misc]


def auto_awq_rows(sources: Path) -> Iterator[Row]:
    """Yield the rows of AutoAWQ."""
    utils = types.ModuleType("awq.utils.module")
    utils.try_import = lambda name: (None, "not installed")  # type: ignore[attr-defined]
    best = types.ModuleType("awq.utils.utils")
    best.get_best_device = lambda: "cpu"  # type: ignore[attr-defined]
    packing = types.ModuleType("awq.utils.packing_utils")
    packing.dequantize_gemm = None  # type: ignore[attr-defined]
    (file,) = sources.glob("autoawq-*/awq/modules/linear/gemm.py")
    stubs = {"awq__utils__module": utils, "awq__utils__utils": best, "awq__utils__packing_utils": packing}
    own = _part(file, "awq.modules.linear.gemm", **stubs)

    def quantised(name: str, bits: int, size: int) -> Tensors:
        rows, columns, _ = SHAPES[name]
        if name == "table":
            raise ValueError("AutoAWQ quantises linear layers alone")
        groups = columns // size if size > 0 else 1
        ones = torch.ones(groups, rows)
        made = own.WQLinear_GEMM.from_linear(
            layer(name, torch.float16), bits, size, False, ones, torch.zeros_like(ones)
        )
        return header(made.state_dict())

    for bits, size in ((4, 128), (4, 32), (4, 64), (4, -1), (8, 128)):
        config = {"quant_method": "awq", "bits": bits, "group_size": size, "version": "gemm"}
        yield f"awq w{bits} g{size}", config, "F16", lambda name, b=bits, s=size: quantised(name, b, s)  # type: ignore[misc]


def mlx_rows() -> Iterator[Row]:
    """Yield the rows of MLX, for linear layers and an embedding."""
    import mlx.core as mx
    import mlx.nn

    kinds = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "uint32": "U32", "uint8": "U8"}

    def quantised(name: str, bits: int, size: int, mode: str) -> Tensors:
        rows, columns, bias = SHAPES[name]
        plain = mlx.nn.Embedding(rows, columns) if name == "table" else mlx.nn.Linear(columns, rows, bias)
        plain.set_dtype(mx.bfloat16)
        if columns % size:
            raise ValueError(f"MLX quantises whole groups: {columns} columns are not a multiple of {size}")
        made = plain.to_quantized(group_size=size, bits=bits, mode=mode)
        return {key: (kinds[str(t.dtype).rpartition(".")[2]], list(t.shape)) for key, t in made.items()
                if isinstance(t, mx.array)}  # fmt: skip

    for bits, size in ((4, 64), (8, 64), (3, 32), (6, 128), (5, 32), (2, 128)):
        config = {"bits": bits, "group_size": size, "mode": "affine"}
        yield f"mlx w{bits} g{size}", config, "BF16", lambda name, b=bits, s=size: quantised(name, b, s, "affine")  # type: ignore[misc]


def modelopt_rows() -> Iterator[Row]:
    """Yield the rows of ModelOpt: export of one layer."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export.quant_utils import postprocess_state_dict
    from modelopt.torch.export.unified_export_hf import _export_quantized_weight

    def quantised(name: str, config: Any) -> Tensors:
        if name == "table":
            raise ValueError("ModelOpt leaves embeddings as they are in these configurations")
        made = nn.Sequential()
        made.add_module("layer", layer(name, torch.bfloat16))
        inputs = torch.ones(4, SHAPES[name][1], dtype=torch.bfloat16)
        made = mtq.quantize(made, config, lambda model: model(inputs))
        _export_quantized_weight(made[0], torch.bfloat16)
        tensors = postprocess_state_dict(made.state_dict(), 0, None)
        return header({key.removeprefix("layer."): tensor for key, tensor in tensors.items()})

    for label, algorithm, config in (
        ("modelopt fp8", "FP8", mtq.FP8_DEFAULT_CFG), ("modelopt nvfp4", "NVFP4", mtq.NVFP4_DEFAULT_CFG),
    ):  # fmt: skip
        of: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": algorithm}
        of |= {"group_size": 16} if algorithm == "NVFP4" else {}
        yield label, of, "BF16", lambda name, c=config: quantised(name, c)  # type: ignore[misc]


def transformers_rows() -> Iterator[Row]:
    """Yield the rows of transformers' fp8, with the dtypes that its modules have."""
    from transformers.integrations.finegrained_fp8 import FP8Linear

    def quantised(name: str, block: tuple[int, int] | None, scheme: str, scales: str) -> Tensors:
        if name == "table":
            raise ValueError("transformers quantises linear layers alone")
        rows, columns, bias = SHAPES[name]
        made = FP8Linear(columns, rows, block, scheme, scales, has_bias=bias)
        return header(made.state_dict())

    for block, scheme, scales in (
        ((128, 128), "dynamic", "float"), ((64, 32), "dynamic", "float"), ((128, 128), "dynamic", "ue8m0"),
        (None, "dynamic", "float"), (None, "static", "float"), ((128, 128), "static", "float"),
    ):  # fmt: skip
        config = {"quant_method": "fp8", "weight_block_size": block and list(block), "activation_scheme": scheme}
        config |= {"scale_fmt": scales} if scales != "float" else {}
        label = f"fp8 {'x'.join(map(str, block)) if block else 'tensor'} {scheme} {scales}"
        yield (
            label, config, "F32",
            lambda name, b=block, s=scheme, f=scales: quantised(name, b, s, f),  # type: ignore[misc]
        )  # fmt: skip


def table(sources: Path) -> dict[str, Any]:
    """Return the table of all formats."""
    libraries = {
        "bitsandbytes": bitsandbytes_rows, "compressed-tensors": compressed_rows, "torchao": torchao_rows,
        "auto-gptq": auto_gptq_rows, "autoawq": lambda: auto_awq_rows(sources), "mlx": mlx_rows,
        "nvidia-modelopt": modelopt_rows, "transformers": transformers_rows,
    }  # fmt: skip
    versions, formats = {}, {}
    for library, rows in libraries.items():
        if library == "autoawq":
            (folder,) = sources.glob("autoawq-*/awq")
            versions[library] = folder.parent.name.partition("-")[2]
        else:
            versions[library] = importlib.metadata.version(library)
        for label, config, dtype, quantise in rows():
            layers: dict[str, Any] = {}
            for name in SHAPES:
                try:
                    layers[name] = quantise(name)
                except Exception as error:  # of a library, which raises what it likes
                    layers[name] = f"refused: {first_line(error) or type(error).__name__}"
            formats[label] = {"library": library, "config": config, "dtype": dtype, "layers": layers}
    return {"versions": versions, "layers": SHAPES, "formats": formats, "models": models()}


LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 96, "intermediate_size": 224,
    "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 50,
    "max_position_embeddings": 1024, "torch_dtype": "bfloat16", "attention_bias": True,
}  # fmt: skip


def models() -> dict[str, Any]:
    """Return model -> configuration, and module -> its stored and resident bytes as the libraries make them."""
    integers = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    four = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    rows = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {
        "granularity": {"_type": "PerRow", "_version": 1, "_data": {"dim": -1}}}}  # fmt: skip
    torchao = {"quant_method": "torchao", "quant_type": {"default": rows}}
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}

    def linear(weights: dict[str, Any], *targets: str, ignore: tuple[str, ...] = ("lm_head",)) -> dict[str, Any]:
        return {"config_groups": {"group_0": {"targets": list(targets), "weights": weights}}, "ignore": list(ignore)}

    described: dict[str, dict[str, Any]] = {
        "bnb nf4": four,
        "bnb nf4, list": four | {"llm_int8_skip_modules": ["q_proj", "model.layers.1.mlp"]},
        "bnb nf4 nested": four | {"bnb_4bit_use_double_quant": True},
        "bnb int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "ct w4a16": packed | linear(integers, "Linear"),
        "ct w4a16, list": packed
        | linear(integers, "Linear", ignore=("re:.*layers\\.0\\..*", "model.layers.1.mlp.up_proj")),
        "ct w4a16, tables": packed | linear(integers, "Linear", "Embedding", ignore=()),
        "ct w4a16, names": packed | linear(integers, "re:.*down_proj$", "model.layers.0.self_attn.q_proj"),
        "ct w4a16 asymmetric, cache": packed | linear({**integers, "symmetric": False}, "Linear")
        | {"kv_cache_scheme": cache},
        "ao int8": torchao,
        "ao int8, list": torchao | {"modules_to_not_convert": ["q_proj", "model.layers.0.mlp.up_proj", "lm_head"]},
        "fp8": fp8,
        "fp8 static": fp8 | {"activation_scheme": "static", "modules_to_not_convert": ["model.layers.1"]},
        "fp8 ue8m0": fp8 | {"scale_fmt": "ue8m0"},
    }  # fmt: skip
    found = {}
    for tied in (False, True):
        for label, of in described.items():
            config = LLAMA | {"tie_word_embeddings": tied, "quantization_config": of}
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
                target: Any = load_target(f"hf:{folder}")
            made = storage_of_run(target, target.build(target.workload()), target.workload())
            if not made.metrics or any(note.startswith(STANDING_IN) for note in made.notes):
                raise RuntimeError(f"{label}: {made.notes}")
            found[f"{label}{', tied' if tied else ''}"] = {"config": config, "modules": made.modules}
    return found


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="folder with unpacked sources of AutoAWQ")
    found = table(parser.parse_args().sources)
    text = json.dumps(found, indent=None, separators=(",", ":")).replace('},"', '},\n"')
    OUT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
