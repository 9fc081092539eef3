"""Both clocks of an eager run, on a stub of a GPU with planted times, and from events written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._C._autograd import DeviceType

from costproof.estimate.clocks import stage_clocks
from costproof.ledger.errors import Incomplete
from costproof.ledger.profile import EnqueuedCall
from costproof.models.specs import Run
from costproof.tracers import host_costs
from costproof.tracers.eager_calls import launch_latency, measure_calls, scale_to
from costproof.tracers.profiled_calls import MARK, read_calls
from costproof.tracers.stage_variants import time_graphs
from costproof.tracers.timing import NOWHERE, Stage, time_stage_clocks
from tests.support.stub_cuda import LATENCY, VIEW, Planted, StubCuda, StubEvent, plant, stub_cuda

VISION, TEXT = ("vision", "once"), ("text", "once")


class Page(nn.Module):
    """A tower of two products, and a head that may look at a number."""

    def __init__(self, *, looks: bool) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
        self.head = nn.Linear(4, 2)
        self.looks = looks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 4]."""
        result: torch.Tensor = self.head(self.tower(x))
        if self.looks and result.sum().item() > 1e9:
            result = result * 2
        return result + 1


def page(*, looks: bool = False) -> Run:
    def locate(path: str, call: int) -> Stage:
        return VISION if path.startswith("tower") else TEXT

    return Run("page", Page(looks=looks).eval(), {"x": torch.ones(3, 4)}, locate)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCuda]:
    with stub_cuda(monkeypatch) as made:
        yield made


USUAL = Planted()


def call(operator: str, module: str, times: Planted = USUAL) -> EnqueuedCall:
    return EnqueuedCall(
        f"aten.{operator}", module, times.python, times.dispatch, times.launch, times.kernels, times.device,
        times.waits, times.device,
    )  # fmt: skip


def ended(module: str) -> EnqueuedCall:
    return EnqueuedCall("", module, 0, 0, 0, 0, 0, False, 0)


def test_planted_times_come_back(stub: StubCuda) -> None:
    one = page()
    times, host = time_stage_clocks([one], 3)
    found = measure_calls([one], host)["page"]
    assert found == (
        (TEXT, (ended(""),)),
        (VISION, (
            call("t", "tower.0", VIEW), call("mm", "tower.0"), call("relu", "tower.1"),
            call("t", "tower.2", VIEW), call("mm", "tower.2"), ended("tower"),
        )),
        (TEXT, (call("t", "head", VIEW), call("addmm", "head"), call("add", ""), ended(""))),
    )  # fmt: skip
    # The recurrence says what the stub's events measured.
    clocks = stage_clocks(found, LATENCY)
    assert {(s.stage, s.invocation): s.time.median for s in times} == {at: c.both for at, c in clocks.items()}
    assert {stage: c.host for stage, c in clocks.items()} == {at: host["page", at].median for at in (TEXT, VISION)}


def test_what_the_profiler_takes_is_scaled_away(stub: StubCuda) -> None:
    one = page()
    stub.inflation = 700
    times, host = time_stage_clocks([one], 3)
    found = measure_calls([one], host)["page"]
    clocks = stage_clocks(found, LATENCY)
    for stage in (TEXT, VISION):
        assert clocks[stage].host == host["page", stage].median
        assert clocks[stage].both == pytest.approx(
            {(s.stage, s.invocation): s.time.median for s in times}[stage], rel=0.03
        )
    assert [c.device for _, calls in found for c in calls if c.launches] == [3_000] * 5


def test_a_stage_that_waits_is_scaled_as_those_that_do_not(stub: StubCuda) -> None:
    stub.plant = lambda func: Planted(device=200_000) if func._schema.name == "aten::mm" else plant(func)
    for inflation in (0, 700):
        stub.inflation = inflation
        one = page(looks=True)
        times, host = time_stage_clocks([one], 3)
        found = measure_calls([one], host)["page"]
        waiting = [c.operator for _, calls in found for c in calls if c.synchronises]
        assert waiting == ["aten._local_scalar_dense"]
        clocks = stage_clocks(found, LATENCY)
        # 4 calls of 3.3 us and a view of 0.8; waiting is no host time.
        assert clocks[TEXT].host == pytest.approx(4 * 3_300 + 800, rel=0.05 if inflation else 0)
        assert host["page", TEXT].median > 400_000
        assert {(s.stage, s.invocation): s.time.median for s in times} == {
            stage: pytest.approx(c.both, rel=0.01) for stage, c in clocks.items()
        }
        assert clocks[VISION].host == host["page", VISION].median


