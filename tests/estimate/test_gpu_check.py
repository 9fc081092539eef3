"""The page of ``make gpu-check``: its own arithmetic, and that it says what was not run."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from benchmarks import gpu
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
    assert page.wrong == ["times ended in an error: the device is gone"]


def test_a_preset_that_fails_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(target: str, *, preset: str, attention: str, **_: object) -> SimpleNamespace:
        if preset == "large":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return SimpleNamespace(rows=[row(preset, 10), row(preset, 11)], operators=[])

    def row(preset: str, median: int) -> SimpleNamespace:
        seconds = SimpleNamespace(seconds="0.000000001")
        return SimpleNamespace(
            run="prompt", stage=preset, invocation="", floor=seconds, roof=seconds, replay=median,
            measured=SimpleNamespace(median=median), error=Fraction(0), of_peak=None, wrong="",
        )  # fmt: skip

    monkeypatch.setattr(gpu, "costproof", SimpleNamespace(measure=measured))
    monkeypatch.setattr(gpu, "median_error", lambda rows: Fraction(0))
    asked = gpu.Asked("cuda", ("tiny", "large", "gundam"), ("sdpa", "eager"), "bfloat16", None, 3)
    page = Page()
    gpu.times(page, asked, None)  # type: ignore[arg-type]
    stages = [line.split("|")[4].strip() for line in page.lines if line.startswith("| ")][1:]
    assert stages == ["tiny"] * 4 + ["gundam"] * 4
    assert page.wrong == [f"times of large, {a} ended in an error: CUDA out of memory" for a in ("sdpa", "eager")]


def test_without_a_gpu_the_page_says_what_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    asked, left = here(small=False)
    assert (asked.run, asked.layers) == ("cpu", 2)
    assert left[0] == "everything on a GPU: torch finds no CUDA device"
