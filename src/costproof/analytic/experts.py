"""Cost formulas of a mixture of experts: the router, and the routed experts as one kernel or a loop over modules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import sympy

from costproof.analytic.costs import LayerCosts, Matrix, Size, layer
from costproof.analytic.elementwise import Activation


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """Scheme by which a router selects and weights experts."""

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: Size = 0
    """Number of expert groups in group-limited routing; 0 for top-k over all experts."""
    group_best: int = 1
    """Number of top scores in a group whose sum ranks the group."""
    best_groups: int = 1
    """Number of groups from which a token's experts are selected."""
    corrected: bool = False
    """Whether a bias is added to the scores for the selection only."""
    normalised: bool = False
    """Whether the weights of the k selected experts are divided by their sum."""
    floor: bool = False
    """Whether a small constant is added to the sum of the weights before the division by it."""
    scaled: bool = True
    """Whether the weights of the k selected experts are multiplied by a constant."""
    late: bool = False
    """Whether the softmax is over the logits of the k selected experts instead of all."""
    biased: bool = False
    """Whether the linear layer of the router has a bias."""
    narrow: bool = False
    """Whether the weights of the k selected experts are in the run's dtype; otherwise in float32."""
    upcast: bool = True
    """Whether the linear layer that scores the experts computes in float32 rather than in the run's dtype."""


PLAIN: Final = RoutingRule()


@layer
class Router:
    """scores = softmax or sigmoid(X Wᵀ), the top k of them, and their scaling, in float32.

    1. a linear layer from ``hidden`` to ``experts``, with a bias if ``biased``: 2 tokens hidden experts FLOPs;
    2. softmax: 5 operations per score, tokens experts scores, of the chosen alone if ``late``; sigmoid: 1;
    3. with a correction (``corrected``), a bias is added to the scores that choose: 1 per score;
    4. top-k: one comparison per score;
    5. the k weights are divided by their sum (``normalised``): tokens top_k additions and as many
       divisions, and with a ``floor`` that is added to the sum, tokens more;
    6. the k weights are multiplied by the routing scale (``scaled``): tokens top_k.

    With groups (group-limited routing) the best of each group and the top-k over the groups come
    first: tokens experts + tokens groups more comparisons, and where a group is judged by the sum of
    its best two and more (``group_best``), tokens groups group_best additions. In come the hidden
    states (the cast to float32 fuses) and the experts corrections in float32, out go the k weights
    per token, in float32 (4 tokens top_k bytes) or, if ``narrow``, in the run's dtype. The chosen indices are
    integers; the logits go nowhere.

    Unfused, every step writes what the next reads, in float32 where the run's dtype is not named: see ``_between``.
    """

    name: ClassVar[str] = "router"
    title: ClassVar[str] = "Router of a mixture of experts"
    source: ClassVar[str] = (
        "Dai et al. 2024, DeepSeekMoE, equation 4; DeepSeek-AI 2024, DeepSeek-V3, equations 13 to 16; "
        "transformers UnlimitedOcrTextTopkRouter, MixtralTopKRouter, Qwen3MoeTopKRouter, DeepseekV3TopkRouter, "
        "GptOssTopKRouter"
    )

    tokens: Size
    hidden: Size
    experts: Size
    top_k: Size
    item_bytes: Size
    routing: RoutingRule = PLAIN

    def costs(self) -> LayerCosts:
        """Return the costs of one call.

        Branches: groups that are judged by their best expert alone add nothing, the maximum is the judgement.
        """
        how, scores = self.routing, self.tokens * self.experts
        weights = self.experts * self.hidden + (self.experts if how.biased else 0)
        chosen, groups = self.tokens * self.top_k, self.tokens * how.groups
        grouping = scores + groups if how.groups != 0 else 0
        judging = groups * how.group_best if how.group_best > 1 else 0
        dividing = 2 * chosen + (self.tokens if how.floor else 0) if how.normalised else 0
        weighting = (chosen if how.scaled else 0) + (scores if how.corrected else 0)
        flops: dict[str, Size] = {"router": 2 * self.tokens * self.hidden * self.experts}
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            weight_read_bytes=weights * self.item_bytes,
            flops=flops,
            float32_flops=flops if how.upcast else {},
            vector_flops={
                how.scoring: (5 if how.scoring == "softmax" else 1) * (chosen if how.late else scores),
                "select": scores + grouping,
                "elementwise": weighting + judging + dividing,
            },
            input_bytes=self.tokens * self.hidden * self.item_bytes + (4 * self.experts if how.corrected else 0),
            buffer_bytes=4 * self.experts if how.corrected else 0,
            persistent_elements=self.experts if how.corrected else 0,
            persistent_bytes=4 * self.experts if how.corrected else 0,
            buffer_read_bytes=4 * self.experts if how.corrected else 0,
            output_bytes=(self.item_bytes if how.narrow else 4) * chosen,
            intermediate_bytes=self._between(scores, chosen),
        )

    def _between(self, scores: Size, chosen: Size) -> Size:
        """Return the bytes passed between the operators of the router.

        The linear layer writes the scores, and the operator that turns them into shares reads them; the shares are
        written, and the selection reads them. A correction is one more operator, and the k weights are gathered from
        the shares. Groups: the operator that scores them reads the shares, and so does a mask, which writes them for
        the selection; group scores are written and read, and zeros become a mask of one byte per group,
        4 + 4 + 4 + 4 + 1 + 1; the best of several, which are summed first, are written and read. The k weights are
        written and read before each further step: the sum, the division by it (one number per token, which a floor
        changes), and the scale.

        Branches: groups that are scored by their best expert have nothing to sum.
        """
        how = self.routing
        logit = 4 if how.upcast else self.item_bytes
        if how.late:
            return 2 * logit * (scores + chosen)
        steps = 2 * logit + 8 + (8 if how.corrected else 0) + (12 if how.groups != 0 else 0)
        groups = 18 + (8 * how.group_best if how.group_best > 1 else 0)
        dividing = 12 * chosen + (16 if how.floor else 8) * self.tokens if how.normalised else 0
        weights = dividing + (8 * chosen if how.scaled else 0) + (4 * chosen if how.corrected else 0)
        return steps * scores + groups * self.tokens * how.groups + weights


