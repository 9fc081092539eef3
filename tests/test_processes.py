"""Work in other processes: answers, progress, limits, errors, and nothing that outlives who ordered it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from costproof.ledger.errors import BadInput, CostproofError, Problems
from costproof.processes import Failed, Limits, Outcome, Pool, Work
from costproof.processes import template as templates
from tests.support import working

GIB = 2**30
KINDS: dict[str, tuple[str, ...]] = {"plain": (), "forked": ("json",)}
"""How a process begins: as a Python of its own, or as a fork of one that has imported these modules."""


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def ready(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """Modules that a process begins with."""
    yield request.param
    while templates._kept:
        templates._kept.popitem()[1].end()


def outcomes(work: dict[str, Work[int]], processes: int = 2, **settings: Any) -> dict[str, Outcome[int]]:
    """How each piece ended."""
    with Pool[int](processes, **settings) as pool:
        return {o.name: o for o in pool.results(work)}


def said(found: Outcome[int]) -> str:
    """The error in one line."""
    assert isinstance(found.error, Failed)
    return found.error.what


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody asked for its code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(pids: list[int], seconds: float = 5) -> bool:
    """Whether all have ended within so many seconds."""
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_answers_and_what_is_said_on_the_way() -> None:
    heard: list[tuple[str, int]] = []
    work = {str(n): partial(working.square, n) for n in range(5)}
    with Pool[int](2) as pool:
        found = {o.name: o.result() for o in pool.results(work, lambda name, number: heard.append((name, number)))}
    assert found == {"0": 0, "1": 1, "2": 4, "3": 9, "4": 16}
    assert sorted(heard) == [(str(n), n) for n in range(5)]


def test_a_piece_that_fails_takes_no_other_with_it(ready: tuple[str, ...]) -> None:
    work: dict[str, Work[int]] = {
        "raises": working.raises,
        "refuses": working.refuses,
        "dies": working.dies,
        "exits": working.exits,
        "unsendable": working.unsendable,
        "square": partial(working.square, 3),
    }
    found = outcomes(work, 1, ready=ready)
    assert found["square"].result() == 9
    assert said(found["raises"]) == "ValueError: no such thing"
    assert any("in raises" in note for note in found["raises"].error.__notes__)  # type: ignore[union-attr]
    assert said(found["dies"]) == "its process ended with -9: about to end"
    assert "pickle" in said(found["unsendable"])
    with pytest.raises(BadInput, match="the code that was called ends the program"):
        found["exits"].result()
    with pytest.raises(Problems) as problems:
        found["refuses"].result()
    assert [str(p) for p in problems.value.problems] == ["a\n  got:      null", "b\n  where:    here"]


def test_what_cannot_be_ordered_is_said_at_once() -> None:
    with Pool[int](1) as pool, pytest.raises(Exception, match="pickle"):
        pool.results({"a": lambda say: 1})


def test_limits(ready: tuple[str, ...]) -> None:
    limits = Limits(seconds=3, memory_bytes=2 * GIB)
    work: dict[str, Work[int]] = {"sleeps": working.sleeps, "allocates": working.allocates, "spins": working.spins}
    found = outcomes(work, limits=limits, ready=ready)
    assert said(found["sleeps"]) == said(found["spins"]) == "took longer than 3 s"
    assert said(found["allocates"]) == "needs more memory than its limit of 2,048 MiB"


def test_fresh_processes(ready: tuple[str, ...]) -> None:
    work: dict[str, Work[int]] = {str(n): working.pid for n in range(3)}
    assert len({o.answer for o in outcomes(work, 1, ready=ready).values()}) == 1
    assert len({o.answer for o in outcomes(work, 1, fresh=True, ready=ready).values()}) == 3


def parents() -> set[int | None]:
    """What forked three new processes."""
    work: dict[str, Work[int]] = {str(n): working.parent for n in range(3)}
    return {o.answer for o in outcomes(work, 1, fresh=True, ready=("json", "there_is_no_such_module")).values()}


def test_forks_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = parents()
    assert first not in (None, os.getpid())
    assert parents() == {first}
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")  # what is read on import, and perhaps only there
    (second,) = parents()
    assert second != first
    assert second is not None
    os.kill(second, signal.SIGKILL)
    assert ended([second])
    (third,) = parents()
    assert third not in (first, second)
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "info")
    parents()
    assert first is not None
    assert ended([first])  # no more than two are kept


def test_a_fork_begins_with_what_was_imported_and_in_this_folder(
    ready: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = outcomes({"a": partial(working.where, "colorsys")}, ready=(*ready, "colorsys") if ready else ())["a"]
    assert found.result() == (str(tmp_path), bool(ready))  # type: ignore[comparison-overlap]


def test_files_of_the_current_folder_are_not_taken_for_libraries(
    ready: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of a model is where people work, and its author chose what lies there."""
    for name in ("bisect", "heapq", "json", "pickle", "random", "sympy", "tempfile", "typing"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANOTHER", "environment, so that nothing is forked that began elsewhere")
    assert outcomes({"a": working.pid}, ready=ready)["a"].error is None
    assert not (tmp_path / "RAN").exists()


def test_a_process_that_still_imports_ends_with_who_began_it(tmp_path: Path) -> None:
    (tmp_path / "takes_long.py").write_text("import os, time; print(os.getpid()); open('began', 'w'); time.sleep(60)")
    code = (
        "import sys, threading, time; from pathlib import Path; from costproof.processes.template import Template, os\n"
        "made = Template(('takes_long',), dict(os.environ))\n"
        "print(made._process.pid, flush=True)\n"
        "while not Path('began').exists(): time.sleep(0.02)\n"
        "os._exit(0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *(p for p in sys.path if p)))}
    began = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, check=True
    )
    assert ended([int(began.stdout)], 2)


def test_what_is_forked_from_ends_with_this_process_even_while_it_imports() -> None:
    """At once, and not when an import lets go of it."""
    with Pool[int](1, ready=("json", "colorsys")) as pool:
        list(pool.results({"a": working.pid}))
    (kept,) = templates._kept.values()
    templates.end_all()
    kept._process.wait(5)
    assert kept._process.returncode == -signal.SIGKILL
    templates._kept.clear()


def test_nothing_goes_on_after_the_pool(ready: tuple[str, ...]) -> None:
    pids: list[int] = []
    with Pool[int](1, ready=ready) as pool:
        pool.results({"a": working.sleeps, "b": working.sleeps}, lambda name, some: pids.extend(some))
        while not pids:
            time.sleep(0.05)
    assert len(pids) == 2
    assert ended(pids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_outlives_who_ordered_it(how: str, kind: str) -> None:
    """Two pieces of work, one of which has started a process and one of which never lets go of the processor."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", f"from tests.support.working import main; main({KINDS[kind]!r})"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ordering:
        assert ordering.stdout is not None
        try:
            pids = [int(pid) for _ in range(2) for pid in ordering.stdout.readline().split()]
            assert len(pids) == 3
            assert all(map(alive, pids))
            ordering.send_signal(getattr(signal, how))
            ordering.wait(20)
        finally:
            ordering.kill()
    assert ended(pids)


def test_an_error_of_ours_stays_what_it_is() -> None:
    found = outcomes({"a": working.refuses})["a"].error
    assert type(found) is Problems
    assert isinstance(found, CostproofError)
    assert found.exit_code == 2


def test_no_room_for_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    found = outcomes({"a": working.pid, "b": working.pid}, 1)
    assert [said(o) for o in found.values()] == ["OSError: [Errno 12] Cannot allocate memory"] * 2


def test_a_process_that_cannot_be_started_fails_its_work_whatever_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of others may have replaced what starts it."""
    monkeypatch.setattr("costproof.processes.Child", None)
    assert said(outcomes({"a": partial(working.square, 3)}, 1)["a"]) == "TypeError: 'NoneType' object is not callable"
