"""Cost formulas of token embeddings, learned positions, and image features that replace token embeddings."""

from __future__ import annotations

from typing import ClassVar, Final

import sympy

from costproof.analytic.costs import LayerCosts, Matrix, Size, layer


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
    """Whether the looked-up rows are multiplied by a constant of the model."""
    lent: bool = False
    read_whole: bool = False
    """Whether another module of the stage reads the whole table, as a tied output projection does."""

    def costs(self) -> LayerCosts:
        row = self.width * self.item_bytes
        looked_up = self.rows * row
        owned = 0 if self.lent else self.entries * self.width
        return LayerCosts(
            params=owned,
            weight_bytes=owned * self.item_bytes,
            matrices=() if self.lent else (Matrix(self.entries, self.width, kind="Embedding"),),
            weight_read_bytes=looked_up,
            vector_flops={"elementwise": self.rows * self.width} if self.scaled else {},
            input_bytes=self.item_bytes if self.scaled else 0,
            buffer_bytes=self.item_bytes if self.scaled else 0,
            buffer_read_bytes=self.item_bytes if self.scaled else 0,
            output_bytes=looked_up,
            shared_weight_bytes=looked_up if self.read_whole else looked_up - sympy.Min(self.rows, self.entries) * row,
            intermediate_bytes=2 * looked_up if self.scaled else 0,
        )


INT64: Final = 8
"""Bytes of an int64 index."""
BICUBIC_FLOPS: Final = 31
"""FLOPs per element of a bicubic interpolation: 4 x 4 taps are 16 multiplications and 15 additions."""


@layer
class PositionEmbedding:
    """Adds a learned position to every token of [views, grid, grid, width].

    One addition per element. Where the view's grid differs from the table's, the table is first
    resampled bicubically: 16 taps per element, so 16 multiplications and 15 additions:

        vector_flops = views grid² width  (+ 31 grid² width when resampled)

    The table has table_side² x width parameters and is read whole. The tokens come in, the sums go out. Unfused, what
    is resampled is written and read once, grid² x width elements.
    """

    name: ClassVar[str] = "position_embedding"
    title: ClassVar[str] = "Absolute positions on a grid"
    source: ClassVar[str] = (
        "Kirillov et al. 2023, Segment Anything; UnlimitedOcrSamVisionEncoder.interpolate_pos_encoding"
    )

    views: Size
    grid: Size
    width: Size
    table_side: Size
    item_bytes: Size
    resampled: bool

    def costs(self) -> LayerCosts:
        elements = self.views * self.grid**2 * self.width
        table = self.table_side**2 * self.width
        return LayerCosts(
            params=table,
            weight_bytes=table * self.item_bytes,
            weight_read_bytes=table * self.item_bytes,
            vector_flops={
                "elementwise": elements,
                "resample": BICUBIC_FLOPS * self.grid**2 * self.width if self.resampled else 0,
            },
            input_bytes=elements * self.item_bytes,
            output_bytes=elements * self.item_bytes,
            intermediate_bytes=2 * self.grid**2 * self.width * self.item_bytes if self.resampled else 0,
        )


@layer
class PositionIds:
    """A registered buffer with the indices of all positions, int64 in every run.

    What looks rows up takes the first of them, and reads of integers are not counted. BERT has as many ids of segments,
    so ``buffers`` of them:

        buffer_bytes = 8 buffers entries

    A checkpoint stores them if they are ``persistent``: in transformers' own classes they are not.
    """

    name: ClassVar[str] = "position_ids"
    title: ClassVar[str] = "Indices of positions, registered"
    source: ClassVar[str] = (
        "transformers BertEmbeddings, RobertaEmbeddings, CLIPVisionEmbeddings, SiglipVisionEmbeddings, Embeddings "
        "(DistilBERT), UnlimitedOcrVisionEmbeddings: position_ids, token_type_ids"
    )

    entries: Size
    buffers: int = 1
    persistent: bool = False

    def costs(self) -> LayerCosts:
        elements = self.buffers * self.entries
        stored = elements if self.persistent else 0
        return LayerCosts(
            buffer_bytes=INT64 * elements,
            persistent_elements=stored,
            persistent_bytes=INT64 * stored,
            intermediate_bytes=0,
        )


@layer
class LearnedPositions:
    """Adds to every token the table row of its position.

    One addition per element:

        vector_flops = batch positions width

    The rows come from another module, equal for all sequences, or looked up for ``each`` of them; tokens come in, sums
    go out. Where each token also gets a row of another table (segments), that is one more addition and one more element
    in; unfused, the sum before it is written and read.
    """

    name: ClassVar[str] = "learned_positions"
    title: ClassVar[str] = "Absolute positions, looked up"
    source: ClassVar[str] = (
        "Radford et al. 2018, GPT; Devlin et al. 2018, BERT, figure 2; GPT2Model.forward, BertEmbeddings.forward, "
        "RobertaEmbeddings.forward (transformers)"
    )

    batch: Size
    positions: Size
    width: Size
    item_bytes: Size
    others: int = 0
    """Further tables that add a row to every token."""
    each: bool = False
    """Whether every sequence has its own position ids."""

    def costs(self) -> LayerCosts:
        rows, summands = self.positions * self.width, 1 + self.others
        looked_up = self.batch if self.each else 1
        return LayerCosts(
            vector_flops={"elementwise": summands * self.batch * rows},
            input_bytes=(summands * self.batch + looked_up) * rows * self.item_bytes,
            output_bytes=self.batch * rows * self.item_bytes,
            intermediate_bytes=2 * self.others * self.batch * rows * self.item_bytes,
        )


