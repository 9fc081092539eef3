"""The text model of Gemma 3 as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.gemma3.config import Gemma3Config


@dataclass(frozen=True, slots=True)
class Gemma3(CausalTarget[Gemma3Config]):
    """``Gemma3ForCausalLM`` with one configuration."""

    config: Gemma3Config = field(default_factory=Gemma3Config)
    name: str = "gemma3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3_text",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.gemma3.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Gemma3
"""What the name ``gemma3`` stands for."""
