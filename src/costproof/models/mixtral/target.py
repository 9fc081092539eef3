"""Mixtral as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models import settings
from costproof.models.decoding.base import CausalTarget
from costproof.models.mixtral.config import MixtralConfig
from costproof.models.target import Setting


@dataclass(frozen=True, slots=True)
class Mixtral(CausalTarget[MixtralConfig]):
    """``MixtralForCausalLM`` with one configuration."""

    config: MixtralConfig = field(default_factory=MixtralConfig)
    name: str = "mixtral"
    model_types: ClassVar[tuple[str, ...]] = ("mixtral",)
    more: ClassVar[tuple[Setting, ...]] = (settings.EXPERTS,)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.mixtral.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Mixtral
"""What the name ``mixtral`` stands for."""
