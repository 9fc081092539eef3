"""DINOv2 as a target: transformers' own class with one configuration."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from costproof.ledger.node import Ledger
from costproof.ledger.workload import Workload
from costproof.models.encoding.images import VisionTarget
from costproof.models.families.dinov2.config import Dinov2Config

if TYPE_CHECKING:
    from costproof.models.encoding.domain import Domain


@dataclass(frozen=True, slots=True)
class Dinov2(VisionTarget[Dinov2Config]):
    """``Dinov2Model`` with one configuration."""

    config: Dinov2Config = field(default_factory=Dinov2Config)
    name: str = "dinov2"
    model_types: ClassVar[tuple[str, ...]] = ("dinov2",)
    resamples: ClassVar[bool] = False

    def formulas(self, workload: Workload) -> Ledger:
        """The analytic ledger in symbols: ``exprs`` filled, ``costs`` empty."""
        from costproof.models.families.dinov2.formulas import formulas

        return formulas(self.config, resampled=self.resampled(workload), eager=workload.attention == "eager")

    def domain(self) -> Domain:
        """As of every encoder of images, with the ratio of the two widths of an MLP."""
        usual = VisionTarget.domain(self)
        drawn = usual.parameters
        return replace(
            usual,
            parameters=replace(
                drawn,
                ranges={**drawn.ranges, "mlp_ratio": range(1, 9)},
                independent={**drawn.independent, "vision_intermediate": "vision_heads*vision_head_dim*mlp_ratio"},
            ),
        )

    @classmethod
    def drawn(cls, p: Mapping[str, int], rng: random.Random) -> tuple[Dinov2, dict[str, bool]]:
        """A random small configuration for a proof."""
        flags: dict[str, Any] = {name: rng.random() < 0.5 for name in ("qkv_bias", "mask_token", "gated")}
        made = cls(Dinov2Config(**cls.drawn_sizes(p, rng), **flags, mlp_ratio=p["mlp_ratio"]))
        return made, {
            **made.has(),
            "biases in attention": flags["qkv_bias"],
            "a mask token": flags["mask_token"],
            "gated MLPs": flags["gated"],
        }


TARGET: Final = Dinov2
"""What the name ``dinov2`` stands for."""
