"""Describe storage formats of weights: the tensors that each format has for a linear layer [rows, columns].

A format holds what a configuration states. Dtypes and sizes that no key states (of scales, blocks, tables, default
groups) are in its ``tensors``, and once more in the closed forms of :mod:`costproof.analytic.quantised`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import lcm
from typing import ClassVar, Final

from costproof.storage.tensors import DESCRIPTION, STORED_AS, Size, StoredTensor, ceil_div


@dataclass(frozen=True, slots=True)
class LinearShape:
    """Shape of a linear layer Y = X Wᵀ + c with W [rows, columns]."""

    rows: Size
    """Output features."""
    columns: Size
    """Input features."""
    bias: bool
    dtype: str
    """Dtype of unquantised tensors, as a header names it: ``BF16``."""

    @property
    def elements(self) -> Size:
        """Return the number of weights and biases."""
        return self.rows * self.columns + (self.rows if self.bias else 0)

    @property
    def plain_bias(self) -> tuple[StoredTensor, ...]:
        """Return the bias in :attr:`dtype`, if there is one."""
        return (StoredTensor("bias", self.dtype, (self.rows,), "bias"),) if self.bias else ()


class Format(ABC):
    """Base class of the storage formats of a linear layer."""

    source: ClassVar[str]
    """Publication or code that defines the layout."""

    in_numbers: ClassVar[bool] = False
    """Whether the stored bytes depend on the digits of the shape, as in a JSON text: unknown of a part of a matrix."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Return the name of the format."""

    @property
    def products(self) -> str:
        """Return the dtype of matrix products, a key of ``ARITHMETIC``; empty: the run's, after unpacking weights."""
        return ""

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that rows and columns must be multiples of; the format's library refuses other sizes."""
        return 1, 1

    @abstractmethod
    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return the stored tensors of a linear layer; names are relative to the path of the module."""

    def undetermined(self) -> tuple[str, ...]:
        """Return a text with name and reason for each tensor whose size the configuration does not determine."""
        return ()

    def assumed(self) -> tuple[str, ...]:
        """Return assumptions on the layout that follow from the producing tool, as no configuration key states them."""
        return ()


@dataclass(frozen=True, slots=True)
class Fp8(Format):
    """FP8 format of transformers: W in E4M3 with a scale for each block of W, or one scale.

    The scale has the name ``weight_scale_inv``, though it is a factor. Qwen3's checkpoints have scales of blocks in
    bfloat16, those of DeepSeek-V3 and of models made from it in float32. Scales that are powers of two (``scale_fmt``)
    are float32 in the files of DeepSeek-V3.1 and V3.2, and E8M0 in those of V4 and in what transformers writes. In the
    files of V4 they have the name ``scale``.
    """

    source: ClassVar[str] = "DeepSeek-V3 technical report, section 3.3; transformers FP8Linear"

    block: tuple[int, int] | None
    """Rows and columns of a block with one scale; ``None``: one scale for all of W."""
    static: bool = False
    """Whether the scale of the input is stored."""
    powers: bool = False
    """Whether scales are powers of two (``scale_fmt``)."""
    model_type: str = ""

    @property
    def title(self) -> str:
        """Return the name of the format, with the unit that shares a scale."""
        return "fp8, one scale" if self.block is None else "fp8, scales for blocks"

    @property
    def products(self) -> str:
        """Return the dtype of matrix products: float8, since inputs are quantised too."""
        return "float8" if self.title else ""

    @property
    def scale_dtype(self) -> str:
        """Return the dtype of the weights' scales."""
        if self.block is None:
            return "BF16"
        if self.powers and not self.model_type.startswith("deepseek_v3"):
            return "F8_E8M0"
        return "BF16" if self.model_type.startswith("qwen3") else "F32"

    @property
    def scale_name(self) -> str:
        """Return the name of the weights' scales."""
        return _scale_name(self.model_type)

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], scales [⌈rows / block⌉, ⌈columns / block⌉] or [], and the input's scale []."""
        shape = () if self.block is None else tuple(map(ceil_div, (of.rows, of.columns), self.block))
        inputs = StoredTensor("activation_scale", "BF16" if self.block is None else "F32", (), "scale")
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            StoredTensor(self.scale_name, self.scale_dtype, shape, "scale"),
            *((inputs,) if self.static else ()),
            *of.plain_bias,
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the assumption on the dtype of the weights' scales."""
        if self.powers and self.block is not None:
            other = {"F8_E8M0": "F32", "F32": "F8_E8M0"}[self.scale_dtype]
            return (f"scales of blocks are {self.scale_dtype}, where scale_fmt may also mean powers of two in {other}",)
        return (f"scales{' of blocks' if self.block else ''} are {self.scale_dtype}, which no key says",)


