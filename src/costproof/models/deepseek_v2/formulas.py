"""The closed formulas of DeepSeek-V2: experts chosen by a softmax, positions as complex numbers."""

from __future__ import annotations

from costproof.analytic.rotary import RotaryComplex
from costproof.analytic.router import Routing
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding import latent_formulas
from costproof.models.deepseek_v2.config import DeepseekV2Config


def ledger(config: DeepseekV2Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: DeepSeek-AI 2024, DeepSeek-V2; ``DeepseekV2ForCausalLM`` (transformers).
    """
    routing = Routing(groups=sym("text_router_groups") if config.limited else 0)
    return latent_formulas.ledger(config, workload, routing, RotaryComplex, as_complex=True)
