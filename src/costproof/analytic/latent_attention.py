"""Cost formulas of multi-head latent attention: keys and values of all heads come from one vector per token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import sympy

from costproof.algebra.series import sum_over_rows
from costproof.analytic.attention import Attention, Bias, PackedAttention
from costproof.analytic.compose import ModulePart, StackCall
from costproof.analytic.costs import Layer, LayerCosts, Size, layer
from costproof.analytic.linear import Linear
from costproof.analytic.norms import RmsNorm
from costproof.analytic.rotary import RotaryPairs


@layer
class LatentAttention:
    """Attention whose cache holds, per token, a latent of ``rank`` elements and one rotated key of ``rope`` elements.

    Queries and keys are nope + rope wide in every head, values value_dim; the rotated part of the key is the same in
    all heads. Scores, softmax and weighted sum cost what :class:`~costproof.analytic.attention.Attention` costs with
    as many key/value heads as heads. Keys and values of the whole context, past ones too, are made anew in every call
    by a projection of the latents, a module of its own, whose input has batch x keys rows, keys = past + queries.

    - In: new queries and rotated keys, the result of the projection (batch x keys x heads x (nope + value_dim)), and
      a mask that is given from outside. With a past also the new latents; past latents and rotated keys are read from
      the cache.
    - Out: batch x queries x heads x value_dim. With a past also the latents of the whole context, joined for the
      projection (batch x keys x rank); without a past the projection reads the new latents directly.

    The cache grows by the new latents and rotated keys:

        kv_read_bytes  = batch past (rank + rope) item_bytes
        kv_cache_bytes = batch queries (rank + rope) item_bytes

    Floors take the smaller of this layer and :class:`AbsorbedAttention`, whose scores are rank + rope wide and whose
    sums are rank wide; it is smaller if 2 rank < nope + value_dim (``wide``). It also states how much of the projection
    of past latents can be skipped.

    Unfused, besides what :class:`~costproof.analytic.attention.Attention` moves: both parts of the queries are joined,
    and of the keys, which writes and reads all of them; with a past the rotated keys of the whole context are joined
    before.
    """

    name: ClassVar[str] = "latent_attention"
    title: ClassVar[str] = "Multi-head latent attention, keys and values expanded"
    source: ClassVar[str] = (
        "DeepSeek-AI 2024, DeepSeek-V2, equations 9 to 19; transformers DeepseekV2Attention and DeepseekV3Attention "
        "(expand_kv)"
    )

    batch: Size
    queries: Size
    heads: Size
    nope: Size
    rope: Size
    value_dim: Size
    rank: Size
    item_bytes: Size
    past: Size = 0
    bias: Bias = "none"
    written_out: bool = False
    wide: bool = False
    """Whether the key and value of a head, nope + value_dim, are wider than two latents."""
    elsewhere: bool = False
    """Whether another rank caches the new tokens, so that this one attends to past tokens only; their latents are read
    by the projection that expands them, not by the attention."""

    def costs(self) -> LayerCosts:
        new = 0 if self.elsewhere else self.batch * self.queries
        b, width, keys = self.item_bytes, self.nope + self.rope, self.past + (0 if self.elsewhere else self.queries)
        core = Attention(
            self.batch, self.queries, self.heads, self.heads, width, b,
            bias=self.bias, value_dim=self.value_dim, new_keys=keys, causal=not self.elsewhere,
            written_out=self.written_out,
        ).costs()  # fmt: skip
        queries = self.batch * self.queries * self.heads * width
        joins = self.past != 0 and not self.elsewhere
        latents, joined = (new * self.rank, self.batch * keys * self.rank) if joins else (0, 0)
        expanded = self.batch * keys * self.heads * (self.nope + self.value_dim)
        copied = queries + self.batch * keys * (self.heads * width + (self.rope if joins else 0))
        mask = self.batch * self.queries * keys if self.bias == "input" else 0
        # With wide keys and values, scores of the latents themselves are less work.
        spare = self.nope + self.value_dim - 2 * self.rank if self.wide else 0
        seen = core.kept_scores["attention"]
        return replace(
            core,
            skippable_flops={"attention": 2 * seen * spare},
            input_bytes=(queries + latents + new * self.rope + expanded + mask) * b,
            output_bytes=core.output_bytes + joined * b,
            kv_read_bytes=self.batch * self.past * (self.rope if self.elsewhere else self.rank + self.rope) * b,
            kv_read_part="rotated" if self.elsewhere else "whole",
            kv_cache_bytes=new * (self.rank + self.rope) * b,
            intermediate_bytes=None if core.intermediate_bytes is None else core.intermediate_bytes + 2 * copied * b,
        )


@layer
class AbsorbedAttention:
    """The attention of :class:`LatentAttention` in a decode step whose keys and values are the latents themselves.

    A key of a head is W_k c for a latent c, so q · W_k c = (W_kᵀ q) · c; a sum of values Σ p W_v c is W_v Σ p c. The
    projection that would expand every latent goes to the queries, nope -> rank, and to the sums, rank -> value_dim:

        flops = 2 batch queries heads rank (nope + value_dim)

    Its weights, heads (nope + value_dim) rank, belong to a module that is not called; they are read here, once. Between
    them scores are rank + rope wide, and sums rank, with one head of keys and values for all heads of queries: what
    :class:`~costproof.analytic.attention.Attention` costs with these. Products that were linear in the context with a
    factor heads rank (nope + value_dim) are linear in it with heads (2 rank + rope).

    In come the new queries, latents and rotated keys, and a mask that is given from outside; latents and rotated keys
    of the past are read from the cache, which grows by the new ones. Out goes batch x queries x heads x value_dim.

        kv_read_bytes  = batch past (rank + rope) item_bytes
        kv_cache_bytes = batch queries (rank + rope) item_bytes

    Unfused, the absorbed queries and the sums are written and read once more, as are the queries joined with their
    rotated part. Of the context the latents are joined with new ones, written and read twice; the rotated keys
    are, and keys of both: 2 more each. Without new ones the latents are read twice, as values and to be joined.
    """

    name: ClassVar[str] = "absorbed_attention"
    title: ClassVar[str] = "Multi-head latent attention, the expansion absorbed"
    source: ClassVar[str] = (
        "DeepSeek-AI 2024, DeepSeek-V2, section 2.1.2 (W_UK absorbed into W_Q, W_UV into W_O); FlashMLA; "
        "costproof.models.decoding.absorbed"
    )

    batch: Size
    queries: Size
    heads: Size
    nope: Size
    rope: Size
    value_dim: Size
    rank: Size
    item_bytes: Size
    past: Size
    bias: Bias = "none"
    written_out: bool = False
    narrow: bool = False
    """Whether nope + value_dim < 4: for such narrow heads, expanding keys and values may be less work."""
    elsewhere: bool = False
    """Whether another rank caches the new tokens, so that this one attends to past tokens only."""

    def costs(self) -> LayerCosts:
        b, width, kept = self.item_bytes, self.rank + self.rope, 0 if self.elsewhere else self.queries
        keys, new = self.past + kept, self.batch * kept
        core = Attention(
            self.batch, self.queries, self.heads, 1, width, b, bias=self.bias, value_dim=self.rank, new_keys=keys,
            causal=not self.elsewhere, written_out=self.written_out,
        ).costs()  # fmt: skip
        rows, context = self.batch * self.queries * self.heads, self.batch * keys
        # At most so much less are scores and sums of expanded keys and values.
        spare = 2 * self.rank - self.nope - self.value_dim if self.narrow else 0
        seen = core.kept_scores["attention"]
        weights = self.heads * (self.nope + self.value_dim) * self.rank
        mask = self.batch * self.queries * keys if self.bias == "input" else 0
        again = self.rank if self.elsewhere else 3 * self.rank + 2 * self.rope
        moved = 2 * rows * (self.rank + width + self.rank) + context * (again + 2 * width)
        return replace(
            core,
            skippable_flops={"attention": 2 * seen * spare},
            flops={**core.flops, "matmul": 2 * rows * self.rank * (self.nope + self.value_dim)},
            weight_read_bytes=weights * b,
            input_bytes=(rows * (self.nope + self.rope) + new * width + mask) * b,
            output_bytes=rows * self.value_dim * b,
            kv_read_bytes=self.batch * self.past * width * b,
            kv_cache_bytes=new * width * b,
            intermediate_bytes=None if core.intermediate_bytes is None else core.intermediate_bytes + moved * b,
        )


@dataclass(frozen=True, slots=True)
class LatentBlock:
    """Multi-head latent attention with its projections and norms.

    Roles below its own: ``.q``, or ``.q_down``, ``.q_norm``, ``.q_up`` where queries have latents too; ``.kv_down``,
    ``.kv_norm``, ``.kv_up``, ``.out``.

    A kernel that absorbs ``.kv_up`` skips the expansion of past latents and does wider scores and sums. For several
    tokens with a past this saves max(0, the one minus the other) FLOPs.
    """

    width: Size
    """Width of the hidden states."""
    heads: Size
    nope: Size
    rope: Size
    value_dim: Size
    rank: Size
    """Width of the latents of keys and values."""
    as_complex: bool = False
    """Whether pairs are rotated as complex numbers; otherwise by cosines and sines."""
    q_rank: Size = 0
    """Width of the latents of queries; 0 if queries are projected directly."""
    bias: bool = False
    """Whether the projections from and to the hidden states have biases, except ``.q``."""
    mask: Bias = "none"
    written_out: bool = False
    absorbed: bool = False
    """Whether queries and weighted sums absorb the weights of ``.kv_up``, which is then not called."""
    wide: bool = False
    """See :class:`LatentAttention`."""
    narrow: bool = False
    """Whether nope + value_dim is less than 4."""
    equal_widths: bool = False
    """Whether values are as wide as queries and keys, which torch's fused attention requires."""

    def parts(self, role: str, call: StackCall) -> tuple[ModulePart, ...]:
        """Return the modules of the block with their formulas."""
        up = ModulePart(f"{role}.kv_up", (self.expansion(call),), called=not self.absorbed)
        return self.around(role, call, self.core(call), up)

    def core(self, call: StackCall) -> LatentAttention | AbsorbedAttention:
        """Return the attention layer of a call."""
        widths = (self.nope, self.rope, self.value_dim, self.rank)
        kind = AbsorbedAttention if self.absorbed else LatentAttention
        core: LatentAttention | AbsorbedAttention
        core = kind(
            call.batch, call.tokens, self.heads, *widths, call.item_bytes, call.past, self.mask, self.written_out
        )
        return replace(core, wide=self.wide) if isinstance(core, LatentAttention) else replace(core, narrow=self.narrow)

    def expansion(self, call: StackCall) -> Linear:
        """Return the linear layer that expands the latents of a call's context to keys and values."""
        context = call.batch * (call.past + call.tokens)
        width = self.heads * (self.nope + self.value_dim)
        return Linear(context, self.rank, width, call.item_bytes, bias=False, skippable=self._saved(call))

    def around(self, role: str, call: StackCall, core: Layer, up: ModulePart) -> tuple[ModulePart, ...]:
        """Return all modules of the block, given its attention layer and the module that expands the latents."""
        b, rows = call.item_bytes, call.rows
        rotation = RotaryPairs(call.batch, call.tokens, self.heads, 1, self.rope, b, self.as_complex)
        down = Linear(rows, self.width, self.rank + self.rope, b, self.bias)
        return (
            ModulePart(role, (core, rotation)),
            *self._queries(role, rows, b),
            ModulePart(f"{role}.kv_down", (down,)),
            ModulePart(f"{role}.kv_norm", (RmsNorm(rows, self.rank, b),)),
            up,
            ModulePart(f"{role}.out", (Linear(rows, self.heads * self.value_dim, self.width, b, self.bias),)),
        )

    def _saved(self, call: StackCall) -> Size:
        """Return the FLOPs saved by absorbing: the expansion of past latents, minus the cost of wider scores and sums.

        For a step with t keys this is positive if nope + value_dim >= 4 and t >= 2. Narrower heads save at most the
        expansion, which a floor then leaves out. Of several tokens the wider scores may be more work: these save
        nothing.

        Branches: the greater of both, of several tokens.
        """
        if call.past == 0:
            return 0
        both = self.nope + self.value_dim
        expanded = 2 * call.batch * call.past * self.rank * self.heads * both
        if self.wide or self.narrow:
            return expanded
        seen = call.batch * self.heads * call.tokens * (call.past + (call.tokens + 1) / sympy.Integer(2))
        saved = expanded - 2 * seen * (2 * self.rank - both)
        return saved if call.tokens == 1 else sympy.Max(0, sympy.expand(saved))

    def _queries(self, role: str, rows: Size, b: Size) -> tuple[ModulePart, ...]:
        inner = self.heads * (self.nope + self.rope)
        if self.q_rank == 0:
            return (ModulePart(f"{role}.q", (Linear(rows, self.width, inner, b, bias=False),)),)
        return (
            ModulePart(f"{role}.q_down", (Linear(rows, self.width, self.q_rank, b, self.bias),)),
            ModulePart(f"{role}.q_norm", (RmsNorm(rows, self.q_rank, b),)),
            ModulePart(f"{role}.q_up", (Linear(rows, self.q_rank, inner, b, bias=False),)),
        )


