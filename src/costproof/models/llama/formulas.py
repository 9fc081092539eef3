"""The closed formulas of Llama: no differences but biases, if the configuration says so."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.llama.config import LlamaConfig


def ledger(config: LlamaConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Touvron et al. 2023, LLaMA; Grattafiori et al. 2024, The Llama 3 Herd of Models;
    ``LlamaForCausalLM`` (transformers).
    """
    return dense.ledger(config, workload, style(config))


def style(config: LlamaConfig) -> dense.Style:
    """In what it differs from other decoders: in biases, if it has them."""
    return dense.Style(bias=dense.ALL if config.attention_bias else (), mlp_bias=config.mlp_bias)
