"""The decoder: one call on a prompt, or one step with a cache."""

from __future__ import annotations

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall
from costproof.analytic.costs import Layer, Size
from costproof.analytic.feed_forward import ExpertMixture, Mlp
from costproof.analytic.transformer import DecoderStack, TransformerLayer
from costproof.models.families.deepseek_ocr.formulas.structure import Structure


def parts(structure: Structure, call: StackCall, positions: Size, glue: Layer) -> tuple[ModulePart, ...]:
    """All modules from the root to the output projection.

    Args:
        positions: positions per sequence that get logits.
        glue: what the module that holds decoder and towers does itself; it owns the newline and the separator.

    Branches: the first layers of a configuration are dense; a step of one token has no mask in the vendor's code.

    Source: Dai et al. 2024, DeepSeekMoE; ``UnlimitedOcrTextModel`` (transformers), ``DeepseekV2Model`` (vendor),
    ``LlamaAttention`` (transformers 4.46).
    """
    remote = structure.remote
    hidden, head_dim, moe = sym("text_hidden"), sym("text_head_dim"), sym("text_moe")
    # A single token needs no mask there.
    masked = call.tokens != 1 if remote else structure.attention == "eager"
    attention = AttentionBlock(
        width=hidden,
        heads=sym("text_heads"),
        kv_heads=sym("text_kv_heads"),
        head_dim=head_dim,
        rotary=head_dim,
        own_table=remote,
        causal=True,
        mask="input" if masked else "none",
        written_out=remote or structure.attention == "eager",
    )
    dense = Mlp(hidden, sym("text_intermediate"), "silu", gated=True, bias=False)
    mixture = ExpertMixture(
        width=hidden,
        inner=moe,
        experts=sym("text_experts"),
        top_k=sym("text_topk"),
        function="silu",
        shared=sym("text_shared") * moe,
        batched=structure.experts == "batched_mm",
        looped=remote,
    )
    kinds = (dense if i < structure.text_dense else mixture for i in range(structure.text_layers))
    decoder = DecoderStack(
        width=hidden,
        vocabulary=sym("text_vocab"),
        layers=tuple(TransformerLayer(hidden, attention, kind) for kind in kinds),
        table=0 if remote else head_dim,
    )
    return (
        ModulePart("root"),
        ModulePart("model", (glue,)),
        *(() if remote else (ModulePart("text"),)),
        *decoder.parts("text", call, positions),
    )
