"""Cost the routed experts of a mixture: one kernel for all of them, or a loop over modules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Matrix, Size, layer
from costproof.analytic.elementwise import Activation


@dataclass(frozen=True, slots=True)
class _ExpertWeights:
    """Weights of all experts, three matrices each. A call reads those of at most min(experts, rows) experts."""

    tokens: Size
    hidden: Size
    intermediate: Size
    experts: Size
    top_k: Size
    item_bytes: Size

    @property
    def rows(self) -> Size:
        """Return the number of (token, expert) pairs, tokens x top_k."""
        return self.tokens * self.top_k

    def matrices(self, *, bias: bool) -> tuple[Matrix, ...]:
        """Return the matrices of all experts: gate and up projections, and down projections.

        Branches: as those of the weights read.
        """
        read = sympy.Min(self.experts, self.rows)
        return (
            Matrix(2 * self.intermediate, self.hidden, bias, "Expert", self.experts, read, joined=True),
            Matrix(self.hidden, self.intermediate, bias, "Expert", self.experts, read),
        )

    @property
    def passed(self) -> Size:
        """Return the experts that a token passes: ``top_k``.

        Branches: of a rank's share of the experts at most all.
        """
        shared = isinstance(self.experts, sympy.Expr) and not self.experts.is_Symbol
        return sympy.Min(self.top_k, self.experts) if shared else self.top_k

    def held(self) -> LayerCosts:
        """Return the costs of the weights that one call holds and reads.

        Branches: no call reads more experts than there are, and none without a row for it.
        """
        per_expert = 3 * self.hidden * self.intermediate
        return LayerCosts(
            params=self.experts * per_expert,
            params_active=self.passed * per_expert,
            weight_bytes=self.experts * per_expert * self.item_bytes,
            matrices=self.matrices(bias=False),
            weight_read_bytes=sympy.Min(self.experts, self.rows) * per_expert * self.item_bytes,
        )


def _kernel_copies(held: _ExpertWeights, weight_item: Size, *, batched: bool) -> Size:
    """Return the bytes of the copies that an expert kernel makes, counted only in unfused bytes.

    grouped_mm sorts the weights of the rows, which are written and read, and puts the weighted rows back in the order
    of the
    tokens, which writes and reads them once more; both in the dtype of these weights. batched_mm gathers the three
    matrices of
    an expert for every row, which are written and read.
    """
    if batched:
        return 6 * held.rows * held.hidden * held.intermediate * held.item_bytes
    return 2 * held.rows * (1 + held.hidden) * weight_item


@layer
class Experts(_ExpertWeights):
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
    In: the hidden states, that result, and the weights (weight_item rows bytes: 4 in float32). Out: the fused
    projection, 2 rows intermediate, and the sum, tokens hidden (its cast from float32 fuses).
    All experts x 3 hidden intermediate parameters are held, top_k of them active per token, and at
    most min(experts, rows) of them read.

    Unfused, beside these: the sorted copies of the hidden states are written and read, the up half of the projection is
    read and its product with the activation written and read, the result of the second projection written and read:
    4 rows hidden + 3 rows intermediate elements. Weighted rows are written and read by the sum, in the dtype of the
    weights; what the kernel copies is in :func:`_kernel_copies`.
    """

    name: ClassVar[str] = "experts"
    title: ClassVar[str] = "Routed experts"
    source: ClassVar[str] = (
        "Dai et al. 2024, DeepSeekMoE, equation 3; transformers integrations.moe "
        "(grouped_mm_experts_forward, batched_mm_experts_forward)"
    )

    weight_item: Size = 4
    """Bytes of one router weight."""
    batched: bool = False
    """Whether weights are gathered for every row; else rows are sorted by expert."""

    def costs(self) -> LayerCosts:
        rows = self.rows
        return replace(
            self.held(),
            flops={"expert_gemm": 6 * rows * self.hidden * self.intermediate},
            vector_flops={"elementwise": rows * self.intermediate + 2 * rows * self.hidden},
            input_bytes=(self.tokens * self.hidden + rows * self.intermediate) * self.item_bytes
            + self.weight_item * rows,
            output_bytes=(2 * rows * self.intermediate + self.tokens * self.hidden) * self.item_bytes,
            intermediate_bytes=(4 * rows * self.hidden + 3 * rows * self.intermediate) * self.item_bytes
            + 2 * self.weight_item * rows * self.hidden
            + _kernel_copies(self, self.weight_item, batched=self.batched),
        )


