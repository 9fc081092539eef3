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

_CONFIG: Final[dict[str, tuple[str, str]]] = {
    "in_channels": ("c_{in}", "channels of the image"),
    "sam_hidden": ("h_{sam}", "width of the SAM encoder"),
    "sam_heads": ("a_{sam}", "attention heads of the SAM encoder"),
    "sam_head_dim": ("d_{sam}", "width of one head of the SAM encoder"),
    "sam_mlp": ("m_{sam}", "inner width of the SAM perceptrons"),
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
    "clip_mlp": ("m_{clip}", "inner width of the CLIP perceptrons"),
    "clip_layers": (r"\ell_{clip}", "layers of the CLIP encoder"),
    "clip_positions": ("T_{clip}", "entries of CLIP's position table, class token included"),
    "clip_patch": ("p_{clip}", "side in pixels of a patch of the patch embedding that CLIP holds"),
    "text_hidden": ("h", "width of the decoder"),
    "text_heads": ("a", "query heads of the decoder"),
    "text_kv_heads": ("a_{kv}", "key/value heads of the decoder"),
    "text_head_dim": ("d", "width of one head of the decoder"),
    "text_intermediate": ("m", "inner width of the dense perceptron"),
    "text_layers": (r"\ell", "layers of the decoder"),
    "text_dense": (r"\ell_{d}", "decoder layers with a dense perceptron"),
    "text_experts": ("E", "routed experts per layer"),
    "text_topk": ("k", "routed experts per token"),
    "text_moe": ("m_{E}", "inner width of one expert"),
    "text_shared": ("s", "shared experts per layer"),
    "text_vocab": ("v", "entries of the vocabulary"),
}

CONFIG_SYMBOLS: Final[dict[str, SymbolDoc]] = {name: SymbolDoc(*doc) for name, doc in _CONFIG.items()}
