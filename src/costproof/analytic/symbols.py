"""Define the symbols that formulas of several models share, with their meaning and notation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from costproof.ledger.capture import SymbolDoc

RUN_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    "B": SymbolDoc("B", "sequences in the batch"),
    "S": SymbolDoc("S", "tokens of the prompt"),
    "L": SymbolDoc("L", "positions that lm_head maps"),
    "P": SymbolDoc("P", "tokens in the cache before the first decode step"),
    "N": SymbolDoc("N", "decode steps"),
    "b": SymbolDoc("b", "bytes per element of the run's dtype"),
}
"""Symbols of every run of a decoder."""


_OF_KIND: Final = {
    "R": ("R", "number"),
    "B": ("B", "sequences"),
    "S": (r"\sum S", "sum of new tokens"),
    "C": (r"\sum C", "sum of cached tokens"),
    "SS": (r"\sum S^2", "sum of squares of new tokens"),
    "SC": (r"\sum SC", "sum of new x cached tokens"),
    "CC": (r"\sum C^2", "sum of squares of cached tokens"),
}


def row_symbols(sizes: Mapping[str, int]) -> dict[str, SymbolDoc]:
    """Return the symbols of a batch of rows, without those of every run.

    Args:
        sizes: values of all symbols of the call.
    """
    found = {
        "B": SymbolDoc("B", "packed sequences, 1"),
        "S": SymbolDoc("S", "new tokens of all rows"),
        "L": SymbolDoc("L", "positions of all rows that lm_head maps"),
    }
    for symbol in sizes:
        name, _, kind = symbol.partition("_")
        if kind.isdecimal() and name in _OF_KIND:
            latex, meaning = _OF_KIND[name]
            found[symbol] = SymbolDoc(f"{latex}_{{{kind}}}", f"{meaning} of the rows of kind {kind}")
    return found


PAST_SYMBOLS: Final = {"C": SymbolDoc("C", "tokens in the cache before the prefill")}
"""Additional symbols of a decoder run whose prefill begins with a filled cache."""

MESH_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    "tp": SymbolDoc("t", "ranks that share the weights of each layer"),
    "ep": SymbolDoc("e", "ranks that share the experts of each layer"),
    "text_vocab_rank": SymbolDoc("v_r", "rows of the vocabulary that the rank holds"),
    "text_pairs_sent": SymbolDoc("n_s", "pairs of a token and an expert that the rank sends to others in a call"),
    "text_pairs_got": SymbolDoc("n_g", "pairs of a token and an expert that the rank gets from others in a call"),
    "text_experts_read": SymbolDoc("n_E", "experts of the rank that pairs may choose, step by step, in all steps"),
    "ep_sequences": SymbolDoc("B_e", "sequences of all ranks whose tokens the experts of the rank get"),
    "slice_tokens": SymbolDoc("n_t", "tokens of a call of which the rank sends the pairs, among those that it shares"),
    "ep_next": SymbolDoc("B_n", "sequences of the next of these ranks"),
    "cp": SymbolDoc("c", "ranks that share a sequence"),
    "cp_place": SymbolDoc("r", "place of the rank among those that share a sequence, from 1"),
    "cp_tokens": SymbolDoc("n_c", "tokens of a prompt that each rank that shares it keeps"),
    "fsdp": SymbolDoc("f", "ranks that store parts of the same parameters"),
    "fsdp_rank": SymbolDoc("r_f", "number of the rank among those that store parts of each parameter, from 0"),
}
"""Additional symbols of a decoder on one rank of a mesh."""


def rank_symbols(names: Iterable[str]) -> dict[str, SymbolDoc]:
    """Return the symbols of a rank, with those of single layers, if they are routed in different ways.

    Args:
        names: all symbols of the run.
    """
    found = dict(MESH_SYMBOLS)
    for name in names:
        of, _, layer = name.rpartition("_")
        if of in ("text_pairs_sent", "text_pairs_got", "text_experts_read"):
            letter = "E" if of == "text_experts_read" else of[11]
            latex, meaning = f"n_{{{letter},{layer}}}", f"{MESH_SYMBOLS[of].meaning}, in layer {layer} with experts"
            found[name] = SymbolDoc(latex, meaning)
    return found


DECODER_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    "text_hidden": SymbolDoc("h", "width of the decoder"),
    "text_heads": SymbolDoc("a", "query heads of the decoder"),
    "text_kv_heads": SymbolDoc("a_{kv}", "key/value heads of the decoder"),
    "text_head_dim": SymbolDoc("d", "width of one head of the decoder"),
    "text_intermediate": SymbolDoc("m", "inner width of the dense MLP"),
    "text_layers": SymbolDoc(r"\ell", "layers of the decoder"),
    "text_vocab": SymbolDoc("v", "entries of the vocabulary"),
    "text_positions": SymbolDoc("p", "entries of the table of learned positions"),
    "text_window": SymbolDoc("w", "keys that a query of a layer with a window sees"),
    "text_dense": SymbolDoc(r"\ell_{d}", "decoder layers with a dense MLP"),
    "text_experts": SymbolDoc("E", "routed experts per layer"),
    "text_topk": SymbolDoc("k", "routed experts per token"),
    "text_moe": SymbolDoc("m_{E}", "inner width of one expert"),
    "text_shared": SymbolDoc("s", "shared experts per layer"),
    "text_router_groups": SymbolDoc("G", "groups of routed experts per layer"),
    "text_q_rank": SymbolDoc("r_q", "width of a query's latent"),
    "text_kv_rank": SymbolDoc("r", "width of the latent of keys and values"),
    "text_nope": SymbolDoc("d_n", "width of the part of a head that is not rotated"),
    "text_rope": SymbolDoc("d_r", "width of the part of a head that is rotated"),
    "text_value": SymbolDoc("d_v", "width of a head's value"),
}
"""Symbols of a decoder's configuration."""

