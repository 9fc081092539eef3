"""The closed formulas of Mistral: a Llama without biases, with a window."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.mistral.config import MistralConfig


def ledger(config: MistralConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Jiang et al. 2023, Mistral 7B; ``MistralForCausalLM`` (transformers).
    """
    return dense.ledger(config, workload, dense.Style())
