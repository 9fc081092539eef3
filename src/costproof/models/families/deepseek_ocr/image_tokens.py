"""Layers of the glue between image features and the prompt, as transformers and as the vendor write it."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class FeatureConcat:
    """Concatenates two features of every token: ``tokens`` x (width_a + width_b) elements in and out, no FLOPs."""

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

    This only moves data: no FLOPs. Inputs are the global features (batch grid² hidden), the features of the crops
    (batch columns rows crop_grid² hidden), and the embedded prompt (batch prompt hidden). Outputs are the prompt with
    the image tokens (batch prompt hidden), and the image tokens (batch vision_tokens hidden, see
    :func:`vision_tokens`). The newline and the separator are 2 hidden parameters.

    Unfused, per page: the rows of each view are concatenated with newlines, then all views with the separator, then
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
    """Tokens along one side of the global view; 0 for a prompt without an image, in which case nothing runs."""
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
    """Concatenates the features of the towers, writes image tokens over the prompt, and builds the causal mask.

    1. Two branches check whether views are empty by summing their ``pixels``: one addition per element.
    2. The features of both towers, clip and sam wide, are concatenated for each of ``features`` tokens and
       passed to the projector, which returns ``hidden`` wide results.
    3. Newline and separator (2 hidden parameters) are inserted, and everything is written into the embedded
       prompt in place: the prompt is an input and an output, prompt x hidden.
    4. A prompt of more than one token gets a mask [prompt, prompt], which has no inputs.

        vector_flops = pixels

    The rest only moves data. Unfused, image tokens are concatenated as in :class:`ImageTokens`, then with those of
    other pages (none), and written over the prompt: (6 tokens - 2) hidden. The newline is read for every view. The
    mask is built in float32, which is written and read: 8 prompt² bytes.
    """

    name: ClassVar[str] = "page_in_place"
    title: ClassVar[str] = "Image tokens into the prompt, in place"
    source: ClassVar[str] = "DeepseekOCRModel.forward of the vendor; transformers 4.46 AttentionMaskConverter"

    prompt: Size
    hidden: Size
    item_bytes: Size
    pixels: Size = 0
    """Elements of the views that are summed to check whether views are empty."""
    features: Size = 0
    """Tokens of all views without newlines; 0 if nothing is written into the prompt."""
    clip: Size = 0
    sam: Size = 0
    tokens: Size = 0
    """Tokens of all views with newlines and separator (:func:`vision_tokens`)."""
    views: int = 0
    """Number of views that are concatenated with newlines."""
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
