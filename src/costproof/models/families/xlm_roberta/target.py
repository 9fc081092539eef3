"""XLM-RoBERTa as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.models.families.roberta.target import Roberta
from costproof.models.families.xlm_roberta.config import XlmRobertaConfig


@dataclass(frozen=True, slots=True)
class XlmRoberta(Roberta):
    """``XLMRobertaModel``, or a class with a head, with one configuration."""

    config: XlmRobertaConfig = field(default_factory=XlmRobertaConfig)
    name: str = "xlm-roberta"
    model_types: ClassVar[tuple[str, ...]] = ("xlm-roberta",)


TARGET: Final = XlmRoberta
"""What the name ``xlm-roberta`` stands for."""
