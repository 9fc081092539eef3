"""Qwen3 as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.qwen3.config import Qwen3Config


@dataclass(frozen=True, slots=True)
class Qwen3(CausalTarget[Qwen3Config]):
    """``Qwen3ForCausalLM`` with one configuration."""

    config: Qwen3Config = field(default_factory=Qwen3Config)
    name: str = "qwen3"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.qwen3.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Qwen3
"""What the name ``qwen3`` stands for."""
