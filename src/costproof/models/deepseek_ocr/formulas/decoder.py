"""The decoder: one call on a prompt, or one step with a cache."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.analytic.attention import Attention
from costproof.analytic.blocks import gated_mlp
from costproof.analytic.compose import Part, numbered
from costproof.analytic.costs import Layer, Size
from costproof.analytic.embedding import Embedding
from costproof.analytic.experts import Experts
from costproof.analytic.linear import Linear
from costproof.analytic.lm_head import LmHead
from costproof.analytic.mlp import Activation
from costproof.analytic.residual import Residual
from costproof.analytic.rms_norm import RmsNorm
from costproof.analytic.rotary import Rotary, RotaryTable
from costproof.analytic.router import Router
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.structure import Structure


@dataclass(frozen=True, slots=True)
class Call:
    """The sizes of one call of the decoder."""

    tokens: Size
    """New tokens per sequence: the prompt, or 1."""
    past: Size
    """Tokens per sequence in the cache before the call."""
    positions: Size
    """Positions that the output projection maps."""


def parts(structure: Structure, call: Call, glue: Layer) -> tuple[Part, ...]:
    """All modules from the root to the output projection.

    Args:
        glue: what the module that holds decoder and towers does itself; it owns the newline and the separator.

    Source: Dai et al. 2024, DeepSeekMoE; ``UnlimitedOcrTextModel`` (transformers).
    """
    batch, b, hidden = sym("B"), sym("b"), sym("text_hidden")
    rows = batch * call.tokens
    return (
        Part("root"),
        Part("model", (glue,)),
        Part("text"),
        Part("text.embedding", (Embedding(rows, sym("text_vocab"), hidden, b),)),
        Part("text.rotary", (RotaryTable(call.tokens, sym("text_head_dim"), b),)),
        *(p for i in range(structure.text_layers) for p in numbered(i, _layer(structure, call, i))),
        Part("text.norm", (RmsNorm(rows, hidden, b),)),
        Part("lm_head", (LmHead(batch, call.positions, hidden, sym("text_vocab"), b),)),
    )


def _layer(structure: Structure, call: Call, i: int) -> tuple[Part, ...]:
    batch, b, hidden = sym("B"), sym("b"), sym("text_hidden")
    heads, kv_heads, head_dim = sym("text_heads"), sym("text_kv_heads"), sym("text_head_dim")
    rows, bias = batch * call.tokens, structure.text_attention_bias

    attention = Attention(
        batch=batch,
        queries=call.tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        item_bytes=b,
        past=call.past,
        cached=True,
        bias="input" if structure.attention == "eager" else "none",
    )
    rotary = Rotary(batch, call.tokens, heads, kv_heads, head_dim, b)
    query = Linear(rows, hidden, heads * head_dim, b, bias)
    key = Linear(rows, hidden, kv_heads * head_dim, b, bias)
    norm = RmsNorm(rows, hidden, b)
    dense = i < structure.text_dense
    return (
        Part("text.layer", (Residual(rows * hidden, 2, b),)),
        Part("text.layer.norm1", (norm,)),
        Part("text.layer.attention", (attention, rotary)),
        Part("text.layer.attention.q", (query,)),
        Part("text.layer.attention.k", (key,)),
        Part("text.layer.attention.v", (key,)),
        Part("text.layer.attention.out", (Linear(rows, heads * head_dim, hidden, b, bias),)),
        Part("text.layer.norm2", (norm,)),
        *(_dense(structure, rows) if dense else _mixture(structure, rows)),
    )


def _dense(structure: Structure, rows: Size) -> tuple[Part, ...]:
    return gated_mlp(
        "text.layer.mlp",
        rows=rows,
        width=sym("text_hidden"),
        inner=sym("text_intermediate"),
        function=structure.text_activation,
        b=sym("b"),
        bias=structure.text_mlp_bias,
    )


def _mixture(structure: Structure, rows: Size) -> tuple[Part, ...]:
    hidden, b, moe, topk = sym("text_hidden"), sym("b"), sym("text_moe"), sym("text_topk")
    experts = sym("text_experts")
    return (
        Part("text.layer.mlp", (Residual(rows * hidden, 1, b),)),
        Part("text.layer.router", (Router(rows, hidden, experts, topk, b, structure.router_groups),)),
        Part("text.layer.experts", (Experts(rows, hidden, moe, experts, topk, b),)),
        Part("text.layer.experts.activation", (Activation(rows * topk * moe, structure.text_activation, b),)),
        *gated_mlp(
            "text.layer.shared",
            rows=rows,
            width=hidden,
            inner=sym("text_shared") * moe,
            function=structure.text_activation,
            b=b,
            bias=structure.text_mlp_bias,
        ),
    )
