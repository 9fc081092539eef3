"""Llama as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.llama.config import LlamaConfig


@dataclass(frozen=True, slots=True)
class Llama(CausalTarget[LlamaConfig]):
    """``LlamaForCausalLM`` with one configuration."""

    config: LlamaConfig = field(default_factory=LlamaConfig)
    name: str = "llama"
    model_types: ClassVar[tuple[str, ...]] = ("llama",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.llama.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Llama
"""What the name ``llama`` stands for."""
