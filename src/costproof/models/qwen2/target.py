"""Qwen2 and Qwen2.5 as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.qwen2.config import Qwen2Config


@dataclass(frozen=True, slots=True)
class Qwen2(CausalTarget[Qwen2Config]):
    """``Qwen2ForCausalLM`` with one configuration."""

    config: Qwen2Config = field(default_factory=Qwen2Config)
    name: str = "qwen2"
    model_types: ClassVar[tuple[str, ...]] = ("qwen2",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.qwen2.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Qwen2
"""What the name ``qwen2`` stands for."""
