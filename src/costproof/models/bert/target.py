"""BERT as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.bert.config import BertConfig
from costproof.models.encoding.texts import TextTarget


@dataclass(frozen=True, slots=True)
class Bert(TextTarget[BertConfig]):
    """``BertModel``, or a class with a head, with one configuration."""

    config: BertConfig = field(default_factory=BertConfig)
    name: str = "bert"
    model_types: ClassVar[tuple[str, ...]] = ("bert",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.bert.formulas import formulas

        return formulas(self.config, eager=workload.attention == "eager")

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Bert, dict[str, bool]]:
        """A random small configuration for a proof."""
        from costproof.models.encoding.domain import some_layers

        architecture = rng.choice(list(BertConfig.architectures))
        config = BertConfig(
            **some_layers(p, rng),
            hidden=p["text_heads"] * p["text_head_dim"],
            intermediate=p["text_intermediate"],
            heads=p["text_heads"],
            architecture=architecture,
            labels=p["text_labels"] if BertConfig.architectures[architecture] else 0,
            vocab=p["text_vocab"],
            max_positions=p["text_positions"],
            types=p["text_types"],
        )
        return cls(config), {
            "a head for masked words": architecture == "BertForMaskedLM",
            "a classifier": config.labels > 0,
            "another activation than GELU": config.activation != "gelu",
        }


TARGET: Final = Bert
"""What the name ``bert`` stands for."""
