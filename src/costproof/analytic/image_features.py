"""Cost writing the features of images over their places in an embedded prompt."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class FeaturesInPrompt:
    """Joins the features of all images and writes them over the places of image tokens in the embedded prompt.

    Everything is data movement: no FLOPs. In come the features, rows x width in all, and the embedded prompt,
    prompt x width. Out goes the prompt with the features in it, and, where the model also returns them, the joined
    features. Where a place of an image is, integers decide, and these count 0.

    Unfused, the joined features are written and read: 2 rows x width, of which one is what is returned.
    """

    name: ClassVar[str] = "features_in_prompt"
    title: ClassVar[str] = "Image features into the prompt"
    source: ClassVar[str] = "Liu et al. 2023, Visual Instruction Tuning, figure 1; LlavaModel.forward (transformers)"

    rows: Size
    """Features of all images."""
    prompt: Size
    """Tokens of all prompts, including the places of images."""
    width: Size
    item_bytes: Size
    returned: bool = True
    """Whether the model returns the joined features."""

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        features, prompt = (rows * self.width * self.item_bytes for rows in (self.rows, self.prompt))
        out = prompt + (features if self.returned else 0)
        return LayerCosts(
            input_bytes=features + prompt,
            output_bytes=out,
            intermediate_bytes=features if self.returned else 2 * features,
        )
