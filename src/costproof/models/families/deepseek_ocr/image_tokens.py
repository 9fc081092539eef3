"""Layers of the glue between image features and the prompt, as transformers and as the vendor write it."""

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
        """Return the costs of one call."""
        moved = self.tokens * (self.width_a + self.width_b) * self.item_bytes
        return LayerCosts(input_bytes=moved, output_bytes=moved, intermediate_bytes=0)


def vision_tokens(grid: Size, columns: Size = 0, rows: Size = 0, crop_grid: Size = 0) -> Size:
    """Return the number of image tokens per page.

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

    Unfused, for every page: each view's rows are joined with newlines, then all of them with the separator, then the
    pages with each other, and the result is written into the prompt. That writes and reads all but the separator of the
    vision_tokens once, all of them once, and reads them once more: (5 vision_tokens - 2) hidden. The newline is read
    for every view, and it and the separator for every page.
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
        """Return the costs of one call."""
        owned = 2 * self.hidden
        if self.grid == 0:
            return LayerCosts(params=owned, weight_bytes=owned * self.item_bytes, intermediate_bytes=0)
        features = self.grid**2 + self.columns * self.rows * self.crop_grid**2
        tokens = vision_tokens(self.grid, self.columns, self.rows, self.crop_grid)
        scale = self.batch * self.hidden * self.item_bytes
        read = 3 if self.crop_grid != 0 else 2  # rows of parameters for a page
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes,
            input_bytes=scale * (features + self.prompt),
            output_bytes=scale * (self.prompt + tokens),
            intermediate_bytes=scale * (5 * tokens - 2 + read) - owned * self.item_bytes,
        )


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

    All else is data movement. Unfused, image tokens are joined as in :class:`ImageTokens`, then with those of other
    pages, of which there are none, and written over the prompt: (6 tokens - 2) hidden. The newline is read for every
    view. The mask is made in float32, which is written and read: 8 prompt² bytes.
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
    tokens: Size = 0
    """Tokens of all views with newlines and separator (:func:`vision_tokens`)."""
    views: int = 0
    """Views that are joined with newlines, each on its own."""
    masked: bool = True

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        owned = 2 * self.hidden
        joined = self.features * (self.clip + self.sam)
        written = self.prompt * self.hidden if self.features != 0 else 0
        mask = self.prompt**2 if self.masked else 0
        placed = 6 * self.tokens - 2 + self.views - 1 if self.features != 0 else 0
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            weight_read_bytes=owned * self.item_bytes if self.features != 0 else 0,
            vector_flops={"reduction": self.pixels},
            input_bytes=(self.pixels + joined + self.features * self.hidden + written) * self.item_bytes,
            output_bytes=(joined + written + mask) * self.item_bytes,
            intermediate_bytes=placed * self.hidden * self.item_bytes + 8 * mask,
        )
