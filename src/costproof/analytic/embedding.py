"""Look-up of rows in a table."""

from __future__ import annotations

from typing import ClassVar

import sympy

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class Embedding:
    """Looks up ``rows`` rows in a table of entries x width parameters.

    Nothing is computed, so there are no FLOPs. Each looked-up row is read, repeats included, and written: rows x width
    elements each way. Whatever is fused, the table is read once at most: min(rows, entries) x width. The indices are
    integers, which do not count as activations. Where the rows are scaled by a constant, that is one multiplication per
    element, and the constant is read, one element of the run's dtype in a buffer; unfused, the rows are written and
    read once more in between. A table that belongs to another module, ``lent``, counts there.

    Branches: of more rows than entries some are the same.
    """

    name: ClassVar[str] = "embedding"
    title: ClassVar[str] = "Embedding look-up"
    source: ClassVar[str] = "torch.nn.Embedding"

    rows: Size
    entries: Size
    width: Size
    item_bytes: Size
    scaled: bool = False
    """Whether a constant of the model scales the rows."""
    lent: bool = False
    read_whole: bool = False
    """Whether another module of the stage reads all of the table, as a tied output projection does."""

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        row = self.width * self.item_bytes
        looked_up = self.rows * row
        owned = 0 if self.lent else self.entries * self.width
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=looked_up,
            vector_flops={"elementwise": self.rows * self.width} if self.scaled else {},
            input_bytes=self.item_bytes if self.scaled else 0,
            buffer_bytes=self.item_bytes if self.scaled else 0,
            buffer_read_bytes=self.item_bytes if self.scaled else 0,
            output_bytes=looked_up,
            again_bytes=looked_up if self.read_whole else looked_up - sympy.Min(self.rows, self.entries) * row,
            between=2 * looked_up if self.scaled else 0,
        )