@dataclass(frozen=True, slots=True)
class PackedLatentBlock:
    """A :class:`LatentBlock` for rows of different lengths: some rows absorb ``.kv_up``, others call it."""

    blocks: tuple[LatentBlock, ...]
    """Block of each kind of row; the blocks differ in masks, and in whether they absorb the expansion."""
    calls: tuple[StackCall, ...]
    """Call of one row of each kind, at the sizes :data:`~costproof.algebra.series.ROW_SIZES`."""
    counts: tuple[int, ...]
    """Number of rows of each kind, in the order of ``blocks``."""
    saves: tuple[bool, ...]
    """Whether absorption would save work, for each kind of row."""

    def parts(self, role: str, call: StackCall) -> tuple[ModulePart, ...]:
        """Return the block's modules with their formulas; ``call`` holds the tokens of all rows.

        Branches: how many rows expand their latents, and whether one has a past; several are joined for one projection.
        """
        one, b = self.blocks[0], call.item_bytes
        kinds = tuple(zip(self.blocks, self.calls, self.counts, self.saves, strict=True))
        cores = tuple(block.core(row) for block, row, _, _ in kinds)
        expanded = [(k, *kind) for k, kind in enumerate(kinds, 1) if not kind[0].absorbed]
        made = [(k, block.expansion(row), saves) for k, block, row, _, saves in expanded]
        up = replace(
            one.expansion(call),
            rows=sympy.Add(*(sum_over_rows(x.rows, k) for k, x, _ in made)),
            skippable=sympy.Add(*(sum_over_rows(sympy.sympify(x.skippable), k, positive=p) for k, x, p in made)),
        )
        number, past = sum(count for *_, count, _ in expanded), any(row.past != 0 for _, _, row, _, _ in expanded)
        # Rows without a past are one piece already, unless others lie between them.
        whole = number < 2 or (number == sum(self.counts) and not past)
        contexts = [(row.past, sum_over_rows(row.batch * (row.past + row.tokens), k)) for k, _, row, _, _ in expanded]
        joined = sympy.Add(*(size for _, size in contexts)) * (one.rank + one.rope)
        latents = sympy.Add(*(size for before, size in contexts if before == 0)) * one.rank
        packed = PackedLatents(
            PackedAttention(
                cores, call.rows * one.heads * one.value_dim, b, several=sum(self.counts) > 1, positive=self.saves
            ),
            joined=0 if whole else joined,
            latents=0 if whole else latents,
            shared=bool(expanded) and len(expanded) < len(kinds),
        )
        return one.around(role, call, packed, ModulePart(f"{role}.kv_up", (up,), called=bool(expanded)))