@layer
class ClampedExperts(_ExpertWeights):
    """:class:`Experts` with biases and a gate of their own, (up + 1) gate sigmoid(alpha gate), both clamped before.

    Biases are added to what the grouped products return: 2 intermediate + hidden additions per row. Of every element
    of the intermediate state, both clamps, two products with the gate, the sigmoid, the addition of 1 and the last
    product are 7 operations, of which the sigmoid is one. Then the weighting and the sum over the top k:

        flops = 6 rows hidden intermediate
        vector_flops = rows (2 intermediate + hidden) + 7 rows intermediate + 2 rows hidden

    No module stands between the products: in come the hidden states and the weights, out goes the sum. Every expert
    holds 3 hidden intermediate weights and 2 intermediate + hidden biases. Weights of at most min(experts, rows)
    experts are read; biases are looked up for every row, of at most as many experts whatever is fused.

    Branches: as those of the weights.

    Unfused, per row and element of its hidden states: the copy, the looked-up bias, the product, the sum with the bias
    and the weighted row are written and read, 10. Per element of the intermediate state: the looked-up biases, the
    products and their sums, two each, both clamps and five operators of the gate are written and read, 2 (6 + 2 + 5),
    and the gate is read once more, 27. What the kernel copies is in :func:`_kernel_copies`.
    """

    name: ClassVar[str] = "clamped_experts"
    title: ClassVar[str] = "Routed experts with biases and a clamped gate"
    source: ClassVar[str] = (
        "OpenAI 2025, gpt-oss model card; transformers GptOssExperts (_apply_gate), integrations.moe"
    )

    batched: bool = False
    """See :class:`Experts`."""

    def costs(self) -> LayerCosts:
        rows, biases = self.rows, 2 * self.intermediate + self.hidden
        held = self.held()
        return replace(
            held,
            params=held.params + self.experts * biases,
            params_active=held.active + self.passed * biases,
            weight_bytes=held.weight_bytes + self.experts * biases * self.item_bytes,
            matrices=self.matrices(bias=True),
            weight_read_bytes=held.weight_read_bytes + rows * biases * self.item_bytes,
            shared_weight_bytes=(rows - sympy.Min(self.experts, rows)) * biases * self.item_bytes,
            flops={"expert_gemm": 6 * rows * self.hidden * self.intermediate},
            vector_flops={
                "elementwise": rows * biases + 6 * rows * self.intermediate + 2 * rows * self.hidden,
                "sigmoid": rows * self.intermediate,
            },
            input_bytes=(self.tokens * self.hidden + rows) * self.item_bytes,
            output_bytes=self.tokens * self.hidden * self.item_bytes,
            intermediate_bytes=(10 * rows * self.hidden + 27 * rows * self.intermediate) * self.item_bytes
            + _kernel_copies(self, self.item_bytes, batched=self.batched),
        )


