"""A sample of ``benchmarks.faults``: a report of formulas, ended at one moment by each signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults import COMMANDS, SIGNALS, Found, end

from costproof.reports.report import Report, write_report
from tests.reports.toy import toy

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C is not ignored by what is started, even where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
def test_a_command_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    write_report(Report(toy()), tmp_path / "out")
    found = Found()
    end(COMMANDS["formulas"], tmp_path / "out", number, 0.8, found)
    assert (found.moments, found.faults) == (1, [])
    assert not list((tmp_path / "out").glob(".*"))
