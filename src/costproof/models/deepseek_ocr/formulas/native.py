"""DeepSeek-OCR as a whole: its stages, composed of layers, as one ledger of formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from costproof.analytic.compose import Part, invocation_nodes, stage_nodes
from costproof.ledger.metrics import METRICS
from costproof.ledger.node import CostNode, Ledger
from costproof.ledger.series import CONTEXT, STEPS, sum_over_steps
from costproof.ledger.symbols import sym
from costproof.models.deepseek_ocr.formulas import clip, decoder, projector, sam
from costproof.models.deepseek_ocr.formulas.image_tokens import ImageTokens
from costproof.models.deepseek_ocr.formulas.names import NATIVE_NAMES
from costproof.models.deepseek_ocr.formulas.structure import Structure, View

STAGES: Final = ("sam", "clip", "projector", "prefill", "decode")

_ANY_VIEW: Final = View("", sam_resampled=False, clip_resampled=False)
"""Parameters do not depend on the view."""


def ledger(structure: Structure, names: Mapping[str, str] = NATIVE_NAMES) -> Ledger:
    """All stages in symbols: ``exprs`` filled, ``costs`` empty.

    Decode nodes hold the sum over N steps at contexts P, P+1, ..., P+N-1.

    Args:
        names: where the parts sit in the implementation: see :mod:`costproof.models.deepseek_ocr.formulas.names`.
    """
    return Ledger(
        source="analytic",
        nodes=tuple(_nodes(structure, names)),
        metrics=tuple(METRICS),
        stages=STAGES,
    )


def _nodes(structure: Structure, names: Mapping[str, str]) -> Iterator[CostNode]:
    for stage in STAGES[:3]:
        yield from stage_nodes(stage, _tower(stage, structure, _ANY_VIEW), names)
        for view in structure.views:
            yield from invocation_nodes(stage, view.invocation, _tower(stage, structure, view), names)
    prompt = _prompt(structure)
    yield from stage_nodes("prefill", prompt, names)
    yield from invocation_nodes("prefill", "prompt", prompt, names)
    step = _step(structure)
    yield from stage_nodes("decode", step, names)
    if structure.decode:
        yield from invocation_nodes("decode", "steps", step, names, calls=STEPS, summed=sum_over_steps)


def _tower(stage: str, structure: Structure, view: View) -> tuple[Part, ...]:
    if stage == "sam":
        return sam.parts(structure, view)
    if stage == "clip":
        return clip.parts(structure, view)
    return projector.parts()


def _prompt(structure: Structure) -> tuple[Part, ...]:
    """The prefill: image tokens into the prompt, then the decoder on all of it."""
    tokens = sym("S")
    stride = 4 * sym("sam_patch")
    page, crops = len(structure.views) > 0, len(structure.views) > 1
    glue = ImageTokens(
        batch=sym("B"),
        prompt=tokens,
        hidden=sym("text_hidden"),
        item_bytes=sym("b"),
        grid=sym("H_g") / stride if page else 0,
        columns=sym("grid_w") if crops else 0,
        rows=sym("grid_h") if crops else 0,
        crop_grid=sym("H_c") / stride if crops else 0,
    )
    positions = tokens if structure.logits == "all" else 1
    return decoder.parts(structure, decoder.Call(tokens, past=0, positions=positions), glue)


def _step(structure: Structure) -> tuple[Part, ...]:
    """One decode step: one token per sequence, P tokens in the cache, no image."""
    glue = ImageTokens(batch=sym("B"), prompt=1, hidden=sym("text_hidden"), item_bytes=sym("b"), grid=0)
    return decoder.parts(structure, decoder.Call(tokens=1, past=CONTEXT, positions=1), glue)
