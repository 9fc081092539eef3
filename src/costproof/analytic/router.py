"""Cost the router of a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from costproof.analytic.costs import LayerCosts, Size, layer


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """Scheme by which a router chooses and weights experts."""

    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: Size = 0
    """Expert groups of group-limited routing; 0 for top-k over all experts."""
    group_best: int = 1
    """Number of scores whose sum ranks a group."""
    best_groups: int = 1
    """Number of groups from which the experts of a token are chosen."""
    corrected: bool = False
    """Whether a bias is added to the scores for the choice."""
    normalised: bool = False
    """Whether the k weights are divided by their sum."""
    floor: bool = False
    """Whether a small constant is added to that sum."""
    scaled: bool = True
    """Whether the k weights are multiplied by a constant."""
    late: bool = False
    """Whether the softmax is over the logits of the chosen k instead of all."""
    biased: bool = False
    """Whether the linear layer has a bias."""
    narrow: bool = False
    """Whether the k weights are returned in the run's dtype; otherwise in float32."""
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
        """Return the bytes that operators of the router pass to each other.

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
