"""What the callgraph of a run tells beside calls: how many images and crops came in, how deep the decoder is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costproof.models.target import Mark


def vision_inputs(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Images of a forward and crops of each: ``{"images": 2, "crops": (4, 4)}``; nothing without images."""
    views = kwargs.get("pixel_values")
    if views is None:
        return {}
    images = int(views.shape[0])
    crops = kwargs.get("num_local_patches")
    return {"images": images, "crops": tuple(int(c) for c in crops) if crops is not None else (0,) * images}


def llm_stack(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Layers of the decoder, and the positions that pass them: ``{"layers": 12, "positions": 703}``."""
    found = {"layers": len(module.layers)}
    inputs = kwargs.get("inputs_embeds")
    inputs = kwargs.get("input_ids") if inputs is None else inputs
    if inputs is not None:
        found["positions"] = int(inputs.shape[1])
    return found


NATIVE: Final = (
    Mark("vision_inputs", "", vision_inputs),
    Mark("llm_stack", "model.language_model", llm_stack),
)
"""The marks of transformers' own classes."""