def _scale_name(model_type: str) -> str:
    """Return the name of the scales in fp8 checkpoints of a model type."""
    return "scale" if model_type.startswith("deepseek_v4") else "weight_scale_inv"


FP4_GROUP: Final = 32
"""Number of columns that share a scale in the experts of DeepSeek-V4."""
FP4_INPUT_GROUP: Final = 128
"""Number of columns of their inputs that share a scale."""


@dataclass(frozen=True, slots=True)
class Fp4(Format):
    """FP4 format of experts in an fp8 checkpoint (``expert_dtype``): E2M1, two columns in a byte, scales of 32 columns.

    One expert of a stack is a linear layer here. Inputs are quantised to fp8, with a scale for 128 columns.
    """

    title: ClassVar[str] = "fp4, scales for groups"
    source: ClassVar[str] = (
        "headers of DeepSeek-V4-Flash and V4-Pro; transformers FP8Experts with expert_dtype fp4; "
        "DeepSeek's inference code, fp4_gemm, which multiplies in fp8"
    )

    powers: bool = True
    """Whether scales are powers of two (``scale_fmt``)."""
    model_type: str = ""

    @property
    def products(self) -> str:
        """Return the dtype of matrix products: float8, that of inputs, which is the wider one."""
        return "float8" if self.title else ""

    @property
    def scale_dtype(self) -> str:
        """Return the dtype of the weights' scales."""
        return "F8_E8M0" if self.powers else "F32"

    @property
    def scale_name(self) -> str:
        """Return the name of the weights' scales."""
        return _scale_name(self.model_type)

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that rows and columns must be multiples of: 1, and the columns in a byte."""
        return 1, 2

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns / 2] and scales [rows, ⌈columns / 32⌉]."""
        return (
            StoredTensor("weight", "I8", (of.rows, ceil_div(of.columns, 2))),
            StoredTensor(self.scale_name, self.scale_dtype, (of.rows, ceil_div(of.columns, FP4_GROUP)), "scale"),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class ModelOptFp8(Format):
    """FP8 format of ModelOpt: W in E4M3, a float32 scale for W and one for its input."""

    title: ClassVar[str] = "fp8, one scale"
    source: ClassVar[str] = "NVIDIA ModelOpt, export of FP8"

    @property
    def products(self) -> str:
        """Return the dtype of matrix products: float8, since inputs are quantised too."""
        return "float8" if self.title else ""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], its scale [], and the input's scale []."""
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            *(StoredTensor(name, "F32", (), "scale") for name in ("weight_scale", "input_scale")),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class LlmInt8(Format):
    """Format of LLM.int8: W in int8 with a float32 scale for each row; outlier columns multiply in 16 bits."""

    title: ClassVar[str] = "bitsandbytes int8"
    source: ClassVar[str] = "bitsandbytes Linear8bitLt._save_to_state_dict; Dettmers et al. 2022, LLM.int8()"

    @property
    def products(self) -> str:
        """Return the dtype of matrix products: int8, since inputs are quantised too."""
        return "int8" if self.title else ""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], its scales SCB [rows], and the number of the weight's memory layout."""
        return (
            StoredTensor("weight", "I8", (of.rows, of.columns)),
            StoredTensor("SCB", "F32", (of.rows,), "scale"),
            StoredTensor("weight_format", "U8", (), "table"),
            *of.plain_bias,
        )


