"""Where the vendor's model is cut for export: both towers and the projector.

The decoder is not exported: its experts run in a loop over numbers, which no export can follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from costproof.ledger.workload import Workload
from costproof.models.decoding.decoder import on_meta
from costproof.models.deepseek_ocr.config import CHANNELS, OcrConfig
from costproof.models.deepseek_ocr.page import sides
from costproof.models.deepseek_ocr.remote_code.names import CLIP, PROJECTOR, SAM
from costproof.models.target import ExportJob, SymbolicSize

if TYPE_CHECKING:
    import torch
    from torch import nn

NOT_EXPORTED: Final[Mapping[str, str]] = {
    "prefill": "the experts run in a loop over numbers, which an export cannot follow",
    "decode": "the experts run in a loop over numbers, which an export cannot follow",
}

_VIEWS: Final = 7
"""Example number of views: above 1, and no other dimension."""


def export_jobs(model: nn.Module, config: OcrConfig, workload: Workload) -> tuple[ExportJob, ...]:
    """One export per vision stage and view size, the number of views symbolic."""
    return tuple(j for side, calls in sides(workload).items() for j in _jobs(model, config, workload, side, calls))


def _jobs(
    model: nn.Module, config: OcrConfig, workload: Workload, side: int, invocations: tuple[str, ...]
) -> list[ExportJob]:
    from costproof.models.deepseek_ocr import wrappers

    query = side // config.sam.stride
    pixels = on_meta(workload, _VIEWS, CHANNELS, side, side)
    features = on_meta(workload, _VIEWS, config.sam.downsample[1], query, query)
    joined = on_meta(workload, _VIEWS, query * query, config.projector_in)

    def job(stage: str, path: str, wrapper: Any, x: torch.Tensor) -> ExportJob:
        return ExportJob(
            f"{stage}@{side}", stage, invocations, wrapper(model.get_submodule(path)), {"part": path}, {"x": x},
            [SymbolicSize(("x",), 0, "n")],
        )  # fmt: skip

    return [
        job("sam", SAM, wrappers.Direct, pixels),
        job("clip", CLIP, wrappers.Features, features),
        job("projector", PROJECTOR, wrappers.Direct, joined),
    ]
