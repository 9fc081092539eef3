"""Cost formulas of rotary positions: the table of cosines and sines, and the rotation of queries and keys."""

from __future__ import annotations

from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class RotaryTable:
    """Tables cos(t ω) and sin(t ω), in float32, for ``positions`` positions t and head_dim / 2 frequencies ω.

    1. angles = t ω: positions head_dim / 2 multiplications;
    2. the angles are doubled up to head_dim by a copy;
    3. a cosine, a sine, and the scaling of both: 4 positions head_dim operations.

        vector_flops = 9/2 positions head_dim

    The positions are equal for all sequences, so the batch does not occur. In come the head_dim / 2
    frequencies (a buffer of frequency_bytes per element), out go both tables; the cast to the run's
    dtype fuses, so they weigh item_bytes per element. The module registers the frequencies twice, as they are and as
    they were before any scaling, in float32 whatever the run's dtype:

        buffer_bytes = 2 head_dim / 2 frequency_bytes = 4 head_dim

    Unfused, in float32: the angles are written and read, 8 bytes for each of positions head_dim / 2; doubled they are
    written once and read by both functions, 12 bytes per element; and each function is written and read, 16:
    32 positions head_dim. Tables that no layer of a pipeline stage reads do not go out.
    """

    name: ClassVar[str] = "rotary_table"
    title: ClassVar[str] = "Rotary positions: cosines and sines"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers RotaryEmbedding.forward"

    registered: ClassVar[int] = 2
    """Number of frequency buffers: ``inv_freq``, and ``original_inv_freq`` for scalings that change the first."""

    positions: Size
    head_dim: Size
    item_bytes: Size
    frequency_bytes: Size = 4
    read: bool = True
    """Whether any layer reads the tables."""

    @property
    def held_bytes(self) -> Size:
        """Return the bytes of the frequency buffers, which are float32 in every run."""
        return self.registered * sympy.sympify(self.head_dim) / 2 * self.frequency_bytes

    def costs(self) -> LayerCosts:
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 9 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            buffer_bytes=self.held_bytes,
            buffer_read_bytes=half * self.frequency_bytes,
            output_bytes=2 * self.positions * self.head_dim * self.item_bytes if self.read else 0,
            intermediate_bytes=32 * self.positions * self.head_dim,
        )


@layer
class RotaryProduct(RotaryTable):
    """Variant of :class:`RotaryTable` whose angles are a matrix product of ω [head_dim / 2, 1] and t [1, positions].

    1. angles = ω t: an outer product written as a matrix product, one multiply-accumulate per angle;
    2. the angles are doubled up to head_dim by a copy;
    3. a cosine, a sine, and the scaling of both: 4 positions head_dim operations.

        flops = 2 positions head_dim / 2 = positions head_dim, in float32 whatever the run's dtype
        vector_flops = 4 positions head_dim

    Every attention layer has a table of its own here. The positions are integers, so the frequencies
    alone come in; both tables go out in the run's dtype, to which the cast fuses. They are registered once:

        buffer_bytes = head_dim / 2 frequency_bytes = 2 head_dim
    """

    name: ClassVar[str] = "rotary_product"
    title: ClassVar[str] = "Rotary positions: cosines and sines, angles by a matrix product"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers 4.46 LlamaRotaryEmbedding.forward"
    registered: ClassVar[int] = 1

    def costs(self) -> LayerCosts:
        flops: dict[str, Size] = {"matmul": self.positions * self.head_dim}
        return LayerCosts(
            flops=flops,
            float32_flops=flops,
            vector_flops={"elementwise": 4 * self.positions * self.head_dim},
            input_bytes=sympy.sympify(self.head_dim) / 2 * self.frequency_bytes,
            buffer_bytes=self.held_bytes,
            buffer_read_bytes=sympy.sympify(self.head_dim) / 2 * self.frequency_bytes,
            output_bytes=2 * self.positions * self.head_dim * self.item_bytes,
            intermediate_bytes=32 * self.positions * self.head_dim,
        )


