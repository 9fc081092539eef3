"""What joins images to text: features of images, written over their places in an embedded prompt."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class FeaturesInPrompt:
    """Joins the features of all images and writes them over the places of image tokens in the embedded prompt.

    Everything is data movement: no FLOPs. In come the features, rows x width in all, and the embedded prompt,
    prompt x width. Out goes the prompt with the features in it, and the joined features, which the model also returns.
    Where a place of an image is, integers decide, and these count 0.

    Unfused, the joined features are written and read once more: rows x width.
    """

    name: ClassVar[str] = "features_in_prompt"
    title: ClassVar[str] = "Image features into the prompt"
    source: ClassVar[str] = "Liu et al. 2023, Visual Instruction Tuning, figure 1; LlavaModel.forward (transformers)"

    rows: Size
    """Features of all images."""
    prompt: Size
    """Tokens of all prompts, places of images among them."""
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        features, prompt = (rows * self.width * self.item_bytes for rows in (self.rows, self.prompt))
        moved = features + prompt
        return LayerCosts(input_bytes=moved, output_bytes=moved, between=features)
