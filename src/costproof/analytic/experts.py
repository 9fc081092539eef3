"""The routed experts of a mixture of experts."""

from __future__ import annotations

from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class Experts:
    """Each token passes ``top_k`` of ``experts`` gated MLPs hidden -> intermediate -> hidden.

    There are rows = tokens top_k pairs of token and expert. Each passes the fused gate and up
    projection (hidden -> 2 intermediate) and the down projection (intermediate -> hidden):

        flops = 2 rows hidden 2 intermediate + 2 rows intermediate hidden = 6 rows hidden intermediate

    Which experts the tokens choose does not matter, and neither does the kernel: one GEMM per group
    of tokens (grouped_mm) and one product per row on gathered weights (batched_mm) do the same
    products. Beside them: the product of gate and up (rows intermediate), the weighting (rows hidden)
    and the sum over the top k (rows hidden):

        vector_flops = rows intermediate + 2 rows hidden

    The activation is a module of its own: it reads the gate half, and its result comes back in.
    In: the hidden states, that result, and the float32 weights (4 rows bytes). Out: the fused
    projection, 2 rows intermediate, and the sum, tokens hidden (its cast from float32 fuses).
    All experts x 3 hidden intermediate parameters are held, top_k of them active per token, and at
    most min(experts, rows) of them read.
    """

    name: ClassVar[str] = "experts"
    title: ClassVar[str] = "Routed experts"
    source: ClassVar[str] = (
        "Dai et al. 2024, DeepSeekMoE, equation 3; transformers integrations.moe "
        "(grouped_mm_experts_forward, batched_mm_experts_forward)"
    )

    tokens: Size
    hidden: Size
    intermediate: Size
    experts: Size
    top_k: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        rows = self.tokens * self.top_k
        per_expert = 3 * self.hidden * self.intermediate
        read = sympy.Min(self.experts, rows) * per_expert
        return LayerCosts(
            params=self.experts * per_expert,
            params_active=self.top_k * per_expert,
            weight_bytes=self.experts * per_expert * self.item_bytes,
            weight_read_bytes=read * self.item_bytes,
            flops={"expert_gemm": 2 * rows * per_expert},
            vector_flops={"elementwise": rows * self.intermediate + 2 * rows * self.hidden},
            input_bytes=(self.tokens * self.hidden + rows * self.intermediate) * self.item_bytes + 4 * rows,
            output_bytes=(2 * rows * self.intermediate + self.tokens * self.hidden) * self.item_bytes,
        )