@layer
class RotaryAxes(RotaryTable):
    """Variant of :class:`RotaryTable` for three position axes, each of which has a part of the frequencies.

    1. angles = t ω on all axes: 3 positions head_dim / 2 multiplications;
    2. a cosine, a sine, and the scaling of both, on all axes: 4 per angle;
    3. of every frequency the axis that turns it is kept, and the tables are doubled up to head_dim: copies.

        vector_flops = 15/2 positions head_dim

    Every sequence has positions of its own, so ``positions`` are those of all sequences.

    Unfused, in float32, for each of positions head_dim / 2 frequencies: the angles of three axes are written once and
    read twice, 9 elements; each function is written and read on all of them, and written once more scaled, 9; of that
    one is read, joined with others, and read again, 3. That is 9 + 2 (9 + 3) = 33 elements of 4 bytes.
    """

    name: ClassVar[str] = "rotary_axes"
    title: ClassVar[str] = "Rotary positions on three axes: cosines and sines"
    source: ClassVar[str] = "Wang et al. 2024, Qwen2-VL, section 2.1; transformers Qwen2_5_VLRotaryEmbedding.forward"

    def costs(self) -> LayerCosts:
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 15 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            buffer_bytes=self.held_bytes,
            buffer_read_bytes=half * self.frequency_bytes,
            output_bytes=2 * self.positions * self.head_dim * self.item_bytes,
            intermediate_bytes=33 * 4 * self.positions * half,
        )


@layer
class RotaryHalves(RotaryTable):
    """Variant of :class:`RotaryTable` without copies: one cosine and one sine per angle.

    1. angles = t ω: positions head_dim / 2 multiplications;
    2. a cosine, a sine, and the scaling of both: 4 per angle.

        vector_flops = 5/2 positions head_dim

    Unfused, in float32: an angle is written once and read by both functions, 12 bytes, and each function is written
    and read, 16: 28 for each of positions head_dim / 2.
    """

    name: ClassVar[str] = "rotary_halves"
    title: ClassVar[str] = "Rotary positions: one cosine and one sine per angle"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers GptOssRotaryEmbedding.forward"

    def costs(self) -> LayerCosts:
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 5 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            buffer_bytes=self.held_bytes,
            buffer_read_bytes=half * self.frequency_bytes,
            output_bytes=2 * self.positions * half * self.item_bytes,
            intermediate_bytes=28 * self.positions * half,
        )


@layer
class RotaryComplex(RotaryTable):
    """Table exp(i t ω) for ``positions`` positions t and head_dim / 2 frequencies ω, as two float32 numbers each.

    1. angles = t ω: positions head_dim / 2 multiplications;
    2. a complex number from radius and angle: cosine, sine, two multiplications;
    3. the scaling by a real number: two multiplications.

        vector_flops = 7/2 positions head_dim

    A number of the table weighs 8 bytes, whatever the dtype of the run. Unfused, for each: the angle is written and
    read, and so is a radius of 1, 16 bytes in float32; the number is written and read before the scaling, 16.
    """

    name: ClassVar[str] = "rotary_complex"
    title: ClassVar[str] = "Rotary positions: complex numbers"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, section 3.2; transformers DeepseekV2RotaryEmbedding.forward"

    def costs(self) -> LayerCosts:
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 7 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            buffer_bytes=self.held_bytes,
            buffer_read_bytes=half * self.frequency_bytes,
            output_bytes=8 * self.positions * half,
            intermediate_bytes=32 * self.positions * half,
        )


