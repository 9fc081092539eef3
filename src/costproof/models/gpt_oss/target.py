"""GPT-OSS as a target: transformers' own class with one configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Attention, Workload
from costproof.models import settings
from costproof.models.decoding.base import CausalTarget
from costproof.models.gpt_oss.config import GptOssConfig
from costproof.models.stored import Stored
from costproof.models.target import Setting


@dataclass(frozen=True, slots=True)
class GptOss(CausalTarget[GptOssConfig]):
    """``GptOssForCausalLM`` with one configuration."""

    config: GptOssConfig = field(default_factory=GptOssConfig)
    name: str = "gpt-oss"
    model_types: ClassVar[tuple[str, ...]] = ("gpt_oss",)
    released: ClassVar[Stored] = Stored((("weights", "mxfp4 (published)"),))
    attentions: ClassVar[tuple[Attention, ...]] = ("eager",)
    # Its loop over experts multiplies in another way than those of other classes, which no rule reads.
    more: ClassVar[tuple[Setting, ...]] = (replace(settings.EXPERTS, choices=("grouped_mm", "batched_mm")),)

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.gpt_oss.formulas import ledger

        return ledger(self.config, workload)


TARGET: Final = GptOss
"""What the name ``gpt-oss`` stands for."""
