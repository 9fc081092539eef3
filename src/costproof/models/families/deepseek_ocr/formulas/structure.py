"""What must be concrete before a formula can be written down: which layers there are, and of which kind."""

from __future__ import annotations

from dataclasses import dataclass

from costproof.ledger.workload import AttentionKind, ExpertKernel, Logits


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
    attention: AttentionKind = "sdpa"
    logits: Logits = "all"
    experts: ExpertKernel = "grouped_mm"
    decode: bool = True
    """Whether there are decode steps."""
    remote: bool = False
    """Whether the vendor's code runs in place of transformers' classes, which changes what is counted.

    SAM: no padding and no resampling where they do nothing; the norms of the neck written in primitives;
    no module around the downsampling. CLIP: one projection for queries, keys and values; an activation
    without a module of its own; positions looked up before they are resampled; a patch embedding that never runs.
    The page is written into the prompt in place. The decoder makes a mask for every prompt, a rotary
    table per layer, and loops over its experts.
    """
