"""Gemma 2 as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Attention, Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.gemma2.config import Gemma2Config


@dataclass(frozen=True, slots=True)
class Gemma2(CausalTarget[Gemma2Config]):
    """``Gemma2ForCausalLM`` with one configuration."""

    config: Gemma2Config = field(default_factory=Gemma2Config)
    name: str = "gemma2"
    model_types: ClassVar[tuple[str, ...]] = ("gemma2",)
    # Fused attention has no soft cap.
    attentions: ClassVar[tuple[Attention, ...]] = ("eager",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.gemma2.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Gemma2
"""What the name ``gemma2`` stands for."""
