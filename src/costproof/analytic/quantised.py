"""Closed forms of the elements and bytes of a quantised matrix [o, i], for each part of its format.

These forms are written from the documents of the formats, and share with the layouts of
:mod:`costproof.storage.formats` only what a configuration says. Each gives (elements, bytes) of the numbers, scales,
zero points, indices, biases and tables; o are output, i input features, c biases (o or 0), and b the bytes of an
element that is not quantised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sympy

from costproof.analytic.costs import Size
from costproof.ledger.workload import FLOAT_BYTES, Dtype
from costproof.storage import formats
from costproof.storage.formats import Format

Sizes = dict[str, tuple[Size, Size]]
"""(elements, bytes) of a format's parts, by part; checkpoints store the part ``description``, but no run loads it."""


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """Shape of a linear layer's weight matrix, in integers or symbols."""

    o: Size
    i: Size
    has_bias: bool
    dtype: Dtype
    """Dtype of unquantised tensors."""
    digits: int = 0
    """Number of digits of the rows and columns; 0: unknown, or those of the integers ``o`` and ``i``."""

    @property
    def c(self) -> Size:
        """Return the number of bias elements."""
        return self.o if self.has_bias else 0

    @property
    def b(self) -> int:
        """Return the bytes of an unquantised element."""
        return FLOAT_BYTES[self.dtype]


def parts_of(of: Format, m: MatrixShape) -> Sizes:
    """Return (elements, bytes) of each part of a matrix in a format, by part, without empty parts."""
    found = _FORMS[type(of)](of, m)
    return {part: sizes for part, sizes in found.items() if sizes[0] != 0}


def cache_scales(kind: str, dtype: Dtype) -> tuple[int, int]:
    """Return (elements, bytes) of the scales of a layer's quantised cache, one for keys and one for values.

    A scale has four bytes in files of ModelOpt, and else the width of ``dtype``. Without ``kind`` there are none.
    """
    return (2, 8 if kind == "modelopt" else 2 * FLOAT_BYTES[dtype]) if kind else (0, 0)


def _up(a: Size, b: Size = 1) -> Any:
    """Return ⌈a / b⌉."""
    return sympy.ceiling(sympy.sympify(a) / b)


def _fp8(of: formats.Fp8, m: MatrixShape) -> Sizes:
    """Return o i bytes of weights, and scales per block (of 1, 2 or 4 bytes), or one of 2 bytes for the matrix.

    A scale of a block has 1 byte as a power of two, but 4 in DeepSeek-V3.1 and V3.2; 2 in Qwen3, and else 4. Static
    inputs have one scale more.

    Source: DeepSeek-V3's report, section 3.3; the headers of DeepSeek-V3 and V3.1, Qwen3-8B-FP8, Ministral-3; float32
    scales in the inference code of DeepSeek-V3.2-Exp; E8M0 in the headers of DeepSeek-V4-Pro.
    """
    inputs = 1 if of.static else 0
    if of.block is None:
        scales = (1 + inputs, 2 * (1 + inputs))
    else:
        blocks = _up(m.o, of.block[0]) * _up(m.i, of.block[1])
        family = of.model_type[:11]
        size = 4 if family == "deepseek_v3" else 1 if of.powers else 2 if family.startswith("qwen3") else 4
        scales = (blocks + inputs, size * blocks + 4 * inputs)
    return {"weight": (m.o * m.i, m.o * m.i), "scale": scales, "bias": (m.c, m.b * m.c)}


def _fp4(of: formats.Fp4, m: MatrixShape) -> Sizes:
    """Return o i / 2 bytes, and a scale of 1 byte (of 4 unless it is a power of two) per row and 32 columns.

    Source: the headers of DeepSeek-V4-Flash and V4-Pro; OCP Microscaling formats 1.0, section 5.
    """
    packed, groups = m.o * _up(m.i, 2), m.o * _up(m.i, 32)
    return {"weight": (packed, packed), "scale": (groups, (1 if of.powers else 4) * groups), "bias": (m.c, m.b * m.c)}


def _modelopt_fp8(of: formats.ModelOptFp8, m: MatrixShape) -> Sizes:
    """Return o i bytes and two scales of 4 bytes, of W and of the input. Source: ModelOpt, unified export."""
    return {"weight": (m.o * m.i, m.o * m.i), "scale": (2, 8), "bias": (m.c, m.b * m.c)}


