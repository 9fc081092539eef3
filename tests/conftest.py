"""Shared fixtures: text goldens with ``--update-goldens``, and one folder of kept exports for a run of the tests."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from costproof.processes import child
from tests.support.pools import TRACES, Here, Kept, shared_template

FOLDER = "COSTPROOF_CACHE"
GOLDENS = Path(__file__).parent / "goldens"
DURATIONS = Path(__file__).parent / "durations.json"
"""Test file -> seconds of its tests, for files that take 5 seconds or more."""

Golden = Callable[[str, str], None]
"""``golden(name, text)``: the text must equal ``tests/goldens/<name>``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of these tests."""
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew instead of comparing")
    parser.addoption("--update-durations", action="store_true", help="write how long each file takes; run all tests")
    parser.addoption("--workloads", type=int, default=1, help="random workloads of DeepSeek-OCR to count three ways")
    parser.addoption("--thorough", action="store_true", help="all layers, all sources and every way to run")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with an empty folder of exports. The processes of ``--numprocesses`` and what tests start share it.

    Each of them has a core of its own: threads of torch beside would wait for one another. Models and graphs are
    objects by the million that go when their test ends, so that garbage is seldom looked for.
    """
    gc.set_threshold(1_000_000, 50, 100)
    # On a busy machine examples take as long as they take.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
    mock.patch.object(child, "template", shared_template).start()
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="exports-")
        os.environ[TRACES] = tempfile.mkdtemp(prefix="traces-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it."""
    if not hasattr(config, "workerinput"):
        for folder in (FOLDER, TRACES):
            shutil.rmtree(os.environ.pop(folder), ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for ``--thorough``, and run the files that take longest first.

    At the end all processes but one would wait for them.
    """
    if not config.getoption("--thorough"):
        left = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -seconds.get(item.location[0].replace(os.sep, "/"), 0))


_spent: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up how long each file takes."""
    _spent[report.location[0].replace(os.sep, "/")] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write how long each file took, with ``--update-durations``."""
    if session.config.getoption("--update-durations") and not hasattr(session.config, "workerinput"):
        longest = {file: round(seconds) for file, seconds in sorted(_spent.items()) if seconds >= 5}
        DURATIONS.write_text(json.dumps(longest, indent=1) + "\n", encoding="utf-8", newline="\n")


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether everything is counted in every way."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As pytest's own, and modules that were first imported meanwhile do not keep what was put in place of a function.

    Commands are imported when they run: ``from costproof.x import f`` in one of them would bind the replacement of
    ``f`` for all later tests of the process.
    """
    before = set(sys.modules)
    yield monkeypatch
    modules = [(m, name, old) for m, name, old in monkeypatch._setattr if isinstance(m, ModuleType)]
    replaced = [(name, vars(m)[name], old) for m, name, old in modules if name in vars(m)]
    for late in [sys.modules[n] for n in sys.modules.keys() - before if n.startswith("costproof.")]:
        for name, new, old in replaced:
            if name in vars(late) and vars(late)[name] is new:
                setattr(late, name, old)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both graph sources in this process: to begin one for the dynamic source takes longer than to trace a small model.

    What would be sent is pickled all the same.
    """
    from costproof.tracers import sources

    monkeypatch.setattr(sources, "Pool", Here)


@pytest.fixture
def proof_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of a proof in this process, for tests of what is said of a proof."""
    from costproof.run import proof

    monkeypatch.setattr(proof, "Pool", Here)


@pytest.fixture
def kept_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As :func:`one_process`, and a run that these tests traced before is read again.

    For commands, pages, files, and what several of them count. A proof is tested on fresh traces.
    """
    from costproof.tracers import sources

    monkeypatch.setattr(sources, "Pool", Kept)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare a text with its golden file, or write the file anew with ``--update-goldens``."""
    update = bool(request.config.getoption("--update-goldens"))

    def check(name: str, text: str) -> None:
        path = GOLDENS / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        assert path.is_file(), f"no golden {name}: run pytest --update-goldens and read the new file"
        assert text == path.read_text(encoding="utf-8"), f"differs from tests/goldens/{name}"

    return check
