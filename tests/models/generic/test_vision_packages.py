"""Models of torchvision, timm and diffusers: the page that counts them, held against what others say of them."""

from __future__ import annotations

import os
import re

import pytest

from tests.vision_packages import FOLDER, PAGE, run


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not (FOLDER / "ready").exists() and not os.environ.get("CI"):
        pytest.skip("torchvision, timm and diffusers could not be installed")


@pytest.mark.parametrize(
    ("what", "examples"),
    [
        # 3 lines of preparation, 3 of torchvision's first, 10 of its others, 7 of timm, 4 and 4 of diffusers.
        pytest.param("whole-page", 3 + 1 + 2 + 2 + 8 + 7 + 4 + 4, marks=pytest.mark.thorough),
        ("page", 3 + 1 + 2 + 2 + 2 + 2 + 4 + 4),
    ],
)
def test_the_page_counts_them_exactly_and_as_torchvision_publishes(what: str, examples: int) -> None:
    done = run(what)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-2]) == examples


def test_the_others_have_the_flops_of_the_counter_of_torch() -> None:
    said = re.findall(r"\('exact', (\d+)\)", PAGE.read_text(encoding="utf-8"))
    done = run("reference")
    assert done.returncode == 0, done.stderr
    found = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert len(found) == 8
    assert {name: flops for name, flops in found.items() if flops not in said} == {}
