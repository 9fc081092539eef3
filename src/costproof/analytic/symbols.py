"""The symbols of the formulas: what they mean and how they are typeset."""

from __future__ import annotations

from typing import Final

from costproof.ledger.capture import SymbolDoc

WORKLOAD_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    "B": SymbolDoc("B", "sequences in the batch"),
    "n": SymbolDoc("n", "views in the invocation: one per page, or all crops"),
    "H": SymbolDoc("H", "side of a view in pixels"),
    "H_g": SymbolDoc("H_g", "side of the global view in pixels"),
    "H_c": SymbolDoc("H_c", "side of a crop in pixels"),
    "grid_w": SymbolDoc("g_w", "columns of the crop grid"),
    "grid_h": SymbolDoc("g_h", "rows of the crop grid"),
    "S": SymbolDoc("S", "tokens of the prompt, vision tokens included"),
    "V": SymbolDoc("V", "vision tokens per sequence"),
    "L": SymbolDoc("L", "positions that lm_head maps"),
    "P": SymbolDoc("P", "tokens in the cache before the first decode step"),
    "N": SymbolDoc("N", "decode steps"),
    "b": SymbolDoc("b", "bytes per element of the run's dtype"),
}
