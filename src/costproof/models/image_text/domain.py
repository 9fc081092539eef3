"""The domain of a proof about an image-text model: prompts with and without images, random configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from costproof.ledger.workload import Workload
from costproof.models.decoding.domain import CONFIG, INDEPENDENT
from costproof.models.encoding.domain import IMAGES, PATCHES, Domain, Parameters
from costproof.models.encoding.images import side_of
from costproof.models.image_text.layout import with_images

_TOWER: Final = ("vision_labels", "vision_pooled", "G", "rest", "B", "b")
"""Parameters of an encoder of images that are not drawn for a tower."""
_OF_PATCHES: Final = ("vision_heads", "vision_head_quarters", "vision_intermediate", "patch", "frames", "channels")

_NOT_VARIED: Final = ("kernels other than sdpa and eager", "padded prompts")
_PROMPT: Final[Mapping[str, range]] = {
    "text_tokens": range(3, 41),
    "last": range(2),
    "images": range(1, 4),
    "B": range(1, 9),
    "P": range(1, 65),
    "b": range(2, 6, 2),
}
IMAGES_AND_TEXT: Final = Parameters(
    {
        **{name: values for name, values in IMAGES.ranges.items() if name not in _TOWER},
        **CONFIG,
        **_PROMPT,
        "whole": range(2),
    },
    {
        "vision_hidden": IMAGES.independent["vision_hidden"],
        "vision_positions": IMAGES.independent["vision_positions"],
        **INDEPENDENT,
        "G": "vision_grid",
        "H": "vision_patch*vision_grid",
        "n": "B*images",
        "S": "text_tokens + images*(vision_grid**2 + whole)",
    },
    (*_NOT_VARIED, "images of another size than the tower's"),
)
"""Parameters of a model whose image features are the patches of a tower, with or without the class token."""

PATCHES_AND_TEXT: Final = Parameters(
    {
        **{name: values for name, values in PATCHES.ranges.items() if name in _OF_PATCHES},
        **{name: values for name, values in CONFIG.items() if name != "text_share"},
        **_PROMPT,
        "text_head_halves": range(3, 21),
        "vision_merge": range(1, 4),
        "vision_window": range(1, 5),
        "U": range(1, 9),
    },
    {
        "vision_head_dim": PATCHES.independent["vision_head_dim"],
        "vision_hidden": PATCHES.independent["vision_hidden"],
        "vision_volume": "channels*frames*patch**2",
        **INDEPENDENT,
        "text_hidden": "2*text_kv_heads*text_groups*text_head_halves",
        "vision_out": "2*text_kv_heads*text_groups*text_head_halves",
        "n": "B*images",
        "S": "text_tokens + images*U**2",
    },
    (*_NOT_VARIED, "images that are not square"),
)
"""Parameters of a model that merges neighbouring patches of an image of any size; heads share the width."""


def domain(default: Workload) -> Domain:
    """Return the domain of the proof: the default workload, eager attention with several images, and text only."""
    several = replace(with_images(default, 2), name="images, eager, last logits", new_tokens=4)
    several = replace(several, dtype="float32", attention="eager", logits="last")
    return Domain((default, several, replace(with_images(default, 0), name="text")), IMAGES_AND_TEXT)


def domain_in_patches(default: Workload, step: int) -> Domain:
    """Return the domain of a proof about a model with a tower on patches: images of two sizes, and text only.

    Args:
        step: side of a token in pixels.
    """
    small = replace(with_images(default, 2, step), name="images of a token, eager", new_tokens=4)
    small = replace(small, dtype="float32", attention="eager", logits="last")
    runs = (default, small, replace(with_images(default, 0), name="text"))
    return Domain(runs, PATCHES_AND_TEXT, (step, side_of(default)))
