"""DeepSeek-OCR 2 as a whole: its stages, composed of layers, as one ledger of formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from costproof.algebra.symbols import sym
from costproof.analytic.compose import (
    ModulePart,
    StackCall,
    analytic_ledger,
    invocation_nodes,
    prefill_and_decode,
    stage_nodes,
)
from costproof.analytic.costs import Size
from costproof.analytic.linear import Linear
from costproof.ledger.node import CostNode, Ledger
from costproof.models.families.deepseek_ocr.formulas import decoder, sam
from costproof.models.families.deepseek_ocr.formulas.structure import Structure, View
from costproof.models.families.deepseek_ocr2.formulas import encoder
from costproof.models.families.deepseek_ocr2.formulas.names import NAMES
from costproof.models.families.deepseek_ocr2.formulas.prompt import ViewsInPrompt
from costproof.models.families.deepseek_ocr2.page import STAGES

_ANY_VIEW: Final = View("", sam_resampled=False, clip_resampled=False)
"""Parameters do not depend on the view."""


def ledger(structure: Structure, encoder_layers: int) -> Ledger:
    """All stages in symbols: ``exprs`` filled, ``costs`` empty.

    Source: Wei et al. 2026, DeepSeek-OCR 2: Visual Causal Flow; ``DeepseekOcr2ForConditionalGeneration``
    (transformers).

    Args:
        structure: of SAM, of the decoder, and of the run.
    """
    eager = structure.attention == "eager"

    def towers(view: View) -> dict[str, tuple[tuple[ModulePart, ...], Size]]:
        return {
            "sam": (sam.parts(structure, view), _border("sam")),
            "encoder": (encoder.parts(encoder_layers, eager=eager), _border("encoder")),
            "projector": (_projector(), _border("projector")),
        }

    def nodes() -> Iterator[CostNode]:
        for stage, (parts, _) in towers(_ANY_VIEW).items():
            yield from stage_nodes(stage, parts, NAMES)
        for view in structure.views:
            for stage, (parts, border) in towers(view).items():
                yield from invocation_nodes(stage, view.invocation, parts, NAMES, border=border)
        yield from prefill_and_decode(modules, NAMES, border=border_of, decode=structure.decode)

    def positions(call: StackCall) -> Size:
        return 1 if structure.logits == "last" else call.tokens

    def modules(call: StackCall) -> tuple[ModulePart, ...]:
        tokens = _tokens(structure) if call.past == 0 else 0
        glue = ViewsInPrompt(call.batch, call.tokens, sym("text_hidden"), call.item_bytes, tokens)
        return decoder.parts(structure, call, positions(call), glue)

    def border_of(call: StackCall) -> Size:
        elements = call.batch * positions(call) * sym("text_vocab")
        if eager:
            elements += call.batch * call.tokens * (call.past + call.tokens)
        if call.past == 0 and structure.views:
            elements += call.batch * (2 * _tokens(structure) + 1) * sym("text_hidden")
        return elements * call.item_bytes

    return analytic_ledger(nodes(), STAGES)


def _projector() -> tuple[ModulePart, ...]:
    """The projection of the queries' results."""
    n, b = sym("n"), sym("b")
    return (ModulePart("projector", (Linear(n * sym("Q"), sym("encoder_hidden"), sym("text_hidden"), b),)),)


def _border(stage: str) -> Size:
    """Bytes that a vision stage gets and returns, on n views of H x H pixels with Q queries.

    The encoder returns the results of all, of which those of the queries are a view.
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


def _tokens(structure: Structure) -> Size:
    """Tokens of all views of a page: Q_g of the global one, Q_c of each crop.

    Branches: a page has crops if it has a second view.
    """
    if not structure.views:
        return 0
    crops = sym("grid_w") * sym("grid_h") * sym("Q_c") if len(structure.views) > 1 else 0
    return sym("Q_g") + crops
