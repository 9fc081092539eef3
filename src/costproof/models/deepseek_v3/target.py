"""DeepSeek-V3 as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.latents import LatentTarget
from costproof.models.deepseek_v3.config import DeepseekV3Config
from costproof.models.stored import Stored

if TYPE_CHECKING:
    from costproof.claims.effects import Mistakes


@dataclass(frozen=True, slots=True)
class DeepseekV3(LatentTarget[DeepseekV3Config]):
    """``DeepseekV3ForCausalLM`` with one configuration."""

    config: DeepseekV3Config = field(default_factory=DeepseekV3Config)
    name: str = "deepseek-v3"
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v3",)
    released: ClassVar[Stored] = Stored((("weights", "fp8, blocks of 128 x 128 (published)"),))

    @staticmethod
    def mistakes() -> Mistakes:
        """What published numbers of it hold beside the class."""
        from costproof.models.deepseek_v3.mistakes import MISTAKES

        return MISTAKES

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.deepseek_v3.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = DeepseekV3
"""What the name ``deepseek-v3`` stands for."""
