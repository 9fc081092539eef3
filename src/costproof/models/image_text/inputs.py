"""Images of a workload, and the symbols of models of images and text."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS, VISION_SYMBOLS
from costproof.ledger.capture import SymbolDoc
from costproof.ledger.plural import plural
from costproof.ledger.workload import SettingValue, Workload
from costproof.models.encoding.images import SIZE

IMAGES: Final = "images"
CALL: Final = "images"
"""The invocation of a tower in a run: one call on all images."""


def images_of(workload: Workload) -> int:
    """Return the number of images in each prompt."""
    found = workload.inputs.get(IMAGES, 0)
    assert isinstance(found, int)
    return found


def with_images(workload: Workload, count: int, side: int = 0) -> Workload:
    """Return the workload with ``count`` images in each prompt; ``side`` in pixels if the size is a setting."""
    if not count:
        return replace(workload, inputs={}, what="text only")
    size = f" of {side} x {side}" if side else ""
    inputs: dict[str, SettingValue] = {IMAGES: count, **({SIZE: side} if side else {})}
    return replace(workload, inputs=inputs, what=f"{plural(count, 'image')}{size} in each prompt")


_TOWER: Final = {
    name: replace(doc, latex=f"{doc.latex}_{{v}}") for name, doc in VISION_SYMBOLS.items() if name.startswith("vision_")
}
SYMBOLS: Final[dict[str, SymbolDoc]] = {
    **RUN_SYMBOLS,
    **DECODER_SYMBOLS,
    **_TOWER,
    "S": SymbolDoc("S", "tokens of the prompt, image tokens included"),
    "n": SymbolDoc("n", "images in the batch"),
    "H": VISION_SYMBOLS["H"],
    "G": VISION_SYMBOLS["G"],
}
"""Typesetting and meaning of all symbols of a run and of a configuration."""
