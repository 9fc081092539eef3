"""Closed formulas of DeepSeek-OCR 2: an encoder whose queries follow the features of SAM, and all stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from costproof.algebra.symbols import sym
from costproof.analytic.attention_block import AttentionBlock
from costproof.analytic.compose import ModulePart, StackCall, in_layer
from costproof.analytic.costs import Layer, LayerCosts, Matrix, Size, layer
from costproof.analytic.decoder_memory import DecoderTape
from costproof.analytic.embedding import INT64
from costproof.analytic.feed_forward import Mlp
from costproof.analytic.layer_memory import CopyBranches, LayerTape
from costproof.analytic.linear import Linear
from costproof.analytic.memory_tape import MemoryTape
from costproof.analytic.norms import RmsNorm
from costproof.analytic.rotary import RotaryTable
from costproof.analytic.transformer import TransformerLayer
from costproof.ledger.node import Ledger
from costproof.models.decoding.names import decoder_names, mixture_names
from costproof.models.families.deepseek_ocr.names import NATIVE_NAMES
from costproof.models.families.deepseek_ocr2.config import IMAGE_STAGES, LARGE, SMALL, STAGES, Ocr2Config
from costproof.models.pages.formulas import PageStructure, View, decoder_border, page_ledger, page_symbols, sam_parts
from costproof.models.pages.memory import page_glue_tape, sam_tape

_TOWER: Final = "model.vision_tower"
_ENCODER: Final = f"{_TOWER}.vision_encoder"
_TEXT: Final = "model.language_model"

NAMES: Final[Mapping[str, str]] = {
    **{role: path for role, path in NATIVE_NAMES.items() if role.startswith("sam")},
    "vision": _TOWER,
    "vision.queries_small": f"{_TOWER}.query_768_resolution",
    "vision.queries_large": f"{_TOWER}.query_1024_resolution",
    **{
        role.replace("text", "encoder", 1): path
        for role, path in decoder_names(_ENCODER).items()
        if role.startswith("text")
    },
    "projector": "model.multi_modal_projector",
    "model": "model",
    **decoder_names(_TEXT),
    **mixture_names(_TEXT),
}
"""Module paths in ``DeepseekOcr2ForConditionalGeneration``, by role; ``{i}`` is the index of a layer."""


def ocr2_ledger(structure: PageStructure) -> Ledger:
    """Return the symbolic ledger of all stages; see :func:`~costproof.models.pages.formulas.page_ledger`.

    Source: Wei et al. 2026, DeepSeek-OCR 2: Visual Causal Flow; ``DeepseekOcr2ForConditionalGeneration``
    (transformers).
    """
    encoder = _encoder_parts(structure.second_layers, eager=structure.attention == "eager")

    def towers(view: View) -> dict[str, tuple[tuple[ModulePart, ...], Size]]:
        parts = (sam_parts(structure, view), encoder, _projector())
        return {stage: (made, _border(stage)) for stage, made in zip(IMAGE_STAGES, parts, strict=True)}

    def glue(call: StackCall) -> Layer:
        tokens = _tokens(structure) if call.past == 0 else 0
        return ViewsInPrompt(call.rows, sym("text_hidden"), call.item_bytes, tokens, structure.pages)

    def border(call: StackCall, positions: Size) -> Size:
        return decoder_border(structure, call, positions, 2 * _tokens(structure) + 1)

    return page_ledger(structure, towers, glue, border, NAMES, STAGES)


def _projector() -> tuple[ModulePart, ...]:
    """Return the linear projector, applied to the outputs of the learned queries."""
    n, b = sym("n"), sym("b")
    return (ModulePart("projector", (Linear(n * sym("Q"), sym("encoder_hidden"), sym("text_hidden"), b),)),)


def _border(stage: str) -> Size:
    """Return the activation bytes that enter and leave a vision stage, on n views of H x H pixels with Q queries each.

    The encoder returns the outputs of features and queries; the outputs of the queries are a view of them.
    """
    side, queries = sym("H"), sym("Q")
    features = (side / (4 * sym("sam_patch"))) ** 2 * sym("encoder_hidden")
    seen, projected = queries * sym("encoder_hidden"), queries * sym("text_hidden")
    elements = {
        "sam": sym("in_channels") * side**2 + features,
        "encoder": 2 * features + seen,
        "projector": seen + projected,
    }
    return sym("n") * elements[stage] * sym("b")


def _tokens(structure: PageStructure) -> Size:
    """Return the number of tokens of all views of a page: Q_g of the global view, and Q_c of each crop.

    Branches: with crops and without; a page has crops if it has a second view.
    """
    if not structure.views:
        return 0
    crops = sym("grid_w") * sym("grid_h") * sym("Q_c") if len(structure.views) > 1 else 0
    return sym("Q_g") + crops


@layer
class QueryTable:
    """Learned queries for one view size: rows x width parameters, which another module, the encoder, reads."""

    name: ClassVar[str] = "query_table"
    title: ClassVar[str] = "Table of queries"
    source: ClassVar[str] = "Wei et al. 2026, DeepSeek-OCR 2, section 3; DeepseekOcr2VisionModel"

    rows: int
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        owned, table = self.rows * self.width, Matrix(self.rows, self.width, kind="Embedding")
        return LayerCosts(params=owned, weight_bytes=owned * self.item_bytes, matrices=(table,), intermediate_bytes=0)


@layer
class QueriesBehindFeatures:
    """Concatenates the features of each view with the queries to [views, features + queries, width], no FLOPs.

    Inputs are the features, views x features x width elements. The queries are a parameter, read once for all views.
    The output is the concatenation.
    """

    name: ClassVar[str] = "queries_behind_features"
    title: ClassVar[str] = "Queries after the features of a view"
    source: ClassVar[str] = "Wei et al. 2026, DeepSeek-OCR 2, section 3; DeepseekOcr2VisionModel.forward"

    views: Size
    features: Size
    queries: Size
    width: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        scale = self.width * self.item_bytes
        return LayerCosts(
            weight_read_bytes=self.queries * scale,
            input_bytes=self.views * self.features * scale,
            output_bytes=self.views * (self.features + self.queries) * scale,
            intermediate_bytes=0,
        )


@layer
class WrittenMask:
    """Conversion of a boolean mask to an additive one: [views, tokens, tokens], 0 where a token may attend.

    No FLOPs: no floating-point input, views x tokens² elements of output. Unfused, the minimum of the dtype is written
    and read once.
    """

    name: ClassVar[str] = "written_mask"
    title: ClassVar[str] = "Mask as numbers"
    source: ClassVar[str] = "transformers.masking_utils.eager_mask"

    views: Size
    tokens: Size
    item_bytes: Size

    def costs(self) -> LayerCosts:
        return LayerCosts(
            output_bytes=self.views * self.tokens**2 * self.item_bytes, intermediate_bytes=2 * self.item_bytes
        )


def view_tapes(
    structure: PageStructure, view: View, config: Ocr2Config, count: int, side: int, *, wide: bool
) -> dict[str, MemoryTape]:
    """Return the memory tapes of towers and projector on ``count`` views of ``side`` pixels, by stage.

    Args:
        wide: whether the dtype of the run is float32.

    Branches: products of one view, or of one head, copy nothing; shared heads are repeated.

    Source: ``DeepseekOcr2VisionModel``, ``DeepseekOcr2VisionEncoder``; ``transformers.masking_utils``:
    ``create_causal_mask`` with the sequences of blocks, ``sdpa_mask`` and ``eager_mask``.
    """
    n, b, width, queries = sym("n"), sym("b"), sym("encoder_hidden"), sym("Q")
    features, eager = (sym("H") / (4 * sym("sam_patch"))) ** 2, structure.attention == "eager"
    encoder = config.encoder
    branches = CopyBranches(
        one_sequence=count == 1,
        one_token=False,
        one_head=encoder.heads == 1,
        shared=encoder.kv_heads < encoder.heads,
        one_shared=encoder.kv_heads == 1 < encoder.heads,
        wide=wide,
        wide_heads=encoder.head_dim > 256,
    )
    call = StackCall(n, features + queries, b)
    made = DecoderTape(call, branches)
    tape, tokens, rows = made.tape, call.tokens, call.rows
    x = tape.make(rows * width * b, tape.give(n * features * width * b))
    positions, blocks = tape.make(INT64 * tokens), tape.make(INT64 * rows)
    batch = tape.make(INT64 * n)
    places = [tape.make(INT64 * tokens, tape.make(INT64 * tokens)) for _ in range(2)]
    nothing = tape.make(1, places[0])
    causal = tape.make(tokens**2, nothing, tape.make(tokens**2, *places))
    of_rows, of_columns = (tape.make(INT64 * rows, blocks, batch, place) for place in places)
    same = tape.make(rows * tokens, of_rows, of_columns)
    same = tape.make(rows * tokens, same, tape.make(rows, of_rows))
    mask = tape.make(rows * tokens, causal, same)
    if eager:
        zero, least = tape.make(b), tape.make(b)
        mask = tape.make(rows * tokens * b, mask, zero, least)
    tape.keep(made.encode(_encoder_layer(eager=eager), x, positions, mask, layers=encoder.layers))
    projector = LayerTape(call, branches)
    projector.tape.keep(projector.sequence(_projector(), projector.tape.give(n * queries * width * b)))
    sam = sam_tape(structure, view, config.sam, side, count, wide=wide)
    return {"sam": sam, "encoder": tape, "projector": projector.tape}


def glue_tape(structure: PageStructure) -> MemoryTape:
    """Return the memory tape of the operators that put image tokens into the prompt.

    Branches: a page has crops if it has a second view.
    """
    pages = structure.pages
    if len(structure.views) == 1:
        return page_glue_tape(pages, (pages * sym("Q_g"),), ((),))
    crops = pages * sym("grid_w") * sym("grid_h") * sym("Q_c")
    return page_glue_tape(pages, (pages * sym("Q_g"), crops), ((), ()))


def _encoder_layer(*, eager: bool) -> TransformerLayer:
    """Return a layer of the encoder on n views of H x H pixels with Q queries.

    A query attends to all features and to the queries up to itself; features attend to each other. A mask restricts
    the scores, all of which are computed. The mask is boolean, or additive for eager attention. Only the outputs of the
    queries are used, as a view of all outputs.

    Source: Wei et al. 2026, DeepSeek-OCR 2; Yang et al. 2024, Qwen2; ``DeepseekOcr2VisionEncoder`` (transformers).
    """
    width, head_dim = sym("encoder_hidden"), sym("encoder_head_dim")
    features, queries = (sym("H") / (4 * sym("sam_patch"))) ** 2, sym("Q")
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
    return TransformerLayer(width, attention, mlp)


def _encoder_parts(layers: int, *, eager: bool) -> tuple[ModulePart, ...]:
    """Return all module parts of the encoder on n views of H x H pixels with Q queries; see :func:`_encoder_layer`."""
    n, b, width, head_dim = sym("n"), sym("b"), sym("encoder_hidden"), sym("encoder_head_dim")
    features, queries = (sym("H") / (4 * sym("sam_patch"))) ** 2, sym("Q")
    call = StackCall(n, features + queries, b)
    stack = _encoder_layer(eager=eager).parts("encoder.layer", call)
    return (
        ModulePart("vision", (QueriesBehindFeatures(n, features, queries, width, b),)),
        ModulePart("vision.queries_small", (QueryTable(SMALL, width, b),), called=False),
        ModulePart("vision.queries_large", (QueryTable(LARGE, width, b),), called=False),
        ModulePart("encoder", (WrittenMask(n, call.tokens, b),)) if eager else ModulePart("encoder"),
        ModulePart("encoder.rotary", (RotaryTable(call.tokens, head_dim, b),)),
        *(part for i in range(layers) for part in in_layer(i, stack)),
        ModulePart("encoder.norm", (RmsNorm(call.rows, width, b),)),
    )


@layer
class ViewsInPrompt:
    """Concatenates the tokens of the views of a page and a separator, and writes them into the prompt.

    This only moves data: no FLOPs. Inputs are the tokens of all views (pages tokens hidden) and the embedded prompts
    (rows hidden). Outputs are the prompts with the pages (rows hidden) and the concatenated tokens with their
    separators, which the model also returns (pages (tokens + 1) hidden). The separator has hidden parameters.

    Unfused, for every page: its views and the separator are joined, then all pages with each other, and the result is
    written into the prompt; the separator is read for every page.
    """

    name: ClassVar[str] = "views_in_prompt"
    title: ClassVar[str] = "Tokens of all views into the prompt"
    source: ClassVar[str] = "DeepseekOcr2Model.get_image_features and forward (transformers)"

    rows: Size
    """Number of tokens of all prompts."""
    hidden: Size
    item_bytes: Size
    tokens: Size = 0
    """Number of tokens of all views of a page; 0 for a prompt without a page, in which case nothing runs."""
    pages: Size = 1

    def costs(self) -> LayerCosts:
        owned = scale = self.hidden * self.item_bytes
        if self.tokens == 0:
            return LayerCosts(params=self.hidden, weight_bytes=owned, intermediate_bytes=0)
        joined = self.tokens + 1
        return LayerCosts(
            params=self.hidden,
            weight_bytes=owned,
            weight_read_bytes=owned,
            input_bytes=scale * (self.pages * self.tokens + self.rows),
            output_bytes=scale * (self.rows + self.pages * joined),
            intermediate_bytes=scale * self.pages * (3 * joined + 1) - owned,
        )


_OWN: Final[dict[str, tuple[str, str]]] = {
    "Q": ("Q", "queries of a view"),
    "Q_g": ("Q_g", "queries of the global view"),
    "Q_c": ("Q_c", "queries of a crop"),
    "encoder_hidden": ("h_{enc}", "width of the encoder"),
    "encoder_heads": ("a_{enc}", "attention heads of the encoder"),
    "encoder_kv_heads": ("a_{enc,kv}", "key/value heads of the encoder"),
    "encoder_head_dim": ("d_{enc}", "width of one head of the encoder"),
    "encoder_intermediate": ("m_{enc}", "inner width of the encoder's MLPs"),
    "encoder_layers": (r"\\ell_{enc}", "layers of the encoder"),
}


SYMBOLS: Final = page_symbols(_OWN)
"""Typesetting and meaning of every symbol."""
