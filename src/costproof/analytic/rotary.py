"""Rotary positions: the table of cosines and sines, and the rotation of queries and keys."""

from __future__ import annotations

from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class RotaryTable:
    """cos(t ω) and sin(t ω) for ``positions`` positions t and head_dim / 2 frequencies ω, in float32.

    1. angles = t ω: positions head_dim / 2 multiplications;
    2. the angles are doubled up to head_dim by a copy;
    3. a cosine, a sine, and the scaling of both: 4 positions head_dim operations.

        vector_flops = 9/2 positions head_dim

    The positions are equal for all sequences, so the batch does not occur. In come the head_dim / 2
    frequencies (a buffer of frequency_bytes per element), out go both tables; the cast to the run's
    dtype fuses, so they weigh item_bytes per element.
    """

    name: ClassVar[str] = "rotary_table"
    title: ClassVar[str] = "Rotary positions: cosines and sines"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers RotaryEmbedding.forward"

    positions: Size
    head_dim: Size
    item_bytes: Size
    frequency_bytes: Size = 4

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 9 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            output_bytes=2 * self.positions * self.head_dim * self.item_bytes,
        )


@layer
class RotaryProduct(RotaryTable):
    """The table of :class:`RotaryTable`, its angles by a matrix product: ω [head_dim / 2, 1] times t [1, positions].

    1. angles = ω t: an outer product written as a matrix product, one multiply-accumulate per angle;
    2. the angles are doubled up to head_dim by a copy;
    3. a cosine, a sine, and the scaling of both: 4 positions head_dim operations.

        flops = 2 positions head_dim / 2 = positions head_dim
        vector_flops = 4 positions head_dim

    Every attention layer has a table of its own here. The positions are integers, so the frequencies
    alone come in; both tables go out in the run's dtype, to which the cast fuses.
    """

    name: ClassVar[str] = "rotary_product"
    title: ClassVar[str] = "Rotary positions: cosines and sines, angles by a matrix product"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers 4.46 LlamaRotaryEmbedding.forward"

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        return LayerCosts(
            flops={"matmul": self.positions * self.head_dim},
            vector_flops={"elementwise": 4 * self.positions * self.head_dim},
            input_bytes=sympy.sympify(self.head_dim) / 2 * self.frequency_bytes,
            output_bytes=2 * self.positions * self.head_dim * self.item_bytes,
        )


@layer
class RotaryHalves(RotaryTable):
    """The table of :class:`RotaryTable` without the copies: one cosine and one sine per angle.

    1. angles = t ω: positions head_dim / 2 multiplications;
    2. a cosine, a sine, and the scaling of both: 4 per angle.

        vector_flops = 5/2 positions head_dim
    """

    name: ClassVar[str] = "rotary_halves"
    title: ClassVar[str] = "Rotary positions: one cosine and one sine per angle"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, equation 34; transformers GptOssRotaryEmbedding.forward"

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 5 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            output_bytes=2 * self.positions * half * self.item_bytes,
        )


@layer
class RotaryComplex(RotaryTable):
    """exp(i t ω) for ``positions`` positions t and head_dim / 2 frequencies ω, complex numbers of two float32.

    1. angles = t ω: positions head_dim / 2 multiplications;
    2. a complex number from radius and angle: cosine, sine, two multiplications;
    3. the scaling by a real number: two multiplications.

        vector_flops = 7/2 positions head_dim

    A number of the table weighs 8 bytes, whatever the dtype of the run.
    """

    name: ClassVar[str] = "rotary_complex"
    title: ClassVar[str] = "Rotary positions: complex numbers"
    source: ClassVar[str] = "Su et al. 2021, RoFormer, section 3.2; transformers DeepseekV2RotaryEmbedding.forward"

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 7 * self.positions * half},
            input_bytes=half * self.frequency_bytes,
            output_bytes=8 * self.positions * half,
        )


@layer
class RotaryPairs:
    """(x₁ cos - x₂ sin, x₂ cos + x₁ sin) for the pairs (x₁, x₂) of the new queries and keys.

    Four multiplications, an addition and a subtraction per pair, which is what one complex multiplication costs:

        vector_flops = 3 batch positions head_dim (heads + kv_heads)

    Pairs may be neighbours or the halves of a head. Of the tables come in a cosine and a sine per pair and position,
    ``pair_bytes`` together, equal for all sequences; queries and keys are counted where attention is.
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
    pair_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        half = sympy.sympify(self.head_dim) / 2
        return LayerCosts(
            vector_flops={"elementwise": 6 * self.batch * self.positions * half * (self.heads + self.kv_heads)},
            input_bytes=self.positions * half * self.pair_bytes,
        )


@layer
class Rotary:
    """x cos + rotate_half(x) sin for the new queries and keys.

    rotate_half negates one half of the elements and copies the other. Per element of Q and K: two
    multiplications, one addition and half a negation: 7/2. With batch x positions x head_dim elements
    per head and heads + kv_heads heads that are rotated:

        vector_flops = 7/2 batch positions head_dim (heads + kv_heads)

    With partial rotation only the first head_dim elements of each head are rotated, and the others
    copied. It runs inside the attention module: Q and K are counted as inputs there, so only the two
    tables, positions x head_dim each and equal for all sequences, come in here.
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

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        half = sympy.sympify(self.head_dim) / 2
        rotated = self.batch * self.positions * half * (self.heads + self.kv_heads)
        return LayerCosts(
            vector_flops={"elementwise": 7 * rotated},
            input_bytes=2 * self.positions * self.head_dim * self.item_bytes,
        )
