"""The symbols of DeepSeek-OCR 2: how they are typeset and what they mean."""

from __future__ import annotations

from typing import Final

from costproof.ledger.capture import SymbolDoc
from costproof.models.families.deepseek_ocr.formulas.symbols import symbol_docs as first

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


def symbol_docs() -> dict[str, SymbolDoc]:
    """Every symbol of a run and of a configuration."""
    shared = {name: doc for name, doc in first().items() if not name.startswith("clip_")}
    return {**shared, **{name: SymbolDoc(*doc) for name, doc in _OWN.items()}}
