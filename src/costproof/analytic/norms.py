"""Cost formulas of normalizations: layer norm, channel norm in primitives, and RMS norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from costproof.analytic.costs import LayerCosts, Size, layer


@dataclass(frozen=True, slots=True)
class _Norm:
    """Base class of norms over ``rows`` rows of ``width`` elements: ``operations`` per element, and 2 per row."""

    operations: ClassVar[int]
    vectors: ClassVar[int]
    """Number of parameters per element of a row: scale and, for some norms, shift."""

    rows: Size
    width: Size
    item_bytes: Size
    read: bool = True
    """Whether another operator reads the result; an unread result is not an output."""

    def costs(self) -> LayerCosts:
        elements, owned = self.rows * self.width, self.vectors * self.width
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes,
            vector_flops={"norm": self.operations * elements + 2 * self.rows},
            input_bytes=elements * self.item_bytes,
            output_bytes=elements * self.item_bytes if self.read else 0,
            intermediate_bytes=self.intermediate_bytes(elements),
        )

    def intermediate_bytes(self, elements: Size) -> Size:
        """Return the bytes passed between the operators of the norm; 0 if it is a single operator."""
        return 0


@layer
class LayerNorm(_Norm):
    """y = (x - mean) / sqrt(var + eps) * w + c over rows of ``width`` elements.

    Per element: one addition for the mean, one subtraction, one square and one addition for the
    variance, one multiplication by the reciprocal root, one by w, one addition of c: 7. Per row: the
    addition of eps and the reciprocal square root: 2. (The divisions by the width that end the two
    means are not counted, as for every mean.)

        vector_flops = 7 rows width + 2 rows

    w and c are 2 width parameters. A result that is not ``read`` is computed, and does not count as written.
    """

    name: ClassVar[str] = "layer_norm"
    title: ClassVar[str] = "Layer normalisation"
    source: ClassVar[str] = "Ba et al. 2016, Layer Normalization; torch.nn.LayerNorm"
    operations: ClassVar[int] = 7
    vectors: ClassVar[int] = 2


@layer
class LayerNorm2d(_Norm):
    """y = (x - mean) / sqrt(var + eps) * w + c over the ``width`` channels of every pixel.

    The same as a layer norm, but each step is an operator: the mean (1 per element), x - mean, its
    square, the mean of that, x - mean once more, the division by the root, the product with w, the
    sum with c: 8 per element. Per pixel: the addition of eps and the square root: 2.

        vector_flops = 8 rows width + 2 rows

    w and c are 2 width parameters. Unfused, these ten operators read and write 1 + 2 + 2 + 1 + 2 + 2 + 2 + 2 = 14
    elements per element, 12 of them among themselves, and per row both means where they are made and where they are
    taken, the second with its root: 9.
    """

    name: ClassVar[str] = "layer_norm_2d"
    title: ClassVar[str] = "Layer normalisation over channels, written out"
    source: ClassVar[str] = "Kirillov et al. 2023, Segment Anything: LayerNorm2d"
    operations: ClassVar[int] = 8
    vectors: ClassVar[int] = 2

    def intermediate_bytes(self, elements: Size) -> Size:
        return (12 * elements + 9 * self.rows) * self.item_bytes


@layer
class RmsNorm(_Norm):
    """y = x / sqrt(mean(x²) + eps) * w over rows of ``width`` elements.

    Per element: the square, the addition of the mean, the multiplication by the reciprocal root, the
    multiplication by w: 4. Per row: the addition of eps and the reciprocal square root: 2.

        vector_flops = 4 rows width + 2 rows

    It computes in float32 inside, but reads and writes item_bytes per element: the casts fuse. w is
    width parameters.

    Unfused, per element: x is read by the square and once more by the product with the root, whose result is written
    and read by the product with w in the run's dtype, so 3 item_bytes more; the squares are written and read in
    float32, 8 bytes. Per row the mean, its sum with eps and the root are written and read in float32: 24 bytes.
    """

    name: ClassVar[str] = "rms_norm"
    title: ClassVar[str] = "Root mean square normalisation"
    source: ClassVar[str] = "Zhang and Sennrich 2019, Root Mean Square Layer Normalization"
    operations: ClassVar[int] = 4
    vectors: ClassVar[int] = 1

    def intermediate_bytes(self, elements: Size) -> Size:
        return (3 * self.item_bytes + 8) * elements + 24 * self.rows


@layer
class CentredRmsNorm(_Norm):
    """y = x / sqrt(mean(x²) + eps) * (1 + w) over rows of ``width`` elements: weights around 0.

    As :class:`RmsNorm`, and in every call one addition per element of w:

        vector_flops = 4 rows width + 2 rows + width

    Unfused, all that stands between x and the last cast is float32: of every element x is read once more, and the
    square and the product with the root are written and read, item_bytes + 16; 24 bytes per row; and 1 + w is written
    and read, 8 bytes per element of w.
    """

    name: ClassVar[str] = "centred_rms_norm"
    title: ClassVar[str] = "Root mean square normalisation with weights around 0"
    source: ClassVar[str] = "Zhang and Sennrich 2019, Root Mean Square Layer Normalization; GemmaRMSNorm (transformers)"
    operations: ClassVar[int] = 4
    vectors: ClassVar[int] = 1

    def costs(self) -> LayerCosts:
        plain = _Norm.costs(self)
        return replace(plain, vector_flops={**plain.vector_flops, "elementwise": self.width})

    def intermediate_bytes(self, elements: Size) -> Size:
        return (self.item_bytes + 16) * elements + 24 * self.rows + 8 * self.width


@layer
class WideRmsNorm(_Norm):
    """y = x / sqrt(mean(x²) + eps) * w over rows of ``width`` elements, the product with w in float32 too.

    As :class:`RmsNorm`: vector_flops = 4 rows width + 2 rows. Unfused, x is read once more, the square and the product
    with the root are written and read in float32, item_bytes + 16 per element, and 24 bytes per row.
    """

    name: ClassVar[str] = "wide_rms_norm"
    title: ClassVar[str] = "Root mean square normalisation in float32 to the end"
    source: ClassVar[str] = (
        "Zhang and Sennrich 2019, Root Mean Square Layer Normalization; GptOssRMSNorm (transformers)"
    )
    operations: ClassVar[int] = 4
    vectors: ClassVar[int] = 1

    def intermediate_bytes(self, elements: Size) -> Size:
        return (self.item_bytes + 16) * elements + 24 * self.rows


NormKind = Literal["layer", "rms", "centred_rms", "wide_rms"]

NORMS: Final[dict[NormKind, type[LayerNorm | RmsNorm | CentredRmsNorm | WideRmsNorm]]] = {
    "layer": LayerNorm,
    "rms": RmsNorm,
    "centred_rms": CentredRmsNorm,
    "wide_rms": WideRmsNorm,
}
