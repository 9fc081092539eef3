"""Everything that measures on a GPU, on a stub of one: graphs, operators in isolation, host times, the profile."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import costproof
from costproof.estimate.hardware import HOST_FIGURES, Device, DeviceFigure, DevicePeak, FigureQuote, FigureSource
from costproof.ledger.errors import Incomplete
from costproof.ledger.profile import EnqueuedCall, Timing
from costproof.models.generic import live_module
from costproof.models.generic.factories import Given
from costproof.models.specs import Run
from costproof.run.measure import WAYS, _predicted_forward, measure_machine
from costproof.tracers import device_benchmark, host_costs, replay, timing
from costproof.tracers.eager_calls import EagerForward, measure_calls
from costproof.tracers.replay import ReplayedCall, predict_operators, replay_operators
from costproof.tracers.stage_variants import NOT_ON_CPU, record_stage_calls, time_compiled, time_graphs
from costproof.tracers.timing import Stage, profile_runs, time_stage_clocks
from tests.models.test_config import shallow_config
from tests.support import stub_cuda as stub_module
from tests.support.stub_cuda import (
    GAP,
    INVALIDATED,
    LATENCY,
    NOT_PERMITTED,
    STARTED,
    VIEW,
    Planted,
    StubCuda,
    StubGraph,
    plant,
    stub_cuda,
)

VISION, TEXT = ("vision", "once"), ("text", "once")


class Cached(nn.Module):
    """A tower and a head that appends to the cache that it gets; what it looks at is chosen."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU())
        self.head = nn.Linear(4, 2, bias=False)
        self.fault = fault

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
        """[B, 4]."""
        seen = self.tower(x)
        cache.append(seen)
        if self.fault == "looks":
            seen = seen * float(seen.sum() > 0)
        if self.fault == "raises" and torch.cuda.is_current_stream_capturing():
            raise ValueError("no such shape\nmore")
        assert len(cache) == 2
        result: torch.Tensor = self.head(torch.cat(cache))
        return result


def cached(fault: str = "") -> Run:
    def locate(path: str, call: int) -> Stage:
        return VISION if path.startswith("tower") else TEXT

    inputs = {"x": torch.ones(3, 4), "cache": [torch.ones(1, 4)]}
    return Run("page", Cached(fault).eval(), inputs, locate)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubCuda]:
    with stub_cuda(monkeypatch) as made:
        yield made


def eager(run: Run) -> dict[str, EagerForward]:
    return measure_calls([run], time_stage_clocks([run], 1)[1])


def test_a_stage_as_a_graph_takes_its_kernels_and_a_replay(stub: StubCuda) -> None:
    one = cached()
    found = time_graphs([one], eager(one), 3)
    # Two kernels each: mm and relu; cat and mm. The host's time to enqueue them is not in it.
    assert found == {("page", *stage): Timing((STARTED + 2 * (3_000 + GAP),) * 3) for stage in (VISION, TEXT)}
    assert "forward" not in vars(one.model.get_submodule("tower"))


def test_a_graph_that_takes_the_host_long_is_timed_behind_a_longer_sleep(
    stub: StubCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub_module, "REPLAY", 15_000_000)  # longer than the first sleep
    one = cached()
    found = time_graphs([one], eager(one), 1)
    assert found["page", *TEXT] == Timing((STARTED + 2 * (3_000 + GAP),))
    assert set(stub.asleep) == {timing._ASLEEP, 4 * timing._ASLEEP}


def test_a_device_that_cannot_sleep_is_kept_busy_by_products(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "_sleep")
    monkeypatch.setattr(timing, "_PRODUCT", 2)
    stub.plant = lambda func: Planted(device=2_000_000) if func._schema.name == "aten::mm" else plant(func)
    one = cached()
    calls = eager(one)
    found = time_graphs([one], calls, 1)
    assert found["page", *TEXT] == Timing((STARTED + 3_000 + 2_000_000 + 2 * GAP,))
    assert not stub.asleep


def test_a_stage_compiled_is_run_with_inputs_of_its_own(stub: StubCuda) -> None:
    one = cached()
    found = time_compiled([one], eager(one), 2)
    # The stub compiles nothing: host times of the calls that are its own.
    assert found["page", *TEXT] == Timing((800 + 2 * 3_300 + 3_000 - 0,) * 2)
    assert one.kwargs["cache"][0].shape == (1, 4)
    assert len(one.kwargs["cache"]) == 1


