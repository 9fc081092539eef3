"""The vendor's own operators between towers, projector and decoder."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class PageInPlace:
    """Joins the towers' features, writes image tokens over the prompt, and makes the causal mask.

    1. Two branches ask whether views are empty by summing their ``pixels``: one addition per element.
    2. The features of both towers, clip and sam wide, are joined for every one of ``features`` tokens,
       and go to the projector; its results, ``hidden`` wide, come back.
    3. Newline and separator (2 hidden parameters) are put between, and everything is written into the
       embedded prompt in place: the prompt comes in and goes out, prompt x hidden.
    4. A prompt of more than one token gets a mask [prompt, prompt], made from nothing.

        vector_flops = pixels

    All else is data movement.
    """

    name: ClassVar[str] = "page_in_place"
    title: ClassVar[str] = "Image tokens into the prompt, in place"
    source: ClassVar[str] = "DeepseekOCRModel.forward of the vendor; transformers 4.46 AttentionMaskConverter"

    prompt: Size
    hidden: Size
    item_bytes: Size
    pixels: Size = 0
    """Elements of the views that the branches sum up."""
    features: Size = 0
    """Tokens of all views before newlines; 0: nothing is written into the prompt."""
    clip: Size = 0
    sam: Size = 0
    masked: bool = True

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        owned = 2 * self.hidden
        joined = self.features * (self.clip + self.sam)
        written = self.prompt * self.hidden if self.features != 0 else 0
        mask = self.prompt**2 if self.masked else 0
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes if self.features != 0 else 0,
            vector_flops={"reduction": self.pixels},
            input_bytes=(self.pixels + joined + self.features * self.hidden + written) * self.item_bytes,
            output_bytes=(joined + written + mask) * self.item_bytes,
        )