@dataclass(frozen=True, slots=True)
class _ExpertWeights:
    """Weights of all experts, three matrices each; a call reads those of at most min(experts, rows) experts."""

    tokens: Size
    hidden: Size
    intermediate: Size
    experts: Size
    top_k: Size
    item_bytes: Size
    chosen: Size | None = field(default=None, kw_only=True)
    """Number of experts that a token chooses, if each given row is a pair of a token and an expert (``top_k`` 1)."""
    touched: Size | None = field(default=None, kw_only=True)
    """Number of experts that a call reads; ``None``: as many as its rows may choose."""

    @property
    def rows(self) -> Size:
        """Return the number of (token, expert) pairs, tokens x top_k."""
        return self.tokens * self.top_k

    @property
    def most(self) -> Size:
        """Return the number of experts that a call reads, at most one for each row.

        Branches: the number is given, or as those of the weights read.
        """
        return sympy.Min(self.experts, self.rows) if self.touched is None else self.touched

    def matrices(self, *, bias: bool) -> tuple[Matrix, ...]:
        """Return the matrices of all experts: stacked gate and up projections, and down projections.

        Branches: as those of the weights read.
        """
        read = self.most
        return (
            Matrix(2 * self.intermediate, self.hidden, bias, "Expert", self.experts, read, joined=True),
            Matrix(self.hidden, self.intermediate, bias, "Expert", self.experts, read),
        )

    @property
    def passed(self) -> Size:
        """Return the number of experts on this device that process a token: those that it chooses.

        Branches: a rank that has a share of the experts runs at most that share.
        """
        shared = isinstance(self.experts, sympy.Expr) and not self.experts.is_Symbol
        chosen = self.top_k if self.chosen is None else self.chosen
        return sympy.Min(chosen, self.experts) if shared else chosen

    def held(self) -> LayerCosts:
        """Return the costs of the weights that a call holds in memory, and of those that it reads.

        Branches: no call reads more experts than there are, and none without a row for it.
        """
        per_expert = 3 * self.hidden * self.intermediate
        return LayerCosts(
            params=self.experts * per_expert,
            params_active=self.passed * per_expert,
            weight_bytes=self.experts * per_expert * self.item_bytes,
            matrices=self.matrices(bias=False),
            weight_read_bytes=self.most * per_expert * self.item_bytes,
        )


def _kernel_copies(held: _ExpertWeights, weight_item: Size, *, batched: bool) -> Size:
    """Return the bytes of the copies that an expert kernel makes, which count only as unfused bytes.

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
    """Routed experts: each token passes ``top_k`` of ``experts`` gated MLPs hidden -> intermediate -> hidden.

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
    """Bytes of one expert weight of the router."""
    batched: bool = False
    """Whether the kernel gathers an expert's weights for every row; otherwise it sorts rows by expert."""

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
    """Variant of :class:`Experts` with biases and a clamped gate: (up + 1) gate sigmoid(alpha gate).

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
            shared_weight_bytes=(rows - self.most) * biases * self.item_bytes,
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
    """All experts of a layer, run in a loop: each row passes one gated MLP hidden -> intermediate -> hidden.

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
    """Work of a mixture outside of its experts: sort tokens by expert, scatter, weight and add the results.

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
    """Overwrites the rows of other ranks' experts with zeros; each rank is given all rows and skips those.

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
