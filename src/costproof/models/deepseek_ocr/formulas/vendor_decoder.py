"""The decoder in the vendor's spelling: attention written out, a rotary table per layer, looped experts."""

from __future__ import annotations

from costproof.analytic.attention import Attention
from costproof.analytic.blocks import gated_mlp
from costproof.analytic.compose import Part, numbered
from costproof.analytic.costs import Layer, Size
from costproof.analytic.embedding import Embedding
from costproof.analytic.linear import Linear
from costproof.analytic.lm_head import LmHead
from costproof.analytic.looped_experts import ExpertLoop, LoopedExperts
from costproof.analytic.residual import Residual
from costproof.analytic.rms_norm import RmsNorm
from costproof.analytic.rotary import Rotary, RotaryProduct
from costproof.analytic.router import Router
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas.structure import Structure


def parts(structure: Structure, tokens: Size, past: Size, glue: Layer) -> tuple[Part, ...]:
    """All modules from the root to the output projection, on ``tokens`` new tokens after ``past`` cached ones.

    Every position gets logits. A prompt has a mask that the glue makes; a single token needs none.

    Source: Dai et al. 2024, DeepSeekMoE; ``DeepseekV2Model`` of the vendor, ``LlamaAttention`` (transformers 4.46).
    """
    b, hidden = sym("b"), sym("text_hidden")
    rows = sym("B") * tokens
    return (
        Part("root"),
        Part("model", (glue,)),
        Part("text.embedding", (Embedding(rows, sym("text_vocab"), hidden, b),)),
        *(p for i in range(structure.text_layers) for p in numbered(i, _layer(structure, tokens, past, i))),
        Part("text.norm", (RmsNorm(rows, hidden, b),)),
        Part("lm_head", (LmHead(sym("B"), tokens, hidden, sym("text_vocab"), b),)),
    )


def _layer(structure: Structure, tokens: Size, past: Size, i: int) -> tuple[Part, ...]:
    batch, b, hidden = sym("B"), sym("b"), sym("text_hidden")
    heads, kv_heads, head_dim = sym("text_heads"), sym("text_kv_heads"), sym("text_head_dim")
    rows, bias = batch * tokens, structure.text_attention_bias

    attention = Attention(
        batch=batch,
        queries=tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        item_bytes=b,
        past=past,
        cached=True,
        bias="input" if tokens != 1 else "none",
    )
    key = Linear(rows, hidden, kv_heads * head_dim, b, bias)
    norm = RmsNorm(rows, hidden, b)
    dense = i < structure.text_dense
    return (
        Part("text.layer", (Residual(rows * hidden, 2, b),)),
        Part("text.layer.norm1", (norm,)),
        Part("text.layer.attention", (attention, Rotary(batch, tokens, heads, kv_heads, head_dim, b))),
        Part("text.layer.attention.q", (Linear(rows, hidden, heads * head_dim, b, bias),)),
        Part("text.layer.attention.k", (key,)),
        Part("text.layer.attention.v", (key,)),
        Part("text.layer.attention.out", (Linear(rows, heads * head_dim, hidden, b, bias),)),
        Part("text.layer.attention.rotary", (RotaryProduct(tokens, head_dim, b),)),
        Part("text.layer.norm2", (norm,)),
        *(_dense(structure, rows) if dense else _mixture(structure, rows)),
    )


def _dense(structure: Structure, rows: Size) -> tuple[Part, ...]:
    inner = sym("text_intermediate")
    return _perceptron(structure, "text.layer.mlp", rows, inner)


def _perceptron(structure: Structure, role: str, rows: Size, inner: Size) -> tuple[Part, ...]:
    return gated_mlp(
        role,
        rows=rows,
        width=sym("text_hidden"),
        inner=inner,
        function=structure.text_activation,
        b=sym("b"),
        bias=structure.text_mlp_bias,
    )


def _mixture(structure: Structure, rows: Size) -> tuple[Part, ...]:
    hidden, b, moe, topk = sym("text_hidden"), sym("b"), sym("text_moe"), sym("text_topk")
    experts = sym("text_experts")
    return (
        Part("text.layer.mlp", (ExpertLoop(rows, hidden, topk, b),)),
        Part("text.layer.router", (Router(rows, hidden, experts, topk, b, structure.router_groups),)),
        Part("text.layer.experts", (LoopedExperts(rows, hidden, moe, experts, topk, b),), group=True),
        *_perceptron(structure, "text.layer.shared", rows, sym("text_shared") * moe),
    )
