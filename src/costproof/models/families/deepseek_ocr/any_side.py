"""The vision stages exported with the side of a view as a symbol.

The native SAM calls ``int()`` on a size (``get_rel_pos``), which makes torch.export fix the side.
For the time of such an export the ``int`` of that module leaves symbolic sizes as they are; nothing
else stands in the way. A graph describes the sides that pass its guards: the table of positions is
resampled (not so at the side it was trained for), there is more than one window, and the windows
need padding. Sides that whole windows tile make another graph, exported with such a side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.page import Page, page_workload, views
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.models.specs import ExportJob, SymbolicSize

if TYPE_CHECKING:
    from torch import nn

_LEAST_FEATURES: Final = 10


@dataclass(frozen=True, slots=True)
class AnySide(DeepseekOcr):
    """The model with exports of its vision stages whose side and number of views are symbols."""

    tiled: bool = False
    """At the sides that whole windows tile, which take no padding and make a graph of their own: of SAM alone."""

    @property
    def whole_step(self) -> int:
        """Sides that whole windows tile are multiples of this many pixels."""
        sam = self.config.sam
        return math.lcm(sam.stride, sam.patch * sam.window)

    @property
    def step(self) -> int:
        """The sides are multiples of this many pixels."""
        return self.whole_step if self.tiled else self.config.sam.stride

    def run(self) -> Workload:
        """The run of which the exports are made: one view whose side stands for all others.

        Where windows need padding at some side, they need it at this one, unless whole windows shall tile it.
        """
        sam, clip, whole = self.config.sam, self.config.clip, self.whole_step

        def special(side: int) -> bool:
            tiled = side % whole == 0 and not self.tiled and whole != sam.stride
            return tiled or side == sam.image or side // sam.stride == clip.image // clip.patch

        side = max(2, -(-max(_LEAST_FEATURES, sam.window // 2 + 1) * sam.stride // self.step)) * self.step
        while special(side):
            side += self.step
        name = "any side of whole windows" if self.tiled else "any side"
        return page_workload(name, Page(side, side), 8, 1)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The exports of towers and projector with H pixels per side and n views; where tiled, of SAM alone."""
        from costproof.models.families.deepseek_ocr import exports, wrappers

        ((_, _, side),) = views(workload)
        features = f"H/{self.config.sam.stride}"
        more = {
            "sam": [SymbolicSize(("x",), d, "H", self.step) for d in (2, 3)],
            "clip": [SymbolicSize(("x",), d, features) for d in (2, 3)],
            "projector": [
                *(SymbolicSize(("features",), d, features) for d in (2, 3)),
                SymbolicSize(("hidden",), 1, f"({features})**2 + 1"),
            ],
        }
        sam, *others = (
            replace(job, id=f"{job.stage}@H", sizes=[*job.sizes, *more[job.stage]])
            for job in exports.vision_jobs(model, workload, side, ("global",))
        )
        sam = replace(sam, module=wrappers.AnySide(sam.module.get_submodule("part")))
        return (sam,) if self.tiled else (sam, *others)