def _nvfp4(of: formats.Nvfp4, m: MatrixShape) -> Sizes:
    """Return o i / 2 bytes, o i / 16 scales of 1 byte and two of 4. Source: NVIDIA, Introducing NVFP4; ModelOpt."""
    groups = m.o * _up(m.i, of.group if of.group is not None else 16)
    packed = m.o * _up(m.i, 2)
    return {"weight": (packed, packed), "scale": (groups + 2, groups + 8), "bias": (m.c, m.b * m.c)}


def _llm_int8(of: formats.LlmInt8, m: MatrixShape) -> Sizes:
    """Return o i bytes, o scales of 4 bytes, and a byte for the layout. Source: bitsandbytes, Linear8bitLt."""
    return {"weight": (m.o * m.i, m.o * m.i), "scale": (m.o, 4 * m.o), "table": (1, 1), "bias": (m.c, m.b * m.c)}


def _four_bit(of: formats.FourBit, m: MatrixShape) -> Sizes:
    """Return o i / 2 bytes, the maxima of blocks of 64 weights, and a table of 16 float32 values.

    A maximum has 4 bytes or, nested, 1 byte with a scale of 4 bytes per 256 maxima and a table of 256 values. The
    JSON object of single maxima has 66 characters, the dtype's name and the digits of o and i.
    Source: Dettmers et al. 2023, QLoRA, section 3; bitsandbytes, QuantState.
    """
    packed, maxima = _up(m.o * m.i, 2), _up(m.o * m.i, 64)
    found: Sizes = {"weight": (packed, packed), "bias": (m.c, m.b * m.c)}
    if of.nested:
        outer = _up(maxima, 256)
        return found | {"scale": (maxima + outer, maxima + 4 * outer), "table": (16 + 256, 4 * (16 + 256))}
    digits = len(str(m.o)) + len(str(m.i)) if isinstance(m.o, int) and isinstance(m.i, int) else m.digits
    text = 66 + len(m.dtype) + digits
    return found | {"scale": (maxima, 4 * maxima), "table": (16, 64), "description": (text, text)}


def _gptq(of: formats.Gptq, m: MatrixShape) -> Sizes:
    """Return words of 4 bytes that hold 32 / bits integers each, scales of 2 bytes, and a group index per column.

    Each row has ⌈bits i / 32⌉ words. Each group of columns has o scales and, as zero points, ⌈bits o / 32⌉ words. The
    index (``g_idx``) is of 4 bytes, and AutoRound's format has none.
    Source: Frantar et al. 2022, GPTQ; AutoGPTQ, QuantLinear.pack; AutoRound 0.6 and later, qlinear_torch_zp.
    """
    groups = _up(m.i, of.group) if of.group is not None else 1
    words, zeros = m.o * _up(of.bits * m.i, 32), groups * _up(of.bits * m.o, 32)
    biases = m.o if of.zero_bias or m.has_bias else 0
    return {
        "weight": (words, 4 * words), "zero point": (zeros, 4 * zeros), "scale": (groups * m.o, 2 * groups * m.o),
        "index": (m.i, 4 * m.i) if of.indexed else (0, 0), "bias": (biases, 2 * biases),
    }  # fmt: skip


def _awq(of: formats.Awq, m: MatrixShape) -> Sizes:
    """Return words of 4 bytes with 32 / bits rows each, for columns and for zero points, and scales of 2 bytes.

    In other versions a weight has half a byte too, in words of 4 or (gemv_fast) 2 bytes. Both of gemv have scales and
    zero points of each row for a multiple of 8 groups, or of the groups in 1,024 columns; a zero point has 4 bits, or 2
    bytes in gemv_fast. Marlin has none.

    Branches: on the size of a group, which is a setting of the format.

    Source: Lin et al. 2023, AWQ; AutoAWQ, WQLinear_GEMM, WQLinear_GEMV, WQLinear_GEMVFast and WQLinear_Marlin.
    """
    if of.version != "gemm":
        packed, halves = _up(m.o * m.i, 2), 4 if of.version == "gemv_fast" else 8
        found: Sizes = {"weight": (_up(m.o * m.i, halves), packed), "bias": (m.c, 2 * m.c)}
        if of.version == "marlin":
            factors = m.o * _up(m.i, of.group)
            return {**found, "scale": (factors, 2 * factors)}
        together = 8 if of.group >= 128 else 1024 // of.group
        factors = m.o * together * _up(_up(m.i, of.group), together)
        zeros = (factors, 2 * factors) if of.version == "gemv_fast" else (_up(factors, 8), _up(factors, 2))
        return {**found, "zero point": zeros, "scale": (factors, 2 * factors)}
    words, groups = _up(of.bits * m.o, 32), _up(m.i, of.group)
    return {
        "weight": (m.i * words, 4 * m.i * words), "zero point": (groups * words, 4 * groups * words),
        "scale": (groups * m.o, 2 * groups * m.o), "bias": (m.c, 2 * m.c),
    }  # fmt: skip


