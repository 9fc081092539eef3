"""Gemma as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.gemma.config import GemmaConfig


@dataclass(frozen=True, slots=True)
class Gemma(CausalTarget[GemmaConfig]):
    """``GemmaForCausalLM`` with one configuration."""

    config: GemmaConfig = field(default_factory=GemmaConfig)
    name: str = "gemma"
    model_types: ClassVar[tuple[str, ...]] = ("gemma",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.gemma.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Gemma
"""What the name ``gemma`` stands for."""
