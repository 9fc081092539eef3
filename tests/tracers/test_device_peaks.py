"""Peaks of a device: tensors of its host do not count, and what operators ask for beside their results has a name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from benchmarks.real_jobs import RealRun, as_exported, with_numbers
from benchmarks.requested import Requested, named_parts
from torch import nn
from torch.nn import functional

from costproof.opgraph.liveness import peak_of
from costproof.tracers.peaks.calls import graph_timeline, peaks_of
from tests.tracers.test_peaks import Mlp, job, sizes


class Hosted(nn.Module):
    """Creates tensors on the host, on the device, and on the host for the device."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[10, 4] -> [10, 4]."""
        numbers = torch.arange(1000)
        host = torch.tensor([1.0, 2.0, 3.0, 4.0])
        there = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        moved = host.to(x.device)
        first = x + there
        second = first + moved
        return second, numbers


def test_tensors_of_the_host_do_not_count() -> None:
    # x, two rows of 4 and two sums of 10 x 4 float32; on a processor also 1000 integers, and the row is not moved.
    of = job(Hosted(), 10, 4)
    assert peaks_of(of, host_apart=True).eager is not None
    found, whole = peaks_of(of, host_apart=True), peaks_of(of)
    assert found.eager is not None
    assert whole.eager is not None
    assert (found.eager.bytes, found.residual) == (160 + 16 + 16 + 160 + 160, 0)
    assert whole.eager.bytes == 160 + 8000 + 16 + 16 + 160 + 160
    assert found.graph is not None
    assert whole.graph is not None
    # At the last sum its operands are alive; the other row is read no more.
    assert found.graph.bytes == 160 + 16 + 160 + 160
    assert whole.graph.bytes == 160 + 8000 + 16 + 160 + 160


class Mixes(nn.Module):
    """Adds tensors of two devices, which fails on a GPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[10] -> [10]."""
        return x + torch.arange(10)


def test_code_that_mixes_devices_has_the_peak_of_a_processor_and_a_note() -> None:
    of = job(Mixes(), 10)
    found = peaks_of(of, host_apart=True)
    assert sizes(found) == sizes(peaks_of(of))
    assert found.notes[-1] == "tensors on the host count too: they are not told apart"


@pytest.mark.parametrize("activation", [functional.gelu, torch.relu_])
def test_a_module_without_tensors_of_the_host_is_the_same(activation: object) -> None:
    of = job(Mlp(activation), 2, 3, 4)  # type: ignore[arg-type]
    assert sizes(peaks_of(of, host_apart=True)) == sizes(peaks_of(of))


class Script:
    """An allocator that says what was planted for each operator in order."""

    def __init__(self, *asked: int) -> None:
        self.asked: Iterator[int] = iter(asked)

    def reset(self) -> None:
        """Do nothing."""

    def current(self) -> int:
        """Return what was there before."""
        return 1_000_000

    def peak(self) -> int:
        """Return what the next operator reaches."""
        return 1_000_000 + next(self.asked)


def run_of(*extra: int) -> tuple[Requested, RealRun]:
    """The Mlp on 6 rows, whose operators ask for their results and something more."""
    of = job(Mlp(functional.gelu), 6, 4)
    real = with_numbers(of)
    run, known = as_exported(real), graph_timeline(of, {})
    made = (0, 384, 384, 0, 96)  # views of weights, 6 x 16, its activation, 6 x 4 float32
    names = _operators(real, run)
    assert names == ["aten.t.default", "aten.addmm.default", "aten.gelu.default", "aten.t.default",
                     "aten.addmm.default"]  # fmt: skip
    asked = Script(*(a + b for a, b in zip(made, extra, strict=True)))
    parts = named_parts(known, real, run, "cpu", asked)
    program = max(96 + b for b in (384 + extra[1], 384 + 384 + extra[2], 384 + 96 + extra[4]))
    return Requested("s", peak_of(known).bytes, program, None, 0, None, 0, tuple(parts.items())), run


def _operators(real: object, run: RealRun) -> list[str]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found.append(str(func))
            return func(*args, **(kwargs or {}))

    found: list[str] = []
    with torch.no_grad(), Names():  # type: ignore[no-untyped-call]
        run.run()
    return found


def test_a_workspace_is_named_with_its_operator() -> None:
    found, _ = run_of(0, 0, 100, 0, 0)
    assert found.graph == 96 + 384 + 384
    assert found.of_program == (("workspace of aten.gelu.default", 100),)
    assert found.unnamed[0] == 0


def test_a_workspace_elsewhere_moves_the_peak() -> None:
    # The first product asks for 4,096 more, when only x and its result are alive: 96 + 384.
    found, _ = run_of(0, 4096, 0, 0, 0)
    assert found.program == 96 + 384 + 4096
    assert found.of_program == (("workspace of aten.addmm.default", 4096), ("tensors at that moment", -384))
    assert found.unnamed[0] == 0


def test_what_no_part_explains_is_told() -> None:
    assert Requested("s", 100, 130, None, 0, None, 0, (("workspace of aten.mm.default", 20),)).unnamed == (10, None)
