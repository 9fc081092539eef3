"""Counters in processes of their own: those that answer, and those of another distribution that do not."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from torch import nn

from costproof.compare.counters import compare_counters
from costproof.ledger.counter import CounterCall, CounterRecord, CounterUsage
from costproof.ledger.errors import Incomplete
from costproof.ledger.node import CostNode
from costproof.ledger.workload import Workload
from costproof.models.families.deepseek_ocr.target import DeepseekOcr
from costproof.processes import Limits
from costproof.run.counters import check_truth, record_counters
from costproof.run.prepare import resolve_counters
from costproof.tracers.counters.running import GIB, TRUTH, CutKey, expected_cuts, run_counters, side_by_side
from tests.tracers.realistic import small_ocr
from tests.tracers.small import PAGE

STUBS = '''
import os, sys, time
from costproof.ledger.counter import CounterInfo
from costproof.tracers.counters.protocol import Counter


def stub(count):
    """Does not count, each in its own way."""
    return Counter(CounterInfo(count.__name__, "stub-counters", ("1.0",), "flop", "total"), count)


def raises(model, args):
    raise ValueError("no rule for this |model|\\nand a second line")


def sleeps(model, args):
    time.sleep(600)


def allocates(model, args):
    return bytearray(64 * 2**30)


def dies(model, args):
    print("about to end", file=sys.stderr)
    os.kill(os.getpid(), 9)


RAISES, SLEEPS, ALLOCATES, DIES = map(stub, (raises, sleeps, allocates, dies))
'''
NAMES = ("raises", "sleeps", "allocates", "dies")

NOTHING = "AttributeError: module 'stub_counters' has no attribute 'NOTHING' (stub-counters)"

PROJECTOR = {"global": 2 * 4 * 128 * 80, "crops": 2 * 2 * 128 * 80}
"""A linear layer of 64 + 64 -> 80 features on 4 positions of the page and 1 of each of two crops."""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution that offers counters, installed as a folder on the path."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "stub_counters.py").write_text(STUBS)
    info = folder / "stub_counters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stub-counters\nVersion: 1.0\n")
    points = "".join(f"{n} = stub_counters:{n.upper()}\n" for n in NAMES)
    (info / "entry_points.txt").write_text(f"[costproof.counters]\n{points}missing = stub_counters:NOTHING\n")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("stub_counters", None)


@pytest.fixture(scope="module")
def ran(stubs: None) -> tuple[CounterRecord, dict[str, CounterUsage]]:
    """The small model's projector."""
    said: list[tuple[str, int, int]] = []
    found = run_counters(
        small_ocr(), PAGE, ["FlopCounterMode", "raises", "allocates", "dies", "missing"], Limits(300, 3 * GIB),
        stages=("projector",), progress=lambda *step: said.append(step),
    )  # fmt: skip
    assert [(done, total) for _, done, total in said] == [(i, 6) for i in range(1, 7)]
    return found


@pytest.fixture(scope="module")
def counted(ran: tuple[CounterRecord, dict[str, CounterUsage]]) -> CounterRecord:
    """What they said."""
    return ran[0]


def test_a_counter_that_answers(counted: CounterRecord) -> None:
    assert {c.invocation: c.value for c in counted.truth} == PROJECTOR
    assert {c.invocation: c.value for c in counted.runs[0].calls} == PROJECTOR


def test_every_failure_is_a_row_with_its_reason(counted: CounterRecord) -> None:
    errors = {run.info.name: {c.error for c in run.calls} for run in counted.runs}
    assert errors == {
        "FlopCounterMode": {None},
        "raises": {"ValueError: no rule for this |model|"},
        "allocates": {"needs more memory than its limit of 3,072 MiB"},
        "dies": {"its process ended with -9: about to end"},
        "missing": {f"a counter of another distribution cannot be loaded: {NOTHING}"},
    }
    assert [run.version for run in counted.runs][1:] == ["1.0", "1.0", "1.0", None]


def test_one_that_gives_no_answer_has_spent_nothing(ran: tuple[CounterRecord, dict[str, CounterUsage]]) -> None:
    assert ran[1]["dies"].milliseconds == 0


