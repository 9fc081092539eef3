"""Pack matrices into quantised formats as libraries do, and unpack them group by group as kernels do.

Both are for the dynamic source, on meta. The tensors of a packed matrix follow from operations on the matrix, not from
a layout (:mod:`costproof.storage.formats`), of which only the settings are read. The static source exports references
on whole matrices (:mod:`.unpacking`). So a mistake in either shows as a difference. Integers are only made, since their
work is 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from costproof.ledger.errors import Incomplete
from costproof.storage import formats
from costproof.storage.formats import LinearShape

Tensors = Mapping[str, Any]
"""Stored tensors by name, with the inputs ``x`` and the products ``y``."""
_DTYPES: Final = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "U32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
"""Torch dtype by dtype in a header; unsigned words become signed ones, which shift alike."""
_LARGEST: Final = 448.0
"""Largest number in E4M3; its value affects no count."""


def torch_dtype(stored: str) -> Any:
    """Return the torch dtype for a dtype in a header."""
    import torch

    return getattr(torch, _DTYPES[stored])


def _unpack_as_transformers(of: formats.Mxfp4, w: LinearShape, t: Tensors) -> Any:
    from transformers.integrations import mxfp4

    return mxfp4.convert_moe_packed_tensors(t["blocks"].unsqueeze(0), t["scales"].unsqueeze(0))


def _made(like: Any, *shape: int, dtype: str = "int32") -> Any:
    """Create an empty tensor in place of numbers unpacked by integer operations and look-ups, which are 0 FLOPs."""
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def _groups_of_words(of: formats.Gptq | formats.Awq, w: LinearShape, t: Tensors) -> Any:
    size, numbers = of.group or w.columns, _made(t["qweight"], w.columns, w.rows)
    zero = _made(t["qzeros"], w.rows)
    return [(numbers[i : i + size] - zero) * t["scales"][i // size] for i in range(0, w.columns, size)]


def _groups_of_awq(of: formats.Awq, w: LinearShape, t: Tensors) -> Any:
    if of.version == "gemm":
        return _groups_of_words(of, w, t)
    found = []
    for i in range(w.columns // of.group):
        part, by_row = _made(t["qweight"], w.rows, of.group), of.version == "gemv"
        scale = t["scales"][:, i] if by_row else t["scales"][i]
        if by_row:
            part = part.sub(_made(part, w.rows, 1))
        part = part.mul(scale[:, None])
        found.append(part.add(t["qzeros"][i][:, None]) if of.version == "gemv_fast" else part)
    return found


def _groups_of_mlx(of: formats.Mlx, w: LinearShape, t: Tensors) -> Any:
    numbers = _made(t["weight"], w.rows, w.columns)
    return [
        numbers[:, i : i + of.group] * t["scales"][:, i // of.group, None] + t["biases"][:, i // of.group, None]
        for i in range(0, w.columns, of.group)
    ]


def _times_block(numbers: Any, scales: Any, size: int) -> list[Any]:
    """Multiply each block of ``size`` numbers by its scale; return the whole blocks, then the shorter last one."""
    whole = numbers.numel() // size
    found = [numbers[: whole * size].view(whole, size) * scales[:whole, None]] if whole else []
    return [*found, numbers[whole * size :] * scales[-1]] if numbers.numel() % size else found


def _blocks_of_nf4(of: formats.FourBit, w: LinearShape, t: Tensors) -> Any:
    maxima = t["weight.absmax"]
    if of.nested:
        values = _made(maxima, maxima.numel(), dtype="float32")
        means = [part + 0.5 for part in _times_block(values, t["weight.nested_absmax"], formats.NESTED)]
        maxima = _made(means[0], maxima.numel(), dtype="float32")
    return _times_block(_made(maxima, w.rows * w.columns, dtype="float32"), maxima, formats.ABSMAX_BLOCK)


def _groups_of_compressed(of: formats.CompressedTensors, w: LinearShape, t: Tensors) -> Any:
    import torch

    if of.inputs and not of.products:
        raise Incomplete("costproof does not know how inputs are quantised for 16-bit products", got=of.title)
    dtype, scales = str(torch_dtype(w.dtype)).removeprefix("torch."), t["weight_scale"]
    if of.layout in ("mxfp4-pack-quantized", "mxfp8-quantized"):
        scales = torch.exp2(scales.to(torch.int32) - 127)
    elif of.layout == "nvfp4-pack-quantized":
        scales = torch.div(scales.to(torch_dtype(w.dtype)), t["weight_global_scale"])
    numbers = _made(scales, w.rows, w.columns, dtype=dtype)
    wide = of.block[1] if of.strategy == "block" else of.group or w.columns
    found = []
    for i, part in enumerate(numbers.split(wide, dim=1)):
        one = scales[:, i, None] if of.group or of.strategy == "block" else scales
        if of.strategy == "block":
            one = one.repeat_interleave(of.block[0], 0)[: w.rows]
        part = part if of.symmetric else part.sub(_made(scales, w.rows, 1, dtype=dtype))
        found.append(part.mul(one))
    return found


def _rows_of_torchao(of: formats.TorchaoEightBit, w: LinearShape, t: Tensors) -> Any:
    import torch

    size, scales = of.group or w.columns, t["_weight_scale"]
    floats = torch.int32 if of.dtype == "I8" else scales.dtype
    parts = t["_weight_qdata"].to(floats).split(size, dim=1)
    zeros = of.dtype == "I8"
    return [
        (part - 1 if zeros else part) * (scales if of.group is None else scales[:, i, None])
        for i, part in enumerate(parts)
    ]


def _groups_of_tinygemm(of: formats.TorchaoInt4, w: LinearShape, t: Tensors) -> Any:
    if of.tiled:
        pairs = t["_weight_scale_and_zero"].unbind(0)
        each = [pair.unbind(-1) for pair in pairs]
    else:
        each = list(zip(t["_weight_scale"], t["_weight_zero_point"], strict=True))
    left = w.columns
    found = []
    for scale, zero in each:
        wide = of.group if of.tiled else min(of.group, left)
        left -= wide
        found.append(_made(scale, scale.numel(), wide) * scale[:, None] + zero[:, None])
    return found


UNPACK_BY_GROUP: Final[Mapping[type, Callable[[Any, LinearShape, Tensors], Any]]] = {
    formats.Gptq: _groups_of_words, formats.Awq: _groups_of_awq, formats.Mlx: _groups_of_mlx,
    formats.FourBit: _blocks_of_nf4, formats.Mxfp4: _unpack_as_transformers,
    formats.CompressedTensors: _groups_of_compressed, formats.TorchaoEightBit: _rows_of_torchao,
    formats.TorchaoInt4: _groups_of_tinygemm,
}  # fmt: skip
"""Functions that unpack W by groups, by format class: the dynamic source's :data:`.unpacking._UNPACK`."""


