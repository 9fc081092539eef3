"""The closed formulas of Gemma 2: norms on both sides, embeddings scaled, scores and logits capped."""

from __future__ import annotations

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding import dense
from costproof.models.decoding.names import sandwiched
from costproof.models.gemma2.config import Gemma2Config


def ledger(config: Gemma2Config, workload: Workload) -> Ledger:
    """Both stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Gemma Team 2024, Gemma 2: Improving Open Language Models at a Practical Size; ``Gemma2ForCausalLM``
    (transformers).
    """
    style = dense.Style(
        bias=dense.ALL if config.attention_bias else (),
        norm="centred_rms",
        norm_after=True,
        scaled=True,
        scores_capped=config.scores_capped,
        logits_capped=config.logits_capped,
    )
    return dense.ledger(config, workload, style, sandwiched("model"))
