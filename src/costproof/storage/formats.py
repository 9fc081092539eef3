"""Describe formats of stored weights: the tensors that each stores for a linear layer [rows, columns]."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
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
    """Dtype of tensors that are not quantised, as in a header: ``BF16``."""

    @property
    def elements(self) -> Size:
        """Return the number of weights and biases."""
        return self.rows * self.columns + (self.rows if self.bias else 0)

    @property
    def plain_bias(self) -> tuple[StoredTensor, ...]:
        """Return the bias in :attr:`dtype`, if there is one."""
        return (StoredTensor("bias", self.dtype, (self.rows,), "bias"),) if self.bias else ()


class Format(ABC):
    """Protocol of formats that store a linear layer."""

    title: ClassVar[str]
    source: ClassVar[str]
    """Source that defines the layout."""

    in_numbers: ClassVar[bool] = False
    """Whether a size depends on the digits of the shape, so that it has no formula."""

    @property
    def products(self) -> str:
        """Return the dtype of products, a key of ``ARITHMETIC``; empty: weights are unpacked to the run's dtype."""
        return ""

    @abstractmethod
    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return the stored tensors of a linear layer; names are relative to the path of the module."""

    def undetermined(self) -> tuple[str, ...]:
        """Return (tensor name, reason) of each tensor whose size no configuration determines."""
        return ()

    def assumed(self) -> tuple[str, ...]:
        """Return assumptions on the layout that follow from the tool that wrote it, not from the configuration."""
        return ()


@dataclass(frozen=True, slots=True)
class Fp8Blocks(Format):
    """Format with W in E4M3 and a scale for each block of W (``weight_scale_inv``, a factor despite its name)."""

    title: ClassVar[str] = "fp8, scales for blocks"
    source: ClassVar[str] = "DeepSeek-V3 technical report, section 3.3; transformers FP8Linear"

    block: tuple[int, int] = (128, 128)
    scale_dtype: str = "F32"
    scale: str = "weight_scale_inv"
    weight_only: bool = False
    """Whether inputs stay in the run's dtype."""

    @property
    def products(self) -> str:
        """Return float8 if inputs are quantised too, else an empty text."""
        return "" if self.weight_only else "float8"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns] and scales [⌈rows / block⌉, ⌈columns / block⌉]."""
        blocks = (ceil_div(of.rows, self.block[0]), ceil_div(of.columns, self.block[1]))
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            StoredTensor(self.scale, self.scale_dtype, blocks, "scale"),
            *of.plain_bias,
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the assumption on the dtype of the scales."""
        return (f"scales of blocks are {self.scale_dtype}, which no key says",)


