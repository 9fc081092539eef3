"""Models of torchvision, timm and diffusers: the page that counts them, held against what others say of them."""

from __future__ import annotations

import os
import re

import pytest

from tests.support.vision_packages import FOLDER, PAGE, run


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not (FOLDER / "ready").exists() and not os.environ.get("CI"):
        pytest.skip("torchvision, timm and diffusers could not be installed")


@pytest.mark.parametrize(
    ("what", "examples", "unpublished"),
    [
        # 3 lines of preparation, 3 of torchvision's first, 10 of its others, 7 of timm, 4 and 4 of diffusers.
        pytest.param("whole-page", 3 + 1 + 2 + 2 + 8 + 7 + 4 + 4, 8, marks=pytest.mark.thorough),
        # One of torchvision, one of timm, two of diffusers.
        ("page", 3 + 1 + 2 + 1 + 2 + 4 + 4, 3),
    ],
)
def test_the_page_counts_them_exactly_and_as_torchvision_and_the_counter_of_torch_do(
    what: str, examples: int, unpublished: int
) -> None:
    """Those that torchvision does not publish have the FLOPs of torch's counter; one process, for its imports."""
    done = run(what)
    assert done.returncode == 0, done.stdout + done.stderr
    number, *counted = done.stdout.splitlines()
    assert number == f"{examples} examples"
    said = re.findall(r"\('exact', (\d+)\)", PAGE.read_text(encoding="utf-8"))
    found = dict(line.rsplit(" ", 1) for line in counted)
    assert len(found) == unpublished
    assert {name: flops for name, flops in found.items() if flops not in said} == {}
