"""The closed formulas of Llama, composed of model-neutral blocks."""

from __future__ import annotations

from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import Call, Part, prefill_and_decode
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.transformer import Decoder, TransformerLayer
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding.names import STAGES, decoder_names
from costproof.models.llama.config import LlamaConfig


def ledger(config: LlamaConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Touvron et al. 2023, LLaMA; Grattafiori et al. 2024, The Llama 3 Herd of Models;
    ``LlamaForCausalLM`` (transformers).
    """
    decoder = _decoder(config, workload)

    def parts(call: Call) -> tuple[Part, ...]:
        positions = call.tokens if workload.logits == "all" else 1
        return (Part("root"), Part("text"), *decoder.parts("text", call, positions))

    nodes = prefill_and_decode(parts, decoder_names("model"), decode=workload.new_tokens > 0)
    return Ledger("analytic", tuple(nodes), tuple(METRICS), STAGES)


def _decoder(config: LlamaConfig, workload: Workload) -> Decoder:
    width, head_dim = sym("text_hidden"), sym("text_head_dim")
    attention = AttentionBlock(
        width=width,
        heads=sym("text_heads"),
        kv_heads=sym("text_kv_heads"),
        head_dim=head_dim,
        rotary=head_dim,
        bias=("q", "k", "v", "out") if config.attention_bias else (),
        mask="input" if workload.attention == "eager" else "none",
    )
    mlp = Mlp(width, sym("text_intermediate"), config.activation, gated=True, bias=config.mlp_bias)
    layer = TransformerLayer(width, attention, mlp)
    return Decoder(width, sym("text_vocab"), (layer,) * config.layers, table=head_dim, tied=config.tied)
