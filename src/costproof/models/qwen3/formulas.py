"""The closed formulas of Qwen3: each head's queries and keys are normalised."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.qwen3.config import Qwen3Config


def ledger(config: Qwen3Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Qwen Team 2025, Qwen3 Technical Report; ``Qwen3ForCausalLM`` (transformers).
    """
    bias = dense.ALL if config.attention_bias else ()
    return dense.ledger(config, workload, dense.Style(bias=bias, qk_norm=True))
