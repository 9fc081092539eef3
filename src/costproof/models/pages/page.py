"""Describe a page image's geometry, the page of a workload, and the crop grid that real preprocessing chooses."""

from __future__ import annotations

import struct
import warnings
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Final, cast

from costproof.ledger.environment import advice
from costproof.ledger.errors import BadInput
from costproof.ledger.workload import Workload
from costproof.models.image_text.layout import images_of

MIN_CROPS: Final = 2
MAX_CROPS: Final = 9
"""Maximum number of crops in the paper and the vendor's code; the native default, 32, is for another checkpoint."""

_MOST_CHUNKS: Final = 100_000
_MOST_EXIF: Final = 65_536
_ORIENTATION: Final = 0x0112
"""EXIF tag of the orientation; values 5 to 8 mean that the image is stored rotated by 90 degrees."""


@dataclass(frozen=True, slots=True)
class Page:
    """Geometry of one page image."""

    base_size: int
    """Side of the global view, in pixels."""
    image_size: int
    """Side of one crop, in pixels (not used without a grid)."""
    grid: tuple[int, int] | None = None
    """Columns and rows of crops; ``None`` for a page without crops."""

    @property
    def crops(self) -> int:
        """Return the number of crops per page."""
        return self.grid[0] * self.grid[1] if self.grid else 0

    def __str__(self) -> str:
        crops = f", {self.grid[0]}x{self.grid[1]} crops of {self.image_size}" if self.grid else ""
        return f"global view {self.base_size}{crops}"


_FIELDS: Final = ("base_size", "image_size", "grid")


def page_of(workload: Workload) -> Page | None:
    """Return the page of a workload; ``None`` for a text-only run, which has no vision stages."""
    found = {field: workload.inputs[field] for field in _FIELDS if field in workload.inputs}
    return Page(**cast(dict[str, Any], found)) if found else None


def pages_of(workload: Workload) -> int:
    """Return the number of pages in a run: one per sequence, or for a batch of rows, the requested number."""
    return images_of(workload) if workload.rows else workload.batch


def prefill_name(workload: Workload) -> str:
    """Return the name of the prefill's run: ``page``, or ``prompt`` for text only."""
    return "page" if page_of(workload) else "prompt"


def with_page(workload: Workload, page: Page | None, **changes: Any) -> Workload:
    """Return the workload with this page (``None``: text only) and with other changed fields."""
    if page is None:
        return replace(workload, inputs={}, what="text only", **changes)
    inputs = {"base_size": page.base_size, "image_size": page.image_size}
    grid = {} if page.grid is None else {"grid": page.grid}
    return replace(workload, inputs={**inputs, **grid}, what=str(page), **changes)


def page_workload(name: str, page: Page | None, text_tokens: int, *more: Any, **settings: Any) -> Workload:
    """Return a workload with this page; ``more`` holds further fields of :class:`Workload` in order."""
    return with_page(Workload(name, text_tokens, *more, **settings), page)


def views(workload: Workload) -> tuple[tuple[str, int, int], ...]:
    """Return (invocation, number of views, side in pixels) of each kind of view, the global one first."""
    page = page_of(workload)
    if page is None:
        return ()
    count = pages_of(workload)
    crops = (("crops", count * page.crops, page.image_size),) if page.grid else ()
    return (("global", count, page.base_size), *crops)


def sides(workload: Workload) -> dict[int, tuple[str, ...]]:
    """Return the invocations with views of each side, by the side in pixels."""
    found: dict[int, tuple[str, ...]] = {}
    for call, _, side in views(workload):
        found[side] = (*found.get(side, ()), call)
    return found


def grids(most: int = MAX_CROPS) -> list[tuple[int, int]]:
    """Return all grids, (columns, rows), of :data:`MIN_CROPS` to ``most`` crops."""
    return [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if MIN_CROPS <= c * r <= most]


def choose_grid(width: int, height: int, image_size: int, *, most: int = MAX_CROPS) -> tuple[int, int] | None:
    """Return (columns, rows) of crops for a page of ``width`` x ``height`` pixels; ``None`` for no crops.

    The grid whose aspect ratio is closest to the page's wins. Of grids equally close, a later and
    larger one wins while the page has more than half the grid's pixels. Ratios are compared as
    floats, as the original does: its ties are ties of floats.

    Raises:
        BadInput: a side is not positive.
    """
    if width < 1 or height < 1:
        raise BadInput("the image has no pixels", where="--image", expected="positive sides", got=f"{width} x {height}")
    if width <= image_size and height <= image_size:
        return None
    ratio = width / height
    best, best_distance = (1, 1), float("inf")
    for columns, rows in sorted(grids(most), key=prod):
        distance = abs(ratio - columns / rows)
        crowded = 2 * width * height > image_size * image_size * columns * rows
        if distance < best_distance or (distance == best_distance and crowded):
            best, best_distance = (columns, rows), distance
    return best


def image_sides(path: Path) -> tuple[int, int]:
    """Return width and height in pixels of an image file as displayed, from its header.

    Raises:
        BadInput: Pillow is missing, the file cannot be read, or is not an image.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise BadInput(
            "reading an image needs Pillow", where="--image", fix=f"{advice('image')}, or give the grid: --grid 2x3"
        ) from error
    if path.exists() and not path.is_file():  # a pipe may never end
        raise BadInput("this is not a file", where=str(path), expected="an image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # no pixel is decoded
            with Image.open(path) as image:
                width, height = image.size
                if image.format == "PNG" and "exif" not in image.info:
                    exif = Image.Exif()
                    exif.load(_exif_behind_pixels(path))
                else:
                    exif = image.getexif()
                turned = exif.get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except UnidentifiedImageError as error:
        raise BadInput("this is not an image that Pillow can read", where=str(path)) from error
    except Image.DecompressionBombError as error:
        raise BadInput("this image is too large to be a page", where=str(path), got=str(error)) from error
    except (OSError, ValueError, SyntaxError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "a damaged header"
        raise BadInput("cannot read the image", where=str(path), got=reason) from error
    if width < 1 or height < 1:
        raise BadInput("the image has no pixels", where=str(path), got=f"{width} x {height}")
    return (height, width) if turned else (width, height)


def _exif_behind_pixels(path: Path) -> bytes:
    """Return the EXIF data that follow the pixels of a PNG file, without decoding the pixels."""
    with path.open("rb") as file:
        file.seek(8)
        for _ in range(_MOST_CHUNKS):
            head = file.read(8)
            if len(head) < 8:
                break
            length, kind = struct.unpack(">I4s", head)
            if kind == b"eXIf":
                return b"Exif\0\0" + file.read(min(length, _MOST_EXIF))
            file.seek(length + 4, 1)
    return b""
