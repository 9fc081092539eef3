"""DeepSeek-V2 as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.latents import LatentTarget
from costproof.models.deepseek_v2.config import DeepseekV2Config


@dataclass(frozen=True, slots=True)
class DeepseekV2(LatentTarget[DeepseekV2Config]):
    """``DeepseekV2ForCausalLM`` with one configuration."""

    config: DeepseekV2Config = field(default_factory=DeepseekV2Config)
    name: str = "deepseek-v2"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v2",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.deepseek_v2.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = DeepseekV2
"""What the name ``deepseek-v2`` stands for."""
