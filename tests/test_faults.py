"""A sample of ``benchmarks.faults``: a report of formulas, ended at two moments by each signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.oracles.faults import COMMANDS, SIGNALS, Found, Place, Whole, end, place

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C is not ignored by what is started, even where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Whole]:
    made = place(tmp_path_factory.mktemp("faults") / "here")
    return made, Whole.of(COMMANDS["formulas"], made)


@pytest.mark.parametrize("after", [0.0, 0.8], ids=["imports", "work"])
@pytest.mark.parametrize("number", SIGNALS, ids=lambda n: n.name)
def test_a_command_that_is_ended(shared: tuple[Place, Whole], number: signal.Signals, after: float) -> None:
    made, whole = shared
    found = Found()
    end(COMMANDS["formulas"], made, number, after, whole, found, patient=True)
    assert (found.moments, found.faults) == (1, [])
