"""The page of ``make gpu-check``: its own arithmetic, and that it says what was not run."""

from __future__ import annotations

import pytest
from benchmarks.gpu import Page, held, here, ranks
from benchmarks.requested import Requested

from costproof.ledger.errors import Incomplete


def test_equal_values_share_their_places() -> None:
    # 1 | 5 5 | 7: places 0, (1 + 2) / 2 twice, 3
    assert ranks([5, 1, 7, 5]) == [1.5, 0, 3, 1.5]


def test_what_the_device_holds_beyond_the_tensors() -> None:
    one = Requested("sam", graph=1_000, program=1_004, eager=None, module=1_500, rounded=1_024, allocated=1_536)
    assert held(one) == ("sam", "1,000", "1,004", "4", "?", "1,500", "?", "1,024", "1,536", "512")


def test_a_part_that_fails_is_said_and_ends_no_other() -> None:
    page, ran = Page(), []

    def fails() -> None:
        raise Incomplete("the device is gone")

    page.part("times", fails)
    page.part("peaks", lambda: ran.append("peaks"))
    assert ran == ["peaks"]
    assert page.wrong == ["times: the device is gone"]


def test_without_a_gpu_the_page_says_what_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    asked, left = here(small=False)
    assert (asked.run, asked.layers) == ("cpu", 2)
    assert left[0] == "everything on a GPU: torch finds no CUDA device"