@layer
class ClassAndPositions:
    """Puts a class token, if any, before the grid² image tokens of each view, and adds position embeddings.

    The sequence has tokens = grid² + 1 (grid² without a class token); one addition per element:

        vector_flops = views tokens width  (+ 31 grid² width when resampled)

    The table of ``entries`` positions belongs to another module or to this one. If the grid is the table's, another
    module looks the positions up, and tokens x width elements come in from there. If not, its
    table is read here, whole, and all but the class position resampled bicubically (31 operations
    per element); an implementation that looks all positions up first gets the whole table, entries x
    width elements, from that module in both cases. A table of this layer's own is read whole. The class token, width
    parameters, belongs to this layer, and so does a mask token, which only training reads. In come the image tokens,
    out go the sums.

    Unfused, the sequence with its class token is written and read once, views tokens width elements. Of resampled
    positions grid² width are written and read, and with a class position before them once more tokens width.
    """

    name: ClassVar[str] = "class_and_positions"
    title: ClassVar[str] = "Class token and absolute positions"
    source: ClassVar[str] = (
        "Dosovitskiy et al. 2020, An Image is Worth 16x16 Words, equation 1; Radford et al. 2021, CLIP; "
        "UnlimitedOcrVisionEmbeddings.forward"
    )

    views: Size
    grid: Size
    width: Size
    entries: Size
    item_bytes: Size
    resampled: bool
    looked_up: bool = False
    """Whether the module looks up all ``entries`` positions, whatever the grid is."""
    own_table: bool = False
    """Whether the table is a parameter of this layer."""
    class_token: bool = True
    mask_token: bool = False

    def costs(self) -> LayerCosts:
        tokens = self.grid**2 + (1 if self.class_token else 0)
        table, held = self.entries * self.width, (1 if self.class_token else 0) * self.width
        own_read = self.own_table or (self.resampled and not self.looked_up)
        positions = table if self.looked_up else 0 if own_read else tokens * self.width
        joined = self.views * tokens * self.width if self.class_token else 0
        if self.resampled:
            joined += (self.grid**2 + (tokens if self.class_token else 0)) * self.width
        params = held + (table if self.own_table else 0) + (self.width if self.mask_token else 0)
        return LayerCosts(
            params=params,
            weight_bytes=params * self.item_bytes,
            weight_read_bytes=(held + (table if own_read else 0)) * self.item_bytes,
            vector_flops={
                "elementwise": self.views * tokens * self.width,
                "resample": BICUBIC_FLOPS * self.grid**2 * self.width if self.resampled else 0,
            },
            input_bytes=(self.views * self.grid**2 * self.width + positions) * self.item_bytes,
            output_bytes=self.views * tokens * self.width * self.item_bytes,
            intermediate_bytes=2 * joined * self.item_bytes,
        )


@layer
class FeaturesInPrompt:
    """Concatenates the features of all images, and writes them over the image tokens in the embedded prompt.

    Everything is data movement: no FLOPs. In come the features, rows x width in all, and the embedded prompt,
    prompt x width. Out goes the prompt with the features in it, and, where the model also returns them, the joined
    features. The places of image tokens are computed with integers, which count 0.

    Unfused, the joined features are written and read: 2 rows x width, of which one is what is returned.
    """

    name: ClassVar[str] = "features_in_prompt"
    title: ClassVar[str] = "Image features into the prompt"
    source: ClassVar[str] = "Liu et al. 2023, Visual Instruction Tuning, figure 1; LlavaModel.forward (transformers)"

    rows: Size
    """Number of feature rows of all images."""
    prompt: Size
    """Number of tokens of all prompts, including placeholders of images."""
    width: Size
    item_bytes: Size
    returned: bool = True
    """Whether the model also returns the concatenated features."""

    def costs(self) -> LayerCosts:
        features, prompt = (rows * self.width * self.item_bytes for rows in (self.rows, self.prompt))
        out = prompt + (features if self.returned else 0)
        return LayerCosts(
            input_bytes=features + prompt,
            output_bytes=out,
            intermediate_bytes=features if self.returned else 2 * features,
        )


@layer
class PickedPositions:
    """Selects the ``rows`` rows of hidden states that need logits: read and written once, without FLOPs."""

    name: ClassVar[str] = "picked_positions"
    title: ClassVar[str] = "Positions that get logits"
    source: ClassVar[str] = "transformers, forward of causal language models (logits_to_keep as indices)"

    rows: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        moved = self.rows * self.width * self.item_bytes
        return LayerCosts(input_bytes=moved, output_bytes=moved, weight_read_bytes=0, intermediate_bytes=0)