_UNITS: Final = {"tensor": "one scale", "channel": "scales for rows", "block": "scales for blocks"}


@dataclass(frozen=True, slots=True)
class CompressedTensors(Format):
    """Formats of compressed-tensors: a layout for the quantised numbers, and scales and zero points by a strategy."""

    source: ClassVar[str] = "compressed-tensors, compressors and initialize_qparams"

    layout: str
    """Layout of the numbers:
    ``pack-quantized``, ``int-quantized``, ``float-quantized``, ``naive-quantized``, ``mxfp8-quantized``,
    ``nvfp4-pack-quantized`` or ``mxfp4-pack-quantized``.
    """
    bits: int
    is_float: bool
    strategy: str
    """Unit that shares a scale: ``tensor``, ``channel``, ``group``, ``tensor_group`` or ``block``."""
    group: int = 0
    """Number of columns that share a scale; 0: no groups."""
    block: tuple[int, int] = (0, 0)
    """Rows and columns of a block that shares a scale; 0: no blocks."""
    symmetric: bool = True
    ordered: bool = False
    """Whether columns were quantised in the order of their activations, so that a tensor states the group of each."""
    inputs: str = ""
    """Kind of the scales of inputs, ``dynamic`` or ``static``; empty: inputs stay in the run's dtype."""
    input_levels: bool = False
    """Whether inputs have a global scale, in addition to the scales of groups."""
    input_zero: bool = False
    """Whether inputs have a stored zero point."""
    input_bits: int = 8
    """Bits of quantised inputs."""

    @property
    def title(self) -> str:
        """Return the name of the format: the kind of numbers and, for fp8, the unit that shares a scale."""
        if self.layout == "pack-quantized" or self.bits == 4:
            return f"compressed-tensors, packed {'4-bit floating point' if self.is_float else 'integers'}"
        return f"fp8, {_UNITS.get(self.strategy, 'scales for groups')}" if self.is_float else "int8"

    @property
    def products(self) -> str:
        """Return the dtype of matrix products, the wider of weights and inputs; empty: weights are unpacked."""
        if not self.inputs or self.layout in ("pack-quantized", "mxfp4-pack-quantized"):
            return ""
        if self.is_float:
            return {8: "float8", 4: "float4"}.get(max(self.bits, self.input_bits), "other")
        return "int8" if self.bits == 8 else "other"

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that rows and columns must be multiples of: 1, and the columns of a group."""
        return 1, max(self.group, 1)

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return the quantised numbers, scales and zero points of W, and scales of its input.

        Integers of a row are packed into words, which have a table with the shape; their zero points are packed along
        the rows, except the single one of a matrix.
        """
        units = self._units(of)
        return (
            *self._numbers(of),
            StoredTensor("weight_scale", self._scale_dtype(of), units, "scale"),
            *(() if self.symmetric else (self._zeros(of, units),)),
            *((StoredTensor("weight_g_idx", "I32", (of.columns,), "index"),) if self.ordered else ()),
            *self._of_inputs(of),
            *of.plain_bias,
        )

    def _units(self, of: LinearShape) -> tuple[Size, ...]:
        if self.strategy == "tensor":
            return (1,)
        if self.strategy == "channel":
            return of.rows, 1
        if self.strategy == "block":
            return ceil_div(of.rows, self.block[0]), ceil_div(of.columns, self.block[1])
        return of.rows, ceil_div(of.columns, self.group)

    def _numbers(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        if self.layout == "pack-quantized":
            return (
                StoredTensor("weight_packed", "I32", (of.rows, ceil_div(of.columns * self.bits, 32))),
                StoredTensor("weight_shape", "I64", (2,), "table"),
            )
        if self.bits == 4 and self.is_float:
            return (StoredTensor("weight_packed", "U8", (of.rows, ceil_div(of.columns, 2))),)
        return (StoredTensor("weight", "F8_E4M3" if self.is_float else "I8", (of.rows, of.columns)),)

    def _scale_dtype(self, of: LinearShape) -> str:
        own = {"nvfp4-pack-quantized": "F8_E4M3", "mxfp4-pack-quantized": "U8", "mxfp8-quantized": "U8"}
        return own.get(self.layout, of.dtype)

    def _zeros(self, of: LinearShape, units: tuple[Size, ...]) -> StoredTensor:
        if self.layout == "pack-quantized" and self.strategy != "tensor":
            units, dtype = (ceil_div(of.rows * self.bits, 32), units[1]), "I32"
        else:
            dtype = "F8_E4M3" if self.is_float else "I8"
        return StoredTensor("weight_zero_point", dtype, units, "zero point")

    def _of_inputs(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        static = self.inputs == "static" and not self.input_levels
        return (
            *((StoredTensor("weight_global_scale", "F32", (1,), "scale"),) if self.strategy == "tensor_group" else ()),
            *((StoredTensor("input_global_scale", "F32", (1,), "scale"),) if self.input_levels else ()),
            *((StoredTensor("input_scale", of.dtype, (1,), "scale"),) if static else ()),
            *((StoredTensor("input_zero_point", "F8_E4M3" if self.is_float else "I8", (1,), "zero point"),)
              if static and self.input_zero else ()),
        )  # fmt: skip

    def assumed(self) -> tuple[str, ...]:
        """Return the assumption on the dtype of the stored shapes."""
        return ("shapes of packed matrices are I64, which no key says",) if self.layout == "pack-quantized" else ()


@dataclass(frozen=True, slots=True)
class Gptq(Format):
    """Format of GPTQ: integers of several columns packed into 32-bit words, transposed.

    ``g_idx`` gives the group of each column; only AutoRound's own format lacks it. AutoGPTQ writes a bias for every
    layer, zeros where the model has none.
    """

    title: ClassVar[str] = "GPTQ"
    source: ClassVar[str] = "AutoGPTQ, GPTQModel and AutoRound, QuantLinear; Frantar et al. 2022, GPTQ"

    bits: int
    group: int | None
    """Number of columns that share a scale; ``None``: all of them."""
    zero_bias: bool = True
    """Whether a bias of zeros is stored for layers without a bias."""
    indexed: bool = True
    """Whether ``g_idx`` is stored."""

    @property
    def unit(self) -> tuple[int, int]:
        """Return 32, 32, whose multiples fill whole words at any bit width; AutoGPTQ drops other rows and columns."""
        return 32, 32

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return qweight [⌈columns bits / 32⌉, rows], qzeros, scales [groups, rows], g_idx [columns] and bias."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        return (
            StoredTensor("qweight", "I32", (ceil_div(of.columns * self.bits, 32), of.rows)),
            StoredTensor("qzeros", "I32", (groups, ceil_div(of.rows * self.bits, 32)), "zero point"),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
            *((StoredTensor("g_idx", "I32", (of.columns,), "index"),) if self.indexed else ()),
            *((StoredTensor("bias", "F16", (of.rows,), "bias"),) if of.bias or self.zero_bias else ()),
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the assumption on which biases are written."""
        return ("a bias of zeros is stored for layers without one, as AutoGPTQ does",) if self.zero_bias else ()


@dataclass(frozen=True, slots=True)
class Awq(Format):
    """Formats of AWQ: integers packed into words, in the order of the kernel that a version of AutoAWQ is written for.

    ``gemm`` packs neighbouring rows into 32-bit words, transposed. ``gemv`` packs neighbouring columns, and pads zero
    points and scales to whole words for the kernel. ``gemv_fast`` packs four rows into 16-bit words, with zero points
    times scales as numbers. ``marlin`` stores tiles of 16 columns, and no zero points.
    """

    source: ClassVar[str] = (
        "AutoAWQ WQLinear_GEMM, WQLinear_GEMV, WQLinear_GEMVFast and WQLinear_Marlin; Lin et al. 2023, AWQ"
    )

    bits: int
    group: int
    version: str = "gemm"
    """Layout of the words: ``gemm``, ``gemv``, ``gemv_fast`` or ``marlin``."""

    @property
    def title(self) -> str:
        """Return the name of the format."""
        return "AWQ" if self.version == "gemm" else f"AWQ, {self.version}"

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that rows and columns must be multiples of: rows in a word or tile, columns of a group."""
        if self.version == "marlin":
            return 64, lcm(self.group, 16)
        return 32 // self.bits, lcm(self.group, 64) if self.version == "gemv_fast" else self.group

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return qweight, qzeros, scales and bias.

        Of ``gemm`` they are [columns, rows bits / 32] and [groups, rows], zero points packed like weights.
        """
        groups = ceil_div(of.columns, self.group)
        return (
            *getattr(self, f"_{self.version}")(of, groups),
            *((StoredTensor("bias", "F16", (of.rows,), "bias"),) if of.bias else ()),
        )

    def _gemm(self, of: LinearShape, groups: Size) -> tuple[StoredTensor, ...]:
        packed = ceil_div(of.rows * self.bits, 32)
        return (
            StoredTensor("qweight", "I32", (of.columns, packed)),
            StoredTensor("qzeros", "I32", (groups, packed), "zero point"),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
        )

    def _gemv(self, of: LinearShape, groups: Size) -> tuple[StoredTensor, ...]:
        words = self._words(groups)
        return (
            StoredTensor("qweight", "I32", (of.rows, ceil_div(of.columns, 8))),
            StoredTensor("qzeros", "I32", (of.rows, words), "zero point"),
            StoredTensor("scales", "F16", (of.rows, words * 8), "scale"),
        )

    def _gemv_fast(self, of: LinearShape, groups: Size) -> tuple[StoredTensor, ...]:
        padded = self._words(groups) * 8
        return (
            StoredTensor("qweight", "I16", (ceil_div(of.rows, 4), of.columns)),
            StoredTensor("qzeros", "F16", (padded, of.rows), "zero point"),
            StoredTensor("scales", "F16", (padded, of.rows), "scale"),
        )

    def _marlin(self, of: LinearShape, groups: Size) -> tuple[StoredTensor, ...]:
        return (
            StoredTensor("qweight", "I32", (ceil_div(of.columns, 16), of.rows * 2)),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
        )

    def _words(self, groups: Size) -> Size:
        """Return the words of a row's zero points, which the kernel reads for 1,024 columns or more at a time."""
        least = max(128 // self.group, 1)
        return ceil_div(ceil_div(groups, 8), least) * least


@dataclass(frozen=True, slots=True)
class Mlx(Format):
    """Format of MLX: integers of each row packed into 32-bit words; also used for embedding tables."""

    title: ClassVar[str] = "MLX"
    source: ClassVar[str] = "mlx.nn.QuantizedLinear and QuantizedEmbedding, mode affine"

    bits: int
    group: int

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, ⌈columns bits / 32⌉], scales and offsets [rows, columns / group], and a bias."""
        groups = (of.rows, ceil_div(of.columns, self.group))
        return (
            StoredTensor("weight", "U32", (of.rows, ceil_div(of.columns * self.bits, 32))),
            StoredTensor("scales", of.dtype, groups, "scale"),
            StoredTensor("biases", of.dtype, groups, "zero point"),
            *of.plain_bias,
        )


ABSMAX_BLOCK: Final = 64
NESTED: Final = 256
"""Number of maxima that share a scale, if they are quantised too ("double quantisation")."""


@dataclass(frozen=True, slots=True)
class FourBit(Format):
    """Format of bitsandbytes with four bits: codes of the flattened W, and the maximum of each block of 64."""

    title: ClassVar[str] = "bitsandbytes, 4 bits"
    source: ClassVar[str] = "bitsandbytes Params4bit, QuantState.as_dict(packed=True); Dettmers et al. 2023, QLoRA"

    in_numbers: ClassVar[bool] = True
    kind: str
    """Data type of the codes: ``nf4`` or ``fp4``."""
    nested: bool
    """Whether the maxima are stored in eight bits ("double quantisation")."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [⌈rows columns / 2⌉, 1], the maxima and their scales, and the tables of values."""
        blocks = ceil_div(of.rows * of.columns, ABSMAX_BLOCK)
        maxima = StoredTensor("weight.absmax", "U8" if self.nested else "F32", (blocks,), "scale")
        description = StoredTensor(f"weight.{self._state}", "U8", (self._description_bytes(of),), DESCRIPTION)
        return (
            StoredTensor("weight", "U8", (ceil_div(of.rows * of.columns, 2), 1)),
            maxima,
            StoredTensor("weight.quant_map", "F32", (16,), "table"),
            *(self._scales_of_maxima(blocks) if self.nested else (description,)),
            *of.plain_bias,
        )

    @property
    def _state(self) -> str:
        return f"quant_state.bitsandbytes__{self.kind}"

    def _description_bytes(self, of: LinearShape) -> int:
        """Return the bytes of the JSON tensor that describes a layer's quantisation if its maxima are not quantised."""
        dtype = next(name for name, stored in STORED_AS.items() if stored == of.dtype)
        shape = [int(of.rows), int(of.columns)]
        return len(json.dumps({"quant_type": self.kind, "blocksize": ABSMAX_BLOCK, "dtype": dtype, "shape": shape}))

    @staticmethod
    def _scales_of_maxima(blocks: object) -> tuple[StoredTensor, ...]:
        return (
            StoredTensor("weight.nested_absmax", "F32", (ceil_div(blocks, NESTED),), "scale"),
            StoredTensor("weight.nested_quant_map", "F32", (NESTED,), "table"),
        )

    def undetermined(self) -> tuple[str, ...]:
        """Return the JSON tensor that describes nested quantisation, whose size depends on the weights."""
        if not self.nested:
            return ()
        return (f"weight.{self._state}: JSON of some 170 bytes, with a number from the data",)


_MXFP4_BLOCK: Final = 32


@dataclass(frozen=True, slots=True)
class Mxfp4(Format):
    """Format of gpt-oss: W in E2M1, blocks of 32 columns with a common exponent.

    One expert of a stack is a linear layer here; a stack is stored as one tensor of each kind.
    """

    title: ClassVar[str] = "MXFP4"
    source: ClassVar[str] = "OCP Microscaling formats 1.0; gpt-oss checkpoints; transformers Mxfp4GptOssExperts"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return blocks [rows, ⌈columns / 32⌉, 16] and scales [rows, ⌈columns / 32⌉]."""
        blocks = ceil_div(of.columns, _MXFP4_BLOCK)
        return (
            StoredTensor("blocks", "U8", (of.rows, blocks, _MXFP4_BLOCK // 2)),
            StoredTensor("scales", "U8", (of.rows, blocks), "scale"),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class Nvfp4(Format):
    """Format of NVFP4: W in E2M1, E4M3 scales for groups of columns, a float32 scale for W and one for its input."""

    title: ClassVar[str] = "NVFP4"
    source: ClassVar[str] = "NVIDIA ModelOpt, export of NVFP4"

    group: int | None
    """Number of columns that share a scale, as stated in the configuration; ``None``: 16."""

    @property
    def products(self) -> str:
        """Return the dtype of matrix products: float4, since inputs are quantised too."""
        return "float4" if self.title else ""

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that rows and columns must be multiples of: 1, and the columns of a group."""
        return 1, self.group or 16

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns / 2], weight_scale [rows, columns / group], weight_scale_2 and input_scale."""
        return (
            StoredTensor("weight", "U8", (of.rows, ceil_div(of.columns, 2))),
            StoredTensor("weight_scale", "F8_E4M3", (of.rows, ceil_div(of.columns, self.unit[1])), "scale"),
            StoredTensor("weight_scale_2", "F32", (), "scale"),
            StoredTensor("input_scale", "F32", (), "scale"),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class TorchaoEightBit(Format):
    """torchao's 8-bit weights W with float32 scales: one for the matrix, for each row, or for each group of columns.

    Integers have zero points too, although they are zeros.
    """

    title: ClassVar[str] = "torchao, 8 bits"
    source: ClassVar[str] = "torchao Int8Tensor and Float8Tensor; flatten_tensor_state_dict of torchao's safetensors"

    dtype: str
    """Dtype of the weights: ``I8``, ``F8_E4M3`` or ``F8_E5M2``."""
    group: int | None = None
    """Number of columns that share a scale; ``None``: the whole row."""
    whole: bool = False
    """Whether the whole matrix shares one scale."""
    dynamic: bool = False
    """Whether inputs are quantised too, when the layer runs."""

    @property
    def unit(self) -> tuple[int, int]:
        """Return the numbers that rows and columns must be multiples of: 1, and the columns of a group."""
        return 1, self.group or 1

    @property
    def products(self) -> str:
        """Return the dtype of matrix products if inputs are quantised too; else empty: weights are unpacked."""
        if not self.dynamic:
            return ""
        return "int8" if self.dtype == "I8" else "float8"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return data [rows, columns], scales [rows, groups] or [1, 1], and zero points if weights are integers."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        shape = (1, 1) if self.whole else (of.rows, groups)
        return (
            StoredTensor("_weight_qdata", self.dtype, (of.rows, of.columns)),
            StoredTensor("_weight_scale", "F32", shape, "scale"),
            *((StoredTensor("_weight_zero_point", "I8", shape, "zero point"),) if self.dtype == "I8" else ()),
            *of.plain_bias,
        )


_TILE: Final = (8, 1024)
"""Numbers of rows and columns in a tile of tinygemm, to whose multiples a matrix is padded."""


@dataclass(frozen=True, slots=True)
class TorchaoInt4(Format):
    """torchao's 4-bit weights W, with transposed scales and zero points for groups of columns, in the model's dtype."""

    title: ClassVar[str] = "torchao, 4 bits"
    source: ClassVar[str] = "torchao Int4Tensor and Int4TilePackedTo4dTensor, flattened for safetensors"

    group: int
    tiled: bool
    """Whether W is padded to the tiles of tinygemm's kernel."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return data [rows, columns / 2], scales and zero points [columns / group, rows]; or padded tiles."""
        if not self.tiled:
            groups = (ceil_div(of.columns, self.group), of.rows)
            return (
                StoredTensor("_weight_qdata", "I8", (of.rows, ceil_div(of.columns, 2))),
                StoredTensor("_weight_scale", of.dtype, groups, "scale"),
                StoredTensor("_weight_zero_point", of.dtype, groups, "zero point"),
                *of.plain_bias,
            )
        tiles = (ceil_div(of.rows, _TILE[0]), ceil_div(of.columns, _TILE[1]))
        return (
            StoredTensor("_weight_qdata", "I32", (tiles[0], tiles[1] * (_TILE[1] // 128), 32, 4)),
            StoredTensor(
                "_weight_scale_and_zero", "BF16", (tiles[1] * (_TILE[1] // self.group), tiles[0] * _TILE[0], 2), "scale"
            ),
            *of.plain_bias,
        )


def cache_tensors(kind: str, dtype: str) -> tuple[StoredTensor, ...]:
    """Return the scales that each attention stores for a quantised key/value cache: one for keys and one for values.

    Args:
        kind: ``modelopt``, ``compressed-tensors``, or empty: there are none.
        dtype: dtype of unquantised tensors, as a header names it.
    """
    if kind == "modelopt":
        return tuple(StoredTensor(f"{name}_proj.{name}_scale", "F32", (), "scale") for name in "kv")
    return tuple(StoredTensor(f"{name}_scale", dtype, (1,), "scale") for name in "kv") if kind else ()
