"""Cost formulas of attention to a sequence whose positions, or heads, are divided among the ranks of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import sympy

from costproof.analytic.costs import Exchange, Layer, LayerCosts, Size, costs_of, layer


@layer
class RingAttention:
    """Causal attention of ``ranks`` ranks, each with ``tokens`` positions, that pass keys and values around a ring.

    A rank attends its queries to its own n = tokens keys (``local``), and sends keys and values, joined, to the next
    rank P - 1 times, P = ranks:

        comm_bytes = comm_payload_bytes = (P - 1) K item_bytes,  K = batch n kv_heads (key_dim + value_dim)

    Of the parts that arrive it attends to those that the mask leaves. With contiguous parts these are the ``rank``
    earlier ones, n² pairs each. In ``zigzag`` order rank r has the parts r and 2P - 1 - r of 2P: of each earlier rank
    all its queries see the first half, and all keys of each later rank are seen by half of its queries: n² / 2 pairs
    each, so that all ranks have n² + (P - 1) n² / 2. Later parts of a ring are passed on, and nothing is computed.

    A result O [rows, value_dim] with the logarithms L [rows] of its sums is merged with a part's O' and L' in float32:

        O - sigmoid(L' - L) (O - O'),  L - log sigmoid(L - L'):  3 rows value_dim + 8 rows operations

    for batch heads n rows, of half of them where half of the queries attend, which then are joined with the others.

    Unfused, of x = rows value_dim elements: each exchange joins, sends and receives K elements, 4 K
    item_bytes, or 3 if it is the last and nothing attends to it; each further part is attended to (queries, keys and
    values are read, O' and L' written) and merged, which moves (28 + item_bytes) x + 56 rows bytes; a join writes and
    reads O and L. Casts fuse: before the first merge, and behind the last, O has item_bytes for an element, not 4.
    Nothing reads the last L. That there are parts before, or after, is min(1, their number).
    """

    name: ClassVar[str] = "ring_attention"
    title: ClassVar[str] = "Attention in a ring of ranks"
    source: ClassVar[str] = (
        "Liu et al. 2023, Ring Attention with Blockwise Transformers; torch.distributed.tensor.experimental "
        "context_parallel (_templated_ring_attention, _SDPAMerger)"
    )

    local: Layer
    """Attention of this rank's queries to its own keys."""
    batch: Size
    tokens: Size
    heads: Size
    kv_heads: Size
    key_dim: Size
    value_dim: Size
    ranks: Size
    rank: Size
    item_bytes: Size
    zigzag: bool = False

    def costs(self) -> LayerCosts:
        """Return the costs of one call.

        Branches: whether a rank merges any part of an earlier one, and whether any part is of later ones alone.
        """
        b, n, r, others, half = self.item_bytes, self.tokens, self.rank, self.ranks - 1, sympy.Rational(1, 2)
        rows, width = self.batch * self.heads * n, self.key_dim + self.value_dim
        x, q, k = rows * self.value_dim, rows * self.key_dim, self.batch * n * self.kv_heads * width
        seen, halves = (others * half, others - r) if self.zigzag else (r, 0)
        merges = r + halves * half  # of all rows
        attended = r * (q + k * (half if self.zigzag else 1)) + halves * (q * half + k)
        first = sympy.Min(1, r)
        # Accesses to O that are not in float32: before the first merge, and the last one, which the next module reads.
        narrow = (5 + first) * half if self.zigzag else 3 * first
        moved = attended * b + merges * ((28 + 2 * b) * x + 60 * rows) + halves * 8 * (x + rows)
        unread = 0 if self.zigzag else sympy.Min(1, others - r)
        moved += (4 * others - unread) * k * b - (4 - b) * narrow * x
        merged = {"elementwise": merges * (3 * x + 8 * rows)}
        more = _further(costs_of(self.local), rows * n * seen, rows * n * seen, width, moved, merged)
        return replace(more, exchanges={"send": Exchange(others * k * b, others * k * b, others)})


@layer
class UlyssesAttention:
    """Causal attention for which each rank exchanges all heads at some positions for some heads at all positions.

    Four all-to-alls surround attention on heads / P heads, P = ranks: of queries, keys, values, and of the result. Each
    sends P - 1 of the P chunks of a local tensor; for q, k, v and x elements of these

        comm_payload_bytes = (q + k + v + x) item_bytes
        comm_bytes = (P - 1) (ceil(q / P) + ceil(k / P) + ceil(v / P) + ceil(x / P)) item_bytes

    Between them each rank attends its heads to all P tokens positions (``local``), with any mask, window or sinks, and
    caches these heads as one device would. Parameters, such as sinks, are whole on each rank, which reads its part.

    Latents have no heads (``of_latents``): each rank caches and expands those of its own positions, ``local`` attends
    to these in all heads, and the exchange adds the other pairs, P times as many in all, of which
    batch heads tokens (P tokens + 1) / 2 are kept.

    Unfused, chunks are put in order before an exchange and joined after it: with the exchange 6 accesses to each
    element.
    """

    name: ClassVar[str] = "ulysses_attention"
    title: ClassVar[str] = "Attention with heads exchanged for positions"
    source: ClassVar[str] = "Jacobs et al. 2023, DeepSpeed Ulysses, section 3"

    local: Layer
    """Attention of this rank's heads to all positions; of latents, of its queries to its own keys."""
    batch: Size
    tokens: Size
    heads: Size
    kv_heads: Size
    key_dim: Size
    value_dim: Size
    ranks: Size
    item_bytes: Size
    of_latents: bool = False

    def costs(self) -> LayerCosts:
        positions, b, others = self.batch * self.tokens, self.item_bytes, self.ranks - 1
        rows = positions * self.heads
        parts = [positions * self.kv_heads * width for width in (self.key_dim, self.value_dim)]
        parts += [rows * self.key_dim, rows * self.value_dim]
        scores = rows * self.tokens * others if self.of_latents else 0
        width = self.key_dim + self.value_dim
        more = _further(costs_of(self.local), scores, scores / 2, width, 6 * sum(parts) * b, {})
        more = more if self.of_latents else _whole_parameters(more, self.ranks)
        sent = others * sum(sympy.ceiling(part / self.ranks) for part in parts)
        return replace(more, exchanges={"all_to_all": Exchange(sum(parts) * b, sent * b, 4)})


@layer
class StepOfHeads:
    """Attention of a decode step after :class:`UlyssesAttention`: each rank has cached some heads at all positions.

    Each of P = ranks ranks has queries, keys and values of all heads of the new token, and takes those of its own
    heads, which ``local`` attends and caches. An all-gather brings the results of all heads, x = batch heads value_dim
    elements:

        comm_payload_bytes = x item_bytes,  comm_bytes = (P - 1) / P x item_bytes

    Unfused, queries and keys of all heads are turned, and those of the rank's heads read; x / P elements are written
    and read before the gather, and x after it, which are joined again: written by the gather, and read.
    """

    name: ClassVar[str] = "step_of_heads"
    title: ClassVar[str] = "Attention of a decode step to own heads of a cache"
    source: ClassVar[str] = "Hidayetoglu et al. 2025, Shift Parallelism (caches of Ulysses ranks hold heads)"

    local: Layer
    """Attention of this rank's heads of the new token."""
    batch: Size
    heads: Size
    kv_heads: Size
    key_dim: Size
    value_dim: Size
    ranks: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        b, one = self.item_bytes, _whole_parameters(costs_of(self.local), self.ranks)
        x, turned = self.batch * self.heads * self.value_dim, self.batch * (self.heads + self.kv_heads) * self.key_dim
        own, others, inner = x / self.ranks, 1 - 1 / sympy.sympify(self.ranks), one.intermediate_bytes
        return replace(
            one,
            input_bytes=one.input_bytes + turned * others * b,
            output_bytes=one.output_bytes + x * others * b,
            intermediate_bytes=None if inner is None else inner + (2 * (own + x) - turned * others) * b,
            exchanges={"all_gather": Exchange(x * b, x * others * b)},
        )


def _whole_parameters(part: LayerCosts, ranks: Size) -> LayerCosts:
    """Return the costs of a rank that holds whole parameters and reads one of ``ranks`` parts of them."""
    return replace(part, params=part.params * ranks, weight_bytes=part.weight_bytes * ranks)


@layer
class AttentionOfParts:
    """Attention of a decode step to a cache whose positions are divided among ``ranks`` ranks.

    Each rank has the query of the new token and attends it to the part that it keeps (``local``). It gathers the
    logarithms L of the sums of all P = ranks parts, in float32, weighs its result by e^(L - log sum e^L), and adds
    those of all ranks. For batch heads rows of x = rows value_dim elements

        all_gather: comm_payload_bytes = 4 P rows, comm_bytes = 4 (P - 1) rows
        all_reduce: comm_payload_bytes = x item_bytes, comm_bytes = 2 (P - 1) ceil(x / P) item_bytes

    and 4 P rows + 4 rows + x operations. Another rank may keep the new token (``elsewhere``): its key is made and
    turned, and not read; its value is made only.

    Unfused: results and logarithms are written, gathered, summed up, taken off, put into powers, multiplied and added:
    4 item_bytes x + (36 + 8 P) rows. A turned key of another rank is neither written nor read.
    """

    name: ClassVar[str] = "attention_of_parts"
    title: ClassVar[str] = "Attention to a cache that is spread over ranks"
    source: ClassVar[str] = (
        "vLLM v1 attention.ops (cp_lse_ag_out_ar, decode context parallel); NVIDIA 2025, Helix Parallelism, section 2"
    )

    local: Layer
    """Attention of the new query to this rank's part of the cache."""
    batch: Size
    heads: Size
    value_dim: Size
    ranks: Size
    item_bytes: Size
    elsewhere: Size = 0
    """Number of key elements of the new token if another rank caches it; 0 if this rank does."""

    def costs(self) -> LayerCosts:
        b, rows, others = self.item_bytes, self.batch * self.heads, self.ranks - 1
        x = rows * self.value_dim
        moved = 4 * b * x + (36 + 8 * self.ranks) * rows
        vector = {"elementwise": (4 * self.ranks + 4) * rows + x}
        one = _further(costs_of(self.local), 0, 0, 0, moved - 2 * self.elsewhere * b, vector)
        return replace(
            one,
            input_bytes=one.input_bytes + self.elsewhere * b,
            exchanges={
                "all_gather": Exchange(4 * self.ranks * rows, 4 * others * rows),
                "all_reduce": Exchange(x * b, 2 * others * sympy.ceiling(x / self.ranks) * b),
            },
        )


def _further(
    one: LayerCosts, scores: Size, kept: Size, width: Size, moved: Size, vector: Mapping[str, Size]
) -> LayerCosts:
    """Return the costs of attention to a rank's own keys plus those of attention to keys of other ranks.

    Args:
        one: costs of the attention to own keys.
        scores: query-key pairs that are added.
        kept: those of them that the mask leaves.
        width: of a key and a value together.
        moved: bytes of intermediate results that are added.
        vector: kind of elementwise work -> operations that are added, other than softmax and scaling.
    """
    name, before = "attention", one.kept_scores["attention"]
    added = {"softmax": 5 * scores}
    for kind, work in (*vector.items(), ("elementwise", scores)):
        added[kind] = added.get(kind, 0) + work
    kinds = {*one.vector_flops, *(k for k, work in added.items() if work != 0)}
    skipped = {kind: size + sympy.cancel(size / before) * kept for kind, size in one.skippable_flops.items()}
    return replace(
        one,
        flops={**one.flops, name: one.flops[name] + 2 * scores * width},
        vector_flops={k: one.vector_flops.get(k, 0) + added.get(k, 0) for k in sorted(kinds)},
        kept_scores={name: before + kept},
        hidden_flops={name: one.hidden_flops.get(name, 0) + 2 * (scores - kept) * width},
        skippable_flops=skipped,
        intermediate_bytes=None if one.intermediate_bytes is None else one.intermediate_bytes + moved,
    )
