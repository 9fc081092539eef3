"""The closed formulas of DeepSeek-V3: experts chosen from groups by corrected sigmoids."""

from __future__ import annotations

from costproof.analytic.rotary import RotaryTable
from costproof.analytic.router import Routing
from costproof.ledger.node import Ledger
from costproof.ledger.symbols import sym
from costproof.ledger.workload import Workload
from costproof.models.decoding import latent_formulas
from costproof.models.deepseek_v3.config import DeepseekV3Config


def ledger(config: DeepseekV3Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: DeepSeek-AI 2024, DeepSeek-V3 Technical Report; ``DeepseekV3ForCausalLM`` (transformers).
    """
    routing = Routing(
        scoring="sigmoid",
        groups=sym("text_router_groups"),
        group_best=2,
        corrected=True,
        normalised=config.norm_topk,
        floor=True,
    )
    return latent_formulas.ledger(config, workload, routing, RotaryTable, as_complex=False)
