"""Two-dimensional convolution."""

from __future__ import annotations

from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Size, layer


def conv_output_size(size: Size, kernel: int, *, stride: int = 1, padding: int = 0, dilation: int = 1) -> Size:
    """Positions along one side: floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    if isinstance(span, int):
        return span // stride + 1
    return sympy.floor(span / stride) + 1


@layer
class Conv2d:
    """A square convolution from [batch, channels_in, side_in, side_in] to [batch, channels_out, side_out, side_out].

    Each of the batch x channels_out x side_out² results sums channels_in / groups x kernel² products;
    taps that fall on the zero padding are computed like the others, so they count:

        flops = 2 batch side_out² channels_out (channels_in / groups) kernel²

    The layer owns channels_out x channels_in / groups x kernel² weights and, with a bias,
    channels_out more; adding the bias is part of the operator. side_out is a field rather than a
    formula because the callers know it exactly (see :func:`conv_output_size` for the general rule).
    """

    name: ClassVar[str] = "conv2d"
    title: ClassVar[str] = "Two-dimensional convolution"
    source: ClassVar[str] = "torch.nn.Conv2d"

    batch: Size
    channels_in: Size
    channels_out: Size
    kernel: Size
    side_in: Size
    side_out: Size
    item_bytes: Size
    bias: bool = True
    groups: Size = 1

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        per_output = self.kernel**2 * _divide(self.channels_in, self.groups)
        weights = self.channels_out * per_output + (self.channels_out if self.bias else 0)
        results = self.batch * self.channels_out * self.side_out**2
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            weight_read_bytes=weights * self.item_bytes,
            flops={"conv2d": 2 * results * per_output},
            input_bytes=self.batch * self.channels_in * self.side_in**2 * self.item_bytes,
            output_bytes=results * self.item_bytes,
        )


def _divide(channels: Size, groups: Size) -> Size:
    if isinstance(channels, int) and isinstance(groups, int):
        return channels // groups
    return channels / groups
