"""Cost formulas of linear layers, the projection to logits, and parameters that another module reads."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from costproof.analytic.costs import LayerCosts, Matrix, Size, layer


@layer
class Linear:
    """Y = X Wᵀ + c for X [rows, features_in], W [features_out, features_in], c [features_out].

    Each of the rows x features_out results is a dot product of features_in terms, one
    multiply-accumulate each, and one multiply-accumulate is 2 FLOPs:

        flops = 2 rows features_in features_out

    The addition of c is part of the operator and counts 0, by convention. The layer owns W and, with
    a bias, c; all of them are read once per call. X comes in and Y goes out, item_bytes per element.
    """

    name: ClassVar[str] = "linear"
    title: ClassVar[str] = "Linear layer"
    source: ClassVar[str] = "torch.nn.Linear; 2mnk operations of a matrix product (BLAS GEMM)"

    rows: Size
    features_in: Size
    features_out: Size
    item_bytes: Size
    bias: bool = True
    skippable: Size = 0
    """Part of the layer's FLOPs that another implementation of the same result skips."""
    read: bool = True
    """Whether another operator reads the result; an unread result is not an output."""
    cached: bool = False
    """Whether the input is the latents of a cache, so that it counts as ``kv_read_bytes``."""

    def costs(self) -> LayerCosts:
        given = self.rows * self.features_in * self.item_bytes
        weights = self.features_in * self.features_out + (self.features_out if self.bias else 0)
        return LayerCosts(
            params=weights,
            weight_bytes=weights * self.item_bytes,
            matrices=(Matrix(self.features_out, self.features_in, self.bias),),
            weight_read_bytes=weights * self.item_bytes,
            flops={"linear": 2 * self.rows * self.features_in * self.features_out},
            input_bytes=0 if self.cached else given,
            output_bytes=self.rows * self.features_out * self.item_bytes if self.read else 0,
            intermediate_bytes=0,
            kv_read_bytes=given if self.cached else 0,
            kv_read_part="latents" if self.cached else "whole",
            skippable_flops={"linear": self.skippable},
        )


@layer
class LmHead:
    """A linear layer without bias from hidden states to the vocabulary, on selected positions.

    Of the positions of a prompt either all or only the last are mapped (``logits_to_keep``), so with
    ``positions`` of them per sequence it is a linear layer on batch x positions rows:

        flops = 2 batch positions hidden vocabulary

    Only those positions of the hidden states are read; the rest costs nothing here. A tied projection
    reads the table of the embedding, which owns the parameters: here they count 0. So it is with a bias, vocabulary
    parameters, that another module lends.
    """

    name: ClassVar[str] = "lm_head"
    title: ClassVar[str] = "Output projection to the vocabulary"
    source: ClassVar[str] = (
        "transformers, forward of causal language models (lm_head, logits_to_keep); BertLMPredictionHead; "
        "Press and Wolf 2017, Using the Output Embedding (tied)"
    )

    batch: Size
    positions: Size
    hidden: Size
    vocabulary: Size
    item_bytes: Size
    tied: bool = False
    lent_bias: bool = False

    def costs(self) -> LayerCosts:
        rows = self.batch * self.positions
        costs = Linear(rows, self.hidden, self.vocabulary, self.item_bytes, bias=False).costs()
        if self.lent_bias:
            costs = replace(costs, weight_read_bytes=costs.weight_read_bytes + self.vocabulary * self.item_bytes)
        return replace(costs, params=0, weight_bytes=0, matrices=()) if self.tied else costs


@layer
class Lent:
    """Parameters that one module owns and another module reads; this layer counts only their storage.

    params = elements
    """

    name: ClassVar[str] = "lent"
    title: ClassVar[str] = "Parameters that another module reads"
    source: ClassVar[str] = "Press and Wolf 2017, Using the Output Embedding; BertLMPredictionHead (transformers)"

    elements: Size
    item_bytes: Size
    matrices: tuple[Matrix, ...] = ()
    """Part of the parameters that is a linear layer or a table."""

    def costs(self) -> LayerCosts:
        held = self.elements * self.item_bytes
        return LayerCosts(params=self.elements, weight_bytes=held, matrices=self.matrices, intermediate_bytes=0)
