"""The grid decision against transformers' own source, and reading of image headers."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costproof.ledger.errors import BadInput
from costproof.models.pages.page import choose_grid, image_sides


def _original() -> Callable[[tuple[int, int], tuple[int, int], int, int], tuple[int, int]]:
    """``get_optimal_tiled_canvas`` cut out of its file, which as a whole needs torchvision."""
    package = importlib.util.find_spec("transformers")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "models/unlimited_ocr/image_processing_unlimited_ocr.py"
    names = ("get_all_supported_aspect_ratios", "get_optimal_tiled_canvas")
    body: list[ast.stmt] = [
        n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef) and n.name in names
    ]
    assert len(body) == 2
    scope: dict[str, Any] = {"lru_cache": lru_cache}
    exec(compile(ast.Module(body, []), str(file), "exec"), scope)
    function: Callable[[tuple[int, int], tuple[int, int], int, int], tuple[int, int]] = scope[names[1]]
    return function


ORIGINAL = _original()


@given(
    width=st.integers(1, 6000),
    height=st.integers(1, 6000),
    size=st.sampled_from((640, 1024)),
    most=st.sampled_from((6, 9, 32)),
)
def test_the_grid_is_the_originals(width: int, height: int, size: int, most: int) -> None:
    grid = choose_grid(width, height, size, most=most)
    if max(width, height) <= size:
        assert grid is None
    else:
        assert grid == ORIGINAL((height, width), (size, size), 2, most)


@pytest.mark.parametrize(
    ("width", "height", "grid"),
    [
        # A4 at 150 dpi: 1240/1754 = 0.707. 2/3 = 0.667 is nearest among 2 to 9 crops (3/4 needs 12).
        (1240, 1754, (2, 3)),
        # A square: 2x2 (4 crops) and 3x3 (9 crops) are equally close. 2x2 comes first; 3x3 takes over
        # when the page has more than half of 9 * 640 * 640 = 3,686,400 pixels: from 1358 pixels a side.
        (1357, 1357, (2, 2)),
        (1358, 1358, (3, 3)),
        # Both sides within a crop: no crops; one pixel more on one side: crops.
        (640, 640, None),
        (640, 641, (2, 2)),
        # A strip.
        (9000, 1000, (9, 1)),
    ],
)
def test_grids_by_hand(width: int, height: int, grid: tuple[int, int] | None) -> None:
    assert choose_grid(width, height, 640) == grid


def test_half_of_nine_crops() -> None:
    """1357 and 1358 in the table above are right: the bound lies between them."""
    assert 1357 * 1357 <= 9 * 640 * 640 // 2 < 1358 * 1358


@pytest.mark.parametrize("sides", [(0, 10), (10, 0), (-1, 5)])
def test_a_page_without_pixels(sides: tuple[int, int]) -> None:
    with pytest.raises(BadInput, match="has no pixels"):
        choose_grid(*sides, 640)


def test_sides_come_from_the_header_as_shown(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    page = image.new("L", (30, 50))
    page.save(tmp_path / "page.png")
    assert image_sides(tmp_path / "page.png") == (30, 50)
    exif = image.Exif()
    exif[0x0112] = 6  # turned by a quarter: shown as 50 wide and 30 high
    page.save(tmp_path / "turned.jpg", exif=exif)
    assert image_sides(tmp_path / "turned.jpg") == (50, 30)


def test_what_is_no_image(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(BadInput, match="not an image"):
        image_sides(tmp_path / "text.png")
    (tmp_path / "empty.png").write_bytes(b"")
    with pytest.raises(BadInput, match="not an image"):
        image_sides(tmp_path / "empty.png")
    # A PNG whose header was cut short.
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00")
    with pytest.raises(BadInput, match="image"):
        image_sides(tmp_path / "cut.png")
    with pytest.raises(BadInput, match="cannot read the image"):
        image_sides(tmp_path / "missing.png")
    with pytest.raises(BadInput, match="not a file"):
        image_sides(tmp_path)


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(BadInput) as caught:
        image_sides(Path("page.png"))
    assert caught.value.fix is not None
    assert "pillow" in caught.value.fix
