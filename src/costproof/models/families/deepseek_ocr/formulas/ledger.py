"""DeepSeek-OCR as a whole: its stages, composed of layers, as one ledger of formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from costproof.analytic.compose import (
    ModulePart,
    StackCall,
    analytic_ledger,
    invocation_nodes,
    prefill_and_decode,
    stage_nodes,
)
from costproof.analytic.costs import Size
from costproof.ledger.node import CostNode, Ledger
from costproof.models.families.deepseek_ocr.formulas import borders, clip, decoder, page, sam
from costproof.models.families.deepseek_ocr.formulas.names import NATIVE_NAMES
from costproof.models.families.deepseek_ocr.formulas.structure import Structure, View

_TOWERS: Final[dict[str, Callable[[Structure, View], tuple[ModulePart, ...]]]] = {
    "sam": sam.parts,
    "clip": clip.parts,
    "projector": lambda structure, _: page.projector(structure),
}

STAGES: Final = (*_TOWERS, "prefill", "decode")

_ANY_VIEW: Final = View("", sam_resampled=False, clip_resampled=False)
"""Parameters do not depend on the view."""


def ledger(structure: Structure, names: Mapping[str, str] = NATIVE_NAMES) -> Ledger:
    """All stages in symbols: ``exprs`` filled, ``costs`` empty.

    Decode nodes hold the sum over N steps at contexts P, P+1, ..., P+N-1.

    Args:
        names: role -> module path, see :mod:`costproof.models.families.deepseek_ocr.formulas.names`.
    """
    return analytic_ledger(_nodes(structure, names), STAGES)


def _nodes(structure: Structure, names: Mapping[str, str]) -> Iterator[CostNode]:
    for stage, parts in _TOWERS.items():
        border = borders.tower(stage)
        yield from stage_nodes(stage, parts(structure, _ANY_VIEW), names)
        for view in structure.views:
            yield from invocation_nodes(stage, view.invocation, parts(structure, view), names, border=border)

    def border_of(call: StackCall) -> Size:
        return borders.decoder(structure, call, _positions(structure, call))

    yield from prefill_and_decode(partial(_decoder, structure), names, border=border_of, decode=structure.decode)


def _decoder(structure: Structure, call: StackCall) -> tuple[ModulePart, ...]:
    """One call: image tokens into the prompt, if any, then the decoder on all of it."""
    return decoder.parts(structure, call, _positions(structure, call), page.glue(structure, call.tokens))


def _positions(structure: Structure, call: StackCall) -> Size:
    """Positions per sequence that get logits."""
    return 1 if structure.logits == "last" and not structure.remote else call.tokens