def _mlx(of: formats.Mlx, m: MatrixShape) -> Sizes:
    """Return i bits / 32 words of 4 bytes per row, a scale and an offset per group. Source: MLX, mx.quantize."""
    words, groups = m.o * _up(m.i * of.bits, 32), m.o * _up(m.i, of.group)
    scales = (groups, m.b * groups)
    return {"weight": (words, 4 * words), "scale": scales, "zero point": scales, "bias": (m.c, m.b * m.c)}


def _mxfp4(of: formats.Mxfp4, m: MatrixShape) -> Sizes:
    """Return 16 bytes and an exponent of 1 byte per 32 columns. Source: OCP Microscaling formats 1.0, section 5."""
    blocks = m.o * _up(m.i, 32)
    return {"weight": (16 * blocks, 16 * blocks), "scale": (blocks, blocks), "bias": (m.c, m.b * m.c)}


def _eight_bit_of_torchao(of: formats.TorchaoEightBit, m: MatrixShape) -> Sizes:
    """Return o i bytes, and a scale of 4 bytes per matrix, row or group; integers add a zero point of 1 byte each.

    Source: torchao, Int8Tensor and Float8Tensor.
    """
    units = 1 if of.whole else m.o * (_up(m.i, of.group) if of.group is not None else 1)
    zeros = units if of.dtype == "I8" else 0
    return {
        "weight": (m.o * m.i, m.o * m.i), "scale": (units, 4 * units), "zero point": (zeros, zeros),
        "bias": (m.c, m.b * m.c),
    }  # fmt: skip


def _four_bit_of_torchao(of: formats.TorchaoInt4, m: MatrixShape) -> Sizes:
    """Return o i / 2 bytes, and a scale and a zero point per group; tiles pad the matrix to multiples of [8, 1024].

    Source: torchao, Int4Tensor and Int4TilePackedTo4dTensor; torch, _convert_weight_to_int4pack.
    """
    if not of.tiled:
        packed, groups = m.o * _up(m.i, 2), m.o * _up(m.i, of.group)
        return {
            "weight": (packed, packed), "scale": (groups, m.b * groups), "zero point": (groups, m.b * groups),
            "bias": (m.c, m.b * m.c),
        }  # fmt: skip
    rows, columns = 8 * _up(m.o, 8), 1024 * _up(m.i, 1024)
    pairs = rows * columns / of.group
    return {
        "weight": (rows * columns / 8, rows * columns / 2), "scale": (2 * pairs, 4 * pairs), "bias": (m.c, m.b * m.c)
    }  # fmt: skip


def _compressed(of: formats.CompressedTensors, m: MatrixShape) -> Sizes:
    """Return o i numbers of 1 byte or half a byte (fp4), or i bits / 32 words per row and the shape in 16 bytes.

    A scale has the bytes of the model's numbers, in formats of 4 bits and MXFP8 1; a zero point 1, packed like the
    words along the rows. NVFP4 has a scale of 4 bytes for W, and for inputs.
    Source: compressed-tensors, README, and the compressors of its formats.
    """
    packed, fp4 = of.layout == "pack-quantized", of.layout in ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
    words = m.o * _up(of.bits * m.i, 32)
    numbers = m.o * _up(m.i, 2) if fp4 else m.o * m.i
    by_group = of.group != 0
    along, across = (m.o, _up(m.i, of.group) if by_group else 1) if by_group or of.strategy == "channel" else (1, 1)
    if of.strategy == "block":
        along, across = _up(m.o, of.block[0]), _up(m.i, of.block[1])
    scales, size = along * across, 1 if fp4 or of.layout == "mxfp8-quantized" else m.b
    zeros, zero_size = scales, 1
    if packed and of.strategy != "tensor":
        zeros, zero_size = across * _up(of.bits * m.o, 32), 4
    of_input = 1 if of.inputs == "static" else 0
    levels = (1 if of.layout.startswith("nvfp4") else 0) + (1 if of.input_levels else 0)
    zeros = 0 if of.symmetric else zeros
    input_zero = of_input if of.input_zero else 0
    columns = m.i if of.ordered else 0
    return {
        "weight": (words, 4 * words) if packed else (numbers, numbers), "table": (2, 16) if packed else (0, 0),
        "scale": (scales + of_input + levels, size * scales + m.b * of_input + 4 * levels),
        "zero point": (zeros + input_zero, zero_size * zeros + input_zero), "index": (columns, 4 * columns),
        "bias": (m.c, m.b * m.c),
    }  # fmt: skip


