"""The configuration of an XLM-RoBERTa: that of a RoBERTa, under another name. The defaults are XLM-RoBERTa-base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from costproof.models.families.roberta.config import RobertaConfig


@dataclass(frozen=True, slots=True)
class XlmRobertaConfig(RobertaConfig):
    """As of a RoBERTa, with a head that comes first."""

    vocab: int = 250002
    architecture: str = "XLMRobertaModel"

    model_type: ClassVar[str] = "xlm-roberta"
    architectures: ClassVar = {f"XLM{name}": classes for name, classes in RobertaConfig.architectures.items()}
    head_first: ClassVar = True
    class_defaults: ClassVar = {**RobertaConfig.class_defaults, "vocab_size": 30522}
