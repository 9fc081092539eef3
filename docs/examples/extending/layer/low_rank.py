"""A low-rank layer: the module, and the formula of what one call of it costs."""

from typing import ClassVar

import torch
from torch import nn

from costproof.analytic.costs import LayerCosts, Size, layer


class LowRankLayer(nn.Module):
    """Two products with matrices of its own."""

    def __init__(self, wide: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, wide))
        self.c = nn.Parameter(torch.randn(wide, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x A C."""
        return nn.functional.linear(nn.functional.linear(x, self.a), self.c)


@layer
class LowRank:
    """Y = (X A) C for X [rows, wide], A [wide, rank], C [rank, wide]: two products, 2 FLOPs a multiply-accumulate.

        flops = 2 rows wide rank + 2 rows rank wide

    A and C are read once, X is read and Y written. X A is written by the first product and read by the second.
    """

    name: ClassVar[str] = "low_rank"
    title: ClassVar[str] = "Low-rank layer"
    source: ClassVar[str] = "Hu et al. 2021, LoRA, section 4.1"

    rows: Size
    wide: Size
    rank: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        weights = 2 * self.wide * self.rank
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            weight_read_bytes=weights * self.item_bytes,
            flops={"linear": 4 * self.rows * self.wide * self.rank},
            input_bytes=self.rows * self.wide * self.item_bytes,
            output_bytes=self.rows * self.wide * self.item_bytes,
            intermediate_bytes=2 * self.rows * self.rank * self.item_bytes,
        )
