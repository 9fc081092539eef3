"""Settings that most targets have, in the words of their options."""

from __future__ import annotations

from typing import Final, get_args

from costproof.ledger.workload import Attention, Dtype, Experts, Logits
from costproof.models.target import Setting

TEXT_TOKENS: Final = Setting("text_tokens", "Tokens of the prompt.")
NEW_TOKENS: Final = Setting("new_tokens", "Decode steps.")
BATCH: Final = Setting("batch", "Sequences at once.")
DTYPE: Final = Setting("dtype", "Element type of weights and activations.", "choice", get_args(Dtype))
ATTENTION: Final = Setting("attention", "Attention implementation.", "choice", get_args(Attention))
LOGITS: Final = Setting("logits", "Positions that lm_head maps in the prefill.", "choice", get_args(Logits))
EXPERTS: Final = Setting("experts", "Kernel of the routed experts.", "choice", get_args(Experts))
