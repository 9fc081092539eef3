"""What must be concrete before a formula can be written down: which layers there are, and of which kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from costproof.ledger.workload import Attention, Experts, Logits


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
    """Whether the grid of this view is no whole number of windows."""


@dataclass(frozen=True, slots=True)
class Spelling:
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


NATIVE_SPELLING: Final = Spelling()
VENDOR_SPELLING: Final = Spelling(False, False, True, False)
"""The vendor's ``deepencoder.py``."""


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
    """Leading layers with a dense perceptron; the others are mixtures of experts."""
    attention: Attention = "sdpa"
    experts: Experts = "grouped_mm"
    """Both kernels cost the same: see ``experts.Experts``."""
    logits: Logits = "all"
    decode: bool = True
    """Whether there are decode steps."""
    sam_activation: str = "gelu"
    clip_activation: str = "quick_gelu"
    text_activation: str = "silu"
    sam_qkv_bias: bool = True
    text_attention_bias: bool = False
    text_mlp_bias: bool = False
    router_groups: int = 0
    """Groups of group-limited routing; 0: the top k of all experts."""
    spelling: Spelling = NATIVE_SPELLING
