"""The size of the images that the processor beside a configuration makes: what its model really runs on."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costproof.ledger.errors import BadInput
from costproof.ledger.files import read_json

FILES: Final = ("preprocessor_config.json", "processor_config.json")
"""Files beside a configuration, by the names of transformers; the second one has an object for each processor."""
_PART: Final = "image_processor"
_CROPS: Final = "do_center_crop"
_SIZES: Final = (("crop_size", (_CROPS,)), ("size", ("do_resize",)))
"""Keys of a size, the last step first -> the switches that turn the step off."""
_LARGEST: Final = 16384
_TOKEN: Final = {"patch_size": 14, "merge_size": 2}
"""Keys whose product is the side of a token, with the values of transformers' class."""


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Pixels per side, and the key that they are from."""

    side: int
    where: str


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """The range of pixels of an image within which a processor keeps its size, as those of Qwen2-VL do."""

    least: int
    most: int
    step: int
    """Pixels along a side that become one token: the sides of every image are rounded to multiples of it."""
    where: str
    """The key that the limit is from, and its file."""

    def fit(self, side: int) -> ImageSize:
        """Return the size that the processor gives a square image of a size."""
        nearest = max(round(side / self.step), 1)
        if (nearest * self.step) ** 2 > self.most:
            nearest = max(math.isqrt(self.most) // self.step, 1)
        elif (nearest * self.step) ** 2 < self.least:
            nearest = -(-(math.isqrt(max(self.least - 1, 0)) + 1) // self.step)
        return ImageSize(nearest * self.step, self.where)


def pixel_limits(path: Path) -> PixelLimits | None:
    """Return the limits of the processor beside a configuration; ``None``: it has none.

    Raises:
        BadInput: the file of the processor cannot be read.
    """
    for part, prefix, name in _parts(path):
        size = part.get("size")
        for given, least, most, inner in (
            (part, "min_pixels", "max_pixels", prefix),
            (size if isinstance(size, dict) else {}, "shortest_edge", "longest_edge", f"{prefix}.size"),
        ):
            low, high = (n if type(n := given.get(key)) is int and n > 0 else None for key in (least, most))
            # A longest edge beyond any side is a number of pixels, as of Qwen2-VL; below that it is an edge.
            if high is None or low is None or low > high or (given is size and high <= _LARGEST):
                continue
            patch, merge = (n if type(n := part.get(key)) is int and n > 0 else usual for key, usual in _TOKEN.items())
            if 0 < patch * merge <= _LARGEST and low <= _LARGEST**2:
                return PixelLimits(low, high, patch * merge, f"{inner}.{most} in {name}")
    return None


def image_size(path: Path) -> ImageSize | None:
    """Return the size that the processor beside a configuration makes of every square image.

    Args:
        path: the configuration.

    Returns:
        ``None`` if there is no processor, if its size is that of the image or of no square, or if it has none.

    Raises:
        BadInput: the file of the processor cannot be read.
    """
    for part, prefix, name in _parts(path):
        for key, side in _sides(part):
            return None if side is None else ImageSize(side, f"{prefix}.{key} in {name}")
    return None


def _parts(path: Path) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """Yield the objects with settings of images beside a configuration, with their place and the name of their file."""
    for name in FILES:
        file = path.parent / name
        data = read_json(file, what="configuration of a processor") if is_there(file) else None
        for part, prefix in ((data, "$"), (data.get(_PART) if isinstance(data, dict) else None, f"$.{_PART}")):
            if isinstance(part, dict):
                yield part, prefix, name


def is_there(file: Path) -> bool:
    """Return whether a file exists beside a configuration.

    Raises:
        BadInput: a dangling link, a FIFO, a device or a folder has its name; ignoring it would hide what it describes.
    """
    if os.path.lexists(file) and not file.is_file():
        got = "a link that leads nowhere" if file.is_symlink() and not file.exists() else "no regular file"
        raise BadInput("a file beside the configuration cannot be read", where=str(file), expected="a file", got=got)
    return file.is_file()


def unfit(images: ImageSize, expected: object, place: str) -> BadInput:
    """Return the error of a size that the model of a configuration does not run on.

    Args:
        expected: what it runs on.
        place: the configuration.
    """
    what, fix = (
        "the processor makes images of another size than the tower takes",
        "--image-size where the model has it, or change a file",
    )
    return BadInput(what, where=f"{images.where} beside {place}", expected=expected, got=images.side, fix=fix)


def _sides(part: Mapping[str, Any]) -> Iterator[tuple[str, int | None]]:
    """Yield each key of a size that is in use, the one that decides first, with its side."""
    for key, switches in _SIZES:
        if part.get(key) is not None and all(part.get(switch, True) is True for switch in switches):
            yield key, _side(part[key])


def _side(value: Any) -> int | None:
    """Return the side that a size gives a square image: of a number, of equal sides, or of the shortest edge alone."""
    if isinstance(value, dict):
        given = {key: n for key, n in value.items() if n is not None}
        sides = set(given.values()) if given.keys() in ({"height", "width"}, {"shortest_edge"}) else set()
        value = sides.pop() if len(sides) == 1 else None
    return value if type(value) is int and 0 < value <= _LARGEST else None
