"""Qwen3-MoE as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models import settings
from costproof.models.decoding.base import CausalTarget
from costproof.models.qwen3_moe.config import Qwen3MoeConfig
from costproof.models.target import Setting


@dataclass(frozen=True, slots=True)
class Qwen3Moe(CausalTarget[Qwen3MoeConfig]):
    """``Qwen3MoeForCausalLM`` with one configuration."""

    config: Qwen3MoeConfig = field(default_factory=Qwen3MoeConfig)
    name: str = "qwen3-moe"
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_moe",)
    more: ClassVar[tuple[Setting, ...]] = (settings.EXPERTS,)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.qwen3_moe.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Qwen3Moe
"""What the name ``qwen3-moe`` stands for."""
