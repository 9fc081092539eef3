"""The size of the images that the processor beside a configuration makes: what its model really runs on."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Pixels per side, and the key that they are from."""

    side: int
    where: str


def image_size(path: Path) -> ImageSize | None:
    """Return the size that the processor beside a configuration makes of every square image.

    Args:
        path: the configuration.

    Returns:
        ``None`` if there is no processor, if its size is that of the image or of no square, or if it has none.

    Raises:
        BadInput: the file of the processor cannot be read.
    """
    for name in FILES:
        file = path.parent / name
        data = read_json(file, what="configuration of a processor") if file.is_file() else None
        for part, prefix in ((data, "$"), (data.get(_PART) if isinstance(data, dict) else None, f"$.{_PART}")):
            for key, side in _sides(part) if isinstance(part, dict) else ():
                return None if side is None else ImageSize(side, f"{prefix}.{key} in {name}")
    return None


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
