"""Cost the collectives in which the ranks of a group combine what each of them computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import sympy

from costproof.analytic.costs import Exchange, Layer, LayerCosts, Size, costs_of, layer


@layer
class AllReduce:
    """Adds up a tensor of ``elements`` elements that each of n ranks holds a part of the sum of, in place.

    The payload is the tensor. By the ring algorithm a rank sends 2 (n - 1) chunks of ceil(elements / n) elements:
    n - 1 to reduce the chunks, and n - 1 to spread the sums:

        comm_payload_bytes = elements item_bytes
        comm_bytes = 2 (n - 1) ceil(elements / n) item_bytes

    It adds nothing to what crosses the module; unfused, it reads the tensor and writes it.

    With a ``bias`` of that width, which every rank holds whole, a separate addition follows, of one operation per
    element: unfused, it reads and writes the tensor once more. Rows of a table that another rank holds (``masked``) are
    overwritten with zeros before the sum: unfused, that reads and writes the tensor and one zero.
    """

    name: ClassVar[str] = "all_reduce"
    title: ClassVar[str] = "All-reduce"
    source: ClassVar[str] = (
        "Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms; Shoeybi et al. 2019, Megatron-LM, figure 3; "
        "transformers RowwiseParallel, EmbeddingParallel, MoeExpertsParallel"
    )

    elements: Size
    ranks: Size
    item_bytes: Size
    bias: Size = 0
    """Elements of the bias that is added afterwards; 0 if there is none."""
    masked: bool = False
    """Whether look-ups of rows that other ranks hold are overwritten with zeros."""

    def costs(self) -> LayerCosts:
        added = 0 if self.bias == 0 else self.elements
        zeros = self.elements + 1 if self.masked else 0
        return LayerCosts(
            params=self.bias,
            weight_bytes=self.bias * self.item_bytes,
            weight_read_bytes=self.bias * self.item_bytes,
            vector_flops={"elementwise": added} if added != 0 else {},
            intermediate_bytes=2 * (self.elements + added + zeros) * self.item_bytes,
            exchanges={
                "all_reduce": Exchange(
                    self.elements * self.item_bytes,
                    2 * (self.ranks - 1) * sympy.ceiling(self.elements / self.ranks) * self.item_bytes,
                )
            },
        )


@layer
class AllGather:
    """Joins the parts of a tensor [rows, width] that n ranks hold along its width, so that each has all of it.

    Each part is padded to chunk = ceil(width / n) columns, and every rank sends its part to the n - 1 others:

        comm_payload_bytes = rows n chunk item_bytes
        comm_bytes = (n - 1) rows chunk item_bytes

    Out go all n chunks. Unfused: the operator before it writes ``own`` columns. Fewer than a chunk are read and written
    once more, padded: min(1, chunk - own) times. The collective reads a chunk and writes n of them, with the ranks as
    the first dimension, which an operator reads and joins. A single row (``one_row``) needs no such operator.

    Branches: a rank with all columns of a chunk does not pad them.
    """

    name: ClassVar[str] = "all_gather"
    title: ClassVar[str] = "All-gather"
    source: ClassVar[str] = "Thakur et al. 2005, Optimization of collective communication; transformers ColwiseParallel"

    rows: Size
    width: Size
    own: Size
    ranks: Size
    item_bytes: Size
    one_row: bool = False

    def costs(self) -> LayerCosts:
        chunk = self.rows * sympy.ceiling(self.width / self.ranks) * self.item_bytes
        own = self.rows * self.own * self.item_bytes
        padded = sympy.Min(1, sympy.ceiling(self.width / self.ranks) - self.own)
        joined = 0 if self.one_row else 2 * self.ranks * chunk
        return LayerCosts(
            input_bytes=0,
            output_bytes=self.ranks * chunk - own,
            intermediate_bytes=own + padded * (own + chunk) + chunk + joined,
            exchanges={"all_gather": Exchange(self.ranks * chunk, (self.ranks - 1) * chunk)},
        )


@layer
class GatheredParameters:
    """Gathers the parameters of some modules, of which each of n ranks stores a part, before they run.

    Every parameter is cut along its first dimension into n parts of ceil(rows / n) rows, the last ones padded.
    ``elements`` is the number of elements of a rank's parts, padding included. They are copied into one buffer, which
    one collective gathers:

        comm_payload_bytes = n elements item_bytes
        comm_bytes = (n - 1) elements item_bytes

    A rank reads its parts, which are weights. Unfused, it writes and reads their copy; the collective writes all parts,
    which are read again to put each parameter together. The products that read the parameters count them as weights.
    """

    name: ClassVar[str] = "gathered_parameters"
    title: ClassVar[str] = "All-gather of parameters"
    source: ClassVar[str] = (
        "Zhao et al. 2023, PyTorch FSDP, section 3.2; torch.distributed.fsdp.fully_shard (foreach_all_gather)"
    )

    elements: Size
    ranks: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        own = self.elements * self.item_bytes
        return LayerCosts(
            weight_bytes=0,
            buffer_bytes=0,
            weight_read_bytes=own,
            input_bytes=0,
            output_bytes=0,
            intermediate_bytes=2 * own + 2 * self.ranks * own,
            exchanges={"all_gather": Exchange(self.ranks * own, (self.ranks - 1) * own)},
        )


@layer
class GatheredTokens:
    """Exchange of tokens for sharded experts: an all-gather of all ranks' tokens, a reduce-scatter of the sums.

    Every rank sends its hidden states [tokens, hidden], the numbers of the chosen experts [tokens, top_k] in 8 bytes,
    and their weights to all others, whatever the routing is. Its experts run on ``every`` token of all ranks. A
    reduce-scatter adds the results [every, hidden] of all ranks. Ranks may have unequal numbers of tokens: parts have
    sizes of their own, without padding (all-gather-v, reduce-scatter-v). In a ring a rank passes on all parts but that
    of the next rank, which has ``following`` tokens, and partial sums for all tokens but its own. Of n equal parts that
    are n - 1 of each:

        part = hidden item_bytes + top_k (8 + weight_item)
        all_gather: comm_payload_bytes = every part, comm_bytes = (every - following) part
        reduce_scatter: comm_payload_bytes = every hidden item_bytes, comm_bytes = (every - tokens) hidden item_bytes

    The module is given, and returns, what one rank has. Unfused, the gather writes all parts, which the experts read,
    and these write as much, which the reduce-scatter reads; in the same way all weights are written and read. Numbers
    of experts are integers, which do not count there.
    """

    name: ClassVar[str] = "gathered_tokens"
    title: ClassVar[str] = "Exchange of tokens between ranks that share experts"
    source: ClassVar[str] = (
        "vLLM distributed.device_communicators.all2all (AgRsAll2AllManager, its default: all_gatherv, reduce_scatterv "
        "with the sizes of all ranks; where it captures graphs, it pads batches to the largest beforehand)"
    )

    tokens: Size
    every: Size
    following: Size
    hidden: Size
    top_k: Size
    item_bytes: Size
    weight_item: Size

    def costs(self) -> LayerCosts:
        state, weights, others = self.hidden * self.item_bytes, self.top_k * self.weight_item, self.every - self.tokens
        part = state + weights + 8 * self.top_k
        return LayerCosts(
            input_bytes=-others * (state + weights),
            output_bytes=-others * state,
            intermediate_bytes=self.every * (4 * state + 2 * weights),
            exchanges={
                "all_gather": Exchange(self.every * part, (self.every - self.following) * part, 3),
                "reduce_scatter": Exchange(self.every * state, others * state),
            },
        )


@layer
class ExchangedPairs:
    """Sends each pair of a token and a chosen expert to the rank of the expert, and its result back.

    Of its tokens top_k pairs a rank sends ``sent`` to the n - 1 others, and gets ``got`` of theirs, so its experts run
    on rows = tokens top_k - sent + got. How many depends on the routing. Before them it tells each other rank how many
    pairs each of the experts there gets, in 8 bytes each:

        comm_payload_bytes = (tokens top_k + rows) hidden item_bytes + 8 experts
        comm_bytes = (sent + got) hidden item_bytes + 8 (n - 1) experts / n

    A rank weights the results that it gets back and adds those of a token: 2 tokens top_k hidden operations.

    The module is given, and returns, ``tokens`` rows. Unfused, the tokens are read once and copied for each pair, which
    is read; what arrives is written, and so is a weight of 1 for each row. The experts' results are written and read.
    What comes back is written, and so is a tensor for it in the tokens' order; putting it there reads both and writes
    one, which is read; the products with the weights are written and read. Experts mask no weights beforehand, as those
    of gathered tokens do.
    """

    name: ClassVar[str] = "exchanged_pairs"
    title: ClassVar[str] = "Exchange of pairs of a token and an expert between ranks that share experts"
    source: ClassVar[str] = "transformers distributed.expert_parallel (AllToAllEP)"

    tokens: Size
    hidden: Size
    top_k: Size
    ranks: Size
    experts: Size
    sent: Size
    got: Size
    item_bytes: Size
    weight_item: Size

    def costs(self) -> LayerCosts:
        pairs = self.tokens * self.top_k
        rows, state = pairs - self.sent + self.got, self.hidden * self.item_bytes
        own, weights = self.tokens * state, pairs * self.weight_item
        arrived = rows * (state + self.item_bytes)
        counts = 8 * self.experts
        return LayerCosts(
            vector_flops={"elementwise": 2 * pairs * self.hidden},
            input_bytes=own + weights - arrived,
            output_bytes=own - rows * state,
            intermediate_bytes=8 * pairs * state
            + 2 * pairs * self.hidden * self.weight_item
            + 2 * rows * state
            + 2 * arrived
            - 2 * rows * self.item_bytes,
            exchanges={
                "all_to_all": Exchange(
                    (pairs + rows) * state + counts,
                    (self.sent + self.got) * state + counts - counts / self.ranks,
                    3,
                )
            },
        )


@layer
class Send:
    """Sends a tensor of ``elements`` elements to the next stage of a pipeline.

        comm_payload_bytes = comm_bytes = elements item_bytes

    The tensor is read where other modules wrote it. The stage that receives it counts nothing for that.
    """

    name: ClassVar[str] = "send"
    title: ClassVar[str] = "Send to the next stage"
    source: ClassVar[str] = "Huang et al. 2019, GPipe, section 2; torch.distributed.send"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        size = self.elements * self.item_bytes
        return LayerCosts(input_bytes=size, intermediate_bytes=0, exchanges={"send": Exchange(size, size)})


@layer
class RingAttention:
    """Causal attention whose ``ranks`` ranks have ``tokens`` positions of each sequence, and pass keys and values on.

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
    """Attention of the own queries to the own keys."""
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
    """Causal attention for which each rank trades its positions of all heads for all positions of some heads.

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
    """Attention of the own heads to all positions; of latents, of the own queries to the own keys."""
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
    """Attention of a decode step behind :class:`UlyssesAttention`: each rank has cached some heads of all positions.

    Each of P = ranks ranks has queries, keys and values of all heads of the new token, and takes those of its own
    heads, which ``local`` attends and caches. An all-gather brings the results of all heads, x = batch heads value_dim
    elements:

        comm_payload_bytes = x item_bytes,  comm_bytes = (P - 1) / P x item_bytes

    Unfused, queries and keys of all heads are turned, and the own ones read; x / P elements are written and read before
    the gather, and x after it, which are joined again: written by the gather, and read.
    """

    name: ClassVar[str] = "step_of_heads"
    title: ClassVar[str] = "Attention of a decode step to own heads of a cache"
    source: ClassVar[str] = "Hidayetoglu et al. 2025, Shift Parallelism (caches of Ulysses ranks hold heads)"

    local: Layer
    """Attention of the own heads of the new token."""
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
    """Return the costs of a rank that has all of the parameters of which it reads one of ``ranks`` parts."""
    return replace(part, params=part.params * ranks, weight_bytes=part.weight_bytes * ranks)


@layer
class AttentionOfParts:
    """Attention of a decode step to a cache whose positions are spread over ``ranks`` ranks.

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
    """Attention of the new query to the own part of the cache."""
    batch: Size
    heads: Size
    value_dim: Size
    ranks: Size
    item_bytes: Size
    elsewhere: Size = 0
    """Number of elements of the new token's keys if another rank caches that token; 0 if this rank does."""

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
    """Return the costs of attention to own keys, plus what attention to keys of other ranks adds.

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


@layer
class ReduceScatter:
    """Adds up a tensor of ``elements`` elements like :class:`AllReduce`; each of n ranks gets one part of the sum.

    A ring sends n - 1 chunks:

        comm_payload_bytes = elements item_bytes
        comm_bytes = (n - 1) ceil(elements / n) item_bytes

    Out goes elements / n. Unfused, the operator before it writes the tensor, which the collective reads; parts of
    several sequences are put in order before, which reads and writes it once more (not if they are ``in_order``). A
    ``bias`` is added to the own part, and look-ups of rows of other ranks (``masked``) are overwritten, as there.
    """

    name: ClassVar[str] = "reduce_scatter"
    title: ClassVar[str] = "Reduce-scatter"
    source: ClassVar[str] = (
        "Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, section 4.2.2; "
        "Megatron-LM reduce_scatter_to_sequence_parallel_region"
    )

    elements: Size
    ranks: Size
    item_bytes: Size
    bias: Size = 0
    """Elements of the bias that is added afterwards; 0 if there is none."""
    masked: bool = False
    """Whether look-ups of rows that other ranks hold are overwritten with zeros."""
    in_order: bool = False
    """Whether the parts of the ranks lie one behind the other."""

    def costs(self) -> LayerCosts:
        own = self.elements / self.ranks
        added = 0 if self.bias == 0 else own
        moved = self.elements * (1 if self.in_order else 2) + added + (self.elements + 1 if self.masked else 0)
        return LayerCosts(
            params=self.bias,
            weight_bytes=self.bias * self.item_bytes,
            weight_read_bytes=self.bias * self.item_bytes,
            vector_flops={"elementwise": added} if added != 0 else {},
            output_bytes=(own - self.elements) * self.item_bytes,
            intermediate_bytes=2 * moved * self.item_bytes,
            exchanges={
                "reduce_scatter": Exchange(
                    self.elements * self.item_bytes,
                    (self.ranks - 1) * sympy.ceiling(own) * self.item_bytes,
                )
            },
        )


@layer
class Joined:
    """Joins parts of a tensor of ``elements`` elements again, which plans do to give each part its own gradient.

    Nothing is computed, and the same tensor leaves the module; unfused, it is read and written once more.
    """

    name: ClassVar[str] = "joined"
    title: ClassVar[str] = "Concatenation of the parts of a result"
    source: ClassVar[str] = "transformers MlaKvAProjParallel"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        return LayerCosts(intermediate_bytes=2 * self.elements * self.item_bytes)
