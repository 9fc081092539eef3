"""The gate of a mixture of experts."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class Router:
    """softmax(X Wᵀ), the top k of it, and their scaling, in float32.

    1. a linear layer without bias from ``hidden`` to ``experts``: 2 tokens hidden experts FLOPs;
    2. softmax: 5 operations per score, tokens experts scores;
    3. top-k: one comparison per score;
    4. the k weights are multiplied by the routing scale: tokens top_k.

    With groups (group-limited routing) the maximum of each group and the top-k over the groups come
    first: tokens experts + tokens groups more comparisons. In come the hidden states (the cast to
    float32 fuses), out go the k weights per token, always in float32: 4 tokens top_k bytes. The
    chosen indices are integers; the logits go nowhere.
    """

    name: ClassVar[str] = "router"
    title: ClassVar[str] = "Router of a mixture of experts"
    source: ClassVar[str] = "Dai et al. 2024, DeepSeekMoE, equation 4; UnlimitedOcrTextTopkRouter"

    tokens: Size
    hidden: Size
    experts: Size
    top_k: Size
    item_bytes: Size
    groups: Size = 0
    """Expert groups of group-limited routing; 0: plain top-k over all experts."""

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        scores = self.tokens * self.experts
        weights = self.experts * self.hidden
        grouping = scores + self.tokens * self.groups if self.groups != 0 else 0
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            weight_read_bytes=weights * self.item_bytes,
            flops={"router": 2 * self.tokens * self.hidden * self.experts},
            vector_flops={
                "softmax": 5 * scores,
                "select": scores + grouping,
                "elementwise": self.tokens * self.top_k,
            },
            input_bytes=self.tokens * self.hidden * self.item_bytes,
            output_bytes=4 * self.tokens * self.top_k,
        )
