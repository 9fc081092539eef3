"""The encoder: SAM's features of a view, queries behind them, and a decoder's layers on both."""

from __future__ import annotations

from typing import ClassVar

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.costs import LayerCosts, Size, layer
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.norms import RmsNorm
from costproof.analytic.rotary import RotaryTable
from costproof.analytic.transformer import TransformerLayer
from costproof.models.families.deepseek_ocr2.page import LARGE, SMALL


@layer
class QueryTable:
    """The learned queries of one size of views: rows x width parameters, which another module reads."""

    name: ClassVar[str] = "query_table"
    title: ClassVar[str] = "Table of queries"
    source: ClassVar[str] = "Wei et al. 2026, DeepSeek-OCR 2, section 3; DeepseekOcr2VisionModel"

    rows: int
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        owned = self.rows * self.width
        return LayerCosts(params=owned, weight_bytes=owned * self.item_bytes, intermediate_bytes=0)


@layer
class QueriesBehindFeatures:
    """Joins every view's features and the queries: [views, features + queries, width], no FLOPs.

    The features come in, views x features x width elements, and the queries are read as a parameter, once for all
    views, which are views of it; out goes what was joined.
    """

    name: ClassVar[str] = "queries_behind_features"
    title: ClassVar[str] = "Queries behind the features of a view"
    source: ClassVar[str] = "Wei et al. 2026, DeepSeek-OCR 2, section 3; DeepseekOcr2VisionModel.forward"

    views: Size
    features: Size
    queries: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        scale = self.width * self.item_bytes
        return LayerCosts(
            weight_read_bytes=self.queries * scale,
            input_bytes=self.views * self.features * scale,
            output_bytes=self.views * (self.features + self.queries) * scale,
            intermediate_bytes=0,
        )


@layer
class WrittenMask:
    """A mask as numbers, made of one of yes or no: [views, tokens, tokens], 0 where a token may look.

    No FLOPs: nothing floating-point comes in, views x tokens² elements go out. Unfused, the dtype's least number is
    written and read once.
    """

    name: ClassVar[str] = "written_mask"
    title: ClassVar[str] = "Mask as numbers"
    source: ClassVar[str] = "transformers.masking_utils.eager_mask"

    views: Size
    tokens: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        """Return the costs of one call."""
        return LayerCosts(
            output_bytes=self.views * self.tokens**2 * self.item_bytes, intermediate_bytes=2 * self.item_bytes
        )


def parts(layers: int, *, eager: bool) -> tuple[ModulePart, ...]:
    """All modules of the encoder on n views of H x H pixels with Q queries.

    A query sees all features and the queries up to itself, features see each other: a mask says so, and all scores
    are computed. It holds yes or no, but for eager attention, which adds it. Only the queries' results go on, which are
    a view of all.

    Source: Wei et al. 2026, DeepSeek-OCR 2; Yang et al. 2024, Qwen2; ``DeepseekOcr2VisionEncoder`` (transformers).
    """
    n, b, width, head_dim = sym("n"), sym("b"), sym("encoder_hidden"), sym("encoder_head_dim")
    features, queries = (sym("H") / (4 * sym("sam_patch"))) ** 2, sym("Q")
    call = StackCall(n, features + queries, b)
    attention = AttentionBlock(
        width=width,
        heads=sym("encoder_heads"),
        kv_heads=sym("encoder_kv_heads"),
        head_dim=head_dim,
        bias=("q", "k", "v"),
        rotary=head_dim,
        cached=False,
        hidden=features * queries + queries * (queries - 1) / 2,
        mask="input" if eager else "boolean",
        written_out=eager,
    )
    mlp = Mlp(width, sym("encoder_intermediate"), "silu", gated=True, bias=False)
    stack = TransformerLayer(width, attention, mlp).parts("encoder.layer", call)
    return (
        ModulePart("vision", (QueriesBehindFeatures(n, features, queries, width, b),)),
        ModulePart("vision.queries_small", (QueryTable(SMALL, width, b),), called=False),
        ModulePart("vision.queries_large", (QueryTable(LARGE, width, b),), called=False),
        ModulePart("encoder", (WrittenMask(n, call.tokens, b),)) if eager else ModulePart("encoder"),
        ModulePart("encoder.rotary", (RotaryTable(call.tokens, head_dim, b),)),
        *(part for i in range(layers) for part in in_layer(i, stack)),
        ModulePart("encoder.norm", (RmsNorm(call.rows, width, b),)),
    )