@layer
class RotaryPairs:
    """Rotation (x₁ cos - x₂ sin, x₂ cos + x₁ sin) of the pairs (x₁, x₂) of the new queries and keys.

    Four multiplications, an addition and a subtraction per pair, which is what one complex multiplication costs:

        vector_flops = 3 batch positions head_dim (heads + kv_heads)

    Pairs may be neighbours or the halves of a head. Of the tables come in a cosine and a sine per pair and position,
    equal for all sequences: 2 item_bytes, or 8 bytes where they are one complex number; queries and keys are counted
    where attention is.

    Unfused, the tables are read for the queries and for the keys. One complex product reads and writes what is rotated:
    2 elements. Else each of the four products reads and writes half of them, the difference and the sum 3/2 each, and
    the copy that joins them 2: 9 elements, and the tables are read twice for the queries and twice for the keys.
    """

    name: ClassVar[str] = "rotary_pairs"
    title: ClassVar[str] = "Rotary positions: rotation of pairs"
    source: ClassVar[str] = (
        "Su et al. 2021, RoFormer, equation 15; transformers apply_rotary_pos_emb_interleave (DeepSeek-V3), "
        "apply_rotary_emb (DeepSeek-V2), _apply_rotary_emb (GPT-OSS)"
    )

    batch: Size
    positions: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    item_bytes: Size
    as_complex: bool = False
    """Whether a pair is rotated as a complex number, by one product."""

    def costs(self) -> LayerCosts:
        half = sympy.sympify(self.head_dim) / 2
        pairs = self.batch * self.positions * half * (self.heads + self.kv_heads)
        table = self.positions * half * (8 if self.as_complex else 2 * self.item_bytes)
        moved, reads = (4, 2) if self.as_complex else (18, 4)
        return LayerCosts(
            vector_flops={"elementwise": 6 * pairs},
            input_bytes=table,
            intermediate_bytes=moved * pairs * self.item_bytes + (reads - 1) * table,
        )


@layer
class Rotary:
    """Rotation x cos + rotate_half(x) sin of the new queries and keys.

    rotate_half negates one half of the elements and copies the other. Per element of Q and K: two
    multiplications, one addition and half a negation: 7/2. With batch x positions x head_dim elements
    per head and heads + kv_heads heads that are rotated:

        vector_flops = 7/2 batch positions head_dim (heads + kv_heads)

    With partial rotation only the first head_dim elements of each head are rotated, and the others
    copied. It runs inside the attention module: Q and K are counted as inputs there, so only the two
    tables, positions x head_dim each and equal for all sequences, come in here.

    Unfused, of every rotated element: the product with the cosine reads and writes 2, the negation of one half 1, the
    copy with the other half 2, the product with the sine 2, the sum 3; attention reads the result. Of these 10, 3 are
    what comes in (whole to the first product, one half each to negation and copy) and what goes out. Both tables are
    read for the queries and for the keys, so once more. With partial rotation ``copied`` elements of every head are
    joined with those that are rotated: all of a head are read and written.
    """

    name: ClassVar[str] = "rotary"
    title: ClassVar[str] = "Rotary positions: rotation of queries and keys"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers apply_rotary_pos_emb"

    batch: Size
    positions: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    item_bytes: Size
    copied: Size = 0
    """Number of elements of every head that are not rotated."""
    state_bytes: Size | None = None
    """Bytes per element of queries and keys, if tables and results are wider (default: ``item_bytes``)."""

    def costs(self) -> LayerCosts:
        half = sympy.sympify(self.head_dim) / 2
        rotated = self.batch * self.positions * half * (self.heads + self.kv_heads)
        tables = 2 * self.positions * self.head_dim
        per_element = self.batch * self.positions * (self.heads + self.kv_heads)
        state = self.item_bytes if self.state_bytes is None else self.state_bytes
        joined = 2 * per_element * (self.head_dim + self.copied) if self.copied != 0 else 0
        return LayerCosts(
            vector_flops={"elementwise": 7 * rotated},
            input_bytes=tables * self.item_bytes,
            intermediate_bytes=(14 * rotated + joined + tables) * self.item_bytes + 6 * rotated * state,
        )