def test_a_branch_that_depends_on_more_than_the_inputs(stub: StubCuda) -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.calls = nn.Linear(2, 2, bias=False), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            result: torch.Tensor = self.head(x) if self.calls % 2 else x + 1
            return result

    one = Run("page", Turns().eval(), {"x": torch.ones(1, 2)}, lambda path, call: TEXT)
    _, host = time_stage_clocks([one], 2)  # three runs; the fourth has hooks everywhere
    ((_, calls),) = measure_calls([one], host)["page"]
    assert [c.operator for c in calls] == ["aten.add", ""]


def test_a_processor_has_one_clock() -> None:
    one = page(looks=True)
    times, host = time_stage_clocks([one], 3)
    found = measure_calls([one], host)["page"]
    names = Counter(c.operator for _, calls in found for c in calls if c.operator)
    assert names == {"aten.linear": 3, "aten.relu": 1, "aten.sum": 1, "aten.item": 1, "aten.add": 1}
    assert {c.module for _, calls in found for c in calls if c.operator == "aten.linear"} == {
        "tower.0", "tower.2", "head"
    }  # fmt: skip
    assert all(c.launches == c.launch == c.device == 0 and not c.synchronises for _, calls in found for c in calls)
    clocks = stage_clocks(found)
    assert {(s.stage, s.invocation): s.time.median for s in times} == {at: c.both for at, c in clocks.items()}


def test_a_profiler_that_sees_no_kernels(stub: StubCuda) -> None:
    stub.blind = True
    one = page()
    assert measure_calls([one], time_stage_clocks([one], 1)[1]) == {}
    assert launch_latency() is None
    assert time_graphs([one], {}, 1) == {}
    assert host_costs.measure_host("cuda", "here") == {}


def test_the_latency_of_a_launch(stub: StubCuda) -> None:
    assert launch_latency() == LATENCY


# Events as torch 2.11 and 2.13 have them, by hand.


def host_event(name: str, start: int, end: int, at: int = 0) -> StubEvent:
    return StubEvent(name, start, end, id=at)


def device_event(launch: int, spent: int, name: str = "void k()", link: int = 0) -> StubEvent:
    return StubEvent(name, 10**6, 10**6 + spent, DeviceType.CUDA, launch, link)


PIECE = [(TEXT, "m"), (NOWHERE, "")]


def piece(*events: StubEvent, end: int = 1_000) -> list[EnqueuedCall]:
    marks = [host_event(MARK, 90, 100), host_event(MARK, end, end + 10)]
    (found,) = read_calls([*marks, *events], PIECE)
    assert sum(c.python + c.dispatch + c.launch for c in found.calls) <= end - 100
    return found.calls


def made(
    operator: str, python: int, dispatch: int, launch: int, launches: int, device: int, *, waits: bool = False
) -> EnqueuedCall:
    return EnqueuedCall(operator, "m", python, dispatch, launch, launches, device, waits)


def test_an_operator_of_operators_is_opened() -> None:
    found = piece(
        host_event("aten::linear", 200, 500), host_event("aten::t", 210, 230), host_event("aten::transpose", 212, 225),
        host_event("aten::addmm", 250, 490), host_event("cudaLaunchKernelExC", 300, 330, 7), device_event(7, 40),
        host_event("aten::relu_", 600, 700), host_event("cudaLaunchKernel", 620, 640, 8), device_event(8, 11),
    )  # fmt: skip
    # The end of linear, after addmm, belongs to relu_.
    assert found == [
        made("aten.addmm", 100, 50 + 50 + 160 + 0, 30, 1, 40),
        made("aten.relu_", 100, 10 + 20 + 60, 20, 1, 11),
        made("", 300, 0, 0, 0, 0),
    ]


def test_an_operator_with_several_kernels() -> None:
    found = piece(
        host_event("aten::cumsum", 200, 500), host_event("cudaFuncGetAttributes", 210, 220, 1),
        host_event("cudaMemsetAsync", 230, 240, 2), device_event(2, 5, "Memset (Device)"),
        host_event("cuLaunchKernelEx", 250, 270, 3), device_event(3, 50),
        host_event("aten::empty", 300, 310),
        host_event("cudaLaunchKernel", 320, 350, 4), device_event(4, 60),
    )  # fmt: skip
    assert found == [made("aten.cumsum", 100, 300 - 60, 60, 3, 115), made("", 500, 0, 0, 0, 0)]