def test_memory_is_that_of_the_process_alone() -> None:
    """Made by a process that is larger than the one that it starts."""
    code = (
        "import subprocess, sys; held = b'x' * 2**29; "
        "sys.exit(subprocess.run([sys.executable, '-c', "
        "'from costproof.tracers.counters.running import peak_bytes; print(peak_bytes())']).returncode)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 2**20 < int(done.stdout) < 2**29


def test_failures_compare_as_failed(counted: CounterRecord) -> None:
    found = compare_counters(counted)
    assert [f.verdict for f in found.totals] == ["exact", *["failed"] * 4]
    assert [f.value for f in found.totals] == [sum(PROJECTOR.values()), None, None, None, None]
    assert {f.truth for f in found.totals} == {sum(PROJECTOR.values())}


class WithoutTruth(DeepseekOcr):
    """A target whose projector refuses TorchLens, which the truth is made with, and nothing else."""

    def build(self, workload: Workload) -> nn.Module:
        """The model of the target."""
        model = super().build(workload)

        def refuse(*_: object) -> None:
            if any("torchlens" in Path(frame.filename).parts for frame in traceback.extract_stack()):
                raise RuntimeError("no truth today")

        model.get_submodule("model.multi_modal_projector").register_forward_pre_hook(refuse)
        return model


def test_counters_that_finished_are_kept_where_the_truth_failed() -> None:
    target = WithoutTruth(small_ocr().config)
    found, _ = run_counters(target, PAGE, ["FlopCounterMode"], Limits(300), stages=("projector",))
    assert {c.invocation for c in found.truth if c.error and "no truth today" in c.error} == set(PROJECTOR)
    compared = compare_counters(found)
    assert {f.invocation: (f.value, f.truth, f.residual, f.verdict) for f in compared.findings} == {
        call: (flops, None, None, "not compared") for call, flops in PROJECTOR.items()
    }
    assert [why.partition(": ")[0] for why in compared.incomplete] == ["the truth is unknown"]


def test_where_the_truth_took_too_long_is_what_the_tools_came_to() -> None:
    came = ("projector", "global", "the cut")
    calls: dict[str, dict[CutKey, CounterCall]] = {TRUTH: {}, "a tool": {came: CounterCall(*came[:2], cut=came[2])}}
    assert expected_cuts(small_ocr(), PAGE, ("projector",), calls) == [came, ("projector", "crops", "")]


def test_nothing_is_known_of_what_no_process_came_to() -> None:
    found, _ = run_counters(small_ocr(), PAGE, [], Limits(1))
    assert {c.stage for c in found.truth} == {"sam", "clip", "projector", "prefill", "decode"}
    assert {(c.error or "").partition(";")[0] for c in found.truth} == {"took longer than 1 s"}


def test_a_tool_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they are installed, so their distributions are hidden."""

    def hidden(package: str) -> str:
        if package in ("ptflops", "ultralytics-thop"):
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr("costproof.ledger.environment._read", hidden)
    names = ("FlopCounterMode", "thop", "ptflops")
    record, spent = record_counters(small_ocr(), PAGE, names, stages=("projector",))
    assert set(spent) == {"FlopCounterMode"}
    assert record.checked[-1].startswith("Not installed, so skipped: thop, ptflops. pip install ")
    compared = compare_counters(record)
    assert [f.verdict for f in compared.totals] == ["exact", "skipped", "skipped"]
    assert [t.version for t in compared.tools][1:] == [None, None]
    assert compared.incomplete == ()
    assert "thop" in resolve_counters(("all",))
    with pytest.raises(Incomplete, match="not installed") as error:
        resolve_counters(("FlopCounterMode", "thop"))
    assert error.value.got == "thop"
    assert "thop" in (error.value.fix or "")


def test_a_truth_that_is_not_that_of_the_formulas_is_none() -> None:
    """8 FLOP are counted on the page, and the formulas have more."""
    target, place = small_ocr(), ("projector", "global")
    linear = CostNode(*place, "part", "linear", {"flops": 8})
    right = CostNode(*place, "part", "linear", {"flops": PROJECTOR["global"]})
    norm = CostNode(*place, "norm", "layer_norm", {"vector_flops": 3})
    unknown = CostNode(*place, "other", "linear", {"flops": None})
    for nodes, why in (
        ((right, norm), None),
        ((linear, norm), f"the reference count, 8, disagrees with the formulas, {PROJECTOR['global']}"),
        ((right, unknown), f"the reference count, null, disagrees with the formulas, {PROJECTOR['global']}"),
    ):
        (call,), said = check_truth(target, PAGE, (CounterCall(*place, nodes),))
        assert call.error == why
        assert said[0] == f"The truth equals the closed formulas in {int(why is None)} of 1 invocation."


@pytest.mark.parametrize(("memory", "most"), [(0, None), (2**60, 1)])
def test_processes_side_by_side(memory: int, most: int | None) -> None:
    at_once = side_by_side(memory)
    assert at_once >= 1
    assert most is None or at_once == most