@dataclass(frozen=True, slots=True)
class Fp8Tensor(Format):
    """Format with W in E4M3, one scale for W, and one for the input if that is static."""

    title: ClassVar[str] = "fp8, one scale"
    source: ClassVar[str] = "compressed-tensors float-quantized, strategy tensor; ModelOpt FP8; transformers FP8Linear"

    static: bool
    """Whether the scale of the input is stored."""
    scale: str = "weight_scale"
    input_scale: str = "input_scale"
    scale_dtype: str = "F32"
    scale_shape: tuple[int, ...] = ()
    weight_only: bool = False
    """Whether inputs stay in the run's dtype."""

    @property
    def products(self) -> str:
        """Return float8 if inputs are quantised too, else an empty text."""
        return "" if self.weight_only else "float8"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], its scale, and that of the input."""
        scales = (self.scale, self.input_scale) if self.static else (self.scale,)
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            *(StoredTensor(name, self.scale_dtype, self.scale_shape, "scale") for name in scales),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class Fp8Rows(Format):
    """Format with W in E4M3 and one scale for each row; inputs are scaled dynamically."""

    title: ClassVar[str] = "fp8, scales for rows"
    source: ClassVar[str] = "compressed-tensors float-quantized, strategy channel"
    weight_only: bool = False
    """Whether inputs stay in the run's dtype."""

    @property
    def products(self) -> str:
        """Return float8 if inputs are quantised too, else an empty text."""
        return "" if self.weight_only else "float8"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns] and scales [rows, 1]."""
        return (
            StoredTensor("weight", "F8_E4M3", (of.rows, of.columns)),
            StoredTensor("weight_scale", of.dtype, (of.rows, 1), "scale"),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class Int8(Format):
    """Format with W in int8 and scales: one, one for each row, or one for each group of columns."""

    title: ClassVar[str] = "int8"
    source: ClassVar[str] = "compressed-tensors int-quantized"

    group: int | None
    """Columns with one scale; ``None``: the whole row."""
    whole: bool = False
    """Whether one scale is for the matrix."""
    symmetric: bool = True
    static: bool = False
    """Whether the scale of the input is stored."""
    static_zero: bool = False
    """Whether its zero point is."""
    weight_only: bool = False
    """Whether inputs stay in the run's dtype."""

    @property
    def products(self) -> str:
        """Return the integer dtype of products if inputs are integers too, else an empty text."""
        return "" if self.weight_only else "other"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], scales and, if not symmetric, zero points of the same shape."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        shape = (1,) if self.whole else (of.rows, groups)
        return (
            StoredTensor("weight", "I8", (of.rows, of.columns)),
            StoredTensor("weight_scale", of.dtype, shape, "scale"),
            *(() if self.symmetric else (StoredTensor("weight_zero_point", "I8", shape, "zero point"),)),
            *((StoredTensor("input_scale", of.dtype, (1,), "scale"),) if self.static else ()),
            *((StoredTensor("input_zero_point", "I8", (1,), "zero point"),) if self.static_zero else ()),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class LlmInt8(Format):
    """Format of LLM.int8: W in int8 with a float32 scale for each row; outlier columns multiply in 16 bits."""

    title: ClassVar[str] = "bitsandbytes int8"
    source: ClassVar[str] = "bitsandbytes Linear8bitLt._save_to_state_dict; Dettmers et al. 2022, LLM.int8()"

    @property
    def products(self) -> str:
        """Return the integer dtype of products, since inputs are integers too."""
        return "" if not self.title else "other"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns], SCB [rows], and the number of its layout."""
        return (
            StoredTensor("weight", "I8", (of.rows, of.columns)),
            StoredTensor("SCB", "F32", (of.rows,), "scale"),
            StoredTensor("weight_format", "U8", (), "table"),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class PackedIntegers(Format):
    """Format that packs the integers of each row into 32-bit words, and stores the unpacked shape."""

    title: ClassVar[str] = "compressed-tensors, packed integers"
    source: ClassVar[str] = "compressed-tensors pack-quantized (PackedQuantizationCompressor)"

    bits: int
    group: int | None
    """Columns with one scale; ``None``: the whole row."""
    symmetric: bool = True
    ordered: bool = False
    """Whether columns were quantised in the order of their activations, so that each has the number of its group."""
    shape_dtype: str = "I64"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight_packed [rows, ⌈columns bits / 32⌉], scales [rows, groups], the shape, and optional zero points.

        Zero points are packed along the rows.
        """
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        zeros = StoredTensor("weight_zero_point", "I32", (ceil_div(of.rows * self.bits, 32), groups), "zero point")
        return (
            StoredTensor("weight_packed", "I32", (of.rows, ceil_div(of.columns * self.bits, 32))),
            StoredTensor("weight_scale", of.dtype, (of.rows, groups), "scale"),
            StoredTensor("weight_shape", self.shape_dtype, (2,), "table"),
            *(() if self.symmetric else (zeros,)),
            *((StoredTensor("weight_g_idx", "I32", (of.columns,), "index"),) if self.ordered else ()),
            *of.plain_bias,
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the assumption on the dtype of the shapes."""
        return (f"shapes of packed matrices are {self.shape_dtype}, which no key says",)


@dataclass(frozen=True, slots=True)
class PackedFloats(Format):
    """Format with two four-bit floats per byte and a scale for each group of columns: MXFP4 or NVFP4."""

    title: ClassVar[str] = "compressed-tensors, packed 4-bit floating point"
    source: ClassVar[str] = "compressed-tensors nvfp4-pack-quantized and mxfp4-pack-quantized"

    group: int
    scale_dtype: str
    two_levels: bool
    """Whether a float32 scale of the matrix is stored too."""
    inputs: bool
    """Whether inputs are quantised with a stored scale."""

    @property
    def products(self) -> str:
        """Return the four-bit dtype of products if inputs have four bits too, else an empty text."""
        return "" if not (self.inputs and self.two_levels) else "other"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight_packed [rows, columns / 2], scales [rows, columns / group] and global scales of the matrix."""
        return (
            StoredTensor("weight_packed", "U8", (of.rows, ceil_div(of.columns, 2))),
            StoredTensor("weight_scale", self.scale_dtype, (of.rows, ceil_div(of.columns, self.group)), "scale"),
            *((StoredTensor("weight_global_scale", "F32", (1,), "scale"),) if self.two_levels else ()),
            *((StoredTensor("input_global_scale", "F32", (1,), "scale"),) if self.inputs else ()),
            *of.plain_bias,
        )


@dataclass(frozen=True, slots=True)
class Gptq(Format):
    """Format of GPTQ: integers of several columns packed into 32-bit words, transposed.

    ``g_idx`` gives the group of each column and is always written. AutoGPTQ writes a bias for every layer, zeros where
    the model has none.
    """

    title: ClassVar[str] = "GPTQ"
    source: ClassVar[str] = "AutoGPTQ and GPTQModel, QuantLinear; Frantar et al. 2022, GPTQ"

    bits: int
    group: int | None
    """Columns with one scale; ``None``: all of them."""
    zero_bias: bool = True
    """Whether a bias is written for layers without one."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return qweight [⌈columns bits / 32⌉, rows], qzeros, scales [groups, rows], g_idx [columns] and bias."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        return (
            StoredTensor("qweight", "I32", (ceil_div(of.columns * self.bits, 32), of.rows)),
            StoredTensor("qzeros", "I32", (groups, ceil_div(of.rows * self.bits, 32)), "zero point"),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
            StoredTensor("g_idx", "I32", (of.columns,), "index"),
            *((StoredTensor("bias", "F16", (of.rows,), "bias"),) if of.bias or self.zero_bias else ()),
        )

    def assumed(self) -> tuple[str, ...]:
        """Return the assumption on which biases are written."""
        return ("a bias of zeros is stored for layers without one, as AutoGPTQ does",) if self.zero_bias else ()


@dataclass(frozen=True, slots=True)
class Awq(Format):
    """Format of AWQ: integers of several rows packed into 32-bit words, transposed, always with zero points."""

    title: ClassVar[str] = "AWQ"
    source: ClassVar[str] = "AutoAWQ WQLinear_GEMM; Lin et al. 2023, AWQ"

    bits: int
    group: int | None

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return qweight [columns, rows bits / 32], qzeros, scales [groups, rows] and bias."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        packed = ceil_div(of.rows * self.bits, 32)
        return (
            StoredTensor("qweight", "I32", (of.columns, packed)),
            StoredTensor("qzeros", "I32", (groups, packed), "zero point"),
            StoredTensor("scales", "F16", (groups, of.rows), "scale"),
            *((StoredTensor("bias", "F16", (of.rows,), "bias"),) if of.bias else ()),
        )


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


_ABSMAX_BLOCK: Final = 64
_NESTED: Final = 256
"""Maxima with a scale of their own, if these are quantised too."""


@dataclass(frozen=True, slots=True)
class FourBit(Format):
    """Format of bitsandbytes with four bits: codes of flattened W, and the maximum of each block of 64 weights."""

    title: ClassVar[str] = "bitsandbytes, 4 bits"
    source: ClassVar[str] = "bitsandbytes Params4bit, QuantState.as_dict(packed=True); Dettmers et al. 2023, QLoRA"

    in_numbers: ClassVar[bool] = True
    kind: str
    """``nf4`` or ``fp4``."""
    nested: bool
    """Whether the maxima are stored in eight bits ("double quantisation")."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [⌈rows columns / 2⌉, 1], the maxima and their scales, and the tables of values."""
        blocks = ceil_div(of.rows * of.columns, _ABSMAX_BLOCK)
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
        """Return the bytes of the JSON tensor that describes a layer whose maxima are not quantised."""
        dtype = next(name for name, stored in STORED_AS.items() if stored == of.dtype)
        shape = [int(of.rows), int(of.columns)]
        return len(json.dumps({"quant_type": self.kind, "blocksize": _ABSMAX_BLOCK, "dtype": dtype, "shape": shape}))

    @staticmethod
    def _scales_of_maxima(blocks: object) -> tuple[StoredTensor, ...]:
        return (
            StoredTensor("weight.nested_absmax", "F32", (ceil_div(blocks, _NESTED),), "scale"),
            StoredTensor("weight.nested_quant_map", "F32", (_NESTED,), "table"),
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

    group: int = 16
    inputs: bool = True

    @property
    def products(self) -> str:
        """Return the four-bit dtype of products if inputs have four bits too, else an empty text."""
        return "" if not self.inputs else "other"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return weight [rows, columns / 2], weight_scale [rows, columns / group], weight_scale_2 and input_scale."""
        return (
            StoredTensor("weight", "U8", (of.rows, ceil_div(of.columns, 2))),
            StoredTensor("weight_scale", "F8_E4M3", (of.rows, ceil_div(of.columns, self.group)), "scale"),
            StoredTensor("weight_scale_2", "F32", (), "scale"),
            *((StoredTensor("input_scale", "F32", (), "scale"),) if self.inputs else ()),
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
    """``I8``, ``F8_E4M3`` or ``F8_E5M2``."""
    group: int | None = None
    """Columns with one scale; ``None``: the whole row."""
    whole: bool = False
    """Whether one scale is for the matrix."""
    dynamic: bool = False
    """Whether inputs are quantised too, as they come."""

    @property
    def products(self) -> str:
        """Return the dtype of products if inputs are quantised too; empty if weights alone are, and are unpacked."""
        if not self.dynamic:
            return ""
        return "other" if self.dtype == "I8" else "float8"

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return data [rows, columns], scales [rows, groups] or [1, 1], and zero points of integers."""
        groups = 1 if self.group is None else ceil_div(of.columns, self.group)
        shape = (1, 1) if self.whole else (of.rows, groups)
        return (
            StoredTensor("_weight_qdata", self.dtype, (of.rows, of.columns)),
            StoredTensor("_weight_scale", "F32", shape, "scale"),
            *((StoredTensor("_weight_zero_point", "I8", shape, "zero point"),) if self.dtype == "I8" else ()),
            *of.plain_bias,
        )


_TILE: Final = (8, 1024)
"""Rows and columns that tinygemm's tiles pad a matrix to."""


@dataclass(frozen=True, slots=True)
class TorchaoInt4(Format):
    """torchao's 4-bit weights W, with transposed scales and zero points for groups of columns, in the model's dtype."""

    title: ClassVar[str] = "torchao, 4 bits"
    source: ClassVar[str] = "torchao Int4Tensor and Int4TilePackedTo4dTensor, flattened for safetensors"

    group: int
    tiled: bool
    """Whether W is padded to the tiles of tinygemm's kernel."""

    def tensors(self, of: LinearShape) -> tuple[StoredTensor, ...]:
        """Return data [rows, columns / 2] and scales [columns / group, rows], or tiles, of a padded matrix."""
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