_FORMS: Final[dict[type, Callable[[Any, MatrixShape], Sizes]]] = {
    formats.Fp8: _fp8, formats.Fp4: _fp4, formats.ModelOptFp8: _modelopt_fp8, formats.Nvfp4: _nvfp4,
    formats.LlmInt8: _llm_int8, formats.FourBit: _four_bit, formats.Gptq: _gptq, formats.Awq: _awq, formats.Mlx: _mlx,
    formats.Mxfp4: _mxfp4, formats.TorchaoEightBit: _eight_bit_of_torchao, formats.TorchaoInt4: _four_bit_of_torchao,
    formats.CompressedTensors: _compressed,
}  # fmt: skip
"""Functions that return (elements, bytes) of a format's weights, scales and other parts, by class of the format."""


def unpacking(of: Format, m: MatrixShape) -> Size | None:
    """Return the vector FLOPs that turn a matrix's stored numbers into W [o, i]; ``None`` if they are not known.

    Integers, shifts, masks, look-ups and casts are 0, as in all vector FLOPs; a scale multiplies each weight.

    Branches: by format; no size is compared.
    """
    found = _UNPACKING.get(type(of))
    return None if found is None else found(of, m)


def _of_compressed(of: formats.CompressedTensors, m: MatrixShape) -> Size | None:
    """Return 1 FLOP per weight, 2 with a zero point, and 1 per scale in NVFP4 and MX formats (division or power).

    Inputs that are quantised for a product in 16 bits are not known.

    Source: compressed-tensors, ``quantization.lifecycle.forward.dequantize`` and its compressors.
    """
    if of.inputs and not of.products:
        return None
    nested = of.layout.startswith(("nvfp4", "mxfp"))
    return m.o * m.i * (1 if of.symmetric else 2) + (m.o * _up(m.i, of.group) if nested else 0)


def _of_nf4(of: formats.FourBit, m: MatrixShape) -> Size:
    """Return 1 FLOP per weight, times its block's maximum, which nested takes 2: value times scale plus mean.

    Source: Dettmers et al. 2023, QLoRA, section 3; bitsandbytes, ``functional.dequantize_4bit``.
    """
    return m.o * m.i + (2 * _up(m.o * m.i, 64) if of.nested else 0)


def _of_tinygemm(of: formats.TorchaoInt4, m: MatrixShape) -> Size:
    """Return 2 FLOPs per weight, padding of tiles included: multiply by the scale, add the zero point.

    Source: torchao, ``quant_primitives`` (zero_point_domain FLOAT); tinygemm.
    """
    return 2 * (8 * _up(m.o, 8) * 1024 * _up(m.i, 1024) if of.tiled else m.o * m.i)


_UNPACKING: Final[dict[type, Callable[[Any, MatrixShape], Size | None]]] = {
    # A scale is the factor: in GPTQ of integers less their zero point, in torchao's eight bits too.
    **dict.fromkeys((formats.Gptq, formats.TorchaoEightBit), lambda of, m: m.o * m.i),
    # In gemv_fast the zero point times the scale is a number, which is added.
    formats.Awq: lambda of, m: (2 if of.version == "gemv_fast" else 1) * m.o * m.i,
    formats.Mlx: lambda of, m: 2 * m.o * m.i,  # mlx.core.dequantize: scale x + offset
    # OCP Microscaling formats 1.0, section 5.2: 2^e for each block of 32, and a product for each number in it.
    formats.Mxfp4: lambda of, m: 33 * m.o * _up(m.i, 32),
    formats.FourBit: _of_nf4, formats.TorchaoInt4: _of_tinygemm, formats.CompressedTensors: _of_compressed,
}  # fmt: skip
"""Functions that return the vector FLOPs of unpacking a matrix, by class of the format."""