@layer
class LoopedExperts(_ExpertWeights):
    """All experts of a layer together: each row passes one gated MLP hidden -> intermediate -> hidden.

    Which expert gets how many rows is data; every cost is a multiple of the rows, and all experts
    together get rows = tokens top_k. Three linear layers, the activation (a per element, see
    :class:`~costproof.analytic.elementwise.Activation`) and the product with the gate (1 per element) give

        flops = 2 rows (hidden intermediate + hidden intermediate + intermediate hidden)
        vector_flops = (a + 1) rows intermediate

    In: hidden twice (gate and up projection), intermediate for the activation, twice for the product,
    and for the down projection. Out: intermediate four times (gate, up, activation, product), hidden
    once. All experts x 3 hidden intermediate parameters are held, top_k of them active per token, and
    at most min(experts, rows) of them read.
    """

    name: ClassVar[str] = "looped_experts"
    title: ClassVar[str] = "Routed experts, one module each"
    source: ClassVar[str] = "Dai et al. 2024, DeepSeekMoE, equation 3; DeepseekV2MoE.moe_infer of the vendor"

    function: str = "silu"

    def costs(self) -> LayerCosts:
        rows, inner = self.rows, self.rows * self.intermediate
        activation = Activation(inner, self.function, self.item_bytes).costs().vector_flops
        return replace(
            self.held(),
            flops={"linear": 6 * rows * self.hidden * self.intermediate},
            vector_flops={**activation, "elementwise": inner},
            input_bytes=(2 * rows * self.hidden + 4 * rows * self.intermediate) * self.item_bytes,
            output_bytes=(rows * self.hidden + 4 * rows * self.intermediate) * self.item_bytes,
            intermediate_bytes=0,
        )


@layer
class ExpertLoop:
    """The work of a mixture outside its experts: sort tokens by expert, scatter results back, weight and add them.

    A copy of every token for every expert that it passes goes out, rows = tokens top_k of them; the
    experts' results come in, are put back in order, multiplied by the router's weights (rows hidden),
    summed over the top k (rows hidden), and shared experts, if any, are added (tokens hidden):

        vector_flops = 2 rows hidden + tokens hidden

    In: the tokens, the experts' results, the weights in float32 (4 rows bytes), the shared experts'
    result. Out: the sorted copies and the sum.

    Unfused, of rows hidden elements: the results are joined, which writes them; a tensor for them in the tokens' order
    is written; putting them there reads both and writes it; the weighting reads it and writes float32, which the sum
    reads: 6 item_bytes + 8. With shared experts the sum is written and read once more.
    """

    name: ClassVar[str] = "expert_loop"
    title: ClassVar[str] = "Loop over routed experts"
    source: ClassVar[str] = "DeepseekV2MoE.forward and moe_infer of the vendor"

    tokens: Size
    hidden: Size
    top_k: Size
    item_bytes: Size
    shared: bool = True

    def costs(self) -> LayerCosts:
        rows, added = self.tokens * self.top_k, self.tokens if self.shared else 0
        return LayerCosts(
            vector_flops={"elementwise": 2 * rows * self.hidden + added * self.hidden},
            input_bytes=(self.tokens + added + rows) * self.hidden * self.item_bytes + 4 * rows,
            output_bytes=(rows + self.tokens) * self.hidden * self.item_bytes,
            intermediate_bytes=(6 * rows + 2 * added) * self.hidden * self.item_bytes + 8 * rows * self.hidden,
        )


@layer
class MaskedRows:
    """Overwrites with zeros the rows of experts that other ranks hold; each rank is given all rows and skips those.

    Of ``rows`` pairs of a token and an expert. Unfused, the weights of the rows are read and written, and so are their
    hidden states, what the first products return, 2 intermediate wide, and what the second ones do:

        2 rows (weight_item + (2 hidden + 2 intermediate) item_bytes)

    A kernel that gathers the weights of each row (``batched``) overwrites the rows' weights only, twice.

    Numbers of experts and the masks are integers, which do not count. The FLOPs are those of all rows, as the products
    are called; which of them a rank does depends on the routing: none to all.
    """

    name: ClassVar[str] = "masked_rows"
    title: ClassVar[str] = "Rows of experts that other ranks hold"
    source: ClassVar[str] = "transformers distributed.expert_parallel (AllReduceEP), integrations.moe"

    rows: Size
    hidden: Size
    intermediate: Size
    item_bytes: Size
    weight_item: Size
    batched: bool = False

    def costs(self) -> LayerCosts:
        wide = (2 * self.hidden + 2 * self.intermediate) * self.item_bytes
        moved = self.weight_item if self.batched else wide
        return LayerCosts(intermediate_bytes=2 * self.rows * (self.weight_item + moved))
