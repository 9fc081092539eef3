"""The closed formulas of Mixtral: in every layer a mixture of experts, whose weights are divided by their sum."""

from __future__ import annotations

from costproof.analytic.router import Routing
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.decoding.names import decoder_names, mixture_names
from costproof.models.mixtral.config import MixtralConfig


def ledger(config: MixtralConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Jiang et al. 2024, Mixtral of Experts; ``MixtralForCausalLM`` (transformers).
    """
    names = {**decoder_names("model"), **mixture_names("model")}
    mixtures = dense.mixtures(config, workload, Routing(normalised=True, scaled=False, upcast=False))
    return dense.ledger(config, workload, dense.Style(), names, mixtures)
