"""The closed formulas of Gemma: Llama's with another norm and activation, and embeddings that a constant scales."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.gemma.config import GemmaConfig


def ledger(config: GemmaConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Gemma Team 2024, Gemma: Open Models Based on Gemini Research and Technology; ``GemmaForCausalLM``
    (transformers).
    """
    bias = dense.ALL if config.attention_bias else ()
    return dense.ledger(config, workload, dense.Style(bias=bias, norm="centred_rms", scaled=True))
