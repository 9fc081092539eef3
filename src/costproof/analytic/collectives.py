"""Cost formulas of the collectives in which the ranks of a group combine or exchange their tensors."""

from __future__ import annotations

from typing import ClassVar, Final

import sympy

from costproof.analytic.costs import Exchange, LayerCosts, Size, layer


@layer
class AllReduce:
    """Adds the tensors of ``elements`` elements of n ranks, in place on each rank.

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
    """Number of elements of the bias that is added afterwards; 0 without a bias."""
    masked: bool = False
    """Whether, before the sum, look-ups of rows that other ranks hold are overwritten with zeros."""

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
    """Gathers the parts of a tensor [rows, width], which n ranks split along its width, on every rank.

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
    """Gathers the sharded parameters of some modules, of which each of n ranks stores a part, before they run.

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


_NONE: Final[Size] = 0


@layer
class ExchangedPairs:
    """Sends each (token, chosen expert) pair to the rank of the expert, and the expert's result back.

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

    Of ``slices`` ranks along ``tp``, which have the same tokens, each sends the pairs of one slice of chunk =
    ceil(tokens / slices) tokens, the last ones of fewer (``own``), for which it reads
    min(tokens, pairs) rows. They gather the results of all, in the dtype of the weights, shorter slices padded:

        all_gather: comm_payload_bytes = slices chunk hidden weight_item
        comm_bytes = (slices - 1) chunk hidden weight_item

    Of the hidden states a rank then reads one for each pair of its slice, at most all. Unfused, its slice of results is
    written, and a chunk read; a shorter slice is read and written once more, padded: min(1, chunk - own) times. Out go
    all chunks, padding included.

    Branches: a slice has fewer pairs than there are tokens, or not; it is padded, or not.
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
    slices: Size = 1
    """Number of ranks that have the same tokens, of which each sends a slice."""
    own: Size | None = None
    """Number of tokens in the rank's slice; ``None`` if all slices are equal."""

    def costs(self) -> LayerCosts:
        tokens = self.tokens / self.slices if self.own is None else self.own
        pairs = tokens * self.top_k
        rows, state = pairs - self.sent + self.got, self.hidden * self.item_bytes
        looked_up = self.tokens if self.slices == 1 else sympy.Min(self.tokens, pairs)
        own, weights = looked_up * state, pairs * self.weight_item
        arrived = rows * (state + self.item_bytes)
        counts = 8 * self.experts
        result, copied, joined = self.hidden * self.weight_item, _NONE, dict[str, Exchange]()
        whole: Size = self.tokens
        if self.slices != 1:
            chunk = tokens if self.own is None else sympy.ceiling(self.tokens / self.slices)
            padded = sympy.Min(1, chunk - tokens)
            copied = (tokens + padded * (tokens + chunk) + chunk) * result
            whole = self.slices * chunk
            joined["all_gather"] = Exchange(self.slices * chunk * result, (self.slices - 1) * chunk * result)
        return LayerCosts(
            vector_flops={"elementwise": 2 * pairs * self.hidden},
            input_bytes=own + weights - arrived,
            output_bytes=whole * state - rows * state,
            intermediate_bytes=8 * pairs * state
            + 2 * pairs * self.hidden * self.weight_item
            + 2 * rows * state
            + 2 * arrived
            - 2 * rows * self.item_bytes
            + copied,
            exchanges={
                "all_to_all": Exchange(
                    (pairs + rows) * state + counts,
                    (self.sent + self.got) * state + counts - counts / self.ranks,
                    3,
                ),
                **joined,
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
class ReduceScatter:
    """Adds the tensors of ``elements`` elements of n ranks; each rank gets one part of the sum.

    A ring sends n - 1 chunks:

        comm_payload_bytes = elements item_bytes
        comm_bytes = (n - 1) ceil(elements / n) item_bytes

    Out goes elements / n. Unfused, the operator before it writes the tensor, which the collective reads; parts of
    several sequences are put in order before, which reads and writes it once more (not if they are ``in_order``). A
    ``bias`` is added to the rank's part, and look-ups of rows of other ranks (``masked``) are overwritten, as there.
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
    """Number of elements of the bias that is added afterwards; 0 without a bias."""
    masked: bool = False
    """Whether, before the sum, look-ups of rows that other ranks hold are overwritten with zeros."""
    in_order: bool = False
    """Whether the parts of the ranks are contiguous, one after the other."""

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
    """Concatenates the parts of a tensor of ``elements`` elements, which a plan had split for separate gradients.

    Nothing is computed, and the same tensor leaves the module; unfused, it is read and written once more.
    """

    name: ClassVar[str] = "joined"
    title: ClassVar[str] = "Concatenation of the parts of a result"
    source: ClassVar[str] = "transformers MlaKvAProjParallel"

    elements: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        return LayerCosts(intermediate_bytes=2 * self.elements * self.item_bytes)
