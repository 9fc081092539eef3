"""Cost formulas of attention: scores, softmax and weighted sum, the key/value cache, and biases by distance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Literal

import sympy

from costproof.algebra.series import sum_over_rows
from costproof.analytic.costs import Layer, LayerCosts, Size, costs_of, layer

Bias = Literal["none", "inside", "input", "boolean", "heads"]


@layer
class Attention:
    """softmax(Q Kᵀ / sqrt(d) + bias) V with ``heads`` query heads and ``kv_heads`` key/value heads.

    Q is [batch, heads, queries, d]; K and V are [batch, kv_heads, past + queries, d], each
    key/value head shared by heads / kv_heads query heads (grouped queries; equal numbers: multi-head).
    With keys = past + queries there are batch x heads x queries x keys scores, all of them computed:
    a causal mask saves nothing here, by convention. Each score is a dot product of d terms, and each
    score weighs a row of d values:

        flops = 2 scores d + 2 scores d_v  (= 4 batch heads queries keys d where d_v = d)

    d_v is the width of a value, equal to d unless ``value_dim`` says else.

    Softmax takes 5 operations per score (maximum, subtraction, exponential, sum, division). The scale
    takes 1 per score, or, where the queries are scaled before the product, 1 per query element. A
    bias or mask that is a tensor takes 1 more per score, a soft cap c tanh(score / c) takes 3.

    In come the new Q, K and V, and a mask that is given from outside (batch x queries x keys, shared by the
    heads), or a bias that is (heads x queries x keys, shared by the sequences); one that is computed in the same
    module is not an input. Out goes batch x queries x heads x d_v. The past K and V come from the cache, which grows
    by the new ones:

        kv_read_bytes  = batch past kv_heads (d + d_v) item_bytes
        kv_cache_bytes = batch queries kv_heads (d + d_v) item_bytes

    With ``sinks`` every head has a parameter, one more score for each of its queries, which takes its part of the
    softmax and weighs nothing; before it the greatest score of a query is found and taken off all of them, 2 per
    score, so softmax and these take 7 (scores + batch heads queries).

    Cross attention has keys of another sequence: ``new_keys`` of them in the first call, and in later
    calls none but those of the cache. Once the context fills a sliding window of w keys, the cache holds
    the last w - 1: so many come in from it in a later call, which leaves it as long as it was. Inside one
    prompt the window is a mask, which like the causal one saves nothing; then all but the last w - 1 keys go.
    If the past does not fill the window and the new tokens do (``filling``), all of the past comes in.

    A mask leaves ``kept_scores`` of the scores, and kernels may skip the others. Under a ``causal`` mask the j-th of n
    new queries sees past + j keys:

        kept pairs = n past + n (n + 1) / 2

    In a window of w <= past + n + 1 keys that the past does not fill it sees min(w, past + j) keys, which are
    w (w + 1) / 2 - past (past + 1) / 2 + w (past + n - w) pairs, and w keys with a full window, w n pairs. A window
    of a call that is causal ``by_flag`` hides nothing. Any other mask hides ``hidden`` of the n (past + n) pairs.

    Where a sequence is cut into blocks that attend each to itself, there are batch x heads x ``seen`` scores, the
    sum of the squares of the blocks' lengths.

    Prefill has queries = the prompt, and a past only if a part of the sequence is cached; a decode step has queries = 1
    and past = the context. The four projections are linear layers of their own. One fused kernel (sdpa,
    FlashAttention) and two products with a softmax between (eager, ``written_out``) cost the same, except unfused.

    Unfused, a kernel reads what comes in and writes what goes out. Where keys and values of the past are joined
    with new ones, all of them are written and read once more. Written out, scores are written by the first product
    and read by the second, and every operator between reads and writes them: the scale, three of a soft cap, the
    sum with a bias, softmax: scores (2 + 2 operators) elements. Queries that are scaled before the product are
    written and read in place of scores. With sinks the scores are joined with theirs, which reads the scores and
    writes one more for each of the batch heads queries rows; finding the greatest, taking it off and softmax read
    and write all of these 1 + 2 + 2 times, and the greatest of each row is written and read: 5 scores + 8 rows
    more. A bias that is made in the module is counted with what makes it.
    """

    name: ClassVar[str] = "attention"
    title: ClassVar[str] = "Scaled dot-product attention"
    source: ClassVar[str] = (
        "Vaswani et al. 2017, Attention Is All You Need, equation 1; Ainslie et al. 2023, GQA; "
        "transformers integrations.sdpa_attention and eager_attention_forward"
    )

    batch: Size
    queries: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    item_bytes: Size
    past: Size = 0
    cached: bool = False
    """Whether the new keys and values are appended to a cache."""
    bias: Bias = "none"
    """Tensor added to the scores: none, made in the same module, or passed in: as numbers for every sequence
    (``input``) or for every head, or as booleans, which like indices do not count as an activation."""
    capped: bool = False
    """Whether scores pass cap x tanh(score / cap): 3 operations each."""
    sinks: bool = False
    """Whether the softmax of every head includes a learned score in addition to those of the keys."""
    scaled: Literal["scores", "queries"] = "scores"
    value_dim: Size | None = None
    """Width of a value (default: ``head_dim``)."""
    new_keys: Size | None = None
    """New keys per sequence (default: one for every query)."""
    window: Size = 0
    """Window length in keys, the query's own included, once the context has filled the window; otherwise 0."""
    filling: bool = False
    """Whether the window, if any, is not yet full before the call."""
    causal: bool = False
    """Whether a query sees only the keys up to its own position."""
    by_flag: bool = False
    """Whether the kernel gets a causal flag instead of a mask, since the window hides no key yet."""
    hidden: Size = 0
    """Number of query-key pairs, per head and sequence, that a mask other than the causal one hides."""
    written_out: bool = False
    """Whether products and softmax are separate operators (eager attention)."""
    seen: Size | None = None
    """Number of query-key pairs, per head and sequence, if blocks of a sequence attend to themselves (default: all)."""

    def costs(self) -> LayerCosts:
        full = self.window != 0 and self.past != 0 and not self.filling
        past = self.window - 1 if full else self.past
        new = self.queries if self.new_keys is None else self.new_keys
        value_dim = self.head_dim if self.value_dim is None else self.value_dim
        keys, both = past + new, self.head_dim + value_dim
        computed = self.queries * keys if self.seen is None else self.seen
        scores, kept = (self.batch * self.heads * pairs for pairs in (computed, self._kept_pairs(computed)))
        query_elements = self.batch * self.queries * self.heads * self.head_dim
        new_elements = self.batch * new * self.kv_heads * both
        past_elements = self.batch * past * self.kv_heads * both
        scaling = scores if self.scaled == "scores" else query_elements
        appended = new if self.window == 0 else 0 if full else self.window - 1 - self.past
        shared = {"input": self.batch, "heads": self.heads}.get(self.bias, 0)
        shares = scores + (self.batch * self.heads * self.queries if self.sinks else 0)
        owned = self.heads if self.sinks else 0
        joined = 2 * (past_elements + new_elements) if past != 0 and new != 0 else 0
        vector: dict[str, Size] = {
            "softmax": 5 * shares,
            "elementwise": scaling
            + (0 if self.bias == "none" else scores)
            + (3 * scores if self.capped else 0)
            + (shares if self.sinks else 0),
        }
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes,
            flops={"attention": 2 * scores * both},
            vector_flops=vector | ({"select": shares} if self.sinks else {}),
            kept_scores={"attention": kept},
            hidden_flops={"attention": 2 * (scores - kept) * both},
            input_bytes=(query_elements + new_elements + shared * self.queries * keys) * self.item_bytes,
            output_bytes=self.batch * self.queries * self.heads * value_dim * self.item_bytes,
            kv_read_bytes=past_elements * self.item_bytes,
            kv_cache_bytes=self.batch * appended * self.kv_heads * both * self.item_bytes if self.cached else 0,
            intermediate_bytes=(joined + self._between(scores, query_elements)) * self.item_bytes,
        )

    def _kept_pairs(self, computed: Size) -> Size:
        """Return the number of the ``computed`` query-key pairs, per head and sequence, that the mask keeps."""
        if not self.causal:
            return computed - self.hidden
        n, w, past = (sympy.sympify(size) for size in (self.queries, self.window, self.past))
        if w == 0 or self.by_flag:
            before = past if self.new_keys is None else self.new_keys - n
            return n * before + n * (n + 1) / 2
        if past != 0 and not self.filling:
            return n * w
        return w * (w + 1) / 2 - past * (past + 1) / 2 + w * (past + n - w)

    def _between(self, scores: Size, query_elements: Size) -> Size:
        """Return the elements passed between the layer's operators when they run separately, without the cache."""
        if not self.written_out:
            return 0
        operators = 1 + (3 if self.capped else 0) + (0 if self.bias == "none" else 1)
        rows = self.batch * self.heads * self.queries
        sinks = 5 * scores + 8 * rows if self.sinks else 0
        if self.scaled == "queries":
            return (2 + 2 * operators) * scores + sinks + 2 * query_elements
        return (4 + 2 * operators) * scores + sinks


