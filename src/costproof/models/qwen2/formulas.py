"""The closed formulas of Qwen2: queries, keys and values have biases."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.qwen2.config import Qwen2Config


def ledger(config: Qwen2Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Qwen Team 2024, Qwen2.5 Technical Report; ``Qwen2ForCausalLM`` (transformers).
    """
    return dense.ledger(config, workload, dense.Style(bias=("q", "k", "v")))