def _rows_in_eight_bits(x: Any, *, rounded: bool = False) -> tuple[Any, Any]:
    scales = x.abs().max(dim=-1, keepdim=True).values.div(_LARGEST)
    numbers = x.div(scales)
    return numbers.round() if rounded else numbers, scales


def _results(product: Any, *scales: Any) -> Any:
    for scale in scales:
        product = product.mul(scale)
    return product


def _blocks_of_fp8(of: formats.Fp8, w: LinearShape, t: Tensors) -> Any:
    import torch

    x, of_weight = t["x"], t[of.scale_name].float()
    if of.block is None:
        rows = (x.div(t["activation_scale"]), t["activation_scale"]) if of.static else _rows_in_eight_bits(x)
        return rows[0], _results(t["y"], rows[1], of_weight)
    total, made = torch.zeros_like(t["y"]), []
    for i, part in enumerate(x.split(of.block[1], dim=-1)):
        partial = torch.empty_like(t["y"])
        if of.static:
            made.append(part.div(t["activation_scale"]))
        else:
            scales = part.abs().max(dim=-1, keepdim=True).values.div(_LARGEST)
            scales = torch.exp2(scales.log2().ceil()) if of.powers else scales
            made.append(part.div(scales))
            partial = partial.mul(scales)
        total = total.add(partial.mul(of_weight[:, i].repeat_interleave(of.block[0])[: w.rows]))
    return made, total.mul(t["activation_scale"]) if of.static else total


