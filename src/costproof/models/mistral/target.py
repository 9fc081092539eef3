"""Mistral as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.mistral.config import MistralConfig


@dataclass(frozen=True, slots=True)
class Mistral(CausalTarget[MistralConfig]):
    """``MistralForCausalLM`` with one configuration."""

    config: MistralConfig = field(default_factory=MistralConfig)
    name: str = "mistral"
    model_types: ClassVar[tuple[str, ...]] = ("mistral",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.mistral.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Mistral
"""What the name ``mistral`` stands for."""
