"""DistilBERT as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.texts import TextTarget
from costproof.models.families.distilbert.config import DistilBertConfig


@dataclass(frozen=True, slots=True)
class DistilBert(TextTarget[DistilBertConfig]):
    """``DistilBertModel``, or a class with a head, with one configuration."""

    config: DistilBertConfig = field(default_factory=DistilBertConfig)
    name: str = "distilbert"
    model_types: ClassVar[tuple[str, ...]] = ("distilbert",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.distilbert.formulas import formulas

        return formulas(self.config, eager=workload.attention == "eager")


TARGET: Final = DistilBert
"""What the name ``distilbert`` stands for."""
