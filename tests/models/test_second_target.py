"""The contract: a target costs one folder. A distribution brings one with formulas, and nothing of ours is edited.

By hand, 3 rows: 2 * 3 * (6 * 10 + 10 * 5) = 660 FLOPs; 6 * 10 + 10 + 10 * 5 + 5 = 125 parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.running import costproof

SECOND = Path(__file__).parents[1] / "data" / "secondlib"


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    """The distribution is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SECOND)
        yield


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["here", "own process"])
def test_it_is_counted_compared_and_explained(own: bool, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Thorough: the run is traced in a process of its own, which finds the distribution too."""
    if not own:
        request.getfixturevalue("one_process")
    made = costproof(
        "capture", "two-linears", "--sources", "analytic,static,dynamic", "--progress", "never", "-o", "c.json",
        cwd=tmp_path,
    )  # fmt: skip
    assert made.code == 0, made.stderr
    compared = costproof("compare", "c.json", cwd=tmp_path)
    assert compared.code == 0
    assert "Exact: the sources agree to the integer on all" in compared.stdout
    assert "from analytic, static and dynamic" in compared.stdout
    rendered = costproof("render", "c.json", "-f", "static-json", cwd=tmp_path)
    (stage,) = json.loads(rendered.stdout)["stages"]
    assert (stage["flops"], stage["params"]) == (660, 125)
    explained = costproof("explain", "two-linears", "forward", cwd=tmp_path)
    assert explained.code == 0
    assert "660" in explained.stdout


def test_what_it_lacks_alone_is_an_error(tmp_path: Path) -> None:
    made = costproof(
        "capture", "two-linears", "--sources", "isolated", "--progress", "never", "-o", "c.json", cwd=tmp_path
    )
    assert (made.code, (tmp_path / "c.json").exists()) == (2, False)
    assert "isolated: the target's stages cannot be run alone" in made.stderr
    assert "one of analytic, static, dynamic" in made.stderr


def test_what_it_lacks_is_a_status(tmp_path: Path) -> None:
    made = costproof(
        "capture", "two-linears", "--sources", "analytic,isolated", "--progress", "never", "-o", "c.json", cwd=tmp_path
    )
    assert made.code == 0, made.stderr
    lacking = json.loads((tmp_path / "c.json").read_text())["lacking"]
    assert lacking == {"isolated": "the target's stages cannot be run alone"}
    compared = costproof("compare", "c.json", cwd=tmp_path)
    assert compared.code == 3
    assert "isolated: the target's stages cannot be run alone" in compared.stdout
