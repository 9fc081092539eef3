"""The symbols of models of images and text: how they are typeset and what they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS, VISION_SYMBOLS
from costproof.ledger.capture import SymbolDoc

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
"""Of a run and of a configuration."""