@layer
class PackedAttention:
    """Attention of a batch of unequal rows, which differ in their numbers of new and of cached tokens.

    Sequences of different rows do not see each other. Each row is attended by a call of its own
    (:class:`Attention`, or one of latents), as a kernel for unequal lengths does block by block. For B sequences of S
    new tokens behind C, summed over all rows:

        flops       = sum of 2 B heads S (C + S) (d + d_v)
        kept_scores = sum of B heads (S C + S (S + 1) / 2), less with a window

    and so on for all costs. Rows with equal masks are of one kind, and the sums of B S, B S S, B S C, ... over each are
    symbols: S_1, SS_1, SC_1. Parameters of the layer are read once in all. Unfused, each of the R_1 calls of a kind
    reads them; the results of several rows are joined into one tensor, which is written and read once more: 2 tokens
    heads d_v elements.

    Branches: parameters are those of a row that reads them; not every kind of rows may.
    """

    name: ClassVar[str] = "packed_attention"
    title: ClassVar[str] = "Attention of rows of different lengths"
    source: ClassVar[str] = (
        "Dao 2023, FlashAttention-2 (varlen); vLLM v1 FlashAttentionMetadata (query_start_loc, seq_lens); "
        "costproof.models.decoding.modules"
    )

    rows: tuple[Layer, ...]
    """Attention layer of one row of each kind, at the sizes :data:`~costproof.algebra.series.ROW_SIZES`."""
    elements: Size
    """Number of elements of the result: tokens x heads x d_v."""
    item_bytes: Size
    several: bool = True
    """Whether the batch has more than one row, so that results are joined."""
    positive: tuple[bool, ...] = ()
    """For each kind of rows, whether x > 0 in the terms Max(0, x) of its costs (default: no such terms)."""

    def costs(self) -> LayerCosts:
        each = [costs_of(row) for row in self.rows]

        def total(sizes: Iterable[Size | None]) -> Size:
            positive = self.positive or (True,) * len(each)
            summed = zip(sizes, positive, strict=True)
            return sympy.Add(*(sum_over_rows(sympy.sympify(x), i, positive=p) for i, (x, p) in enumerate(summed, 1)))

        def of(name: str) -> Size:
            return total(getattr(costs, name) for costs in each)

        def by_kind(name: str) -> dict[str, Size]:
            kinds = dict.fromkeys(kind for costs in each for kind in getattr(costs, name))
            return {kind: total(getattr(costs, name).get(kind, 0) for costs in each) for kind in kinds}

        read = max((costs.weight_read_bytes for costs in each), key=lambda size: size != 0)
        again = of("weight_read_bytes") - read + (2 * self.elements * self.item_bytes if self.several else 0)
        known = all(costs.intermediate_bytes is not None for costs in each)
        return replace(
            each[0],
            weight_read_bytes=read,
            flops=by_kind("flops"),
            vector_flops=by_kind("vector_flops"),
            kept_scores=by_kind("kept_scores"),
            hidden_flops=by_kind("hidden_flops"),
            skippable_flops=by_kind("skippable_flops"),
            input_bytes=of("input_bytes"),
            output_bytes=of("output_bytes"),
            kv_read_bytes=of("kv_read_bytes"),
            kv_cache_bytes=of("kv_cache_bytes"),
            intermediate_bytes=of("intermediate_bytes") + again if known else None,
        )


@layer
class DistanceBuckets:
    """Maps each query-key distance to a bucket: one per small distance, a logarithmic range for large ones.

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
        pairs = self.queries * self.keys
        return LayerCosts(vector_flops={"elementwise": 4 * pairs}, intermediate_bytes=32 * pairs)


@layer
class NoBias:
    """Zeros in place of position biases, [heads, queries, keys], which this layer makes for itself and later layers.

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
        moved = self.heads * self.queries * self.keys * self.item_bytes
        return (
            LayerCosts(output_bytes=moved, intermediate_bytes=moved)
            if self.passed_on
            else LayerCosts(intermediate_bytes=2 * moved)
        )


@layer
class Scale:
    """Multiplication of every element by a constant.

    vector_flops = elements
    """

    name: ClassVar[str] = "scale"
    title: ClassVar[str] = "Scale by a constant"
    source: ClassVar[str] = "T5ForConditionalGeneration.forward (transformers)"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        moved = self.elements * self.item_bytes
        return LayerCosts(
            vector_flops={"elementwise": self.elements}, input_bytes=moved, output_bytes=moved, intermediate_bytes=0
        )