def _groups_of_fp4(of: formats.Fp4, w: LinearShape, t: Tensors) -> Any:
    import torch

    made, total, of_weight = [], torch.zeros_like(t["y"]), t[of.scale_name].float().unbind(1)
    for i, part in enumerate(t["x"].split(128, dim=-1)):
        scale = part.abs().max(dim=-1, keepdim=True).values.div(_LARGEST)
        if of.powers:
            scale = torch.exp2(scale.log2().ceil())
        made.append(part.div(scale))
        for one in of_weight[4 * i : 4 * i + 4]:  # each of 32 columns
            total = total.add(torch.empty_like(t["y"]).mul(scale).mul(one))
    return made, total


def _groups_in_four_bits(t: Tensors, size: int, inner: str, outer: str) -> Any:
    made = []
    for part in t["x"].split(size, dim=-1):
        scale = part.abs().max(dim=-1, keepdim=True).values.div(6).div(t[inner])
        made.append(part.div(scale.mul(t[inner])))
    return made, _results(t["y"], t[inner], t[outer])


def _rows_of_int8(of: formats.LlmInt8, w: LinearShape, t: Tensors) -> Any:
    numbers, scales = _rows_in_eight_bits(t["x"], rounded=True)
    return numbers, _results(t["y"], scales, t["SCB"], 1 / (127 * 127))


def _rows_of_compressed(of: formats.CompressedTensors, w: LinearShape, t: Tensors) -> Any:
    if of.input_zero or not of.symmetric:
        raise Incomplete("costproof does not know how zero points enter a product of quantised inputs", got=of.title)
    if of.layout == "nvfp4-pack-quantized" and of.input_levels:
        return _groups_in_four_bits(t, of.group, "input_global_scale", "weight_global_scale")
    if of.strategy in ("group", "tensor_group", "block"):
        raise Incomplete("costproof does not know how group scales enter a product of quantised inputs", got=of.title)
    numbers, scales = t["x"], t.get("input_scale")
    if of.inputs == "static":
        numbers = numbers.div(scales) if of.is_float else numbers.div(scales).round()
    else:
        numbers, scales = _rows_in_eight_bits(numbers, rounded=not of.is_float)
    return numbers, _results(t["y"], scales, t["weight_scale"].float().flatten())


def _rows_of_torchao_inputs(of: formats.TorchaoEightBit, w: LinearShape, t: Tensors) -> Any:
    if of.whole or of.group is not None:
        raise Incomplete("costproof knows torchao's inputs only with one scale for each row", got=of.title)
    numbers, scales = _rows_in_eight_bits(t["x"], rounded=of.dtype == "I8")
    return numbers, _results(t["y"], scales, t["_weight_scale"].flatten())


SCALE_BY_BLOCK: Final[Mapping[type, Callable[[Any, LinearShape, Tensors], Any]]] = {
    formats.Fp8: _blocks_of_fp8, formats.Fp4: _groups_of_fp4, formats.LlmInt8: _rows_of_int8,
    formats.CompressedTensors: _rows_of_compressed,
    formats.ModelOptFp8: lambda of, w, t: (t["x"].div(t["input_scale"]),
                                           _results(t["y"], t["input_scale"], t["weight_scale"])),
    formats.Nvfp4: lambda of, w, t: _groups_in_four_bits(t, of.unit[1], "input_scale", "weight_scale_2"),
    formats.TorchaoEightBit: _rows_of_torchao_inputs,
}  # fmt: skip
"""Functions that scale products by blocks, by format class: the dynamic source's :data:`.unpacking._SCALE`."""


class NotPacked(Exception):
    """Raised for a matrix or a format that no code here packs; states the reason."""


