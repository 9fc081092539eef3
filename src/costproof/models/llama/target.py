"""Llama as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.llama.config import LlamaConfig, load_config

if TYPE_CHECKING:
    from costproof.models.decoding.domain import Drawn


@dataclass(frozen=True, slots=True)
class Llama(CausalTarget[LlamaConfig]):
    """``LlamaForCausalLM`` with one configuration."""

    config: LlamaConfig = field(default_factory=LlamaConfig)
    name: str = "llama"

    @classmethod
    def default(cls) -> Llama:
        """Llama-3.1-8B."""
        return cls()

    @classmethod
    def from_file(cls, path: Path) -> Llama:
        """The configuration in a ``config.json``."""
        return cls(load_config(path))

    @classmethod
    def drawn(cls, sizes: Mapping[str, int], rng: random.Random) -> Drawn:
        """A random small configuration for a proof."""
        from costproof.models.llama.domain import drawn

        return drawn(sizes, rng)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.llama.formulas import ledger

        return ledger(self.config, workload)

    def native(self) -> tuple[Any, Any]:
        """The native class."""
        from transformers import LlamaConfig as Native
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM, Native(**self.config.native())


TARGET: Final = Llama
"""What the name ``llama`` stands for."""
