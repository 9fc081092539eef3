"""Cost score biases that depend on the bucketed distance of two tokens."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class DistanceBuckets:
    """Map each distance between a query and a key to a bucket: its own if small, a logarithmic range if large.

    Distances and buckets are integers, which do not count. The logarithm is computed of all distances, in
    float32: a division by the largest small one, the logarithm, a division by that of the largest bucket and a
    multiplication by the number of buckets: 4 operations for each of the queries x keys pairs, once for all
    sequences and heads:

        vector_flops = 4 queries keys

    A look-up turns buckets into biases; it is a layer of its own. Unfused, each of the four writes 4 bytes, which the
    next one reads: 32 queries keys.
    """

    name: ClassVar[str] = "distance_buckets"
    title: ClassVar[str] = "Buckets of distances"
    source: ClassVar[str] = "Raffel et al. 2019, T5, section 2.1; T5Attention._relative_position_bucket (transformers)"

    queries: Size
    keys: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        pairs = self.queries * self.keys
        return LayerCosts(vector_flops={"elementwise": 4 * pairs}, intermediate_bytes=32 * pairs)


@layer
class NoBias:
    """Zeros in place of biases, [heads, queries, keys], for this layer and for later layers, which read them.

    Nothing is computed: heads x queries x keys elements go out, none where no layer is behind (``passed_on``).
    (Adding them to the scores is the attention's.) Unfused, they are written, and this layer's attention reads them.
    """

    name: ClassVar[str] = "no_bias"
    title: ClassVar[str] = "Zeros as biases of scores"
    source: ClassVar[str] = "T5Attention.forward (transformers)"

    heads: Size
    queries: Size
    keys: Size
    item_bytes: Size
    passed_on: bool = True

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        moved = self.heads * self.queries * self.keys * self.item_bytes
        return (
            LayerCosts(output_bytes=moved, intermediate_bytes=moved)
            if self.passed_on
            else LayerCosts(intermediate_bytes=2 * moved)
        )


@layer
class Scale:
    """Every element times a constant.

    vector_flops = elements
    """

    name: ClassVar[str] = "scale"
    title: ClassVar[str] = "Scale by a constant"
    source: ClassVar[str] = "T5ForConditionalGeneration.forward (transformers)"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        moved = self.elements * self.item_bytes
        return LayerCosts(
            vector_flops={"elementwise": self.elements}, input_bytes=moved, output_bytes=moved, intermediate_bytes=0
        )
