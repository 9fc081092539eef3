"""The closed formulas of Qwen3-MoE: a Qwen3 of which layers have mixtures of experts in place of MLPs."""

from __future__ import annotations

from costproof.analytic.router import Routing
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.decoding.names import decoder_names, mixture_names
from costproof.models.qwen3_moe.config import Qwen3MoeConfig


def ledger(config: Qwen3MoeConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Qwen Team 2025, Qwen3 Technical Report; ``Qwen3MoeForCausalLM`` (transformers).
    """
    style = dense.Style(bias=dense.ALL if config.attention_bias else (), qk_norm=True)
    names = {**decoder_names("model"), **mixture_names("model")}
    routing = Routing(normalised=config.norm_topk, scaled=False, narrow=True, upcast=False)
    return dense.ledger(config, workload, style, names, dense.mixtures(config, workload, routing))
