"""A thin module around the tower of a Qwen2.5-VL; it adds no operators.

Imported only where a model is at hand, because it needs torch to be defined.
"""

from __future__ import annotations

import torch
from torch import nn

from costproof.models.encoding.images import PackedLengths


class Patches(nn.Module):
    """The tower, from patches to tokens; what the grid of an image decides is prepared."""

    def __init__(self, part: nn.Module, images: PackedLengths, windows: PackedLengths) -> None:
        super().__init__()
        self.part, self.images, self.windows = part, images, windows

    def forward(self, x: torch.Tensor, places: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        found = self.part(
            x,
            grid_thw=None,
            position_ids=places,
            cu_seqlens=self.images,
            window_index=order,
            cu_window_seqlens=self.windows,
        )
        result: torch.Tensor = found.pooler_output
        return result