def test_a_stage_that_waits_is_not_captured(stub: StubCuda) -> None:
    one = cached("looks")
    found = time_graphs([one], eager(one), 1)
    assert found["page", *TEXT] == (
        f"RuntimeError: {NOT_PERMITTED} (aten._local_scalar_dense in (root) waits for the device)"
    )
    assert isinstance(found["page", *VISION], Timing)
    assert not stub.generators[0].state.capturing


def test_a_failed_capture_leaves_nothing(stub: StubCuda) -> None:
    looking, one = cached("looks"), cached()
    assert time_graphs([looking], eager(one), 1)["page", *TEXT] == f"RuntimeError: {NOT_PERMITTED}"
    raising = cached("raises")
    assert time_graphs([raising], eager(one), 1)["page", *TEXT] == "ValueError: no such shape"
    assert stub.graph is None
    assert stub.current is None
    assert not stub.generators[0].state.capturing
    assert "forward" not in vars(looking.model.get_submodule("tower"))


def test_a_device_that_is_broken_is_an_error(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cached()
    calls = eager(one)
    monkeypatch.setattr(torch, "zeros", broken)
    with pytest.raises(Incomplete, match="fails after a stage was captured"):
        time_graphs([one], calls, 1)


def test_a_device_that_fails_in_a_replay_is_an_error(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cached()
    calls = eager(one)
    monkeypatch.setattr(StubGraph, "replay", broken)
    for name in ("zeros", "empty"):
        monkeypatch.setattr(torch, name, broken)
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    with pytest.raises(Incomplete, match="fails after a stage was captured"):
        time_graphs([one], calls, 1)


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(f"{INVALIDATED}\nmore")


def test_inputs_that_cannot_be_copied_are_a_reason(stub: StubCuda) -> None:
    one = cached()
    calls = eager(one)

    class Alone(list[torch.Tensor]):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is only one")

    class Fixed(Run):
        def inputs(self) -> dict[str, Any]:
            return {"x": self.kwargs["x"], "cache": Alone([torch.ones(1, 4)])}

    fixed = Fixed("page", one.model, one.kwargs, one.locate)
    assert time_graphs([fixed], calls, 1) == {
        ("page", *stage): "TypeError: there is only one" for stage in (VISION, TEXT)
    }


def test_calls_of_stages_hold_their_inputs_as_they_were() -> None:
    one = cached()
    root, tower = record_stage_calls(one)
    assert (root.stage, tower.stage, root.inside) == (TEXT, VISION, [tower])
    assert len(root.kwargs["cache"]) == 1
    torch.testing.assert_close(tower.output, one.model.get_submodule("tower")(one.kwargs["x"]))


def test_a_processor_says_why_it_has_no_graphs() -> None:
    one = cached()
    calls = eager(one)
    for variant, measured in (("graph", time_graphs([one], calls, 1)), ("compiled", time_compiled([one], calls, 1))):
        assert measured == {("page", *stage): NOT_ON_CPU[variant] for stage in (VISION, TEXT)}


def test_operators_in_isolation_have_both_clocks(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_FLUSHED", 2**10)
    one = cached("looks")
    found = {(c.module, c.operator): c for c in replay_operators(one, 3)}
    product = found["head", "aten.mm.default"]
    assert product.alone == Timing((3_000,) * 3)
    assert product.enqueue is not None
    assert (product.enqueue.dispatch, product.enqueue.launch) == (1_300, 2_000)  # its planted Python is in the call
    assert (product.enqueue.launches, product.enqueue.device, product.enqueue.synchronises) == (1, 3_000, False)
    view = found["head", "aten.t.default"].enqueue
    assert view is not None
    assert (view.dispatch, view.launches, view.device) == (800, 0, 0)
    looked = found["", "aten._local_scalar_dense.default"].enqueue
    assert looked is not None
    assert (looked.synchronises, looked.dispatch + looked.launch) == (True, 3_300)
    assert {replay._ASLEEP, timing._ASLEEP} == set(stub.asleep)
    order = sorted((at, c.operator) for c in found.values() for at, _ in c.order)
    assert [at for at, _ in order] == list(range(len(order)))
    # Into the root, the tower, its first; its second; into the head.
    assert [sum(modules for _, modules in found[at].order) for at in (
        ("tower.0", "aten.t.default"), ("tower.0", "aten.mm.default"), ("tower.1", "aten.relu.default"),
    )] == [2, 0, 1]  # fmt: skip


def test_operators_that_never_ran_have_both_clocks(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_FLUSHED", 2**10)
    meta = Run(
        "page",
        Cached().to("meta"),
        {"x": torch.ones(3, 4, device="meta"), "cache": [torch.ones(1, 4, device="meta")]},
        lambda path, call: TEXT,
    )
    (found,) = predict_operators([meta], "cuda", 2).values()
    assert {c.operator: c.enqueue and c.enqueue.launches for c in found} == {
        "aten.t.default": 0, "aten.mm.default": 1, "aten.relu.default": 1, "aten.cat.default": 1
    }  # fmt: skip


class Odd(nn.Module):
    """Looks up a row that its table has not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(0, 2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B] -> [B, 2]."""
        return nn.functional.embedding(tokens, self.table) + 1


def test_an_operator_that_cannot_be_made_is_named(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_FLUSHED", 2**10)
    odd = Run("page", Odd().to("meta"), {"tokens": torch.tensor([0], device="meta")}, lambda path, call: TEXT)
    found = {c.operator: c for c in predict_operators([odd], "cuda", 1)["page"]}
    lost, plus = found["aten.embedding.default"], found["aten.add.Tensor"]
    assert (lost.alone, lost.enqueue) == (None, None)
    assert "index" in lost.why
    assert plus.enqueue is not None
    assert plus.enqueue.launches == 1


def test_what_is_larger_than_the_device_is_not_made(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_FLUSHED", 2**10)
    wide = Run(
        "page",
        nn.Linear(2**17, 2**17, bias=False, device="meta"),
        {"input": torch.ones(1, 2**17, device="meta")},
        lambda path, call: TEXT,
    )
    found = {c.operator: c.why for c in predict_operators([wide], "cuda", 1)["page"]}
    assert f"more than four fifths of the {2**33:,} that are free" in found["aten.mm.default"]


def test_a_call_that_takes_the_host_long_is_timed_behind_a_longer_sleep(
    stub: StubCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FLUSHED", 2**10)
    stub.plant = lambda func: Planted(dispatch=5_000_000) if func._schema.name == "aten::mm" else plant(func)
    found = {(c.module, c.operator): c for c in replay_operators(cached(), 1)}
    assert found["head", "aten.mm.default"].alone == Timing((3_000,))
    assert replay._ASLEEP * replay._LONGER in stub.asleep


def test_a_compiler_that_fails_is_a_reason(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cached()
    calls = eager(one)
    monkeypatch.setattr(torch, "compile", broken)
    assert time_compiled([one], calls, 1)["page", *TEXT] == f"RuntimeError: {INVALIDATED}"


def test_a_module_that_has_a_forward_of_its_own_keeps_it(stub: StubCuda) -> None:
    one = cached()
    calls, tower = eager(one), one.model.get_submodule("tower")
    own = tower.forward
    vars(tower)["forward"] = own
    assert isinstance(time_graphs([one], calls, 1)["page", *TEXT], Timing)
    assert vars(tower)["forward"] is own


@pytest.fixture
def few_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host times of few runs of a small network: the clocks of the stub do not vary."""
    monkeypatch.setattr(host_costs, "_SIZES", {**host_costs._SIZES, "num_hidden_layers": 1})
    for name, number in {"_TIMES": 2, "_REPEATED": 2, "_PROFILES": 2, "_BLOCKS": 3}.items():
        monkeypatch.setattr(host_costs, name, number)


@pytest.mark.usefixtures("few_repetitions")
def test_host_times_of_the_machine(stub: StubCuda) -> None:
    found = {name: figure.value for name, figure in host_costs.measure_host("cuda", "here").items()}
    assert found["launch_latency"] == LATENCY
    assert (found["graph_gap"], found["graph_replay"]) == (GAP, STARTED)
    assert found["module_call"] > 300
    assert found["operator_in_run"] > 1_000
    assert found["operator_alone"] > 1_000
    assert set(host_costs.measure_host("cpu", "here")) == {"module_call"}


def test_a_device_without_graphs_has_no_replay(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubGraph, "capture_begin", broken)
    assert host_costs.measure_graph() is None


def test_a_profiler_without_kernels_has_no_graph_times(stub: StubCuda) -> None:
    stub.blind = True
    assert host_costs.measure_graph() is None


def test_rates_of_the_machine(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_benchmark, "_LARGEST", 512)
    monkeypatch.setattr(device_benchmark, "_COPIED", {"cuda": 2**20})
    monkeypatch.setattr(device_benchmark, "_IMAGES", {"cuda": 1})
    ran: set[tuple[str, str, bool]] = set()

    def plant(func: Any) -> Planted:
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "conv2d"):
            ran.add((name, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return VIEW if func.is_view else Planted(device=60_000_000)

    stub.plant = plant
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    steps: list[tuple[str, int, int]] = []
    found = device_benchmark.measure_device("cuda", "stub", ("float32",), lambda *step: steps.append(step))
    assert (found.title, found.memory and found.memory.value) == ("Stub GPU", 2**34)
    assert found.peaks[0].flops > 10**9
    # float32 and TF32 apart, for products of matrices and for convolutions; then all is as it was.
    assert [(p.dtype, p.quotes[0].text.rpartition(", ")[2]) for p in found.peaks] == [
        ("float32", "of float32 without TF32"), ("tf32", "of float32 in TF32"),
    ]  # fmt: skip
    assert ran == {
        (name, *allowed)
        for name in ("mm", "conv2d") for allowed in (("highest", False), ("high", True))
    }  # fmt: skip
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    assert steps == [("machine", done, 3) for done in range(4)]
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: False)
    assert [p.dtype for p in device_benchmark.measure_device("cuda", "old", ("float32",)).peaks] == ["float32"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Incomplete, match="no CUDA device"):
        device_benchmark.measure_device("cuda", "stub")


@pytest.mark.usefixtures("few_repetitions")
def test_a_machine_has_rates_and_host_times(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_benchmark, "_LARGEST", 512)
    monkeypatch.setattr(device_benchmark, "_COPIED", {"cuda": 2**20})
    monkeypatch.setattr(device_benchmark, "_IMAGES", {"cuda": 1})
    monkeypatch.setattr(device_benchmark, "DTYPES", ("float32",))
    stub.plant = lambda func: VIEW if func.is_view else Planted(device=60_000_000)
    found = measure_machine("cuda", name="stub")
    assert set(HOST_FIGURES) <= found.figures().keys()
    again = measure_machine("cuda", name="stub", dtypes=("float32",))
    assert not set(HOST_FIGURES) & again.figures().keys()
    assert found.or_faster(again).figures().keys() == found.figures().keys()


def test_the_profile_of_a_run(stub: StubCuda) -> None:
    measured, chrome = profile_runs([cached()], 2)
    assert (measured.device, measured.clock, measured.peak_bytes) == ("Stub GPU", "CUDA events", 2**20)
    device = {m.module: m.device and m.device.runs for m in measured.modules}
    assert device == {
        "(root)": (12_000,) * 2, "tower": (6_000,) * 2, "tower.0": (3_000,) * 2, "tower.1": (3_000,) * 2,
        "head": (3_000,) * 2,
    }  # fmt: skip
    assert {o.operator: o.device_self and o.device_self.runs for o in measured.operators if o.module == "head"} == {
        "aten::t": (0, 0), "aten::mm": (3_000, 3_000), "cudaLaunchKernel": (0, 0),
    }  # fmt: skip
    assert "host_name" not in json.loads(chrome)
    assert copy.copy(measured) == measured


@pytest.mark.slow
@pytest.mark.parametrize("predict", [False, True])
def test_measure_from_end_to_end(
    stub: StubCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, predict: bool
) -> None:
    monkeypatch.setattr(replay, "_FLUSHED", 2**12)
    (tmp_path / "m.json").write_text(json.dumps(shallow_config().native()))
    said = (FigureQuote("here", "by hand"),)
    fast = Device(
        "fast", "fast", "measured", {"here": FigureSource("a test", "2026-11-26")},
        (DevicePeak("float32", 10**18, "dense", "matrix", said),), DeviceFigure(10**16, said),
        module_call=DeviceFigure(300, said),
    )  # fmt: skip
    choices: dict[str, Any] = {"preset": "text-only", "text_tokens": 5, "new_tokens": 1, "dtype": "float32"}
    found = costproof.measure(
        "deepseek-ocr",
        config=tmp_path / "m.json",
        on=fast,
        run="cuda",
        profile=1,
        predict=predict,
        ways=WAYS,
        **choices,
    )
    assert [(row.run, row.stage) for row in found.rows] == [("prompt", "prefill"), ("step@5", "decode")]
    assert (found.clock, found.exit_code) == ("CUDA events", 0)
    for row in found.rows:
        assert row.clocks is not None
        assert row.split is not None
        assert row.clocks.binds == "host"
        if predict:
            continue
        assert row.measured == Timing((row.clocks.both,))
        assert (row.split.residual, row.split.jitter) == ("0", "0")
        assert row.graph is not None
        assert row.graph.time == Timing((row.clocks.device + GAP * row.clocks.launches + STARTED,))
        assert (row.graph.kernels, row.graph.replay) == (row.clocks.device, STARTED)
        assert row.graph.predicted == row.graph.time.median
        assert row.compiled is not None
        assert row.compiled.time == row.measured


def test_a_forward_that_never_ran_takes_the_host_longer_than_its_operators() -> None:
    def call(order: tuple[int, ...], operator: str = "mm", first: int = 9_000) -> ReplayedCall:
        hot = EnqueuedCall(operator, "m", 0, 2_000, 1_000, 1, 5_000, False)
        cold = replace(hot, dispatch=first - 3_000, launch=3_000)
        placed = tuple((at, 1) for at in order)
        return ReplayedCall(TEXT, "m", operator, ((2, 2),), placed, Timing((5_000,)), "", hot, cold)

    said = (FigureQuote("here", "by hand"),)
    known = {"module_call": 100, "operator_in_run": 1_500, "operator_alone": 1_000}
    figures: dict[str, Any] = {name: DeviceFigure(value, said) for name, value in known.items()}
    device = Device("d", "d", "measured", {"here": FigureSource("a test", "2026-11-26")}, (), **figures)
    ((stage, found),) = _predicted_forward([call((0, 2)), call((1,), "add", first=3_000)], device)
    assert stage == TEXT
    # Half as long again in a forward; the first call three times as long, with the Python before it.
    assert [(c.operator, c.python, c.dispatch, c.launch) for c in found] == [
        ("mm", 300, 9_000, 4_500), ("add", 100, 3_000, 1_500), ("mm", 100, 3_000, 1_500),
    ]  # fmt: skip
    # An operator that is no slower in a forward is not made faster.
    quick = replace(device, operator_in_run=DeviceFigure(500, said))
    assert [c.dispatch for c in _predicted_forward([call((0, 2), first=3_000)], quick)[0][1]] == [2_000, 2_000]
    assert not _predicted_forward([call((0,))], replace(device, module_call=None))
    assert not _predicted_forward([replace(call((0,)), enqueue=None)], device)


def test_an_interrupt_leaves_nothing(stub: StubCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    one = cached()
    calls = eager(one)
    real, left = stub.plant, [0]

    def interrupting(func: Any) -> Planted:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return real(func)

    stub.plant = interrupting
    monkeypatch.setattr(replay, "_FLUSHED", 2**10)
    stopped = 0
    for work in (
        lambda: time_graphs([one], calls, 1), lambda: time_compiled([one], calls, 1), lambda: eager(one),
        lambda: replay_operators(one, 1), lambda: profile_runs([one], 1),
    ):  # fmt: skip
        for at in range(1, 200, 9):
            left[0] = at
            try:
                work()
            except KeyboardInterrupt:
                stopped += 1
            else:
                break
            assert stub.graph is None
            assert stub.current is None
            assert stub.profile is None
            assert not stub.generators[0].state.capturing
            assert not any(m._forward_hooks or m._forward_pre_hooks for m in one.model.modules())
            assert "forward" not in vars(one.model.get_submodule("tower"))
    assert stopped > 20


def test_a_module_on_a_gpu_runs_there() -> None:
    with FakeTensorMode():
        module = nn.ParameterList([torch.empty(2, 2, device="cuda")])
        given = {"input": torch.empty(1, 2, device="cuda")}
    assert live_module._options(Given("own", "a module", module, given)).device == "cuda"
