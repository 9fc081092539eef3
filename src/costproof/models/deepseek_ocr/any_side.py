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
from costproof.models.deepseek_ocr.page import Page, page_workload, views
from costproof.models.deepseek_ocr.target import DeepseekOcr
from costproof.models.target import ExportJob, SymbolicSize

if TYPE_CHECKING:
    from torch import nn

    from costproof.models.deepseek_ocr.config import OcrConfig, SamConfig

_LEAST_FEATURES: Final = 10


def whole_step(sam: SamConfig) -> int:
    """Sides that whole windows tile are multiples of this many pixels."""
    return math.lcm(sam.stride, sam.patch * sam.window)


def any_side_workload(config: OcrConfig, *, whole: bool = False) -> Workload:
    """One view whose side stands for all others.

    Args:
        whole: whole windows tile it; else they need padding, if they do so at any side.
    """
    sam, clip = config.sam, config.clip
    step = whole_step(sam) if whole else sam.stride

    def special(side: int) -> bool:
        tiled = side % whole_step(sam) == 0 and not whole and whole_step(sam) != sam.stride
        return tiled or side == sam.image or side // sam.stride == clip.image // clip.patch

    side = max(2, -(-max(_LEAST_FEATURES, sam.window // 2 + 1) * sam.stride // step)) * step
    while special(side):
        side += step
    return page_workload("any side", Page(side, side), 8, 1)


@dataclass(frozen=True, slots=True)
class AnySide(DeepseekOcr):
    """The model with exports of its vision stages whose side and number of views are symbols."""

    tiled: bool = False
    """At the sides that whole windows tile, which take no padding and make a graph of their own: of SAM alone."""

    @property
    def step(self) -> int:
        """The sides are multiples of this many pixels."""
        return whole_step(self.config.sam) if self.tiled else self.config.sam.stride

    def run(self) -> Workload:
        """The run of which the exports are made."""
        return any_side_workload(self.config, whole=self.tiled)

    def export_jobs(self, model: nn.Module, workload: Workload) -> tuple[ExportJob, ...]:
        """The vision stages alone."""
        return any_side_jobs(model, workload, self.config.sam, whole=self.tiled)


def any_side_jobs(
    model: nn.Module, workload: Workload, sam: SamConfig, *, whole: bool = False
) -> tuple[ExportJob, ...]:
    """The exports of towers and projector with H pixels per side and n views; with ``whole`` of SAM alone."""
    from costproof.models.deepseek_ocr import exports, wrappers

    ((_, _, side),) = views(workload)
    features, step = f"H/{sam.stride}", whole_step(sam) if whole else sam.stride
    more = {
        "sam": [SymbolicSize(("x",), d, "H", step) for d in (2, 3)],
        "clip": [SymbolicSize(("x",), d, features) for d in (2, 3)],
        "projector": [
            *(SymbolicSize(("features",), d, features) for d in (2, 3)),
            SymbolicSize(("hidden",), 1, f"({features})**2 + 1"),
        ],
    }
    jobs = exports.vision_jobs(model, workload, side, ("global",))
    return tuple(
        replace(
            job,
            id=f"{job.stage}@H",
            module=wrappers.AnySideTower(job.module.get_submodule("part")) if job.stage == "sam" else job.module,
            sizes=[*job.sizes, *more[job.stage]],
        )
        for job in jobs
        if job.stage == "sam" or not whole
    )