@dataclass(frozen=True, slots=True)
class UnpackedMatrix:
    """Weights W [rows, columns] of a linear layer or table before they are packed, on meta."""

    weights: Any
    bias: Any
    """Biases [rows], or ``None``."""

    def biases(self, dtype: Any = None) -> dict[str, Any]:
        """Return the biases by name, in a dtype of the format or their own; empty if there are none."""
        return {} if self.bias is None else {"bias": self.bias.to(dtype or self.bias.dtype)}


def packed(of: Any, weights: Any, bias: Any = None) -> dict[str, Any]:
    """Return the tensors, by name, that the library of a format writes for a linear layer or table.

    Args:
        of: the format.
        weights: W [rows, columns] on meta, in the dtype of the checkpoint's unquantised tensors.
        bias: biases [rows].

    Raises:
        NotPacked: nothing is known of the format's library.
    """
    import torch

    pack = _PACK.get(type(of))
    if pack is None:
        raise NotPacked(f"no code packs {of.title}")
    made = pack(of, UnpackedMatrix(weights, bias))
    # Memory of their own, which views of the matrix do not have.
    return {name: torch.empty(t.shape, dtype=t.dtype, device="meta") for name, t in made.items()}


def _largest(numbers: Any, size: int, dim: int = -1) -> Any:
    """Return the largest of each ``size`` neighbours along a dimension; the last ones may be fewer."""
    import torch

    moved = numbers.movedim(dim, -1)
    whole: Any = torch.nn.functional.pad(moved, (0, -moved.shape[-1] % size))
    return whole.unflatten(-1, (-1, size)).amax(-1).movedim(-1, dim)


def _words(numbers: Any, bits: int, dtype: str = "int32") -> Any:
    """Return words that hold the low bits of the numbers of each row one after the other; the last may be padded."""
    import torch

    kind = getattr(torch, dtype)
    width = kind.itemsize * 8
    low = (numbers.to(torch.int64).unsqueeze(-1) >> torch.arange(bits, device=numbers.device)).flatten(-2)
    padded: Any = torch.nn.functional.pad(low, (0, -low.shape[-1] % width))
    whole = padded.unflatten(-1, (-1, width))
    return (whole << torch.arange(width, device=numbers.device)).sum(-1).to(kind)


def _pairs(codes: Any) -> Any:
    """Return bytes of two neighbours of a row each."""
    return _words(codes, 4, "uint8")


def _single(like: Any, dtype: str, *shape: int) -> Any:
    """Return a scale or zero point of a whole matrix or of the inputs, with no dimension unless stated."""
    import torch

    return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


def _cast(numbers: Any, dtype: str) -> Any:
    import torch

    return numbers.to(getattr(torch, dtype))


def fp8_scale_dtype(model_type: str, *, in_blocks: bool, powers: bool) -> str:
    """Return the torch dtype in which producers of fp8 checkpoints store the weights' scales.

    DeepSeek's files have float32 up to V3.2, also for powers of two, and E8M0 since V4; Qwen's scripts write blocks'
    scales in bfloat16, and Mistral's those of whole matrices.
    """
    if not in_blocks:
        return "bfloat16"
    if model_type in ("deepseek_v3", "deepseek_v32"):
        return "float32"
    if powers:
        return "float8_e8m0fnu"
    return "bfloat16" if model_type.partition("_")[0] == "qwen3" else "float32"


def _pack_fp8(of: formats.Fp8, w: UnpackedMatrix) -> Tensors:
    """Pack as transformers' FP8Linear, whose checkpoints have the scale of inputs in the dtype of a matrix's scale."""
    of_weight = w.weights.amax() if of.block is None else _largest(_largest(w.weights, of.block[1]), of.block[0], 0)
    dtype = fp8_scale_dtype(of.model_type, in_blocks=of.block is not None, powers=of.powers)
    inputs = "bfloat16" if of.block is None else "float32"
    return {
        "weight": _cast(w.weights, "float8_e4m3fn"), "weight_scale_inv": _cast(of_weight, dtype),
        **({"activation_scale": _single(w.weights, inputs)} if of.static else {}), **w.biases(),
    }  # fmt: skip


