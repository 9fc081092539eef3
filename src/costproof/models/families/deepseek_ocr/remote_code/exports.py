"""Where the vendor's model is cut for export: both towers and the projector.

The decoder is not exported: its experts run in a loop over numbers, which no export can follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import on_meta
from costproof.models.families.deepseek_ocr.config import CHANNELS, OcrConfig
from costproof.models.families.deepseek_ocr.exports import VIEWS, vision_job
from costproof.models.families.deepseek_ocr.page import sides
from costproof.models.families.deepseek_ocr.remote_code.names import CLIP, PROJECTOR, SAM
from costproof.models.specs import ExportJob

if TYPE_CHECKING:
    from torch import nn


def export_jobs(model: nn.Module, config: OcrConfig, workload: Workload) -> tuple[ExportJob, ...]:
    """One export per vision stage and view size, the number of views symbolic."""
    from costproof.models.families.deepseek_ocr import wrappers
    from costproof.models.image_text import modules

    sam, clip = modules.PartModule(model.get_submodule(SAM)), wrappers.Features(model.get_submodule(CLIP))
    projector = modules.PartModule(model.get_submodule(PROJECTOR))
    found: list[ExportJob] = []
    for side, calls in sides(workload).items():
        query = side // config.sam.stride
        pixels = on_meta(workload, VIEWS, CHANNELS, side, side)
        features = on_meta(workload, VIEWS, config.sam.downsample[1], query, query)
        joined = on_meta(workload, VIEWS, query * query, config.projector_in)
        found += [
            vision_job("sam", side, calls, sam, {"part": SAM}, x=pixels),
            vision_job("clip", side, calls, clip, {"part": CLIP}, x=features),
            vision_job("projector", side, calls, projector, {"part": PROJECTOR}, x=joined),
        ]
    return tuple(found)
