"""The images of a run, as a workload has them: so many in each prompt, as large as the tower takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.ledger.workload import Workload

IMAGES: Final = "images"
STAGES: Final = ("vision", "projector", "prefill", "decode")
IMAGE_STAGES: Final = STAGES[:2]
CALL: Final = "images"
"""The one call of a tower in a run, on all images at once."""


def images_of(workload: Workload) -> int:
    """Images in each prompt."""
    found = workload.inputs.get(IMAGES, 0)
    assert isinstance(found, int)
    return found


def with_images(workload: Workload, count: int) -> Workload:
    """The workload with so many images in each prompt."""
    if not count:
        return replace(workload, inputs={}, what="text only")
    return replace(workload, inputs={IMAGES: count}, what=f"{count} image{'s' * (count > 1)} in each prompt")