def _pack_fp4(of: formats.Fp4, w: UnpackedMatrix) -> Tensors:
    """Pack as transformers' FP8Experts with ``expert_dtype``: two columns in a byte, a scale for 32 columns."""
    scales = _largest(w.weights, 32)
    return {
        "weight": _cast(_pairs(w.weights), "int8"),
        "weight_scale_inv": _cast(scales, "float8_e8m0fnu" if of.powers else "float32"), **w.biases(),
    }  # fmt: skip


def _pack_modelopt_fp8(of: formats.ModelOptFp8, w: UnpackedMatrix) -> Tensors:
    """Pack as ModelOpt's ``export_quantized_weight``, with scales of amax / 448 in float32."""
    scale = _cast(w.weights.amax(), "float32")
    return {"weight": _cast(w.weights, "float8_e4m3fn"), "weight_scale": scale,
            "input_scale": _single(w.weights, "float32"), **w.biases()}  # fmt: skip


def _pack_nvfp4(of: formats.Nvfp4, w: UnpackedMatrix) -> Tensors:
    """Pack as ModelOpt's NVFP4QTensor: E2M1 in pairs, scales of 16 columns, and of the matrix and the inputs."""
    return {
        "weight": _pairs(w.weights), "weight_scale": _cast(_largest(w.weights, of.group or 16), "float8_e4m3fn"),
        "weight_scale_2": _cast(w.weights.amax(), "float32"), "input_scale": _single(w.weights, "float32"),
        **w.biases(),
    }  # fmt: skip


def _pack_llm_int8(of: formats.LlmInt8, w: UnpackedMatrix) -> Tensors:
    """Pack as bitsandbytes' ``int8_vectorwise_quant``, with the layout that ``Linear8bitLt`` saves."""
    return {"weight": _cast(w.weights, "int8"), "SCB": _cast(w.weights.amax(1), "float32"),
            "weight_format": _single(w.weights, "uint8"), **w.biases()}  # fmt: skip


def _pack_four_bit(of: formats.FourBit, w: UnpackedMatrix) -> Tensors:
    """Pack as bitsandbytes' ``quantize_4bit``: codes and maxima of the flattened matrix, with tables of values."""
    flat = w.weights.flatten()
    maxima = _largest(flat, 64)
    rows, columns = w.weights.shape
    stated = {"quant_type": of.kind, "blocksize": 64, "dtype": str(w.weights.dtype).removeprefix("torch."),
              "shape": [rows, columns]}  # fmt: skip
    more = {"weight.absmax": _cast(maxima, "float32")}
    if of.nested:
        outer = _cast(_largest(maxima, 256), "float32")
        more = {"weight.absmax": _cast(maxima, "uint8"), "weight.nested_absmax": outer,
                "weight.nested_quant_map": _single(flat, "float32", 2**8)}  # fmt: skip
        stated |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0}
    text = f"weight.quant_state.bitsandbytes__{of.kind}"
    return {
        "weight": _pairs(flat).unsqueeze(-1), "weight.quant_map": _single(flat, "float32", 2**4), **more,
        text: _single(flat, "uint8", len(json.dumps(stated).encode())), **w.biases(),
    }  # fmt: skip


def _pack_gptq(of: formats.Gptq, w: UnpackedMatrix) -> Tensors:
    """Pack as AutoGPTQ's ``QuantLinear.pack``, where columns share words, and rows those of their zero points."""
    import torch

    columns = w.weights.shape[1]
    scales = _cast(_largest(w.weights, of.group or columns).T, "float16")
    found = {"qweight": _words(w.weights, of.bits).T, "qzeros": _words(scales, of.bits), "scales": scales}
    if of.indexed:
        found["g_idx"] = torch.arange(columns, dtype=torch.int32, device="meta") // (of.group or columns)
    bias = w.weights[:, 0] if w.bias is None and of.zero_bias else w.bias
    return found | UnpackedMatrix(w.weights, bias).biases(torch.float16)


