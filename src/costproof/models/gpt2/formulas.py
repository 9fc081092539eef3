"""The closed formulas of GPT-2, composed of model-neutral blocks."""

from __future__ import annotations

from functools import partial
from typing import Final

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, analytic_ledger, numbered, prefill_and_decode
from costproof.analytic.embedding import Embedding
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.position_embedding import LearnedPositions
from costproof.analytic.transformer import Decoder, TransformerLayer
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding.dense import ALL, logits_and_masks
from costproof.models.decoding.names import STAGES
from costproof.models.gpt2.config import Gpt2Config

_LAYER: Final = "transformer.h.{i}"
NAMES: Final = {
    "root": "",
    "text": "transformer",
    "text.embedding": "transformer.wte",
    "text.positions": "transformer.wpe",
    "text.layer": _LAYER,
    "text.layer.norm1": f"{_LAYER}.ln_1",
    "text.layer.attention": f"{_LAYER}.attn",
    "text.layer.attention.qkv": f"{_LAYER}.attn.c_attn",
    "text.layer.attention.out": f"{_LAYER}.attn.c_proj",
    "text.layer.norm2": f"{_LAYER}.ln_2",
    "text.layer.mlp": f"{_LAYER}.mlp",
    "text.layer.mlp.up": f"{_LAYER}.mlp.c_fc",
    "text.layer.mlp.activation": f"{_LAYER}.mlp.act",
    "text.layer.mlp.down": f"{_LAYER}.mlp.c_proj",
    "text.norm": "transformer.ln_f",
    "text.dropout": "transformer.drop",
    "text.layer.attention.dropout": f"{_LAYER}.attn.resid_dropout",
    "text.layer.mlp.dropout": f"{_LAYER}.mlp.dropout",
    "lm_head": "lm_head",
}

_DROPOUTS: Final = ("text.layer.attention.dropout", "text.layer.mlp.dropout")
"""Called, and without effect outside of training."""


def ledger(config: Gpt2Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners; ``GPT2LMHeadModel``
    (transformers).

    Branches: a run without steps has no stage for them.
    """
    width, heads = sym("text_hidden"), sym("text_heads")
    attention = AttentionBlock(
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=sym("text_head_dim"),
        inner=width,
        bias=ALL,
        fused=True,
        causal=True,
        mask="input" if workload.attention == "eager" else "none",
        written_out=workload.attention == "eager",
    )
    mlp = Mlp(width, sym("text_intermediate"), config.activation)
    layer = TransformerLayer(width, attention, mlp, norm="layer")
    decoder = Decoder(width, sym("text_vocab"), (layer,) * config.layers, norm="layer", tied=config.tied)

    def parts(call: Call) -> tuple[Part, ...]:
        positions = call.tokens if workload.logits == "all" else 1
        return (
            Part("root"),
            Part("text", (LearnedPositions(call.batch, call.tokens, width, call.item_bytes),)),
            Part("text.positions", (Embedding(call.tokens, sym("text_positions"), width, call.item_bytes),)),
            *decoder.parts("text", call, positions),
            Part("text.dropout"),
            *(part for i in range(config.layers) for part in numbered(i, map(Part, _DROPOUTS))),
        )

    border = partial(logits_and_masks, workload)
    nodes = prefill_and_decode(parts, NAMES, border=border, decode=workload.new_tokens > 0)
    return analytic_ledger(nodes, STAGES)
