"""The closed formulas of GPT-OSS: sinks in attention, experts with biases, a softmax over the chosen ones alone."""

from __future__ import annotations

from costproof.analytic.rotary import RotaryHalves
from costproof.analytic.router import Routing
from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.decoding.names import decoder_names, mixture_names
from costproof.models.gpt_oss.config import GptOssConfig


def ledger(config: GptOssConfig, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: OpenAI 2025, gpt-oss-120b and gpt-oss-20b model card; ``GptOssForCausalLM`` (transformers).
    """
    style = dense.Style(
        bias=dense.ALL if config.attention_bias else (), sinks=True, pairs=True, table=RotaryHalves, norm="wide_rms"
    )
    names = {**decoder_names("model"), **mixture_names("model", "router")}
    routing = Routing(late=True, biased=True, scaled=False, narrow=True, upcast=False)
    return dense.ledger(config, workload, style, names, dense.mixtures(config, workload, routing, clamped=True))
