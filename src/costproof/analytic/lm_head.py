"""The output projection of a language model."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer
from costproof.analytic.linear import Linear


@layer
class LmHead:
    """A linear layer without bias from the hidden state to the vocabulary, on some positions only.

    Of the positions of a prompt either all or only the last are mapped (``logits_to_keep``), so with
    ``positions`` of them per sequence it is a linear layer on batch x positions rows:

        flops = 2 batch positions hidden vocabulary

    Only those positions of the hidden states are read; the rest costs nothing here. A tied projection
    reads the table of the embedding, which owns the parameters: here they count 0.
    """

    name: ClassVar[str] = "lm_head"
    title: ClassVar[str] = "Output projection to the vocabulary"
    source: ClassVar[str] = (
        "transformers, forward of causal language models (lm_head, logits_to_keep); "
        "Press and Wolf 2017, Using the Output Embedding (tied)"
    )

    batch: Size
    positions: Size
    hidden: Size
    vocabulary: Size
    item_bytes: Size
    tied: bool = False

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        rows = self.batch * self.positions
        costs = Linear(rows, self.hidden, self.vocabulary, self.item_bytes, bias=False).costs()
        return replace(costs, params=0, weight_bytes=0) if self.tied else costs