@layer
class PackedLatents:
    """Latent attention of rows of different lengths: some rows expand their latents, others absorb the expansion.

    Costs are those of :class:`~costproof.analytic.attention.PackedAttention`. If several rows are expanded, and one of
    them has a past or others are absorbed, the latents and rotated keys of all expanded rows are joined for one
    projection, which writes and reads ``joined`` elements once more; then the new latents of rows without a past come
    in and go out, too. Weights that absorbing rows read are read by the projection, too, if it is called.
    """

    name: ClassVar[str] = "packed_latents"
    title: ClassVar[str] = "Latent attention of rows of different lengths"
    source: ClassVar[str] = (
        "vLLM v1 MLACommonImpl (prefill expanded, decode absorbed); costproof.models.decoding.absorbed"
    )

    attention: PackedAttention
    joined: Size = 0
    """Elements of the latents and rotated keys of the expanded rows, if these are joined; otherwise 0."""
    latents: Size = 0
    """Elements of the latents of rows without a past, among the joined ones."""
    shared: bool = False
    """Whether some rows absorb the projection while others call it."""

    def costs(self) -> LayerCosts:
        found = self.attention.costs()
        b = self.attention.item_bytes
        inner, joined = found.intermediate_bytes, 2 * (self.joined - self.latents) * b
        return replace(
            found,
            input_bytes=found.input_bytes + self.latents * b,
            output_bytes=found.output_bytes + self.latents * b,
            shared_weight_bytes=found.weight_read_bytes if self.shared else 0,
            intermediate_bytes=None if inner is None else inner + joined,
        )
