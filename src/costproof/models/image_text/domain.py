"""What a proof about a model of images and text ranges over: prompts with images and without, random configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.ledger.workload import Workload
from costproof.models.decoding.domain import CONFIG, INDEPENDENT
from costproof.models.encoding.domain import IMAGES, Domain, Parameters
from costproof.models.image_text.inputs import with_images

_TOWER: Final = ("vision_labels", "vision_pooled", "G", "rest", "B", "b")
"""What is not drawn here of an encoder of images alone."""

IMAGES_AND_TEXT: Final = Parameters(
    {
        **{name: values for name, values in IMAGES.ranges.items() if name not in _TOWER},
        **CONFIG,
        "text_tokens": range(1, 41),
        "images": range(1, 4),
        "whole": range(2),
        "B": range(1, 9),
        "P": range(1, 65),
        "b": range(2, 6, 2),
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
    ("kernels other than sdpa and eager", "images of another size than the tower's", "padded prompts"),
)
"""Of a decoder whose prompts have images; the features of an image are its patches, or these and the class token."""


def domain(usual: Workload) -> Domain:
    """The usual run, eager with several images, and text alone; random sizes."""
    several = replace(with_images(usual, 2), name="images, eager, last logits", new_tokens=4)
    several = replace(several, dtype="float32", attention="eager", logits="last")
    return Domain((usual, several, replace(with_images(usual, 0), name="text")), IMAGES_AND_TEXT)
