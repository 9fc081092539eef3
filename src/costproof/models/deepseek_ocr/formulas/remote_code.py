"""DeepSeek-OCR as the vendor's remote code runs it: the same layers, composed and spelt its way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from costproof.analytic.compose import Part, invocation_nodes, stage_nodes
from costproof.analytic.linear import Linear
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.series import CONTEXT, STEPS, sum_over_steps
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas import sam, vendor_clip, vendor_decoder
from costproof.models.deepseek_ocr.formulas.native import STAGES
from costproof.models.deepseek_ocr.formulas.page_in_place import PageInPlace
from costproof.models.deepseek_ocr.formulas.structure import Structure, View

EMPTY_SIDE: Final = 64
"""Side of the empty views that a run without a page hands in, since the code looks at them first."""

_ANY_VIEW: Final = View("", sam_resampled=False, clip_resampled=False)


def vendor_ledger(structure: Structure, names: Mapping[str, str]) -> Ledger:
    """All stages in symbols: ``exprs`` filled, ``costs`` empty; one page or prompt (B = 1).

    Args:
        names: where the parts sit; see :mod:`costproof.models.deepseek_ocr.formulas.names`.
    """
    return Ledger("analytic", tuple(_nodes(structure, names)), tuple(METRICS), STAGES)


def _nodes(structure: Structure, names: Mapping[str, str]) -> Iterator[CostNode]:
    for stage in STAGES[:3]:
        yield from stage_nodes(stage, _tower(stage, structure, _ANY_VIEW), names)
        for view in structure.views:
            yield from invocation_nodes(stage, view.invocation, _tower(stage, structure, view), names)
    prompt = vendor_decoder.parts(structure, sym("S"), 0, _page(structure))
    yield from stage_nodes("prefill", prompt, names)
    yield from invocation_nodes("prefill", "prompt", prompt, names)
    nothing = PageInPlace(1, sym("text_hidden"), sym("b"), masked=False)
    step = vendor_decoder.parts(structure, 1, CONTEXT, nothing)
    yield from stage_nodes("decode", step, names)
    if structure.decode:
        yield from invocation_nodes("decode", "steps", step, names, calls=STEPS, summed=sum_over_steps)


def _tower(stage: str, structure: Structure, view: View) -> tuple[Part, ...]:
    if stage == "sam":
        return sam.parts(structure, view)
    if stage == "clip":
        return vendor_clip.parts(structure, view)
    width = sym("clip_hidden") + sym("sam_down2")
    tokens = sym("n") * (sym("H") / (4 * sym("sam_patch"))) ** 2
    linear = Linear(tokens, width, sym("text_hidden"), sym("b"))
    return (Part("projector"), Part("projector.linear", (linear,)))


def _page(structure: Structure) -> PageInPlace:
    """The prefill's own operators for the global view, or the crops and the global view, or no page."""
    channels, stride = sym("in_channels"), 4 * sym("sam_patch")
    base = PageInPlace(sym("S"), sym("text_hidden"), sym("b"), clip=sym("clip_hidden"), sam=sym("sam_down2"))
    if not structure.views:
        # The global view is empty, so the code asks no further.
        return PageInPlace(base.prompt, base.hidden, base.item_bytes, channels * EMPTY_SIDE**2)
    whole = channels * sym("H_g") ** 2
    features = (sym("H_g") / stride) ** 2
    pixels = 2 * whole  # without crops a page of zeros stands for them
    if len(structure.views) > 1:
        crops = sym("grid_w") * sym("grid_h")
        pixels = whole + crops * channels * sym("H_c") ** 2
        features += crops * (sym("H_c") / stride) ** 2
    return PageInPlace(base.prompt, base.hidden, base.item_bytes, pixels, features, base.clip, base.sam)
