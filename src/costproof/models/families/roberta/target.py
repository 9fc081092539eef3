"""RoBERTa as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.texts import TextTarget
from costproof.models.families.roberta.config import RobertaConfig

if TYPE_CHECKING:
    from costproof.models.encoding.domain import Domain

_PADDINGS: Final = range(10)
"""Padding ids that a proof draws."""


@dataclass(frozen=True, slots=True)
class Roberta(TextTarget[RobertaConfig]):
    """``RobertaModel``, or a class with a head, with one configuration."""

    config: RobertaConfig = field(default_factory=RobertaConfig)
    name: str = "roberta"
    model_types: ClassVar[tuple[str, ...]] = ("roberta",)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.roberta.formulas import formulas

        return formulas(self.config, eager=workload.attention == "eager")

    def domain(self) -> Domain:
        """Texts of any length; random sizes, with positions for the longest text behind the last padding id."""
        found = TextTarget.domain(self)
        ranges = found.parameters.ranges
        positions = ranges["text_positions"]
        moved = range(positions.start + len(_PADDINGS), positions.stop + len(_PADDINGS))
        return replace(found, parameters=replace(found.parameters, ranges={**ranges, "text_positions": moved}))

    @classmethod
    def drawn_beside(cls, p: Mapping[str, int], rng: random.Random) -> dict[str, Any]:
        """Kinds of segments, and the padding id."""
        return {"types": p["text_types"], "padding": rng.choice(_PADDINGS)}


TARGET: Final = Roberta
"""What the name ``roberta`` stands for."""
