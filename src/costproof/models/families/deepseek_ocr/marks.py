"""What the callgraph of a run tells beside calls: the images that came in, their crops, the depth of the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from costproof.models.specs import Mark


def vision_inputs(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int | tuple[int, ...]]:
    """Images of a forward, and the crops of each with their grid; nothing without images."""
    views = kwargs.get("pixel_values")
    if views is None:
        return {}
    crops = kwargs.get("num_local_patches") or (0,) * int(views.shape[0])
    return images_in(crops, kwargs.get("patches_grid") or [(0, 0)] * len(crops))


def images_in(crops: Sequence[int], grids: Sequence[Sequence[int]]) -> dict[str, int | tuple[int, ...]]:
    """``{"images": 2, "crops": (4, 4), "columns": (2, 4), "rows": (2, 1)}``; 0 for an image that is not cropped.

    Args:
        crops: how many came in, for each image.
        grids: columns and rows that the model is told they lie in.
    """
    columns, rows = (tuple(int(g[i]) if c else 0 for c, g in zip(crops, grids, strict=True)) for i in range(2))
    return {"images": len(crops), "crops": tuple(int(c) for c in crops), "columns": columns, "rows": rows}


VISION_INPUTS: Final = Mark("vision_inputs", "", vision_inputs)
"""The mark of transformers' own classes."""
