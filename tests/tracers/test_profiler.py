from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from costproof.models.specs import Run
from costproof.tracers.hooks import trace_hooks
from costproof.tracers.timing import PREFIX, module_ranges, profile_runs, stage_boundaries, stage_times
from tests.tracers.realistic import quiet, small_ocr
from tests.tracers.small import PAGE, Toy


class Sleeper(nn.Module):
    """Takes a known time, then adds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x + 1


class Pipeline(nn.Module):
    """Two stages, the second called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.first = nn.Sequential(Sleeper(0.02))
        self.second = Sleeper(0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.weight
        x = self.second(x)
        time.sleep(0.03)
        result: torch.Tensor = self.second(x)
        return result


def pipeline() -> Run:
    def locate(path: str, call: int) -> tuple[str, str]:
        stage = path.partition(".")[0]
        return (stage or "rest", f"call {call}" if stage == "second" else "")

    return Run("once", Pipeline(), {"x": torch.zeros(2)}, locate)


def test_stages_are_timed_apart() -> None:
    run = pipeline()
    assert stage_boundaries(run) == ["", "first", "second"]
    found = stage_times(run)
    assert set(found) == {("rest", ""), ("first", ""), ("second", "call 1"), ("second", "call 2")}
    for stage, least in {
        ("rest", ""): 30,
        ("first", ""): 20,
        ("second", "call 1"): 10,
        ("second", "call 2"): 10,
    }.items():
        assert found[stage] >= least * 1_000_000
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.model.modules())


def test_operators_are_found_in_the_module_that_ran_them() -> None:
    torch.manual_seed(0)
    run = Run("toy", Toy().eval(), {"x": torch.randn(2, 5, 6)}, lambda path, call: ("stage", "once"))
    measured, chrome = profile_runs([run], 2)
    assert {m.module: m.calls for m in measured.modules} == {"(root)": 1, "proj": 2}
    calls = {(o.module, o.operator): o.calls for o in measured.operators}
    assert calls["proj", "aten::linear"] == 2
    assert calls["(root)", "aten::cat"] == 1
    assert calls["(root)", "aten::mul"] == 1
    assert ("(root)", "aten::linear") not in calls
    (cat,) = [o for o in measured.operators if o.operator == "aten::cat"]
    assert cat.memory_bytes == 2 * 5 * 12 * 4
    for module in measured.modules:
        assert len(module.cpu.runs) == 2
        assert all(0 <= own <= all_ for own, all_ in zip(module.cpu_self.runs, module.cpu.runs, strict=True))
    (whole,) = [m for m in measured.modules if m.module == "(root)"]
    # What the modules take themselves is the whole, run by run: nothing is counted in a parent and a child.
    own = [sum(m.cpu_self.runs[i] for m in measured.modules) for i in range(2)]
    assert own == list(whole.cpu.runs)
    trace = json.loads(chrome)
    assert socket.gethostname() not in trace.values()
    assert not [key for key in trace if key in ("host_name", "traceName")]
    assert tempfile.gettempdir() not in chrome
    names = {e.get("name") for e in trace["traceEvents"]}
    assert {PREFIX + "(root)", PREFIX + "proj", "aten::cat"} <= names


def test_calls_are_those_of_the_callgraph() -> None:
    target = small_ocr(device="cpu")
    workload = replace(PAGE, new_tokens=1, experts="eager")
    runs = target.runs(target.build_run(workload, quiet).model, workload)
    measured, _ = profile_runs(runs, 1)
    calls: dict[str, int] = {}
    for run in runs:
        for path, number in trace_hooks(run).call_counts.items():
            calls[path] = calls.get(path, 0) + number
    assert {m.module: m.calls for m in measured.modules} == calls
    assert {(s.run, s.stage, s.invocation) for s in measured.stages} == {
        ("page", "prefill", "prompt"),
        *(("page", stage, view) for stage in ("sam", "clip", "projector") for view in ("global", "crops")),
        ("step@17", "decode", "steps"),
    }
    assert measured.clock == "perf_counter"


def test_ranges_and_hooks_are_gone_after_an_exception() -> None:
    model = Pipeline()

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.second.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt), module_ranges(model):
        model(torch.zeros(2))
    handle.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(model(torch.zeros(2)), torch.full((2,), 3.0))


def test_the_profiler_says_nothing_of_its_own() -> None:
    code = (
        "import torch; from torch import nn; from costproof.models.specs import Run;"
        "from costproof.tracers.timing import profile_runs;"
        "profile_runs([Run('x', nn.Linear(2, 2), {'input': torch.ones(2)}, lambda *a: ('s', ''))], 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
