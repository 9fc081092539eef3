"""GPT-2 as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.decoding.base import CausalTarget
from costproof.models.decoding.decoder import Decoder
from costproof.models.gpt2.config import Gpt2Config

if TYPE_CHECKING:
    from costproof.models.decoding.domain import Drawn

_DECODER: Final = Decoder(stack="transformer", attention="h.{i}.attn")


@dataclass(frozen=True, slots=True)
class Gpt2(CausalTarget[Gpt2Config]):
    """``GPT2LMHeadModel`` with one configuration."""

    config: Gpt2Config = field(default_factory=Gpt2Config)
    name: str = "gpt2"
    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)

    @property
    def decoder(self) -> Decoder:
        """How the class of transformers is called."""
        return _DECODER

    @classmethod
    def drawn(cls, sizes: Mapping[str, int], rng: random.Random) -> Drawn:
        """A random small configuration for a proof: heads as wide as drawn, the width is theirs together."""
        from costproof.analytic.mlp import ACTIVATION_FLOPS
        from costproof.models.decoding.domain import has

        heads = sizes["text_kv_heads"] * sizes["text_groups"]
        config = Gpt2Config(
            hidden=heads * sizes["text_share"],
            intermediate=sizes["text_intermediate"],
            layers=sizes["layers"],
            heads=heads,
            vocab=sizes["text_vocab"],
            max_positions=sizes["text_positions"],
            tied=rng.random() < 0.5,
            activation=rng.choice(tuple(ACTIVATION_FLOPS)),
        )
        return cls(config), has(config)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.gpt2.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = Gpt2
"""What the name ``gpt2`` stands for."""
