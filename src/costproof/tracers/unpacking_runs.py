"""Run the arithmetic of quantised weight formats group by group, as kernels do, for the dynamic source.

The static source exports references on whole matrices (:mod:`.unpacking`). Only the table of dtypes is shared, so that
a mistake in either arithmetic shows as a difference. Integers are only made, since their work is 0; all is on meta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
