"""Glue: from image features to the prompt."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class FeatureConcat:
    """Joins two features of every token: ``tokens`` x (width_a + width_b) elements in, as many out, no FLOPs."""

    name: ClassVar[str] = "feature_concat"
    title: ClassVar[str] = "Joining of two features"
    source: ClassVar[str] = "Wei et al. 2025, DeepSeek-OCR, section 3.2; UnlimitedOcrVisionModel.forward"

    tokens: Size
    width_a: Size
    width_b: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        moved = self.tokens * (self.width_a + self.width_b) * self.item_bytes
        return LayerCosts(input_bytes=moved, output_bytes=moved)


def vision_tokens(grid: Size, columns: Size = 0, rows: Size = 0, crop_grid: Size = 0) -> Size:
    """Image tokens per page.

    The global view gives grid rows of grid tokens with a newline token each, then one separator; a
    crop grid gives rows crop_grid rows of columns crop_grid tokens with a newline token each:
    grid (grid + 1) + 1 + rows crop_grid (columns crop_grid + 1).
    """
    return grid * (grid + 1) + 1 + rows * crop_grid * (columns * crop_grid + 1)


@layer
class ImageTokens:
    """Lays out the features of a page, adds newline and separator tokens, puts them into the prompt.

    Everything is data movement: no FLOPs. In come the global features (batch grid² hidden), the
    features of the crops (batch columns rows crop_grid² hidden), and the embedded prompt
    (batch prompt hidden). Out goes the prompt with the image tokens in place (batch prompt hidden),
    and the image tokens themselves, which the model also returns (batch vision_tokens hidden; see
    :func:`vision_tokens`). The newline and the separator are 2 hidden parameters.
    """

    name: ClassVar[str] = "image_tokens"
    title: ClassVar[str] = "Image tokens into the prompt"
    source: ClassVar[str] = "UnlimitedOcrModel.get_image_features and forward (transformers)"

    batch: Size
    prompt: Size
    hidden: Size
    item_bytes: Size
    grid: Size
    """Tokens along one side of the global view; 0 for a prompt without an image: nothing runs."""
    columns: Size = 0
    rows: Size = 0
    crop_grid: Size = 0

    def costs(self) -> LayerCosts:
        """The costs of one call."""
        owned = 2 * self.hidden
        if self.grid == 0:
            return LayerCosts(params=owned, weight_bytes=owned * self.item_bytes)
        features = self.grid**2 + self.columns * self.rows * self.crop_grid**2
        tokens = vision_tokens(self.grid, self.columns, self.rows, self.crop_grid)
        scale = self.batch * self.hidden * self.item_bytes
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes,
            input_bytes=scale * (features + self.prompt),
            output_bytes=scale * (self.prompt + tokens),
        )
