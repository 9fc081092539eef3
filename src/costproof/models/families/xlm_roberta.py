"""XLM-RoBERTa: RoBERTa with a multilingual vocabulary (transformers' native class)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.models.families.roberta import Roberta, RobertaConfig


@dataclass(frozen=True, slots=True)
class XlmRobertaConfig(RobertaConfig):
    """A RoBERTa whose masked-word head owns the shared table; by default XLM-RoBERTa-base."""

    vocab: int = 250002
    architecture: str = "XLMRobertaModel"

    model_type: ClassVar[str] = "xlm-roberta"
    architectures: ClassVar = {f"XLM{name}": classes for name, classes in RobertaConfig.architectures.items()}
    head_first: ClassVar = True
    class_defaults: ClassVar = {**RobertaConfig.class_defaults, "vocab_size": 30522}


@dataclass(frozen=True, slots=True)
class XlmRoberta(Roberta):
    """Target: ``XLMRobertaModel``, or a class with a head, with one configuration."""

    config: XlmRobertaConfig = field(default_factory=XlmRobertaConfig)
    name: str = "xlm-roberta"
    model_types: ClassVar[tuple[str, ...]] = ("xlm-roberta",)


TARGET: Final = XlmRoberta
