"""Attention with its projections: what stands between the two norms of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from costproof.analytic.attention import Attention, Bias
from costproof.analytic.compose import Call, Part
from costproof.analytic.costs import Layer, Size
from costproof.analytic.linear import Linear
from costproof.analytic.norms import NORMS, NormKind
from costproof.analytic.rotary import Rotary, RotaryPairs, RotaryProduct

Projection = Literal["q", "k", "v", "out"]


@dataclass(frozen=True, slots=True)
class AttentionBlock:
    """out(attention(q(x), k(x), v(x))).

    Roles: ``.q``, ``.k``, ``.v`` (or ``.qkv``), ``.out``, ``.q_norm``, ``.k_norm``, ``.rotary`` below its own.
    """

    width: Size
    """Of the hidden states."""
    heads: Size
    kv_heads: Size
    head_dim: Size
    value_dim: Size | None = None
    """Width of a value head; ``None``: ``head_dim``."""
    inner: Size | None = None
    """A name for heads x head_dim, such as ``width`` where a model has them equal."""
    bias: tuple[Projection, ...] = ()
    """Projections with a bias."""
    fused: bool = False
    """Whether one projection makes queries, keys and values."""
    qk_norm: Literal["none", "head", "whole"] = "none"
    """Whether queries and keys are normalised: each head, or all heads of a token as one row."""
    qk_norm_kind: NormKind = "rms"
    rotary: Size = 0
    """Elements of every head that are rotated: all, or a part of them; 0: none."""
    pairs: bool = False
    """Whether a cosine and a sine rotate a pair; else halves are negated and copied."""
    own_table: bool = False
    """Whether the block makes its cosines and sines itself, by a matrix product."""
    cached: bool = True
    causal: bool = False
    hidden: Size = 0
    window: Size = 0
    mask: Bias = "none"
    capped: bool = False
    sinks: bool = False
    """These six as in :class:`~costproof.analytic.attention.Attention`."""
    scaled: Literal["scores", "queries"] = "scores"
    seen: Size | None = None
    """As in :class:`~costproof.analytic.attention.Attention`."""
    written_out: bool = False
    beside: tuple[Layer, ...] = ()
    """What else runs in the module of the attention."""

    def parts(self, role: str, call: Call) -> tuple[Part, ...]:
        """Its modules as self attention."""
        b, rows = call.item_bytes, call.rows
        q, k, v, _ = self._widths()
        fused = (Part(f"{role}.qkv", (Linear(rows, self.width, q + k + v, b, "q" in self.bias),)),)
        turned = (call.batch, call.tokens, self.heads, self.kv_heads, self.rotary)
        rotary = RotaryPairs(*turned, b) if self.pairs else Rotary(*turned, b, self.head_dim - self.rotary)
        table = RotaryProduct(call.tokens, self.rotary, b)
        return (
            Part(role, (self._core(call), *((rotary,) if self.rotary != 0 else ()), *self.beside)),
            *(fused if self.fused else (self._in(role, x, rows, b) for x in ("q", "k", "v"))),
            self._out(role, rows, b),
            *self._norms(role, rows, b),
            *((Part(f"{role}.rotary", (table,)),) if self.own_table else ()),
        )

    def cross_parts(self, role: str, call: Call) -> tuple[Part, ...]:
        """Its modules as cross attention: keys and values of ``call.memory`` rows that are new, and of the cache."""
        b, rows, new = call.item_bytes, call.rows, call.batch * call.memory
        core = replace(self._core(call, new_keys=call.memory, past=call.memory_past), causal=False)
        return (
            Part(role, (core, *self.beside)),
            self._in(role, "q", rows, b),
            self._in(role, "k", new, b, called=call.memory != 0),
            self._in(role, "v", new, b, called=call.memory != 0),
            self._out(role, rows, b),
        )

    def _core(self, call: Call, new_keys: Size | None = None, past: Size | None = None) -> Attention:
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
            written_out=self.written_out,
            seen=self.seen,
        )

    def _widths(self) -> tuple[Size, Size, Size, Size]:
        """Of all queries, all keys, all values, and of what attention returns.

        Branches: one symbol for both kinds of heads gives one expression, whichever of the two it is written in.
        """
        q = self.heads * self.head_dim if self.inner is None else self.inner
        k = q if self.kv_heads == self.heads else self.kv_heads * self.head_dim
        if self.value_dim is None:
            return q, k, k, q
        return q, k, self.kv_heads * self.value_dim, self.heads * self.value_dim

    def _in(self, role: str, which: Literal["q", "k", "v"], rows: Size, b: Size, *, called: bool = True) -> Part:
        width = self._widths()["qkv".index(which)]
        return Part(f"{role}.{which}", (Linear(rows, self.width, width, b, which in self.bias),), called)

    def _out(self, role: str, rows: Size, b: Size) -> Part:
        return Part(f"{role}.out", (Linear(rows, self._widths()[3], self.width, b, "out" in self.bias),))

    def _norms(self, role: str, rows: Size, b: Size) -> tuple[Part, ...]:
        if self.qk_norm == "none":
            return ()
        norm, (q, k, *_) = NORMS[self.qk_norm_kind], self._widths()
        if self.qk_norm == "whole":
            return Part(f"{role}.q_norm", (norm(rows, q, b),)), Part(f"{role}.k_norm", (norm(rows, k, b),))
        return (
            Part(f"{role}.q_norm", (norm(rows * self.heads, self.head_dim, b),)),
            Part(f"{role}.k_norm", (norm(rows * self.kv_heads, self.head_dim, b),)),
        )
