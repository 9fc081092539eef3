"""The page of ``make gpu-check``: its own arithmetic, and that it says what was not run."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import gpu
from benchmarks.gpu import Page, held, here, ranks, too_far_off, too_little
from benchmarks.requested import Requested

from costproof.estimate.measured import TimeSplit
from costproof.ledger.errors import Incomplete
from costproof.tracers import replay


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
        return SimpleNamespace(rows=[row(preset, 10), row(preset, 11)], operators=[], wrong=())

    def row(preset: str, median: int) -> SimpleNamespace:
        seconds = SimpleNamespace(seconds="0.000000001")
        return SimpleNamespace(
            run="prompt", stage=preset, invocation="", floor=seconds, roof=seconds, replay=median,
            measured=SimpleNamespace(median=median), error=Fraction(0), of_peak=None, wrong="",
            split=TimeSplit("20000000/3", *["0"] * 11),
        )  # fmt: skip

    monkeypatch.setattr(gpu, "costproof", SimpleNamespace(measure=measured))
    monkeypatch.setattr(gpu, "median_error", lambda rows: Fraction(0))
    asked = gpu.Asked("cuda", ("tiny", "large", "gundam"), ("sdpa", "eager"), "bfloat16", None, 3)
    page = Page()
    gpu.times(page, asked)
    stages = [line.split("|")[4].strip() for line in page.lines if line.startswith("| ")][1:]
    assert stages == ["tiny"] * 4 + ["gundam"] * 4
    # 10 ns at a roof of 1 ns; of the parts, the floor is 6 2/3 ms.
    assert any("| 10.00 | 0.0% |  | 6.667 | 0.000 |" in line for line in page.lines)
    assert page.wrong == [f"times of large, {a} ended in an error: CUDA out of memory" for a in ("sdpa", "eager")]


def test_without_a_gpu_the_page_says_what_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    asked, left = here(small=False)
    assert (asked.run, asked.layers) == ("cpu", 2)
    assert left[0] == "everything on a GPU: torch finds no CUDA device"


def test_each_stage_has_to_reach_the_goal() -> None:
    # sam: 5 %, 30 % and 1 %, the median 5 %; clip: 30 %. Of all four rows the median is no more than 30 %.
    errors = (("sam", 5), ("clip", 30), ("sam", 30), ("sam", 1))
    found: list[Any] = [SimpleNamespace(stage=stage, error=Fraction(error, 100)) for stage, error in errors]
    assert too_far_off(found, Fraction(1, 5)) == ["the replay of clip is off by 30.0%"]
    assert too_far_off(found, Fraction(1, 20)) == ["the replay of clip is off by 30.0%"]
    assert len(too_far_off(found, Fraction(1, 100))) == 2


def test_a_run_that_holds_less_than_liveness_says_is_wrong() -> None:
    one = Requested("sam", graph=1_000, program=999, eager=None, module=1_500, rounded=1_024, allocated=1_024)
    assert too_little(one) == ["sam: the program asked for 999 bytes, of which 1,000 are alive at once"]
    assert too_little(replace(one, program=1_000)) == []
    assert len(too_little(replace(one, eager=1_501, allocated=512))) == 3


def test_the_page_says_that_eager_attention_and_peaks_were_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    _, left = here(small=False)
    assert any(line.startswith("eager attention") for line in left)
    assert any(line.startswith("peaks of DeepSeek-OCR") for line in left)


def test_flash_attention_is_built_with_its_kernels_where_it_can_run() -> None:
    recipe = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert "\ngpu-check: $(VENV)/dev $(VENV)/flash-kernels " in recipe
    target = recipe.split("\n$(VENV)/flash-kernels:")[1].split("\n\n")[0]
    assert "nvcc" in target
    assert "FLASH_ATTENTION_SKIP_CUDA_BUILD" not in target


def test_a_gpu_sleeps_until_the_call_is_dispatched(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            done.append("event")

        def elapsed_time(self, other: object) -> float:
            return 0.25

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: done.append("synchronize"))
    monkeypatch.setattr("torch.cuda._sleep", lambda cycles: done.append("sleep"))
    assert replay._clock(lambda: done.append("call"), "cuda") == 250_000
    assert done == ["synchronize", "sleep", "event", "call", "event", "synchronize"]