def scaling(of: Format, m: MatrixShape) -> Size | None:
    """Return the vector FLOPs per input row of a product in the format's own dtype; ``None`` if they are not known.

    A row of X is quantised: absolute value, maximum and division for each number (integers are rounded, too), and a
    division for each scale. A result is multiplied by the scales of its row and its column; with scales for blocks of
    columns, each partial sum is, and is added. Scales of 16 or 32 numbers multiply inside the products of hardware.
    A static scale of inputs leaves the division. A cast is 0.

    Branches: by format; no size is compared.
    """
    found = _SCALING.get(type(of))
    return None if found is None else found(of, m)


def _dynamic(m: MatrixShape, *, rounded: bool = False, scales: Size = 1) -> Size:
    return (4 if rounded else 3) * m.i + scales


def _of_fp8(of: formats.Fp8, m: MatrixShape) -> Size:
    """Return the FLOPs of inputs with a scale per row of a block; a power of two takes logarithm, ceiling and power.

    Source: DeepSeek-V3's report, section 3.3.2 and figure 7; DeepGEMM, ``ceil_to_ue8m0``.
    """
    across = 1 if of.block is None else _up(m.i, of.block[1])
    if of.static:
        return m.i + (2 * m.o if of.block is None else 2 * m.o * across + m.o)
    inputs = _dynamic(m, scales=(4 if of.powers and of.block is not None else 1) * across)
    return inputs + (2 * m.o if of.block is None else 3 * m.o * across)


def _of_fp4(of: formats.Fp4, m: MatrixShape) -> Size:
    """Return the FLOPs of inputs with a scale per 128 columns, and of partial sums of 32 columns: two scales, one sum.

    Source: DeepSeek's inference code, ``act_quant`` and ``fp4_gemm``.
    """
    return _dynamic(m, scales=(4 if of.powers else 1) * _up(m.i, 128)) + 3 * m.o * _up(m.i, 32)


def _of_compressed_inputs(of: formats.CompressedTensors, m: MatrixShape) -> Size | None:
    """Return the FLOPs of inputs with a scale per row or, in NVFP4, per group; ``None`` for other, unknown ones.

    Source: compressed-tensors, ``quantization.utils.helpers.calculate_qparams`` and ``lifecycle.forward.quantize``.
    """
    if of.input_zero or not of.symmetric:
        return None
    if of.layout.startswith("nvfp4") and of.input_levels:
        return _two_levels(m, of.group)
    if of.strategy not in ("tensor", "channel"):
        return None
    rounded = not of.is_float
    inputs = m.i * (2 if rounded else 1) if of.inputs == "static" else _dynamic(m, rounded=rounded)
    return inputs + 2 * m.o


def _two_levels(m: MatrixShape, group: int) -> Size:
    """Return the FLOPs of NVFP4 inputs: a scale is max / 6 / global scale, and a number is divided by their product."""
    return _dynamic(m, scales=3 * _up(m.i, group)) + 2 * m.o


def _of_torchao_inputs(of: formats.TorchaoEightBit, m: MatrixShape) -> Size | None:
    """Return the FLOPs of inputs with a scale per row. Source: torchao, ``Int8Tensor`` and ``Float8Tensor``."""
    if of.whole or of.group is not None:
        return None
    return _dynamic(m, rounded=of.dtype == "I8") + 2 * m.o


_SCALING: Final[dict[type, Callable[[Any, MatrixShape], Size | None]]] = {
    formats.Fp8: _of_fp8, formats.Fp4: _of_fp4,
    formats.ModelOptFp8: lambda of, m: m.i + 2 * m.o,
    # LLM.int8(), equation 8: row and column constants, and 1 / 127²; outlier columns depend on the data.
    formats.LlmInt8: lambda of, m: _dynamic(m, rounded=True) + 3 * m.o,
    formats.Nvfp4: lambda of, m: _two_levels(m, of.unit[1]),
    formats.CompressedTensors: _of_compressed_inputs, formats.TorchaoEightBit: _of_torchao_inputs,
}  # fmt: skip
"""Functions that return the vector FLOPs per input row, by class of a format with arithmetic of its own."""