def test_waiting_is_no_host_time() -> None:
    found = piece(
        host_event("aten::item", 200, 900), host_event("aten::_local_scalar_dense", 210, 890),
        host_event("cudaMemcpyAsync", 220, 230, 2), device_event(2, 5, "Memcpy DtoH (Device -> Pageable)"),
        host_event("cudaStreamSynchronize", 240, 880, 3),
    )  # fmt: skip
    assert found == [
        made("aten._local_scalar_dense", 100, 10 + 10 + 10 + 10 + 10, 10, 1, 5, waits=True),
        made("", 100, 0, 0, 0, 0),
    ]


def test_a_full_queue_is_no_host_time() -> None:
    launches = [host_event("cudaLaunchKernel", 110 + 20 * i, 120 + 20 * i, i) for i in range(3)]
    found = piece(
        *launches, *(device_event(i, 100) for i in range(3)),
        host_event("cudaLaunchKernel", 200, 900, 9), device_event(9, 100),
    )  # fmt: skip
    assert [(c.operator, c.launch) for c in found] == [("cudaLaunchKernel", 10)] * 4 + [("", 0)]


def test_a_graph_enqueues_many_kernels_with_one_call() -> None:
    found = piece(host_event("cudaGraphLaunch", 200, 250, 5), *(device_event(5, 10) for _ in range(30)))
    assert found[0] == made("cudaGraphLaunch", 100, 0, 50, 30, 300)


def test_python_may_wait_for_the_device() -> None:
    found = piece(host_event("cudaDeviceSynchronize", 200, 700, 5))
    assert found == [made("cudaDeviceSynchronize", 100, 0, 0, 0, 0, waits=True), made("", 300, 0, 0, 0, 0)]


def test_a_kernel_without_its_launch_belongs_to_its_operator() -> None:
    found = piece(host_event("aten::mm", 200, 300, 3), device_event(77, 40, link=3))
    assert found[0] == made("aten.mm", 100, 100, 0, 1, 40)


def test_work_of_the_profiler_and_ranges_are_left_out() -> None:
    found = piece(
        host_event("Activity Buffer Request", 150, 160), StubEvent("range", 120, 900, user=True),
        StubEvent("range", 0, 10**6, DeviceType.CUDA, user=True), host_event("aten::view", 200, 210),
    )  # fmt: skip
    assert [(c.operator, c.python, c.dispatch) for c in found] == [("aten.view", 90, 10), ("", 790, 0)]


def test_work_of_the_profiler_inside_operators_is_left_out() -> None:
    found = piece(
        host_event("aten::addmm", 200, 500), host_event("Activity Buffer Request", 210, 300),
        host_event("cudaLaunchKernel", 320, 340, 4), device_event(4, 50),
        host_event("aten::empty", 400, 450), host_event("Resource", 410, 430),
        host_event("aten::view", 600, 700), host_event("aten::as_strided", 610, 690), host_event("Resource", 620, 680),
    )  # fmt: skip
    assert found == [
        made("aten.addmm", 100, 10 + 20 + 160 - 20, 20, 1, 50), made("aten.view", 100, 40, 0, 0, 0),
        made("", 300, 0, 0, 0, 0),
    ]  # fmt: skip


def test_an_operator_that_works_before_one_inside_it() -> None:
    found = piece(
        host_event("aten::index", 200, 900),
        host_event("cudaLaunchKernel", 210, 220, 1), device_event(1, 5),
        host_event("aten::nonzero", 300, 500), host_event("cudaStreamSynchronize", 400, 450, 2),
        host_event("cudaLaunchKernel", 600, 620, 3), device_event(3, 7),
    )  # fmt: skip
    assert found == [
        made("aten.index", 100, 10 + 80, 10, 1, 5), made("aten.nonzero", 0, 100 + 50, 0, 0, 0, waits=True),
        made("aten.index", 0, 100 + 280, 20, 1, 7), made("", 100, 0, 0, 0, 0),
    ]  # fmt: skip


def test_a_stage_without_a_time_is_left_as_it_is(stub: StubCuda) -> None:
    assert sum(c.dispatch for _, calls in measure_calls([page()], {})["page"] for c in calls) == 5 * 1_000 + 3 * 500


def test_lost_events_are_an_error() -> None:
    with pytest.raises(Incomplete, match="lost events"):
        read_calls([host_event(MARK, 0, 1)], PIECE)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30), st.integers(0, 10**12))
def test_scaled_parts_have_the_sum(parts: list[int], total: int) -> None:
    found = scale_to(parts, total)
    whole = sum(parts)
    assert sum(found) == (total if whole else 0)
    assert all(abs(a * whole - b * total) < max(1, whole) for a, b in zip(found, parts, strict=True))
