"""The conventions that a number was made under. Two numbers with different ones are not comparable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conventions:
    """One value per question that cost models answer differently."""

    unit: str = "flop"
    """``flop`` (a multiply-accumulate is 2) or ``mac`` (it is 1)."""
    causal: str = "full"
    """Scores counted in causal attention: ``full`` S_q x S_k, or ``triangle``."""
    logits: str = "all"
    expert_kernel: str = "grouped_mm"
    attention: str = "sdpa"
    mla: str = "none"
    dtype: str = "bfloat16"
    window_padding: str = "counted"
    """Padded positions of window attention are computed, so they count."""
    vector: str = "primitive"
    """One FLOP per element and primitive: see docs/conventions.md."""
    activations: str = "module-boundary"
    """Floating-point tensors that cross the border between a module's own operators and the rest."""


NOT_COUNTED: tuple[tuple[str, str], ...] = (
    (
        "element-wise work and activation bytes of integer and boolean tensors",
        "indices, masks and routing tables are not activations; products of integer matrices do count",
    ),
    ("data movement", "views, copies, padding, concatenation, casts and look-ups are 0 FLOP; look-ups count bytes"),
    ("framework overhead", "Python, dispatch, allocation, kernel launch"),
    ("host work", "image decoding, resizing and tokenising before the model, sampling and detokenising after it"),
    ("backward pass", "inference only"),
)
"""What no number here contains, with the reason."""