def _pack_awq(of: formats.Awq, w: UnpackedMatrix) -> Tensors:
    import torch

    if w.weights.shape[1] % max(of.group, 1):
        raise NotPacked(f"{w.weights.shape[1]} columns are not whole groups of {of.group}")
    made = packed_awq(_cast(w.weights.T, "int32"), of.bits, of.group, version=of.version)
    return made | w.biases(torch.float16)


def packed_awq(matrix: Any, bits: int, group: int, *, version: str = "gemm") -> dict[str, Any]:
    """Return the tensors in which AutoAWQ packs a matrix of integers [columns, rows], by name.

    Neighboring rows (``gemm``) or columns (``gemv``), four rows (``gemv_fast``) or tiles of 16 columns (``marlin``) are
    packed into words. AutoAWQ packs them in another order, which decides no size.

    Args:
        group: number of columns that share scales and zero points; -1: all.

    Raises:
        NotPacked: the version is not known.
    """
    import torch

    def words(numbers: Any) -> Any:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=numbers.device)
        return (numbers.unflatten(1, (-1, 32 // bits)) << shifts).sum(-1, dtype=torch.int32)

    numbers: Any = matrix
    groups = numbers.unflatten(0, (-1, group if group > 0 else matrix.shape[0]))
    zeros, scales = groups.amin(1), groups.amax(1).to(torch.float16)
    made: dict[str, Any] = {}
    if version.startswith("gemv"):  # kernels read whole words, of 1,024 columns if groups are small
        whole = max(1024 // group, 8)
        padding = (0, -zeros.shape[0] % whole)
        zeros, scales = (torch.nn.functional.pad(one.T, padding) for one in (zeros, scales))
    match version:
        case "gemm":
            made = {"qweight": words(numbers), "qzeros": words(zeros)}
        case "gemv":
            made = {"qweight": words(numbers.T), "qzeros": words(zeros)}
        case "gemv_fast":
            nibbles = torch.arange(0, 16, bits, dtype=torch.int16, device=numbers.device)
            four = numbers.to(torch.int16).T.unflatten(0, (-1, 16 // bits)).movedim(1, -1) << nibbles
            made = {"qweight": four.sum(-1, dtype=torch.int16), "qzeros": (zeros * scales).T}
            scales = scales.T
        case "marlin":
            made = {"qweight": words(numbers.unflatten(0, (-1, 16)).movedim(1, -1).flatten(1))}
        case _:
            raise NotPacked(f"version {version} is not known")
    return made | {"scales": scales}


def _pack_mlx(of: formats.Mlx, w: UnpackedMatrix) -> Tensors:
    """Pack as ``mx.quantize``: words of a row's integers, and a scale and an offset for each group."""
    scales = _largest(w.weights, of.group)
    return {"weight": _words(w.weights, of.bits), "scales": scales, "biases": scales.clone(), **w.biases()}


def _pack_compressed(of: formats.CompressedTensors, w: UnpackedMatrix) -> Tensors:
    """Pack as the compressors of compressed-tensors, with the scales that ``initialize_qparams`` creates."""
    columns = w.weights.shape[1]
    match of.strategy:
        case "tensor":
            scales = w.weights.amax().reshape(1)
        case "channel":
            scales = w.weights.amax(1, keepdim=True)
        case "block":
            scales = _largest(_largest(w.weights, of.block[1]), of.block[0], 0)
        case _:
            scales = _largest(w.weights, of.group)
    found: dict[str, Any] = {}
    integers = of.layout in ("pack-quantized", "int-quantized")
    zeros = _cast(scales, "int8" if integers else "float8_e4m3fn")
    match of.layout:
        case "pack-quantized":
            found = {"weight_packed": _words(w.weights, of.bits), "weight_shape": _single(scales, "int64", 2)}
            zeros = zeros if of.strategy == "tensor" else _words(zeros.T, of.bits).T
        case "nvfp4-pack-quantized":
            found = {"weight_packed": _pairs(w.weights), "weight_global_scale": _single(scales, "float32", 1)}
            scales = _cast(scales, "float8_e4m3fn")
        case "mxfp4-pack-quantized":
            found, scales = {"weight_packed": _pairs(w.weights)}, _cast(scales, "uint8")
        case "mxfp8-quantized":
            found, scales = {"weight": _cast(w.weights, "float8_e4m3fn")}, _cast(scales, "uint8")
        case "float-quantized" | "int-quantized":
            found = {"weight": _cast(w.weights, "int8" if integers else "float8_e4m3fn")}
        case _:
            raise NotPacked(f"no code packs {of.layout}")
    found["weight_scale"] = scales
    if not of.symmetric:
        found["weight_zero_point"] = zeros
    if of.ordered:
        found["weight_g_idx"] = _single(scales, "int32", columns)
    if of.inputs and of.input_levels:
        found["input_global_scale"] = _single(scales, "float32", 1)
    elif of.inputs == "static":
        found["input_scale"] = w.weights.amax().reshape(1)
        if of.input_zero:
            found["input_zero_point"] = _single(scales, "int8" if integers else "float8_e4m3fn", 1)
    return found | w.biases()


def _pack_torchao(of: formats.TorchaoEightBit, w: UnpackedMatrix) -> Tensors:
    """Pack as torchao's Int8Tensor and Float8Tensor, flattened for safetensors."""
    columns = w.weights.shape[1]
    scales = _largest(w.weights, of.group or columns)
    scales = scales.amax(0, keepdim=True) if of.whole else scales
    dtype = {"I8": "int8", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}[of.dtype]
    zeros = {"_weight_zero_point": _cast(scales, "int8")} if dtype == "int8" else {}
    return {"_weight_qdata": _cast(w.weights, dtype), "_weight_scale": _cast(scales, "float32"), **zeros, **w.biases()}


def _pack_torchao_int4(of: formats.TorchaoInt4, w: UnpackedMatrix) -> Tensors:
    """Pack as torchao's Int4Tensor, or as tinygemm's tiles of 8 rows with 128 columns in 32 x 4 words."""
    import torch

    if not of.tiled:
        scales = _largest(w.weights, of.group).T
        return {"_weight_qdata": _cast(_pairs(w.weights), "int8"), "_weight_scale": scales,
                "_weight_zero_point": scales.clone(), **w.biases()}  # fmt: skip
    rows, columns = w.weights.shape
    whole: Any = torch.nn.functional.pad(w.weights, (0, -columns % 1024, 0, -rows % 8))
    tiles = whole.unflatten(1, (-1, 128)).unflatten(0, (-1, 8)).movedim(1, 2).flatten(2)
    words: Any = _words(tiles, 4)
    pairs = _cast(_largest(whole, of.group).T.unsqueeze(-1).expand(-1, -1, 2), "bfloat16")
    return {"_weight_qdata": words.unflatten(-1, (32, 4)), "_weight_scale_and_zero": pairs, **w.biases()}


_PACK: Final[Mapping[type, Callable[[Any, UnpackedMatrix], Tensors]]] = {
    formats.Fp8: _pack_fp8, formats.Fp4: _pack_fp4, formats.ModelOptFp8: _pack_modelopt_fp8,
    formats.Nvfp4: _pack_nvfp4, formats.LlmInt8: _pack_llm_int8, formats.FourBit: _pack_four_bit,
    formats.Gptq: _pack_gptq, formats.Awq: _pack_awq, formats.Mlx: _pack_mlx,
    formats.CompressedTensors: _pack_compressed, formats.TorchaoEightBit: _pack_torchao,
    formats.TorchaoInt4: _pack_torchao_int4,
}  # fmt: skip
"""Functions that pack a matrix, by format class; transformers builds MXFP4 wherever it is known."""


def cache_scales(kind: str, like: Any) -> dict[str, Any]:
    """Return the scales that an attention stores for a quantised cache, by name, as ModelOpt or compressed-tensors do.

    Args:
        like: a weight of the attention.
    """
    if kind == "modelopt":
        return {f"{part}_proj.{part}_scale": _single(like, "float32") for part in ("k", "v")}
    return {f"{part}_scale": like.new_empty(1) for part in ("k", "v")} if kind else {}
