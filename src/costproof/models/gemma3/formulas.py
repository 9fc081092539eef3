"""The closed formulas of Gemma 3 for text: norms on both sides, heads normalised, embeddings scaled."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.decoding.names import sandwiched
from costproof.models.gemma3.config import Gemma3Config


def ledger(config: Gemma3Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Layers with a window and layers without one have frequencies of their own, so a table each.

    Source: Gemma Team 2025, Gemma 3 Technical Report; ``Gemma3ForCausalLM`` (transformers).
    """
    style = dense.Style(
        bias=dense.ALL if config.attention_bias else (),
        qk_norm=True,
        norm="centred_rms",
        norm_after=True,
        scaled=True,
        logits_capped=config.logits_capped,
        tables=len({*config.windows()}),
    )
    return dense.ledger(config, workload, style, sandwiched("model"))
