"""Glue: from the projected queries to the prompt."""

from __future__ import annotations

from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Size, layer


@layer
class ViewsInPrompt:
    """Joins the tokens of a page's views and a separator, and puts them into the prompt.

    Everything is data movement: no FLOPs. In come the tokens of all views (batch tokens hidden) and the embedded prompt
    (batch prompt hidden); out go the prompt with the page in place and the joined tokens with their separators,
    which the model also returns (batch (tokens + 1) hidden). The separator is hidden parameters.

    Unfused, for every page: its views and the separator are joined, then all pages with each other, and the result is
    written into the prompt; the separator is read for every page.
    """

    name: ClassVar[str] = "views_in_prompt"
    title: ClassVar[str] = "Tokens of all views into the prompt"
    source: ClassVar[str] = "DeepseekOcr2Model.get_image_features and forward (transformers)"

    batch: Size
    prompt: Size
    hidden: Size
    item_bytes: Size
    tokens: Size = 0
    """Of all views of a page; 0 for a prompt without one: nothing runs."""

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        owned, scale = self.hidden * self.item_bytes, self.batch * self.hidden * self.item_bytes
        if self.tokens == 0:
            return LayerCosts(params=self.hidden, weight_bytes=owned, intermediate_bytes=0)
        joined = self.tokens + 1
        return LayerCosts(
            params=self.hidden,
            weight_bytes=owned,
            weight_read_bytes=owned,
            input_bytes=scale * (self.tokens + self.prompt),
            output_bytes=scale * (self.prompt + joined),
            intermediate_bytes=scale * (3 * joined + 1) - owned,
        )
