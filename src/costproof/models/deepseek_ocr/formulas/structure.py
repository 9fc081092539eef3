"""What must be concrete before a formula can be written down: which layers there are, and of which kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.ledger.workload import Attention, Logits


@dataclass(frozen=True, slots=True)
class View:
    """One call of the vision towers."""

    invocation: str
    """``global`` or ``crops``."""
    sam_resampled: bool
    """Whether SAM's position table is made for another grid than this view's."""
    clip_resampled: bool
    """Whether CLIP's position table is."""
    sam_padded: bool = True
    """Whether the grid of this view is not a whole number of windows."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How an implementation writes the same mathematics, where that changes what is counted.

    The defaults are transformers' own classes.
    """

    sam_pads_always: bool = True
    """Whether windows are padded (by nothing) even where they fit."""
    sam_resamples_always: bool = True
    """Whether tables of relative positions are resampled even to the length that they have."""
    sam_norms_written_out: bool = False
    """Whether the norms of the neck are written in primitives."""
    sam_downsample_module: bool = True
    """Whether a module of its own holds the two downsampling convolutions."""
    clip_holds_patches: bool = False
    """Whether CLIP owns a patch embedding, which never runs: SAM's features stand in its place."""
    clip_looks_positions_up: bool = False
    """Whether CLIP's positions are looked up whatever the grid, and resampled after."""
    clip_fused: bool = False
    """Whether CLIP has one projection for queries, keys and values, and its activation is not a module."""
    page_in_place: bool = False
    """Whether the decoder's model joins the towers' features itself and writes them into the prompt in place."""
    text_remote: bool = False
    """Whether the decoder makes a mask for every prompt, a rotary table per layer, and loops over its experts."""


TRANSFORMERS: Final = Variant()
VENDOR: Final = Variant(False, False, True, False, True, True, True, True, True)
"""The vendor's ``deepencoder.py`` and ``modeling_deepseekv2.py``."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of the model and of the run; every size stays a symbol.

    The defaults are the published DeepSeek-OCR, a prompt without a page.
    """

    views: tuple[View, ...] = ()
    """The global view first, then the crops, if any; empty for a text-only run."""
    sam_layers: int = 12
    sam_global_layers: tuple[int, ...] = (2, 5, 8, 11)
    clip_layers: int = 24
    text_layers: int = 12
    text_dense: int = 1
    """Leading layers with a dense MLP; the others are mixtures of experts."""
    attention: Attention = "sdpa"
    logits: Logits = "all"
    decode: bool = True
    """Whether there are decode steps."""
    variant: Variant = TRANSFORMERS
