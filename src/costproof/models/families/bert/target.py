"""BERT as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.texts import TextTarget
from costproof.models.families.bert.config import BertConfig


@dataclass(frozen=True, slots=True)
class Bert(TextTarget[BertConfig]):
    """``BertModel``, or a class with a head, with one configuration."""

    config: BertConfig = field(default_factory=BertConfig)
    name: str = "bert"
    model_types: ClassVar[tuple[str, ...]] = ("bert",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.bert.formulas import formulas

        return formulas(self.config, eager=workload.attention == "eager")

    @classmethod
    def drawn_beside(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Kinds of segments."""
        return {"types": p["text_types"]}


TARGET: Final = Bert
"""What the name ``bert`` stands for."""
