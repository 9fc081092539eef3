"""Look-up of rows in a table."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class Embedding:
    """Looks up ``rows`` rows in a table of entries x width parameters.

    Nothing is computed, so there are no FLOPs. Each looked-up row is read, repeats included, and
    written: rows x width elements each way. The indices are integers, which do not count as
    activations.
    """

    name: ClassVar[str] = "embedding"
    title: ClassVar[str] = "Embedding look-up"
    source: ClassVar[str] = "torch.nn.Embedding"

    rows: Size
    entries: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        looked_up = self.rows * self.width * self.item_bytes
        return LayerCosts(
            params=self.entries * self.width,
            weight_bytes=self.entries * self.width * self.item_bytes,
            weight_read_bytes=looked_up,
            output_bytes=looked_up,
        )