VISION_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    "B": SymbolDoc("B", "images in the batch"),
    "b": RUN_SYMBOLS["b"],
    "H": SymbolDoc("H", "side of an image in pixels"),
    "G": SymbolDoc("G", "patches along a side of an image"),
    "vision_hidden": SymbolDoc("h", "width of the encoder"),
    "vision_heads": SymbolDoc("a", "attention heads of the encoder"),
    "vision_head_dim": SymbolDoc("d", "width of one head of the encoder"),
    "vision_intermediate": SymbolDoc("m", "inner width of the MLP"),
    "vision_layers": SymbolDoc(r"\ell", "layers of the encoder"),
    "vision_positions": SymbolDoc("p", "entries of the table of learned positions"),
    "vision_patch": SymbolDoc("q", "side of a patch in pixels"),
    "vision_channels": SymbolDoc("c", "channels of an image"),
    "vision_labels": SymbolDoc("y", "classes that the classifier tells apart"),
    "vision_pooled": SymbolDoc("o", "width of the vector that stands for an image"),
}
"""Symbols of a run of an image encoder and of its configuration."""

TEXT_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    "B": RUN_SYMBOLS["B"],
    "S": SymbolDoc("S", "tokens of a sequence"),
    "b": RUN_SYMBOLS["b"],
    **{f"text_{x}": VISION_SYMBOLS[f"vision_{x}"] for x in ("hidden", "heads", "head_dim", "intermediate", "layers")},
    "text_labels": VISION_SYMBOLS["vision_labels"],
    **{f"text_{name}": DECODER_SYMBOLS[f"text_{name}"] for name in ("vocab", "positions")},
    "text_types": SymbolDoc("t", "kinds of segments"),
}
"""Symbols of a run of a text encoder and of its configuration."""

TWO_STACK_SYMBOLS: Final[dict[str, SymbolDoc]] = {
    **{name: RUN_SYMBOLS[name] for name in ("B", "P", "N", "b")},
    "S": SymbolDoc("S", "tokens that the encoder reads"),
    "text_hidden": SymbolDoc("h", "width of both stacks"),
    "text_heads": SymbolDoc("a", "attention heads"),
    "text_head_dim": SymbolDoc("d", "width of one head"),
    "text_intermediate": VISION_SYMBOLS["vision_intermediate"],
    "text_layers": VISION_SYMBOLS["vision_layers"],
    "text_decoder_layers": SymbolDoc(r"\ell_d", "layers of the decoder"),
    "text_vocab": DECODER_SYMBOLS["text_vocab"],
    "text_buckets": SymbolDoc("k", "buckets of distances"),
}
"""Symbols of a run of an encoder-decoder and of its configuration."""
