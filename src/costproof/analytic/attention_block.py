"""Combine attention with its projections, norms and rotary embedding into the modules of a block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from costproof.analytic.attention import Attention, Bias, PackedAttention
from costproof.analytic.compose import ModulePart, StackCall
from costproof.analytic.costs import Layer, Size
from costproof.analytic.linear import Linear
from costproof.analytic.norms import NORMS, NormKind
from costproof.analytic.rotary import Rotary, RotaryPairs, RotaryProduct

Projection = Literal["q", "k", "v", "out"]


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """Attention with its projections: out(attention(q(x), k(x), v(x))).

    Roles: ``.q``, ``.k``, ``.v`` (or ``.qkv``), ``.out``, ``.q_norm``, ``.k_norm``, ``.rotary`` below its own.
    """

    width: Size
    """Width of the hidden states."""
    heads: Size
    kv_heads: Size
    head_dim: Size
    value_dim: Size | None = None
    """Width of a value head (default: ``head_dim``)."""
    inner: Size | None = None
    """Symbol for heads x head_dim where the model has one, such as ``width`` if they are equal."""
    bias: tuple[Projection, ...] = ()
    """Projections that have a bias."""
    fused: bool = False
    """Whether one projection computes queries, keys and values."""
    qk_norm: Literal["none", "head", "whole"] = "none"
    """Whether queries and keys are normalized, per head or per token over all heads."""
    qk_norm_kind: NormKind = "rms"
    rotary: Size = 0
    """Number of rotated elements of every head; 0 without rotary embedding."""
    pairs: bool = False
    """Whether rotary embedding rotates pairs of elements; otherwise it negates and copies halves of a head."""
    own_table: bool = False
    """Whether the block computes its own table of cosines and sines, by a matrix product."""
    cached: bool = True
    causal: bool = False
    hidden: Size = 0
    window: Size = 0
    filling: bool = False
    by_flag: bool = False
    mask: Bias = "none"
    capped: bool = False
    sinks: bool = False
    """Together with the next five fields, as in :class:`~costproof.analytic.attention.Attention`."""
    scaled: Literal["scores", "queries"] = "scores"
    seen: Size | None = None
    """See :class:`~costproof.analytic.attention.Attention`."""
    written_out: bool = False
    upcast: bool = True
    """Whether the softmax of eager attention runs in float32; this affects only memory."""
    beside: tuple[Layer, ...] = ()
    """Further layers (formulas) in the module of the attention."""

    def parts(self, role: str, call: StackCall) -> tuple[ModulePart, ...]:
        """Return the modules of the block as self-attention, with their formulas."""
        b, rows = call.item_bytes, call.rows
        q, k, v, _ = self._widths()
        fused = (ModulePart(f"{role}.qkv", (Linear(rows, self.width, q + k + v, b, "q" in self.bias),)),)
        turned = (call.batch, call.tokens, self.heads, self.kv_heads, self.rotary)
        rotary = RotaryPairs(*turned, b) if self.pairs else Rotary(*turned, b, self.head_dim - self.rotary)
        table = RotaryProduct(call.tokens, self.rotary, b)
        return (
            ModulePart(role, (self.core(call), *((rotary,) if self.rotary != 0 else ()), *self.beside)),
            *(fused if self.fused else (self._in(role, x, rows, b) for x in ("q", "k", "v"))),
            self._out(role, rows, b),
            *self._norms(role, rows, b),
            *((ModulePart(f"{role}.rotary", (table,)),) if self.own_table else ()),
        )

    def cross_parts(self, role: str, call: StackCall) -> tuple[ModulePart, ...]:
        """Return the block's modules as cross-attention to ``call.memory`` new keys and the cached ones."""
        b, rows, new = call.item_bytes, call.rows, call.batch * call.memory
        core = replace(self.core(call, new_keys=call.memory, past=call.memory_past), causal=False)
        return (
            ModulePart(role, (core, *self.beside)),
            self._in(role, "q", rows, b),
            self._in(role, "k", new, b, called=call.memory != 0),
            self._in(role, "v", new, b, called=call.memory != 0),
            self._out(role, rows, b),
        )

    def core(self, call: StackCall, new_keys: Size | None = None, past: Size | None = None) -> Attention:
        """Return the layer of scores, softmax and weighted sum in a call, by default with one new key per query."""
        return Attention(
            batch=call.batch,
            queries=call.tokens,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            item_bytes=call.item_bytes,
            past=call.past if past is None else past,
            cached=self.cached,
            causal=self.causal,
            hidden=self.hidden,
            bias=self.mask,
            capped=self.capped,
            sinks=self.sinks,
            scaled=self.scaled,
            value_dim=self.value_dim,
            new_keys=new_keys,
            window=self.window,
            filling=self.filling,
            by_flag=self.by_flag,
            written_out=self.written_out,
            seen=self.seen,
        )

    def _widths(self) -> tuple[Size, Size, Size, Size]:
        """Return the total widths, over all heads, of the queries, the keys, the values and the attention's result.

        Branches: one symbol for both kinds of heads gives one expression, whichever of the two it is written in.
        """
        q = self.heads * self.head_dim if self.inner is None else self.inner
        k = q if self.kv_heads == self.heads else self.kv_heads * self.head_dim
        if self.value_dim is None:
            return q, k, k, q
        return q, k, self.kv_heads * self.value_dim, self.heads * self.value_dim

    def _in(self, role: str, which: Literal["q", "k", "v"], rows: Size, b: Size, *, called: bool = True) -> ModulePart:
        width = self._widths()["qkv".index(which)]
        return ModulePart(f"{role}.{which}", (Linear(rows, self.width, width, b, which in self.bias),), called)

    def _out(self, role: str, rows: Size, b: Size) -> ModulePart:
        return ModulePart(f"{role}.out", (Linear(rows, self._widths()[3], self.width, b, "out" in self.bias),))

    def _norms(self, role: str, rows: Size, b: Size) -> tuple[ModulePart, ...]:
        if self.qk_norm == "none":
            return ()
        norm, (q, k, *_) = NORMS[self.qk_norm_kind], self._widths()
        if self.qk_norm == "whole":
            return ModulePart(f"{role}.q_norm", (norm(rows, q, b),)), ModulePart(f"{role}.k_norm", (norm(rows, k, b),))
        return (
            ModulePart(f"{role}.q_norm", (norm(rows * self.heads, self.head_dim, b),)),
            ModulePart(f"{role}.k_norm", (norm(rows * self.kv_heads, self.head_dim, b),)),
        )


@dataclass(frozen=True, slots=True)
class PackedBlock:
    """An :class:`AttentionBlock` for a batch of rows of different lengths: one set of projections for all rows."""

    blocks: tuple[AttentionBlock, ...]
    """Attention block of each kind of row; the blocks differ in masks."""
    calls: tuple[StackCall, ...]
    """Call of one row of each kind, at the sizes :data:`~costproof.algebra.series.ROW_SIZES`."""
    several: bool = True
    """Whether the batch has more than one row."""

    def parts(self, role: str, call: StackCall) -> tuple[ModulePart, ...]:
        """Return the block's modules with their formulas; ``call`` holds the tokens of all rows."""
        one = self.blocks[0]
        own, *others = one.parts(role, call)
        width = one.head_dim if one.value_dim is None else one.value_dim
        cores = tuple(block.core(row) for block, row in zip(self.blocks, self.calls, strict=True))
        packed = PackedAttention(cores, call.rows * one.heads * width, call.item_bytes, self.several)
        return (replace(own, layers=(packed, *own.layers[1:])), *others)
