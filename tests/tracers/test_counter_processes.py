"""Counters in processes of their own: one that answers, and five of another distribution that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from costproof.compare.counters import compare_counters
from costproof.ledger.counter import CounterRecord
from costproof.ledger.errors import Incomplete
from costproof.processes import Limits
from costproof.tracers.counters.running import GIB, Counted, run_counters, side_by_side
from tests.tracers.realistic import small_ocr
from tests.tracers.small import PAGE

STUBS = '''
import os, sys, time
from costproof.ledger.counter import CounterInfo


class Stub:
    """Does not count, each in its own way."""

    def __init__(self, name, count):
        self.info = CounterInfo(name, "stub-counters", ("1.0",), "flop", "total")
        self.count = count


def raises(model, args):
    raise ValueError("no rule for this |model|\\nand a second line")


def sleeps(model, args):
    time.sleep(600)


def allocates(model, args):
    return bytearray(64 * 2**30)


def dies(model, args):
    print("about to end", file=sys.stderr)
    os._exit(9)


RAISES, SLEEPS, ALLOCATES, DIES = (Stub(f.__name__, f) for f in (raises, sleeps, allocates, dies))
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
def counted(stubs: None) -> Counted:
    """The small model's projector."""
    said: list[tuple[str, int, int]] = []
    found = run_counters(
        small_ocr(), PAGE, ["FlopCounterMode", "raises", "allocates", "dies", "missing"], Limits(300, 3 * GIB),
        stages=("projector",), progress=lambda *step: said.append(step),
    )  # fmt: skip
    assert [(done, total) for _, done, total in said] == [(i, 6) for i in range(1, 7)]
    return found


def test_a_counter_that_answers(counted: Counted) -> None:
    assert {c.invocation: c.value for c in counted.truth} == PROJECTOR
    assert {c.invocation: c.value for c in counted.runs[0].calls} == PROJECTOR


def test_every_failure_is_a_row_with_its_reason(counted: Counted) -> None:
    errors = {run.info.name: {c.error for c in run.calls} for run in counted.runs}
    assert errors == {
        "FlopCounterMode": {None},
        "raises": {"ValueError: no rule for this |model|"},
        "allocates": {"needs more memory than its limit of 3,072 MiB"},
        "dies": {"its process ended with 9: about to end"},
        "missing": {f"a counter of another distribution cannot be loaded: {NOTHING}"},
    }
    assert [run.version for run in counted.runs][1:] == ["1.0", "1.0", "1.0", None]
    assert counted.spent["dies"].milliseconds == 0


def test_memory_is_that_of_the_process_alone() -> None:
    """Made by a process that is larger than the one that it starts."""
    code = (
        "import subprocess, sys; held = b'x' * 2**29; "
        "sys.exit(subprocess.run([sys.executable, '-c', "
        "'from costproof.tracers.counters.worker import peak; print(peak())']).returncode)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 2**20 < int(done.stdout) < 2**29


def test_failures_compare_as_failed(counted: Counted) -> None:
    found = compare_counters(CounterRecord(counted.truth, counted.runs))
    assert [f.verdict for f in found.totals] == ["exact", *["failed"] * 4]
    assert [f.value for f in found.totals] == [sum(PROJECTOR.values()), None, None, None, None]
    assert {f.truth for f in found.totals} == {sum(PROJECTOR.values())}


@pytest.mark.usefixtures("stubs")
def test_without_a_truth_nothing_is_compared() -> None:
    with pytest.raises(Incomplete, match="our own count failed") as error:
        run_counters(small_ocr(), PAGE, [], Limits(1, 0), stages=("projector",))
    assert error.value.got == "took longer than 1 s"


@pytest.mark.parametrize(("memory", "most"), [(0, None), (2**60, 1)])
def test_processes_side_by_side(memory: int, most: int | None) -> None:
    at_once = side_by_side(memory)
    assert at_once >= 1
    assert most is None or at_once == most
