"""The images of a run, as a workload has them: so many in each prompt, as large as the tower takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from costproof.ledger.plural import plural
from costproof.ledger.workload import SettingValue, Workload
from costproof.models.encoding.images import SIZE

IMAGES: Final = "images"
CALL: Final = "images"
"""The one call of a tower in a run, on all images at once."""


def images_of(workload: Workload) -> int:
    """Images in each prompt."""
    found = workload.inputs.get(IMAGES, 0)
    assert isinstance(found, int)
    return found


def with_images(workload: Workload, count: int, side: int = 0) -> Workload:
    """The workload with so many images in each prompt; ``side``: of them in pixels, where that can be chosen."""
    if not count:
        return replace(workload, inputs={}, what="text only")
    size = f" of {side} x {side}" if side else ""
    inputs: dict[str, SettingValue] = {IMAGES: count, **({SIZE: side} if side else {})}
    return replace(workload, inputs=inputs, what=f"{plural(count, 'image')}{size} in each prompt")
