"""The symbols of DeepSeek-OCR's own: how they are typeset and what they mean."""

from __future__ import annotations

from typing import Final

from costproof.analytic.symbols import DECODER_SYMBOLS, RUN_SYMBOLS
from costproof.ledger.capture import SymbolDoc

_OWN: Final[dict[str, tuple[str, str]]] = {
    "n": ("n", "views in the invocation: one per page, or all crops"),
    "H": ("H", "side of a view in pixels"),
    "H_g": ("H_g", "side of the global view in pixels"),
    "H_c": ("H_c", "side of a crop in pixels"),
    "grid_w": ("g_w", "columns of the crop grid"),
    "grid_h": ("g_h", "rows of the crop grid"),
    "S": ("S", "tokens of the prompt, vision tokens included"),
    "V": ("V", "vision tokens per sequence"),
    "in_channels": ("c_{in}", "channels of the image"),
    "sam_hidden": ("h_{sam}", "width of the SAM encoder"),
    "sam_heads": ("a_{sam}", "attention heads of the SAM encoder"),
    "sam_head_dim": ("d_{sam}", "width of one head of the SAM encoder"),
    "sam_mlp": ("m_{sam}", "inner width of the SAM MLPs"),
    "sam_layers": (r"\ell_{sam}", "layers of the SAM encoder"),
    "sam_window": ("w_{sam}", "side of a SAM attention window in patches"),
    "sam_patch": ("p_{sam}", "side of a SAM patch in pixels"),
    "sam_image": ("I_{sam}", "side in pixels of the view that the SAM position tables are made for"),
    "sam_out": ("o_{sam}", "channels of the SAM neck"),
    "sam_down1": ("d_{1}", "channels of the first downsampling convolution"),
    "sam_down2": ("d_{2}", "channels of the second downsampling convolution"),
    "clip_hidden": ("h_{clip}", "width of the CLIP encoder"),
    "clip_heads": ("a_{clip}", "attention heads of the CLIP encoder"),
    "clip_head_dim": ("d_{clip}", "width of one head of the CLIP encoder"),
    "clip_mlp": ("m_{clip}", "inner width of the CLIP MLPs"),
    "clip_layers": (r"\ell_{clip}", "layers of the CLIP encoder"),
    "clip_positions": ("T_{clip}", "entries of CLIP's position table, class token included"),
    "clip_patch": ("p_{clip}", "side in pixels of a patch of the patch embedding that CLIP holds"),
}


def symbol_docs() -> dict[str, SymbolDoc]:
    """Every symbol of a run and of a configuration."""
    return {**RUN_SYMBOLS, **DECODER_SYMBOLS, **{name: SymbolDoc(*doc) for name, doc in _OWN.items()}}
